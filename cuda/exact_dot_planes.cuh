// Integers of B bits as planes of int8 digits, and back to one rounded binary32 (SPEC.md section 3).
//
// 14 bits: q = 128 h + l. Planes h, s = h + l, l, since q q' = 16256 hh' + 128 ss' - 127 ll' takes three products, not four.
// 21 bits: q = 2^14 a + 2^7 b + c. Planes a, b, c, a + b, b + c, a + c: six products, not nine. Digits lie in [-64, 64],
// sums of two in [-128, 127].
//
// A plane lies in memory as the tensor-core kernels keep it in shared memory, so that a copy is nothing but a copy:
//   [matrix of the batch][block of 64 rows][block of 64 bytes of K][64 rows][4 pieces of 16 bytes]
// where the pieces of a row are permuted (place_in_block) so that the eight rows which ldmatrix reads together lie in eight
// different groups of banks. A matrix has whole blocks; what is in its rows beyond M does not matter, bytes of K beyond the
// row's own length are zero.
#pragma once
#include "common.cuh"

#define BLOCK_ROWS 64
#define BLOCK_BYTES 4096

// Byte of (row, k) inside a block, both below 64.
__device__ __forceinline__ i32 place_in_block(i32 row, i32 k) { return row * 64 + ((((k >> 4) ^ (row >> 1)) & 3) << 4) + (k & 15); }

// The planes of `batch` matrices of `rows` rows.
struct Layout {
    i64 matrix;  // bytes of a matrix
    i64 block;   // bytes of a block of 64 rows
    i64 plane;   // bytes of a plane

    __device__ __forceinline__ i64 place(i64 of, i64 row, i64 k) const {
        return of * matrix + (row >> 6) * block + (k >> 6) * BLOCK_BYTES + place_in_block((i32)row & 63, (i32)k & 63);
    }
};

__device__ __forceinline__ Layout layout_of(i64 batch, i64 rows, i64 padded) {
    i64 block = padded * BLOCK_ROWS, matrix = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * block;
    return Layout{matrix, block, batch * matrix};
}

template <int BITS>
constexpr int PLANES = BITS == 14 ? 3 : 6;

// What the product of two equal planes counts in the sum of products of the integers.
template <int BITS>
__device__ __forceinline__ i64 plane_weight(int plane) {
    if (BITS == 14) return plane == 0 ? 16256 : plane == 1 ? 128 : -127;
    switch (plane) {
        case 0: return (1 << 28) - (1 << 21) - (1 << 14);   // aa
        case 1: return -(1 << 21) + (1 << 14) - (1 << 7);   // bb
        case 2: return 1 - (1 << 7) - (1 << 14);            // cc
        case 3: return 1 << 21;                             // (a + b)(a' + b')
        case 4: return 1 << 7;                              // (b + c)(b' + c')
        default: return 1 << 14;                            // (a + c)(a' + c')
    }
}

// Split |q| <= 2^(BITS-1) into its planes.
template <int BITS>
__device__ __forceinline__ void digits_of(i32 q, i32* digit) {
    i32 high = (q + 64) >> 7, low = q - high * 128;
    if (BITS == 14) {
        digit[0] = high;
        digit[1] = high + low;
        digit[2] = low;
    } else {
        i32 top = (high + 64) >> 7, middle = high - top * 128;
        digit[0] = top;
        digit[1] = middle;
        digit[2] = low;
        digit[3] = top + middle;
        digit[4] = middle + low;
        digit[5] = top + low;
    }
}

// Four neighbouring integers as one word of each plane.
template <int BITS>
__device__ __forceinline__ void store_digits(i8* planes, i64 at, i64 stride, const i32* q) {
    u32 word[PLANES<BITS>] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i32 digit[PLANES<BITS>];
        digits_of<BITS>(q[i], digit);
#pragma unroll
        for (int p = 0; p < PLANES<BITS>; p++) word[p] |= ((u32)digit[p] & 255u) << (8 * i);
    }
#pragma unroll
    for (int p = 0; p < PLANES<BITS>; p++) *(u32*)(planes + p * stride + at) = word[p];
}

// The integer whose plane 0 digit is at `at`.
template <int BITS>
__device__ __forceinline__ i32 integer_of(const i8* at, i64 stride) {
    if (BITS == 14) return 128 * (i32)at[0] + at[2 * stride];
    return 16384 * (i32)at[0] + 128 * (i32)at[stride] + at[2 * stride];
}

// rint(x * 2^(BITS-1-e)) for |x| <= 2^e. The two factors are powers of two in range; a product that falls below 2^-126 on the
// way belongs to a value far below one half, which becomes 0 either way.
template <int BITS>
__device__ __forceinline__ i32 fixed_of(float x, i32 e) {
    i32 shift = BITS - 1 - e, half = shift / 2;
    return __float2int_rn((x * power_of_two(half)) * power_of_two(shift - half));
}

// RN32(v * 2^(ea + eb - 2 (BITS-1))) for any int64: to odd beyond 53 bits, which the later rounding to 24 bits cannot notice
// (Boldo and Melquiond, 2005).
template <int BITS>
__device__ __forceinline__ float round_any(i64 v, i32 ea, i32 eb) {
    double exact;
    if (v < (1ll << 53) && v > -(1ll << 53))
        exact = (double)v;
    else
        exact = (double)((v >> 11) | ((v & 2047) != 0)) * 2048.0;
    i32 scale = ea + eb - 2 * (BITS - 1), half = scale / 2;
    return (float)((exact * power_of_two64(half)) * power_of_two64(scale - half));
}

// Exponents between which round_tame takes both rows.
template <int BITS>
__device__ __forceinline__ bool is_tame(i32 e) {
    constexpr i32 LIMIT = BITS == 14 ? 62 : 42;
    return (u32)(e + LIMIT) <= 2u * LIMIT;
}
// A row's part of the scale.
template <int BITS>
__device__ __forceinline__ float scale_of(i32 e) {
    return power_of_two(e - (BITS - 1));
}

// round_any of two rows with tame exponents, in binary32; for 14 bits |v| < 2^42. 21 bits: a result is not below 2^-126. 14 bits:
// both parts are exact and the sum rounds; a result in the subnormal range has |v| < 2^24, so the last product is the
// only rounding then.
template <int BITS>
__device__ __forceinline__ float round_tame(i64 v, float scale_a, float scale_b) {
    float sum = BITS == 14 ? (float)(i32)(v >> 18) * 262144.0f + (float)(i32)(v & 262143) : __ll2float_rn(v);
    return (sum * scale_a) * scale_b;
}
