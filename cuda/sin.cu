// sin x, elementwise, x in radians (SPEC.md section 6.4). x, y float [n]; y may be x. An element is treated alone, by any thread.
//
// Test: pytest tests/kernels/test_sin.py
#include "angle.cuh"

GLOBAL void sin_elements(const float* x, float* y, i64 n) {
    for (i64 at = global_index(); at < n; at += global_size()) {
        float sine, cosine;
        sin_cos_f32(x[at], &sine, &cosine);
        y[at] = sine;
    }
}
