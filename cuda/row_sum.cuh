// The halving tree of SPEC.md section 5 over one row, by a warp or by all warps of a block, whatever their number.
//
// Section 5 adds element i and element i + P/2, then i and i + P/4, and so on: it folds an index bit at a time, the highest
// first. Here an element's index is cut into bit fields, from high to low
//
//     part | lane / 8 | warp | lane % 8 | element of a cell (4 or 1)
//
// and the fields are folded in that order: parts inside a thread, lane / 8 by shuffles, warps through shared memory, lane % 8 by
// shuffles, the cell at last. So the number of warps moves bits from one field to another and changes no addition. Eight lanes
// read 128 bytes in a row, and only eight values of each warp cross shared memory.
//
// Places beyond P hold -0, which adds nothing to any number; those from K to P hold the +0 of the specification.
#pragma once
#include "common.cuh"

#define MAX_WARPS 32
#define ROW_LEVELS 24  // a thread folds at most 2^24 parts

// Threads that share a row: one warp, or the whole block of a power of two of warps.
struct Team {
    int warps, warp, lane;
    int turn;  // the shared buffer alternates, so one barrier a row is enough
};

__device__ __forceinline__ Team team_of(i32 threads) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    return threads == 32 ? Team{1, 0, lane, 0} : Team{threads >> 5, warp, lane, 0};
}

// Rows go round: the team's first one, and how far it is to its next.
__device__ __forceinline__ i64 first_row(i32 threads) {
    return threads == 32 ? global_index() >> 5 : (i64)blockIdx.x;
}
__device__ __forceinline__ i64 next_row(i32 threads) { return threads == 32 ? global_size() >> 5 : (i64)gridDim.x; }

// Which cell of the row this thread holds as its part `part`.
__device__ __forceinline__ i64 cell_of(const Team& team, i64 part) {
    return ((part * 4 + (team.lane >> 3)) * team.warps + team.warp) * 8 + (team.lane & 7);
}

__device__ __forceinline__ float row_padding(i64 index, i64 padded) { return index < padded ? 0.0f : -0.0f; }

template <int N>
__device__ __forceinline__ void fold_lanes(float (&v)[N], int from, int to) {
#pragma unroll
    for (int offset = from; offset >= to; offset >>= 1)
#pragma unroll
        for (int c = 0; c < N; c++) v[c] = v[c] + __shfl_xor_sync(0xffffffffu, v[c], offset);
}

// v[0] becomes the halving sum of v[0 .. N-1], N a power of two.
template <int N>
__device__ __forceinline__ float fold_list(float (&v)[N]) {
#pragma unroll
    for (int half = N / 2; half > 0; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) v[i] = v[i] + v[i + half];
    return v[0];
}

template <int N>
__device__ __forceinline__ void fold_warps(Team& team, float (&v)[N]) {
    __shared__ float exchange[2][MAX_WARPS][8][N];
    if (team.lane < 8)
#pragma unroll
        for (int c = 0; c < N; c++) exchange[team.turn][team.warp][team.lane][c] = v[c];
    __syncthreads();
#pragma unroll
    for (int c = 0; c < N; c++) {
        float part[MAX_WARPS / 4];
#pragma unroll
        for (int k = 0; k < MAX_WARPS / 4; k++) {
            int warp = k * 4 + (team.lane >> 3);
            part[k] = warp < team.warps ? exchange[team.turn][warp][team.lane & 7][c] : -0.0f;
        }
        v[c] = fold_list(part);
    }
    fold_lanes(v, 16, 8);
    team.turn ^= 1;
}

// The row's sum from each thread's cell, its parts folded already; every thread of the team gets it.
template <int N>
__device__ __forceinline__ float fold_team(Team& team, float (&v)[N]) {
    fold_lanes(v, 16, 8);
    if (team.warps > 1) fold_warps(team, v);
    fold_lanes(v, 4, 1);
    return fold_list(v);
}

// The same for a row of any width: term(i) is element i. Parts come in bit-reversed order, so that a fold is due as soon as its
// two sides are there; `held` is the stack of those that wait, one place a level.
template <class Term>
__device__ __forceinline__ float row_sum_of(Team& team, i64 width, i64 padded, Term term) {
    int levels = 0;
    while ((32ll * team.warps << levels) < padded) levels++;
    float held[ROW_LEVELS] = {}, folded[1] = {};
    for (u32 n = 0; n >> levels == 0; n++) {
        i64 i = cell_of(team, levels ? __brev(n) >> (32 - levels) : 0);
        float carry = i < width ? term(i) : row_padding(i, padded);
        bool placed = false;
#pragma unroll
        for (int level = 0; level < ROW_LEVELS; level++) {
            if (!placed && (n >> level & 1)) carry = held[level] + carry;
            else if (!placed) {
                held[level] = carry;
                placed = true;
            }
        }
        folded[0] = carry;
    }
    return fold_team(team, folded);
}
