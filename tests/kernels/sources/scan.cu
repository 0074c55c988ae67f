// What tests/kernels/scan.py must find, one thing a kernel; and what it must let pass.
#include "common.cuh"

GLOBAL void contracted(float* x) { x[0] = x[1] * x[2] + x[3]; }
GLOBAL void contracted_double(double* x) { x[0] = x[1] * x[2] + x[3]; }
GLOBAL void fused_with_constant(float* x) { x[0] = __fmaf_rn(x[1], 3.0f, x[2]); }
GLOBAL void approximate(float* x) { x[0] = exp2f(x[1]) + __sinf(x[2]); }
GLOBAL void fast_division(float* x) { x[0] = __fdividef(x[1], x[2]); }
GLOBAL void float_atomic(float* x) { atomicAdd(x, 1.0f); }
GLOBAL void towards_zero(float* x) { x[0] = __fadd_rz(x[1], x[2]); }
GLOBAL void local_array(float* x, i32 i, i32 j) {
    float a[32];
    for (i32 k = 0; k < 32; k++) a[(k * i) & 31] = x[k];
    x[0] = a[j & 31];
}

GLOBAL void plain(float* x, double* y, i32* n) {
    x[0] = __fadd_rn(__fmul_rn(x[1], x[2]), x[3]);
    y[0] = __dadd_rn(__dmul_rn(y[1], y[2]), y[3]);
    n[0] = n[1] * n[2] + n[3] / n[4];
    atomicAdd(n, n[5]);
}
GLOBAL void division(float* x) { x[0] = x[1] / x[2] + sqrtf(x[3]); }
