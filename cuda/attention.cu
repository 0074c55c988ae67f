// Attention (SPEC.md section 8) around the exact dots of exact_dot.cu: softmax, weights, and gradients of the scores.
//
// A "group" is one sequence and one key head with its R query heads: `queries` = R * T rows, `tokens` = T keys. Query row q is
// position q % T. Matrices of scores are float [groups][queries][tokens]; planes lie in blocks (exact_dot_planes.cuh).
//
// One warp works on one row (or one block on one tile of columns); every sum is an integer sum and every maximum exact, so
// neither the launch shape nor the order of atomics can change a bit.
//
// Test: pytest tests/kernels/test_attention.py
#include "common.cuh"
#include "elementary.cuh"
#include "exact_dot_planes.cuh"
#include "attention_span.cuh"
#include "attention_weights.cuh"

// Row sums of out * dout over D elements by the halving tree of SPEC.md section 5; D_i of the backward pass.
// Dynamic shared memory: one float for each of the `width` (D rounded up to a power of two) elements of each warp.
GLOBAL void attention_out_dot(const float* out, const float* dout, float* result, i64 rows, i64 dim, i64 width) {
    extern __shared__ float products[];
    i64 row = global_index() >> 5;
    int lane = threadIdx.x & 31;
    float* mine = products + (i64)(threadIdx.x >> 5) * width;
    if (row >= rows) return;
    for (i64 d = lane; d < width; d += 32) mine[d] = d < dim ? dout[row * dim + d] * out[row * dim + d] : 0.0f;
    __syncwarp();
    for (i64 half = width / 2; half > 0; half /= 2) {
        for (i64 d = lane; d < half; d += 32) mine[d] = mine[d] + mine[d + half];
        __syncwarp();
    }
    if (lane == 0) result[row] = mine[0];
}

// Each row divided by its sum: x / sums[row], elementwise. x, y float [rows][dim].
GLOBAL void attention_divide_rows(const float* x, const float* sums, float* y, i64 rows, i64 dim) {
    for (i64 at = global_index(); at < rows * dim; at += global_size()) y[at] = x[at] / sums[at / dim];
}

// Softmax of the rows of `scores` (raw exact dots; overwritten with e, zero where not seen), its row maxima m and sums l, and
// the weights of the value rows as digit planes [planes][groups][queries][padded] under the bounds X.
template <int BITS>
__device__ __forceinline__ void softmax_weights(float* scores, const i32* value_exponents, float* maxima, float* sums, i32* bounds,
                                                i8* planes, u32* status, i64 rows, i64 queries, i64 tokens, i64 window,
                                                i64 padded, float scale) {
    i64 row = global_index() >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    Span seen = seen_by(row % queries, tokens, window);
    float* s = scores + row * tokens;
    const i32* x = value_exponents + row / queries * tokens;
    float largest = -float_of(0x7f800000u);
    i32 bound = ZERO_ROW;
    bool finite = true;
    for (i64 j = seen.first + lane; j <= seen.last; j += 32) {
        float value = s[j] * scale;
        largest = value > largest ? value : largest;
        bound = x[j] > bound ? x[j] : bound;
    }
    largest = warp_max_float(largest);
    bound = warp_max_int(bound);
    __syncwarp();  // all have read the scores that others now overwrite
    Layout layout = layout_of(rows / queries, queries, padded);
    i64 total = 0;
    for (i64 j0 = lane * 4; j0 < padded; j0 += 128) {
        i32 q[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            i64 j = j0 + i;
            float e = sees(seen, j) ? exp_f32(s[j] * scale - largest) : 0.0f;
            finite = finite && is_finite(e);  // a score of -inf has the weight 0; one of +inf or NaN has none
            total += is_finite(e) ? __float2int_rn(e * 1073741824.0f) : 0;
            if (j < tokens) s[j] = e;
            q[i] = sees(seen, j) ? finite_weight<BITS>(e, x[j], bound) : 0;
        }
        store_digits<BITS>(planes, layout.place(row / queries, row % queries, j0), layout.plane, q);
    }
    if (!finite) atomicOr(status, NOT_FINITE);
    total = warp_sum_i64(total);
    if (lane == 0) {
        maxima[row] = largest;
        sums[row] = (float)total * 9.313225746154785e-10f;  // RN32(total), times 2^-30
        bounds[row] = bound;
    }
}

// e (into `scores`) and dS (into `dp`, which holds the raw exact dots dP), the row bounds of dS against the key rows, and its
// weights as planes.
template <int BITS>
__device__ __forceinline__ void score_gradient(float* scores, float* dp, const float* maxima, const float* sums, const float* out_dot,
                                               const i32* key_exponents, i32* bounds, i8* planes, u32* status, i64 rows, i64 queries,
                                               i64 tokens, i64 window, i64 padded, float scale) {
    i64 row = global_index() >> 5;
    int lane = threadIdx.x & 31;
    if (row >= rows) return;
    Span seen = seen_by(row % queries, tokens, window);
    float *s = scores + row * tokens, *ds = dp + row * tokens;
    const i32* x = key_exponents + row / queries * tokens;
    float largest = maxima[row], sum = sums[row], dot = out_dot[row];
    i32 bound = NO_BOUND;
    bool finite = true;
    for (i64 j = lane; j < tokens; j += 32) {
        float e = 0.0f, gradient = 0.0f;
        if (sees(seen, j)) {
            e = exp_f32(s[j] * scale - largest);
            gradient = ((ds[j] - dot) * (e / sum)) * scale;
            finite = finite && is_finite(gradient);
            bound = product_exponent(gradient, x[j], bound);
        }
        s[j] = e;
        ds[j] = gradient;
    }
    bound = warp_max_int(bound);
    if (!finite) atomicOr(status, NOT_FINITE);
    if (lane == 0) bounds[row] = bound == NO_BOUND ? 0 : bound;
    __syncwarp();
    Layout layout = layout_of(rows / queries, queries, padded);
    for (i64 j0 = lane * 4; j0 < padded; j0 += 128) {
        i32 q[4];
#pragma unroll
        for (int i = 0; i < 4; i++) q[i] = finite_weight<BITS>(j0 + i < tokens ? ds[j0 + i] : 0.0f, j0 + i < tokens ? x[j0 + i] : 0, bound);
        store_digits<BITS>(planes, layout.place(row / queries, row % queries, j0), layout.plane, q);
    }
}

// For every key j: into `bounds` the largest exponent of |w_qj| * 2^x_q over all rows q, x_q the exponents of the rows to be
// summed; and into `largest` the largest y_q over the queries that see key j. Both i32 [groups][tokens], preset to NO_BOUND and
// ZERO_ROW. A block takes 32 columns and `height` rows of one group.
GLOBAL void attention_column_bounds(const float* weights, const i32* exponents, const i32* seen_exponents, i32* bounds, i32* largest,
                                    i64 groups, i64 queries, i64 tokens, i64 window, i64 height) {
    i64 tiles_k = (tokens + 31) / 32, tiles_m = (queries + height - 1) / height;
    i64 group = blockIdx.x / (tiles_k * tiles_m), rest = blockIdx.x % (tiles_k * tiles_m);
    i64 j = rest % tiles_k * 32 + (threadIdx.x & 31), first = rest / tiles_k * height;
    i64 last = first + height < queries ? first + height : queries;
    if (j >= tokens) return;
    i32 bound = NO_BOUND, top = ZERO_ROW;
    for (i64 q = first + (threadIdx.x >> 5); q < last; q += blockDim.x >> 5) {
        i64 row = group * queries + q;
        if (!sees(seen_by(q, tokens, window), j)) continue;
        bound = product_exponent(weights[row * tokens + j], exponents[row], bound);
        top = seen_exponents[row] > top ? seen_exponents[row] : top;
    }
    if (bound != NO_BOUND) atomicMax(bounds + group * tokens + j, bound);
    atomicMax(largest + group * tokens + j, top);
}

// Preset the two results of attention_column_bounds.
GLOBAL void attention_preset_bounds(i32* bounds, i32* largest, i64 count) {
    i64 i = global_index();
    if (i >= count) return;
    bounds[i] = NO_BOUND;
    largest[i] = ZERO_ROW;
}

// Planes of the transpose of a matrix of weights [groups][queries][tokens]: rows are keys, columns queries (padded). Weight
// w_qj counts 2^(x_q) under the bound of key j. A bound of NO_BOUND is replaced by 0: all its weights are zero.
template <int BITS>
__device__ __forceinline__ void transposed_weights(const float* weights, const i32* exponents, i32* bounds, i8* planes, i64 groups,
                                                   i64 queries, i64 tokens, i64 padded) {
    __shared__ float tile[64][65];
    __shared__ i32 shift[64];
    i64 tiles_k = (tokens + 63) / 64, tiles_m = padded / 64;
    i64 group = blockIdx.x / (tiles_k * tiles_m), rest = blockIdx.x % (tiles_k * tiles_m);
    i64 j0 = rest % tiles_k * 64, q0 = rest / tiles_k * 64;
    for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
        i64 q = q0 + i / 64, j = j0 + i % 64;
        tile[i / 64][i % 64] = q < queries && j < tokens ? weights[(group * queries + q) * tokens + j] : 0.0f;
    }
    for (int i = threadIdx.x; i < 64; i += blockDim.x) shift[i] = q0 + i < queries ? exponents[group * queries + q0 + i] : ZERO_ROW;
    __syncthreads();
    Layout layout = layout_of(groups, tokens, padded);
    i8* to = planes + layout.place(group, j0, q0);
    for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
        int column = i / 16, part = i % 16 * 4;
        if (j0 + column >= tokens) continue;
        i32 bound = bounds[group * tokens + j0 + column], q[4];
#pragma unroll
        for (int n = 0; n < 4; n++) q[n] = finite_weight<BITS>(tile[part + n][column], shift[part + n], bound);
        store_digits<BITS>(to, place_in_block(column, part), layout.plane, q);
    }
}

// Bounds of keys without any product: any number will do, NO_BOUND is outside the range of exponents.
GLOBAL void attention_settle_bounds(i32* bounds, i64 count) {
    i64 i = global_index();
    if (i < count && bounds[i] == NO_BOUND) bounds[i] = 0;
}

// Planes of rows [planes][groups][rows][padded_dim] turned around: [planes][groups][dim][padded], rows beyond `rows` zero. A block
// turns one block of a plane.
GLOBAL void attention_transpose_planes(const i8* from, i8* to, i64 planes, i64 groups, i64 rows, i64 dim, i64 padded_dim, i64 padded) {
    __shared__ u32 tile[64][17];
    i64 tiles_d = (dim + 63) / 64, tiles_m = padded / 64;
    i64 rest = blockIdx.x;
    i64 d0 = rest % tiles_d * 64;
    rest /= tiles_d;
    i64 m0 = rest % tiles_m * 64;
    rest /= tiles_m;
    i64 group = rest % groups, plane = rest / groups;
    Layout source = layout_of(groups, rows, padded_dim), target = layout_of(groups, dim, padded);
    const i8* block = from + plane * source.plane + source.place(group, m0, d0);
    for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
        int m = i / 16, d = i % 16 * 4;
        tile[m][i % 16] = m0 + m < rows ? *(const u32*)(block + place_in_block(m, d)) : 0;
    }
    __syncthreads();
    i8* turned = to + plane * target.plane + target.place(group, d0, m0);
    for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
        int d = i / 16, m = i % 16 * 4;
        u32 word = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) word |= (tile[m + n][d / 4] >> (8 * (d % 4)) & 255u) << (8 * n);
        *(u32*)(turned + place_in_block(d, m)) = word;
    }
}

#define ATTENTION_KERNELS(BITS)                                                                                                       \
    GLOBAL void attention_softmax_##BITS(float* scores, const i32* value_exponents, float* maxima, float* sums, i32* bounds,          \
                                         i8* planes, u32* status, i64 rows, i64 queries, i64 tokens, i64 window, i64 padded,          \
                                         float scale) {                                                                               \
        softmax_weights<BITS>(scores, value_exponents, maxima, sums, bounds, planes, status, rows, queries, tokens, window, padded,   \
                              scale);                                                                                                 \
    }                                                                                                                                 \
    GLOBAL void attention_score_gradient_##BITS(float* scores, float* dp, const float* maxima, const float* sums,                     \
                                                const float* out_dot, const i32* key_exponents, i32* bounds, i8* planes, u32* status, \
                                                i64 rows, i64 queries, i64 tokens, i64 window, i64 padded, float scale) {             \
        score_gradient<BITS>(scores, dp, maxima, sums, out_dot, key_exponents, bounds, planes, status, rows, queries, tokens, window, \
                             padded, scale);                                                                                          \
    }                                                                                                                                 \
    GLOBAL void attention_transposed_weights_##BITS(const float* weights, const i32* exponents, i32* bounds, i8* planes, i64 groups,  \
                                                    i64 queries, i64 tokens, i64 padded) {                                            \
        transposed_weights<BITS>(weights, exponents, bounds, planes, groups, queries, tokens, padded);                                \
    }

ATTENTION_KERNELS(14)
ATTENTION_KERNELS(21)
