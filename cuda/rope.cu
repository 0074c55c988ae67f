// Rotary position embedding in the half-split layout, forward and backward (SPEC.md section 9).
//
//   x, y      float [rows][dim], rows = batch * heads * tokens; y may be x
//   cos, sin  float [tokens][dim / 2]
//
// The kernels named _heads read x as float [batch * tokens][heads * dim], and write y as above.
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

// Where the pair of row (batch, head, token) lies that is not split into heads yet; one head is as if it were.
__device__ __forceinline__ i64 merged_low(const Pair& p, i64 heads, i64 tokens, i64 half) {
    Division row = divide(p.low, 2 * half), token = divide(row.quotient, tokens), head = divide(token.quotient, heads);
    return ((head.quotient * tokens + token.rest) * heads + head.rest) * 2 * half + row.rest;
}

template <bool BACK>
__device__ __forceinline__ void rotate_pairs(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half) {
    for (i64 at = global_index(); at < rows * half; at += global_size()) {
        Pair p = pair_of(at, tokens, half);
        float low = x[p.low], high = x[p.low + half];
        rotate<BACK>(low, high, cos[p.entry], sin[p.entry], y + p.low, y + p.low + half);
    }
}

// Four pairs from element `from` of x on, to element `to` of y on.
template <bool BACK>
__device__ __forceinline__ void rotate_quad(const float* x, i64 from, const float* cos, const float* sin, i64 entry, float* y, i64 to,
                                            i64 half) {
    Quad low = load_quad(x + from), high = load_quad(x + from + half);
    Quad c = load_quad(cos + entry), s = load_quad(sin + entry), y_low, y_high;
#pragma unroll
    for (int i = 0; i < 4; i++) rotate<BACK>(low.v[i], high.v[i], c.v[i], s.v[i], &y_low.v[i], &y_high.v[i]);
    store_quad(y + to, y_low);
    store_quad(y + to + half, y_high);
}

template <bool BACK>
__device__ __forceinline__ void rotate_quads(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half) {
    for (i64 at = first_quad(); at < rows * half; at += next_quad()) {
        Pair p = pair_of(at, tokens, half);
        rotate_quad<BACK>(x, p.low, cos, sin, p.entry, y, p.low, half);
    }
}

GLOBAL void rope_heads_1(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half, i64 heads) {
    for (i64 at = global_index(); at < rows * half; at += global_size()) {
        Pair p = pair_of(at, tokens, half);
        i64 low = merged_low(p, heads, tokens, half);
        rotate<false>(x[low], x[low + half], cos[p.entry], sin[p.entry], y + p.low, y + p.low + half);
    }
}

GLOBAL void rope_heads_4(const float* x, const float* cos, const float* sin, float* y, i64 rows, i64 tokens, i64 half, i64 heads) {
    for (i64 at = first_quad(); at < rows * half; at += next_quad()) {
        Pair p = pair_of(at, tokens, half);
        i64 from = merged_low(p, heads, tokens, half);
        rotate_quad<false>(x, from, cos, sin, p.entry, y, p.low, half);
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
