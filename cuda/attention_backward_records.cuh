// What the backward kernels of sm_90a are told of each 64 columns and rows (attention_backward_sm90.cu): records of tiles, norms.
//
// A record is a header of four words, then [kind][32 pairs of columns] with the two numbers of one kind, or of two kinds, of both
// columns: {x, x'} or {x, x', y, y'}. Columns beyond the last have harmless numbers.
#pragma once
#include "attention_cells.cuh"
#include "attention_gradient.cuh"
#include "attention_norms.cuh"
#include "attention_tiles.cuh"

// Choices that change no bit.
#ifndef ATTENTION_CLUSTER
#define ATTENTION_CLUSTER 1
#endif

// T, R, T * R (the rows of queries of a group) and the padded number of columns: a parameter needs no register.
#define SIZES i32 groups, i32 tokens, i32 heads, i32 rows, i32 padded, i32 window, float scale
#define QUERY_CHUNK \
    Chunk { groups, rows, tokens, padded, tokens, heads, 0, 0, window }
#define KEY_CHUNK \
    Chunk { groups, tokens, rows, padded, tokens, heads, 0, 0, window }

#define LIFT 71  // so that a gradient times 2^(x + LIFT), |x| <= 48, is a normal number wherever it is not 0

// Of keys. Header: norms of k and v, largest x_k and x_v. {2^(x_k - 13), 2^(x_v - 13)}, {scale 2^x_k, 2^(x_k + LIFT)}.
struct KeyRecord {
    static constexpr int VECTORS = 4;
    float norms[2];
    i32 largest_k, largest_v;
    float4 factors[32], weights[32];
};
// Of queries, for dV. Header: norm of q. {2^(x_q - 13), m}, {2^y}.
struct ShareRecord {
    static constexpr int VECTORS = 3;
    float norm, unused[3];
    float4 scores[32];
    float2 weights[32];
};
// Of queries, for dK. Header: norms of q and dO; the largest x_q; the largest x_dO and exponent of D as a pair.
// {2^(x_q - 13), m}, {2^(x_dO - 13), D}, {l, RN(1 / l)}, {scale 2^x_q}.
struct SlopeRecord {
    static constexpr int VECTORS = 7;
    float norms[2];
    i32 largest_q, largest_gradients;
    float4 scores[32], gradients[32], sums[32];
    float2 weights[32];
};
static_assert(sizeof(KeyRecord) == HEADER + KeyRecord::VECTORS * 4 * BLOCK_ROWS, "");
static_assert(sizeof(ShareRecord) == HEADER + ShareRecord::VECTORS * 4 * BLOCK_ROWS, "");
static_assert(sizeof(SlopeRecord) == HEADER + SlopeRecord::VECTORS * 4 * BLOCK_ROWS, "");

// What is known of a row of queries.
struct Query {
    i32 of_q, of_gradient;        // exponents
    float largest, sum, inner;    // m, l, D

    // Whether m, l and D are numbers with which nothing overflows.
    __device__ __forceinline__ bool tame() const {
        return is_finite(largest) && sum >= 1.0f && sum < 5.0e11f && is_finite(inner);
    }
};

// Weights W = rint(dS 2^(x - E + 13)) in the short form: dS times scale 2^x at once, times 2^(13 - E). For -110 <= E <= 100 a product
// below 2^-126, and a dS below it, belongs to a W of 0 if x <= E + 111. So do wrong ones: e and its quotient are not exact where e is
// below 2^-86.5, but then |dS| < 2^(-87 + n) with |dP|, |D| <= 2^n, and W is 0 if n + x - E <= 72; |dP| <= 2^(x_dO + x_v + 5).
__device__ __forceinline__ bool is_tame_bound(i32 bound) { return bound >= -110 && bound <= 100; }
#define MOST_OF_GRADIENT 72

__device__ __forceinline__ i32 warp_min_int(i32 v) { return -warp_max_int(-v); }
// Of an unseen or an untame row: any that computes.
__device__ __forceinline__ float some_factor(i32 x) { return is_tame_row(x) ? factor_of_row(x) : 1.0f; }
__device__ __forceinline__ float some_weight(i32 x, i32 more) { return !is_tame_row(x) || x == ZERO_ROW ? 0.0f : power_of_two(x + more); }

// Tile::sees of a cell that is not known when compiled.
__device__ __forceinline__ bool sees_cell(const Tile& t, i32 cell) {
    i32 column = t.column + column_of_cell(cell);
    return half_of_cell(cell) ? t.seen[1].has(column) : t.seen[0].has(column);
}

// What the backward kernels with sums choose.
struct BackwardSum {
    static constexpr bool SUMS = true, ROW_SUMS = false, TWO_SETS = false;
    static constexpr int SCORERS = 2, TOGETHER = 1, CLUSTER = ATTENTION_CLUSTER, SUM_STAGES = 2;
    static constexpr int SCORER_REGISTERS = 128, SUMMER_REGISTERS = 224;
};
