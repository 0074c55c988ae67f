// The halving tree of SPEC.md section 5 over one row, by a warp or by all warps of a block, whatever their number.
//
// Section 5 adds element i and element i + P/2, then i and i + P/4, and so on: it folds an index bit at a time, the highest
// first. Here an element's index is cut into bit fields, from high to low
//
//     part | lane / 8 | warp | lane % 8 | element of a cell (4 or 1)
//
// and the fields are folded in that order: parts inside a thread, lane / 8 by shuffles, warps through shared memory, lane % 8 by
// shuffles, the cell at last. So the number of warps moves bits from one field to another and changes no addition. Eight lanes
// read 128 bytes in a row, and one value of each lane crosses shared memory.
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

__device__ __forceinline__ float fold_lanes(float v, int from, int to) {
#pragma unroll
    for (int offset = from; offset >= to; offset >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
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

// The halving sum over the team's warps of what each lane holds.
__device__ __forceinline__ float fold_warps(Team& team, float v) {
    __shared__ float exchange[2][MAX_WARPS][32];
    float(*held)[32] = exchange[team.turn];
    team.turn ^= 1;
    held[team.warp][team.lane] = v;
    __syncthreads();
    float part[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        part[k] = k < team.warps ? held[k][team.lane] : -0.0f;
        if (team.warps > 16) part[k] = part[k] + held[k + 16][team.lane];
        if (team.warps <= 8) continue;
        float upper = held[k + 8][team.lane];
        if (team.warps > 16) upper = upper + held[k + 24][team.lane];
        part[k] = part[k] + upper;
    }
    return fold_list(part);
}

// The row's sum from each thread's cell of one element, its parts folded already; every thread of the team gets it.
__device__ __forceinline__ float fold_team(Team& team, float v) {
    v = fold_lanes(v, 16, 8);
    if (team.warps > 1) v = fold_warps(team, v);
    return fold_lanes(v, 4, 1);
}

// The same for cells of four elements. While lane / 8 is folded, the lanes share the elements out: a lane ends with the sum of
// element lane / 8, so a quarter of the additions and exchanges is left.
__device__ __forceinline__ float fold_team(Team& team, const float (&v)[4]) {
    bool high = team.lane & 16, odd = team.lane & 8;
    float even_sum = (high ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 16);
    float odd_sum = (high ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 16);
    float sum = (odd ? odd_sum : even_sum) + __shfl_xor_sync(0xffffffffu, odd ? even_sum : odd_sum, 8);
    if (team.warps > 1) sum = fold_warps(team, sum);
    return fold_lanes(fold_lanes(sum, 4, 1), 16, 8);
}

// The same for a row of any width: term(i) is element i. Parts come in bit-reversed order, so that a fold is due as soon as its
// two sides are there; `held` is the stack of those that wait, one place a level.
template <class Term>
__device__ __forceinline__ float row_sum_of(Team& team, i64 width, i64 padded, Term term) {
    int levels = 0;
    while ((32ll * team.warps << levels) < padded) levels++;
    float held[ROW_LEVELS] = {}, folded = 0.0f;
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
        folded = carry;
    }
    return fold_team(team, folded);
}
