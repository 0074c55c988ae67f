// Binary32 to fixed point (SPEC.md section 3) and on to digit planes (exact_dot_planes.cuh), four elements at a time.
//
// x * 2^(BITS-1-e) is exact. Adding 1.5 * 2^23 makes the adder round it to the nearest even integer q, which then lies in the low
// bits of the word; what is added with it, an even number, turns the digits, which round, into plain fields of bits:
//
//   14 bits: q + 64          = 128 h + (l + 64)
//   21 bits: q + 64 * 129    = 2^14 a + 2^7 (b + 64) + (c + 64)
//
// So a digit costs neither a conversion nor a shift of its own: fields of four elements are gathered and worked on as bytes of a word.
// A row with an element that is not finite sets the status, and its digits mean nothing.
#pragma once
#include "common.cuh"
#include "exact_dot_planes.cuh"

// Bits of |x| order like the numbers; inf and NaN are above every finite one.
__device__ __forceinline__ u32 magnitude(float x) { return bits_of(x) & 0x7fffffffu; }
__device__ __forceinline__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }

__device__ __forceinline__ u32 warp_max(u32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, value);
#else
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
#endif
}

// row_exponent of a magnitude given as bits, without a branch: zero counts as subnormal, and has the least of all exponents.
__device__ __forceinline__ i32 exponent_of(u32 largest) {
    i32 field = (i32)(largest >> 23);
    return field ? field - 126 : -117 - __clz((i32)largest);
}
__device__ __forceinline__ void note_exponent(u32 largest, i32* exponent, u32* status) {
    bool finite = largest < 0x7f800000u;
    *exponent = finite ? exponent_of(largest) : -149;
    if (!finite) atomicOr(status, NOT_FINITE);
}

// 2^(BITS-1-e) as two factors in range. A product that falls below 2^-126 on the way belongs to a value far below one half, which
// becomes 0 either way.
struct Scale {
    float first, second;
};
template <int BITS>
__device__ __forceinline__ Scale scale_to_fixed(u32 largest) {
    i32 shift = BITS - 1 - exponent_of(largest), half = shift >> 1;
    return Scale{power_of_two(half), power_of_two(shift - half)};
}

template <int BITS>
__device__ __forceinline__ u32 shifted_integer(float x, const Scale& scale) {
    constexpr float ROUND = 12582912.0f + (BITS == 14 ? 64 : 64 * 129);
    return bits_of((x * scale.first) * scale.second + ROUND);
}

// Bytes v of 0 .. 127 become v - 64.
__device__ __forceinline__ u32 centred(u32 v) {
    u32 u = v ^ 0x40404040u;
    return u | (u & 0x40404040u) << 1;
}
// Sums of bytes, each modulo 256.
__device__ __forceinline__ u32 add_bytes(u32 a, u32 b) {
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}

// One word of each plane from four shifted integers.
template <int BITS>
struct Words {
    u32 of[PLANES<BITS>];

    __device__ __forceinline__ explicit Words(const u32* t) {
        u32 even = __byte_perm(t[0], t[1], 0x5410), odd = __byte_perm(t[2], t[3], 0x5410);
        u32 low = centred(__byte_perm(even, odd, 0x6420) & 0x7f7f7f7fu);
        u32 high = __byte_perm(even << 1, odd << 1, 0x7531);  // bits 7 .. 14
        if (BITS == 14) {
            of[0] = high;
            of[1] = add_bytes(high, low);
            of[2] = low;
        } else {
            u32 middle = centred(high & 0x7f7f7f7fu);
            u32 top = __byte_perm(__byte_perm(t[0] << 2, t[1] << 2, 0x0062), __byte_perm(t[2] << 2, t[3] << 2, 0x0062), 0x5410);
            of[0] = top;
            of[1] = middle;
            of[2] = low;
            of[3 % PLANES<BITS>] = add_bytes(top, middle);
            of[4 % PLANES<BITS>] = add_bytes(middle, low);
            of[5 % PLANES<BITS>] = add_bytes(top, low);
        }
    }
};

template <int BITS>
__device__ __forceinline__ Words<BITS> words_of(const float* x, const Scale& scale) {
    u32 t[4];
#pragma unroll
    for (int c = 0; c < 4; c++) t[c] = shifted_integer<BITS>(x[c], scale);
    return Words<BITS>(t);
}

template <int BITS>
__device__ __forceinline__ void store_words(i8* to, i64 stride, const Words<BITS>& words) {
#pragma unroll
    for (int p = 0; p < PLANES<BITS>; p++) *(u32*)(to + p * stride) = words.of[p];
}
