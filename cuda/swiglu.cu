// SwiGLU, forward and backward (SPEC.md section 10).
//
//   gate, up, y, dy, dgate, dup  float [n]
//
// An element is treated alone, by any thread. Backward computes the sigmoid again: the same bits, and no array to keep.
//
// Test: pytest tests/kernels/test_swiglu.py
#include "elementary.cuh"
#include "quad.cuh"

__device__ __forceinline__ float sigmoid_f32(float a) {
    float t = exp_f32(-fabsf(a));
    return (a >= 0.0f ? 1.0f : t) / (1.0f + t);
}

GLOBAL void swiglu_forward(const float* gate, const float* up, float* y, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad a = load_quad(gate, at, n), b = load_quad(up, at, n);
#pragma unroll
        for (int c = 0; c < 4; c++) a.v[c] = (a.v[c] * sigmoid_f32(a.v[c])) * b.v[c];
        store_quad(y, at, n, a);
    }
}

GLOBAL void swiglu_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad d = load_quad(dy, at, n), a = load_quad(gate, at, n), b = load_quad(up, at, n);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float sigmoid = sigmoid_f32(a.v[c]);
            float slope = ((1.0f - sigmoid) * a.v[c] + 1.0f) * sigmoid;
            float through = d.v[c] * b.v[c];
            b.v[c] = (a.v[c] * sigmoid) * d.v[c];
            a.v[c] = through * slope;
        }
        store_quad(dgate, at, n, a);
        store_quad(dup, at, n, b);
    }
}
