// Weights of weighted sums (SPEC.md section 8) and warp-wide maxima and sums.
#pragma once
#include "common.cuh"
#include "exact_dot_planes.cuh"

#define ZERO_ROW (-149)
#define NO_BOUND (-100000)  // below the exponent of any product of a binary32 and a row's scale

// The larger of `bound` and frexp(|w| * 2^x), which is frexp(|w|) + x: scaling by a power of two only moves the exponent. Rows
// of zeros and zero weights do not count.
__device__ __forceinline__ i32 product_exponent(float w, i32 x, i32 bound) {
    if (x == ZERO_ROW || w == 0.0f) return bound;
    i32 e = row_exponent(w) + x;
    return e > bound ? e : bound;
}

// What is rounded to the integer weight rint(w * 2^(x - bound + BITS - 1)), for |w| * 2^x <= 2^bound; 0 for a row of zeros. Anything
// for a w that is not finite, in a step that has failed.
//
// The power of two is taken in two factors, of which the first product only loses bits below 2^-126 where the second makes it
// smaller still, and 0. For w != 0 the power is at most 2^(149 + BITS - 1); below 2^-240 nothing is left.
template <int BITS>
__device__ __forceinline__ float weight_of(float w, i32 x, i32 bound) {
    i32 shift = min(max(x - bound + BITS - 1, -240), 240), half = shift >> 1;
    float first = x == ZERO_ROW ? 0.0f : power_of_two(half);
    return (w * first) * power_of_two(shift - half);
}

// weight_of for 0 <= w <= 1 and x <= bound, where one factor will do: below 2^-126 it makes 0 of any such w.
template <int BITS>
__device__ __forceinline__ float weight_of_share(float w, i32 x, i32 bound) {
    i32 shift = x - bound + BITS - 1;
    return w * (x == ZERO_ROW || shift < -126 ? 0.0f : power_of_two(shift));
}

__device__ __forceinline__ float warp_max_float(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

__device__ __forceinline__ i32 warp_max_int(i32 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        i32 other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

__device__ __forceinline__ i64 warp_sum_i64(i64 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}
