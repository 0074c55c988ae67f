// Moves and plain additions between the ops (SPEC.md section 15), and the look for values that are not finite.
//
// Elements are treated alone, by any thread.
//
// Test: pytest tests/kernels/test_layout.py
#include "quad.cuh"
#include "tensor_table.cuh"

// z = x + y, float [n]; z may be x or y.
GLOBAL void add(const float* x, const float* y, float* z, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad a = load_quad(x, at, n), b = load_quad(y, at, n);
#pragma unroll
        for (int c = 0; c < 4; c++) a.v[c] = a.v[c] + b.v[c];
        store_quad(z, at, n, a);
    }
}

// Where element `at` of [batch][heads][tokens][dim] lies in [batch * tokens][heads * dim].
__device__ __forceinline__ i64 merged_place(i64 at, i64 heads, i64 tokens, i64 dim) {
    Division row = divide(at, dim), token = divide(row.quotient, tokens), head = divide(token.quotient, heads);
    return ((head.quotient * tokens + token.rest) * heads + head.rest) * dim + row.rest;
}

// `merged` float [batch * tokens][heads * dim] <-> `split` float [batch][heads][tokens][dim]; n elements, `dim` a multiple of
// WIDTH.
template <bool SPLIT, int WIDTH>
__device__ __forceinline__ void move_heads(const float* from, float* to, i64 n, i64 heads, i64 tokens, i64 dim) {
    for (i64 at = global_index() * WIDTH; at < n; at += global_size() * WIDTH) {
        i64 other = merged_place(at, heads, tokens, dim);
        i64 source = SPLIT ? other : at, target = SPLIT ? at : other;
        if (WIDTH == 4)
            store_quad(to + target, load_quad(from + source));
        else
            to[target] = from[source];
    }
}

GLOBAL void split_heads_1(const float* x, float* y, i64 n, i64 heads, i64 tokens, i64 dim) {
    move_heads<true, 1>(x, y, n, heads, tokens, dim);
}
GLOBAL void split_heads_4(const float* x, float* y, i64 n, i64 heads, i64 tokens, i64 dim) {
    move_heads<true, 4>(x, y, n, heads, tokens, dim);
}
GLOBAL void merge_heads_1(const float* x, float* y, i64 n, i64 heads, i64 tokens, i64 dim) {
    move_heads<false, 1>(x, y, n, heads, tokens, dim);
}
GLOBAL void merge_heads_4(const float* x, float* y, i64 n, i64 heads, i64 tokens, i64 dim) {
    move_heads<false, 4>(x, y, n, heads, tokens, dim);
}

// y float [n / count][count] = columns first .. first + count - 1 of x float [..][width]; all of them multiples of WIDTH.
template <int WIDTH>
__device__ __forceinline__ void take_columns(const float* x, float* y, i64 n, i64 count, i64 width, i64 first) {
    for (i64 at = global_index() * WIDTH; at < n; at += global_size() * WIDTH) {
        Division row = divide(at, count);
        i64 source = row.quotient * width + first + row.rest;
        if (WIDTH == 4)
            store_quad(y + at, load_quad(x + source));
        else
            y[at] = x[source];
    }
}

GLOBAL void columns_1(const float* x, float* y, i64 n, i64 count, i64 width, i64 first) {
    take_columns<1>(x, y, n, count, width, first);
}
GLOBAL void columns_4(const float* x, float* y, i64 n, i64 count, i64 width, i64 first) {
    take_columns<4>(x, y, n, count, width, first);
}

// Many tensors (tensor_table.cuh, field 0): *found becomes the largest count - i of the tensors i that hold inf or NaN, so it
// names the first of them, whatever the order; it is 0 before.
GLOBAL void check_finite(const u64* table, i64 count, i64 tiles, u32* found) {
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile at = tile_of(table, count, tile);
        const float* x = at.field<const float>(0);
        bool finite = true;
        for (i64 i = at.first + threadIdx.x * 4; i < at.end; i += blockDim.x * 4) {
            Quad q = load_quad(x, i, at.end);
#pragma unroll
            for (int c = 0; c < 4; c++) finite = finite && is_finite(q.v[c]);
        }
        if (!finite) atomicMax(found, (u32)(count - at.tensor));
    }
}
