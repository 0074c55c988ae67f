// What attention gives, head by head, read as the rows of tokens that products take: a source for quantise_tile.cuh.
//
//   x   float [batch][heads][tokens][dim], as the matrix [batch * tokens][heads * dim] of SPEC.md section 15, which is never written;
//       fewer than 2^32 rows
//
// Test: pytest tests/kernels/test_quantise_heads.py
#pragma once
#include "quantise_tile.cuh"

struct Heads {
    const float* x;
    u32 heads, tokens, dim;

    static constexpr int INPUTS = 1, RESULTS = 1;

    __device__ __forceinline__ i64 place(i64 row, i32 column) const {
        u32 sequence = (u32)row / tokens, token = (u32)row - sequence * tokens;
        u32 head = (u32)column / dim, inside = (u32)column - head * dim;
        return (((i64)sequence * heads + head) * tokens + token) * dim + inside;
    }
    // A quad lies in one head.
    __device__ __forceinline__ bool whole() const { return dim % 4 == 0 && is_quad(x); }
    __device__ __forceinline__ Quad at(i64 row, i32 column, bool whole) const {
        if (whole) return load_quad(x + place(row, column));
        Quad q = {};
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (column + c < (i64)heads * dim) q.v[c] = x[place(row, column + c)];
        return q;
    }
    __device__ __forceinline__ void load(Quad (&in)[1], i64 row, i32 column, bool whole) const { in[0] = at(row, column, whole); }
    __device__ __forceinline__ void make(const Quad (&in)[1], Quad (&out)[1], i64, i32, bool) const { out[0] = in[0]; }
};
