// What an exact dot reads and writes: parts of matrices of planes (exact_dot_planes.cuh) and of a result, with strides.
#pragma once
#include "common.cuh"
#include "exact_dot_planes.cuh"

// Rows of digit planes and their exponents. They may be a part of what lies in memory: rows from a multiple of 64 on, K from a
// multiple of 128 on. `share` consecutive matrices of the batch are one in memory.
struct Operand {
    const i8* planes;
    const i32* exponents;
    Layout layout;
    i64 heights;  // exponents from one matrix to the next
    i32 share;

    // Byte (row, k) of plane 0; row and k are multiples of 64.
    __device__ __forceinline__ const i8* block_at(i32 of, i32 row, i64 k) const {
        return planes + of / share * layout.matrix + row / BLOCK_ROWS * layout.block + k * BLOCK_ROWS;
    }
    __device__ __forceinline__ const i32* exponents_at(i32 of) const { return exponents + of / share * heights; }
};

// The result's element (row, column) of a matrix lies at c[of * matrix + row * line + column]. Exact sums are i64 there, not float.
struct Result {
    float* c;
    i64 matrix, line;

    __device__ __forceinline__ float* at(i32 of, i64 row, i64 column) const { return c + of * matrix + row * line + column; }
    __device__ __forceinline__ i64* sum_at(i32 of, i64 row, i64 column) const {
        return (i64*)c + of * matrix + row * line + column;
    }
    // Whether the columns, n of them, are whole pairs, each at a multiple of 8 bytes; whole fours, each at a multiple of 16.
    __device__ __forceinline__ bool pairs(i64 n) const { return (low_bits(n) & 1) == 0; }
    __device__ __forceinline__ bool quads(i64 n) const { return (low_bits(n) & 3) == 0; }
    __device__ __forceinline__ i64 low_bits(i64 n) const { return n | matrix | line | (i64)((u64)c / 4); }
};

// Two neighbouring exact sums, the second of which may be outside.
__device__ __forceinline__ void store_sums(i64* to, i64 x, i64 y, bool pairs, bool second) {
    if (pairs) {
        *(longlong2*)to = make_longlong2(x, y);
    } else {
        to[0] = x;
        if (second) to[1] = y;
    }
}

// Parameters of a kernel, and what they make.
#define OPERAND(X) const i8 *X, const i32 *X##_exponents, i64 X##_plane, i64 X##_matrix, i64 X##_block, i64 X##_heights, i32 X##_share
#define OPERAND_OF(X) \
    Operand { X, X##_exponents, Layout{X##_matrix, X##_block, X##_plane}, X##_heights, X##_share }
#define RESULT float *c, i64 c_matrix, i64 c_line
#define RESULT_OF \
    Result { c, c_matrix, c_line }
