// What a thread of exact_dot_sm90.cu keeps of its elements while one plane after the other is multiplied, and how it becomes exact.
//
// All of these have
//   sum           the int32 registers that the tensor cores add to, modulo 2^32
//   FRESH         whether the sums begin at zero again after each segment, not only in each tile
//   segment(p)    elements of K of plane p that may be added before `after` must be called
//   after(p, end) called after each segment, with the sums in `sum`; `end`: it was the plane's last
//   value(i)      the exact sum of products of element i, after the last plane
//   rounded(i, ..) the same, rounded and scaled, for tame rows (exact_dot_planes.cuh)
#pragma once
#include "common.cuh"
#include "exact_dot_planes.cuh"

// RN32(high * 2^22 + low) * 2^scales for |high| < 2^22, 0 <= low < 2^22. A number below 2^22 in the last bits of 1.5 * 2^45 or of
// 2^23 is that float plus the number, so that no conversion is needed, and what is subtracted from one is what the other has too
// much: both terms are exact and the sum is the only rounding. (The result of a zero sum is +0.)
__device__ __forceinline__ float join(i32 high, i32 low, float scale_a, float scale_b) {
    float upper = float_of(0x56400000u + (u32)high) - 52776566521856.0f;  // 1.5 * 2^45 + 2^23
    float lower = float_of(0x4b000000u | (u32)low);
    return (upper + lower) * scale_a * scale_b;
}

// Two 16-bit halves of a word.
__device__ __forceinline__ i32 half_of(u32 word, int half) { return half ? (i32)word >> 16 : (i32)(word << 16) >> 16; }
// Modulo 2^32.
__device__ __forceinline__ i32 times(i32 x, u32 by) { return (i32)((u32)x * by); }
__device__ __forceinline__ i32 less(i32 x, i32 y, int shift) { return (i32)((u32)x - ((u32)y << shift)); }
__device__ __forceinline__ u32 upper_halves(i32 x, i32 y) { return __byte_perm((u32)x, (u32)y, 0x7632); }
__device__ __forceinline__ u32 lower_halves(i32 x, i32 y) { return __byte_perm((u32)x, (u32)y, 0x5410); }

// The inverse of 127 modulo 2^32 and what the last product is divided by: a sum S R + L of int32 products with S = -128 / 127 is
// 128 R - 127 L after a multiplication by -127, modulo 2^32.
constexpr u32 OVER_127 = 0xefdfbf7fu;
constexpr u32 BEFORE_LAST = 0u - 128u * OVER_127, MINUS_127 = 0u - 127u;
static_assert(OVER_127 * 127u == 1u, "");

// 14 bits, K <= 3840. v = 128 R - 127 LL with R = 127 HH + SS. |127 h h' + s s'| <= 127 h^2 + s^2 <= 2^19 for the larger, so R is
// an int32 for K < 4096. Its upper half c is kept, the rest stays in the sum: v = c 2^23 + d, where d = 128 (R mod 2^16) - 127 LL
// is below 2^23 + 127 * 2^12 K < 2^31, and so known from its last 32 bits.
template <int N>
struct ShortSums {
    static constexpr int BITS = 14, COUNT = N / 2, LARGEST_K = 3840;
    static constexpr bool FRESH = false;
    i32 sum[COUNT];
    u32 upper[COUNT / 2];

    __device__ __forceinline__ static i64 segment(int) { return LARGEST_K; }

    __device__ __forceinline__ void after(int plane, bool) {
        if (plane == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) sum[i] = times(sum[i], 127);
        } else if (plane == 1) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) {
                upper[i / 2] = upper_halves(sum[i], sum[i + 1]);
                sum[i] = times(sum[i], BEFORE_LAST);
                sum[i + 1] = times(sum[i + 1], BEFORE_LAST);
            }
        }
    }
    __device__ __forceinline__ i32 rest(int i) const {
        return less(times(sum[i], MINUS_127), half_of(upper[i / 2], i % 2), 23);
    }
    __device__ __forceinline__ i64 value(int i) const {
        return (i64)half_of(upper[i / 2], i % 2) * (1 << 23) + rest(i);
    }
    __device__ __forceinline__ float rounded(int i, float scale_a, float scale_b) const {
        i32 d = rest(i);
        return join(half_of(upper[i / 2], i % 2) * 2 + (d >> 22), d & 0x3fffff, scale_a, scale_b);
    }
};

// 14 bits, K <= 32640. As ShortSums, but R has up to 35 bits. HH is an int32, and of it the upper half t is kept:
// R = 127 t 2^16 + d with d = 127 (HH mod 2^16) + SS < 2^31. Then c = floor(R / 2^19) is kept, |c| <= K: v = c 2^26 + d with
// d = 128 (R mod 2^19) - 127 LL. After each 3840 elements of the last plane d is below 2^26 + 127 * 2^12 * 3840 < 2^31, and what it
// has beyond 26 bits goes to c. A part of LL gives a sum of products of part of the digits, which 2^26 K bounds too.
template <int N>
struct LongSums {
    static constexpr int BITS = 14, COUNT = N / 2, LARGEST_K = 32640;
    static constexpr bool FRESH = false;
    i32 sum[COUNT];
    u32 upper[COUNT / 2];

    __device__ __forceinline__ static i64 segment(int plane) { return plane == 2 ? 3840 : LARGEST_K; }

    __device__ __forceinline__ void after(int plane, bool end) {
        if (plane == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) {
                upper[i / 2] = upper_halves(sum[i], sum[i + 1]);
                sum[i] = times(sum[i], 127);
                sum[i + 1] = times(sum[i + 1], 127);
            }
        } else if (plane == 1) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) {
                upper[i / 2] = lower_halves(over_19(half_of(upper[i / 2], 0), sum[i]), over_19(half_of(upper[i / 2], 1), sum[i + 1]));
                sum[i] = times(sum[i], BEFORE_LAST);
                sum[i + 1] = times(sum[i + 1], BEFORE_LAST);
            }
        } else if (!end) {
#pragma unroll
            for (int i = 0; i < COUNT; i += 2) {
                i32 c = half_of(upper[i / 2], 0), c1 = half_of(upper[i / 2], 1);
                upper[i / 2] = lower_halves(c + (rest_of(c, sum[i]) >> 26), c1 + (rest_of(c1, sum[i + 1]) >> 26));
            }
        }
    }
    // floor(R / 2^19)
    __device__ __forceinline__ static i32 over_19(i32 t, i32 sum) {
        i32 above = 127 * t;
        return (above + (less(sum, above, 16) >> 16)) >> 3;
    }
    __device__ __forceinline__ static i32 rest_of(i32 c, i32 sum) { return less(times(sum, MINUS_127), c, 26); }
    __device__ __forceinline__ i64 value(int i) const {
        i32 c = half_of(upper[i / 2], i % 2);
        return (i64)c * (1 << 26) + rest_of(c, sum[i]);
    }
    __device__ __forceinline__ float rounded(int i, float scale_a, float scale_b) const {
        i32 c = half_of(upper[i / 2], i % 2), d = rest_of(c, sum[i]);
        return join(c * 16 + (d >> 22), d & 0x3fffff, scale_a, scale_b);
    }
};

// Any K, 14 or 21 bits: 64-bit totals in registers, for half as many elements. The product of two planes is an int32 for up to
// 2^16 terms, 128 * 128 * 2^16 < 2^31.
template <int BITS_, int N>
struct WideSums {
    static constexpr int BITS = BITS_, COUNT = N / 2;
    static constexpr bool FRESH = true;
    i32 sum[COUNT];
    i64 total[COUNT];

    __device__ __forceinline__ static i64 segment(int) { return 65536; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < COUNT; i++) total[i] = 0;
    }
    __device__ __forceinline__ void after(int plane, bool) {
        i32 weight = (i32)plane_weight<BITS>(plane);
#pragma unroll
        for (int i = 0; i < COUNT; i++) total[i] += (i64)weight * sum[i];
    }
    __device__ __forceinline__ i64 value(int i) const {
        return total[i];
    }
    __device__ __forceinline__ float rounded(int i, float scale_a, float scale_b) const {
        return round_tame<BITS>(total[i], scale_a, scale_b);
    }
};
