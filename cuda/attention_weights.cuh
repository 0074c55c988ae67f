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

// rint(w * 2^(x - bound + BITS - 1)) for |w| * 2^x <= 2^bound; 0 for a row of zeros. Binary64, always exact, where one power of
// two of binary32 does not reach; a binary32 product below 2^-126 becomes 0 as it should.
template <int BITS>
__device__ __forceinline__ i32 weight_of(float w, i32 x, i32 bound) {
    if (x == ZERO_ROW || w == 0.0f) return 0;
    i32 shift = x - bound + BITS - 1;
    if (shift >= -120 && shift <= 120) return __float2int_rn(w * power_of_two(shift));
    return __double2int_rn((double)w * power_of_two64(shift));
}

// weight_of for a weight that may be infinite or NaN in a step that has already failed.
template <int BITS>
__device__ __forceinline__ i32 finite_weight(float w, i32 x, i32 bound) {
    return is_finite(w) ? weight_of<BITS>(w, x, bound) : 0;
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
