// ln x, elementwise (SPEC.md section 6.3). x, y float [n]; y may be x. An element is treated alone, by any thread.
//
// Test: pytest tests/kernels/test_log.py
#include "elementary.cuh"
#include "quad.cuh"

GLOBAL void log_elements(const float* x, float* y, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad q = load_quad(x, at, n);
#pragma unroll
        for (int c = 0; c < 4; c++) q.v[c] = log_f32(q.v[c]);
        store_quad(y, at, n, q);
    }
}
