// Attention of the product f32 (SPEC.md section 16) around the products of f32_dot.cu: weights and gradients of the scores.
//
// As in attention.cu a "group" is one sequence and one key head with its R query heads: `queries` = R * T rows, `tokens` = T
// keys, matrices float [groups][queries][tokens]. Pairs that do not see each other get the weight +0, which adds nothing to the
// sums of f32_dot.cu.
//
// One warp works on one row; its one sum is of integers and its maximum exact, so the launch shape cannot change a bit.
//
// Test: pytest tests/kernels/test_f32_attention.py
#include "attention_inner.cuh"
#include "attention_span.cuh"
#include "attention_weights.cuh"
#include "elementary.cuh"

// Row sums of out * dout over D elements; D_i of the backward pass.
// Dynamic shared memory: one float for each of the `width` (D rounded up to a power of two) elements of each warp.
GLOBAL void f32_attention_out_dot(const float* out, const float* dout, float* result, i64 rows, i64 dim, i64 width) {
    extern __shared__ float products[];
    i64 row = global_index() >> 5;
    if (row >= rows) return;
    float dot = inner_product(out + row * dim, dout + row * dim, dim, width, products + (threadIdx.x >> 5) * width);
    if ((threadIdx.x & 31) == 0) result[row] = dot;
}

// Each row divided by its sum: x / sums[row], elementwise. x, y float [rows][dim].
GLOBAL void f32_attention_divide_rows(const float* x, const float* sums, float* y, i64 rows, i64 dim) {
    for (i64 at = global_index(); at < rows * dim; at += global_size()) y[at] = x[at] / sums[at / dim];
}

// `scores` (raw f32 dots) become e; the row maxima m and sums l. NOT_FINITE where an e is NaN.
GLOBAL void f32_attention_softmax(float* scores, float* maxima, float* sums, u32* status, i64 rows, i64 queries, i64 tokens,
                                  i64 window, float scale) {
    i64 row = global_index() >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    Span seen = seen_by(row % queries, tokens, window);
    float* s = scores + row * tokens;
    float largest = -float_of(0x7f800000u);
    for (i64 j = seen.first + lane; j <= seen.last; j += 32) {
        float value = s[j] * scale;
        largest = value > largest ? value : largest;
    }
    largest = warp_max_float(largest);
    __syncwarp();  // all have read the scores that others now overwrite
    i64 total = 0;
    bool finite = true;
    for (i64 j = lane; j < tokens; j += 32) {
        float e = sees(seen, j) ? exp_f32(s[j] * scale - largest) : 0.0f;
        finite = finite && is_finite(e);
        total += __float2int_rn(e * 1073741824.0f);
        s[j] = e;
    }
    total = warp_sum_i64(total);
    if (!finite) atomicOr(status, NOT_FINITE);
    if (lane == 0) {
        maxima[row] = largest;
        sums[row] = (float)total * 9.313225746154785e-10f;  // RN32(total), times 2^-30
    }
}

// `scores` (raw f32 dots) become e again, and `dp` (raw f32 dots of dO and v) becomes dS; out_dot are the D_i.
GLOBAL void f32_attention_score_gradient(float* scores, float* dp, const float* maxima, const float* sums, const float* out_dot,
                                         u32* status, i64 rows, i64 queries, i64 tokens, i64 window, float scale) {
    i64 row = global_index() >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    Span seen = seen_by(row % queries, tokens, window);
    float *s = scores + row * tokens, *ds = dp + row * tokens;
    float largest = maxima[row], sum = sums[row], dot = out_dot[row];
    bool finite = true;
    for (i64 j = lane; j < tokens; j += 32) {
        float e = 0.0f, gradient = 0.0f;
        if (sees(seen, j)) {
            e = exp_f32(s[j] * scale - largest);
            gradient = ((ds[j] - dot) * (e / sum)) * scale;
            finite = finite && is_finite(e) && is_finite(gradient);
        }
        s[j] = e;
        ds[j] = gradient;
    }
    if (!finite) atomicOr(status, NOT_FINITE);
}
