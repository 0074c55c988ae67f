// Rotary position embedding in the half-split layout, forward and backward (SPEC.md section 9).
//
//   x, y      float [rows][dim], rows = batch * heads * tokens; y may be x
//   cos, sin  float [tokens][dim / 2]
//
// A pair of elements is treated alone, by any thread; the kernels named _4 take four pairs at a time, for dim a multiple of 8.
//
// Test: pytest tests/kernels/test_rope.py
#include "quad.cuh"

// Two products, each rounded, then their difference or sum.
template <bool BACK>
__device__ __forceinline__ void rotate(float low, float high, float c, float s, float* y_low, float* y_high) {
    *y_low = BACK ? low * c + high * s : low * c - high * s;
    *y_high = BACK ? high * c - low * s : high * c + low * s;
}

// Where pair `at` of all rows lies: its low element in x, and its place in the table.
struct Pair {
    i64 low, entry;
};

__device__ __forceinline__ Pair pair_of(i64 at, i64 tokens, i64 half) {
    Division row = divide(at, half);
    return Pair{row.quotient * 2 * half + row.rest, divide(row.quotient, tokens).rest * half + row.rest};
}

template <bool BACK>
__device__ __forceinline__ void rotate_pairs(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half) {
    for (i64 at = global_index(); at < rows * half; at += global_size()) {
        Pair p = pair_of(at, tokens, half);
        float low = x[p.low], high = x[p.low + half];
        rotate<BACK>(low, high, cos[p.entry], sin[p.entry], y + p.low, y + p.low + half);
    }
}

template <bool BACK>
__device__ __forceinline__ void rotate_quads(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half) {
    for (i64 at = first_quad(); at < rows * half; at += next_quad()) {
        Pair p = pair_of(at, tokens, half);
        Quad low = load_quad(x + p.low), high = load_quad(x + p.low + half);
        Quad c = load_quad(cos + p.entry), s = load_quad(sin + p.entry), y_low, y_high;
#pragma unroll
        for (int i = 0; i < 4; i++) rotate<BACK>(low.v[i], high.v[i], c.v[i], s.v[i], &y_low.v[i], &y_high.v[i]);
        store_quad(y + p.low, y_low);
        store_quad(y + p.low + half, y_high);
    }
}

#define ROPE(name, body, back)                                                                                              \
    GLOBAL void name(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half) {         \
        body<back>(x, cos, sin, y, rows, tokens, half);                                                                     \
    }
ROPE(rope_forward_1, rotate_pairs, false)
ROPE(rope_forward_4, rotate_quads, false)
ROPE(rope_backward_1, rotate_pairs, true)
ROPE(rope_backward_4, rotate_quads, true)
