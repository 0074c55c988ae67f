// Some columns of a matrix whose rows lie in several arrays: a source for quantise_tile.cuh.
//
//   table   u64, addresses of the arrays, float [height][width]; the last may have fewer rows
//   first   the first of the columns
//
// Fewer than 2^32 rows.
//
// Test: pytest tests/kernels/test_quantise_parts.py
#pragma once
#include "quantise_tile.cuh"

struct Parts {
    const u64* table;
    u32 height;
    i64 width, first, k;

    static constexpr int INPUTS = 1, RESULTS = 1;

    __device__ __forceinline__ bool whole() const { return k % 4 == 0 && first % 4 == 0 && width % 4 == 0 && is_quad((const void*)table[0]); }
    __device__ __forceinline__ Quad at(i64 row, i32 column, bool whole) const {
        u32 part = (u32)row / height;
        const float* x = (const float*)table[part] + (i64)((u32)row - part * height) * width + first;
        return whole ? load_quad(x + column) : load_quad(x, column, k);
    }
    __device__ __forceinline__ void load(Quad (&in)[1], i64 row, i32 column, bool whole) const { in[0] = at(row, column, whole); }
    __device__ __forceinline__ void make(const Quad (&in)[1], Quad (&out)[1], i64, i32, bool) const { out[0] = in[0]; }
};
