// A correctly rounded quotient by a divisor that serves many, without a branch.
#pragma once
#include "common.cuh"

// x / l, rounded once, for x = 0 or 2^-75 <= |x| < 2^120, 1 <= l < 2^39 and reciprocal = RN(1 / l). The first quotient is off by at
// most two units, the second by hardly more than half of one; the remainder of that is exact, a multiple of 2^-137, and by Markstein's
// theorem the last sum is the quotient (IBM J. Res. Dev. 34, 1990; Muller et al., Handbook of Floating-Point Arithmetic, 4.7).
__device__ __forceinline__ float divided(float x, float l, float reciprocal) {
    float q = x * reciprocal;
    q = __fmaf_rn(__fmaf_rn(-q, l, x), reciprocal, q);
    return __fmaf_rn(__fmaf_rn(-q, l, x), reciprocal, q);
}
