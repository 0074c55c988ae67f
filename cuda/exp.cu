// e^x, elementwise (SPEC.md section 6.2). x, y float [n]; y may be x. An element is treated alone, by any thread.
//
// Test: pytest tests/kernels/test_exp.py
#include "elementary.cuh"
#include "quad.cuh"

GLOBAL void exp_elements(const float* x, float* y, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad q = load_quad(x, at, n);
#pragma unroll
        for (int c = 0; c < 4; c++) q.v[c] = exp_f32(q.v[c]);
        store_quad(y, at, n, q);
    }
}
