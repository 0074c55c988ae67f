// Normal initial values (SPEC.md section 6.7): element i of x float [n] depends on seed, stream and i only.
//
// A block of random words gives four elements, computed by any thread.
//
// Test: pytest tests/kernels/test_normal.py
#include "angle.cuh"
#include "elementary.cuh"
#include "philox.cuh"
#include "quad.cuh"

GLOBAL void normal(float* x, u64 seed, u64 stream, float std, i64 n) {
    const float unit = float_of(0x33800000u);  // 2^-24
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Words words = philox4x32(seed, stream, (u64)at / 4);
        Quad q;
#pragma unroll
        for (int pair = 0; pair < 4; pair += 2) {
            float u1 = (float)((words.w[pair] >> 8) + 1) * unit, u2 = (float)(words.w[pair + 1] >> 8) * unit;
            float radius = sqrtf(-2.0f * log_f32(u1)), sine, cosine;
            sin_cos_f32(u2 * float_of(0x40c90fdbu), &sine, &cosine);  // 2 pi
            q.v[pair] = (radius * cosine) * std;
            q.v[pair + 1] = (radius * sine) * std;
        }
        store_quad(x, at, n, q);
    }
}
