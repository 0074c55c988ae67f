// Rows to digit planes while they stay in registers: read once, written once.
//
//   source     the elements of [rows][k], rows of all matrices of a batch of m rows each: in memory (Plain of quantise_tile.cuh), or
//              made of what is there as they are read
//   exponents  i32 [rows], planes i8 in blocks (exact_dot_planes.cuh), status u32
//
// Two rows share their warps: sixteen lanes, four elements each, take 64 columns of one row, the other sixteen lanes those of the
// next. So a load takes 256 bytes of a row, and a store of one plane 64 bytes of two neighbouring rows: with an even m a whole line.
//
// Test: pytest tests/kernels/test_quantise.py tests/kernels/test_swiglu.py
#pragma once
#include "quad.cuh"
#include "quantise_digits.cuh"

#define PAIR_COLUMNS 64

// The largest of each half of a warp.
__device__ __forceinline__ u32 half_warp_max(u32 value) {
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1) value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// The same over the warps of a team; a team of several is the whole block.
__device__ __forceinline__ u32 team_max(u32 value, i32 warps) {
    __shared__ u32 found[2][32];
    value = half_warp_max(value);
    if (warps == 1) return value;
    i32 lane = threadIdx.x & 15, half = threadIdx.x >> 4 & 1;
    if (lane == 0) found[half][threadIdx.x >> 5] = value;
    __syncthreads();
    value = lane < warps ? found[half][lane] : 0;
    if (lane + 16 < warps) value = larger(value, found[half][lane + 16]);
    return half_warp_max(value);
}

// A team of `warps` warps, one or the block's, takes two rows; k <= HELD * 64 * warps.
template <int BITS, int HELD, class Source>
__device__ __forceinline__ void quantise_rows(const Source& source, i32* exponents, i8* planes, u32* status, i64 batch, i64 m, i64 k,
                                              i64 padded, i32 warps) {
    i32 lane = threadIdx.x & 31, warp = warps == 1 ? 0 : threadIdx.x >> 5;
    i64 pair = warps == 1 ? global_index() >> 5 : blockIdx.x;
    i64 row = pair * 2 + (lane >> 4), rows = batch * m;
    i32 part = (lane & 15) * 4, columns = row < rows ? (i32)k : 0;
    bool whole = source.whole();
    Quad cell[HELD];
#pragma unroll
    for (int c = 0; c < HELD; c++) {
        i32 at = (c * warps + warp) * PAIR_COLUMNS + part;
        cell[c] = at < columns ? source.at(row, at, whole) : Quad{};
    }
    u32 largest = 0;
#pragma unroll
    for (int c = 0; c < HELD; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) largest = larger(largest, magnitude(cell[c].v[i]));
    largest = team_max(largest, warps);
    if (row >= rows) return;
    if (part == 0 && warp == 0) note_exponent(largest, exponents + row, status);
    Scale scale = scale_to_fixed<BITS>(largest);
    Division at = divide(row, m);
    Layout layout = layout_of(batch, m, padded);
    i8* to = planes + layout.place(at.quotient, at.rest, part);
    i32 blocks = (i32)(padded >> 6);
#pragma unroll
    for (int c = 0; c < HELD; c++) {
        i32 block = c * warps + warp;
        if (block < blocks) store_words<BITS>(to + (i64)block * BLOCK_BYTES, layout.plane, words_of<BITS>(cell[c].v, scale));
    }
}
