// The tile of an exact dot: its copies to shared memory in a pipeline, its products on the int8 tensor cores.
#pragma once
#include "common.cuh"
#include "tensor.cuh"

// Each warp multiplies WM x WN, the DOWN x ACROSS warps of a block BM x BN, over BK bytes of K at a time, STAGES of these in
// flight. BLOCKS of it share a multiprocessor.
template <int WM_, int WN_, int DOWN, int ACROSS_, int BK_, int STAGES_, int BLOCKS_>
struct Tile {
    static constexpr int WM = WM_, WN = WN_, ACROSS = ACROSS_, BK = BK_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int BM = WM * DOWN, BN = WN * ACROSS, THREADS = 32 * DOWN * ACROSS;
    static constexpr int PARTS = BK / 16;         // 16-byte pieces of a row
    static constexpr int ROWS = THREADS / PARTS;  // rows that the block copies at once, a piece a thread
    static constexpr int BYTES = (BM + BN) * BK;  // of one stage

    // Where piece `part` of `row` lies: permuted so that the eight rows which ldmatrix reads together lie in eight different
    // groups of banks. Rows that are ROWS apart have the same permutation.
    __device__ __forceinline__ static int place(int row, int part) {
        int turn = BK == 64 ? (row >> 1) & 3 : row & 7;
        return row * BK + ((part ^ turn) << 4);
    }
};

using Small = Tile<32, 32, 2, 2, 64, 4, 3>;      // 32 KiB
using Large64 = Tile<64, 64, 2, 2, 64, 4, 2>;    // 64 KiB: every card from sm_75 on
using Large128 = Tile<64, 64, 2, 2, 128, 3, 2>;  // 96 KiB

struct Shape {
    i64 m, n, k;  // k padded
    i64 batch;
};

// A block's place: which matrix of the batch and which tile of it. Tiles run down M in groups of 16 before they move along N,
// so that blocks that run together share their operands in the L2 cache.
struct Place {
    i64 batch, m0, n0;
};

template <typename T>
__device__ __forceinline__ Place place_of(const Shape& s, i64 index) {
    constexpr int BM = T::BM, BN = T::BN;
    i64 tiles_m = (s.m + BM - 1) / BM, tiles_n = (s.n + BN - 1) / BN;
    i64 per = tiles_m * tiles_n;
    Place p;
    p.batch = index / per;
    i64 rest = index % per;
    i64 first = rest / (16 * tiles_n) * 16;
    i64 height = tiles_m - first < 16 ? tiles_m - first : 16;
    i64 inside = rest - first * tiles_n;
    p.m0 = (first + inside % height) * BM;
    p.n0 = inside / height * BN;
    return p;
}

// Copy COUNT rows to shared memory, this thread's piece of each, so that one address and one distance serve them all. Rows
// beyond the matrix are read as well (the operands' memory reaches 128 rows beyond their end): they only touch results that
// are not stored.
template <typename T, int COUNT>
__device__ __forceinline__ void load_rows(i8* tile, const i8* from, i64 stride) {
    i8* to = tile + T::place(threadIdx.x / T::PARTS, threadIdx.x % T::PARTS);
#pragma unroll
    for (int i = 0; i < COUNT / T::ROWS; i++) cp_async_16(to + i * T::ROWS * T::BK, from + i * stride);
}

// What one block multiplies, and its pipeline of tiles: all tiles of K of plane 0, then of plane 1, and so on.
template <typename T>
struct Pipeline {
    const i8 *a, *b;            // at this thread's first piece of the block's rows of plane 0
    i64 turn_a, turn_b;         // bytes from plane to plane
    i64 stride;                 // bytes of T::ROWS rows
    i8* shared;
    int tiles_k, count;         // tiles of K in the present chunk, tiles in all
    const i8 *next_a, *next_b;  // the tile to fetch next
    int left, fetched;          // tiles of K left in its plane, tiles fetched

    __device__ __forceinline__ i8* tile_a(int t) { return shared + (t % T::STAGES) * T::BYTES; }
    __device__ __forceinline__ i8* tile_b(int t) { return tile_a(t) + T::BM * T::BK; }

    __device__ __forceinline__ void fetch() {
        if (fetched < count) {
            load_rows<T, T::BM>(tile_a(fetched), next_a, stride);
            load_rows<T, T::BN>(tile_b(fetched), next_b, stride);
            next_a += T::BK;
            next_b += T::BK;
            if (--left == 0) {
                left = tiles_k;
                next_a += turn_a - (i64)tiles_k * T::BK;
                next_b += turn_b - (i64)tiles_k * T::BK;
            }
        }
        fetched++;
        cp_async_commit();
    }

    __device__ __forceinline__ void start(i64 k0, i64 k1, int planes) {
        tiles_k = left = (int)((k1 - k0) / T::BK);
        count = tiles_k * planes;
        next_a = a + k0;
        next_b = b + k0;
        fetched = 0;
        for (int t = 0; t < T::STAGES - 1; t++) fetch();
    }

    // Make the next tile readable by all; then the buffer that was read before it is free for the next fetch.
    __device__ __forceinline__ void advance() {
        cp_async_wait<T::STAGES - 2>();
        __syncthreads();
    }

    __device__ __forceinline__ void finish() {
        cp_async_wait<0>();
        __syncthreads();
    }
};

template <typename T>
__device__ __forceinline__ Pipeline<T> pipeline_of(const Shape& s, const Place& p, const i8* a, const i8* b, i8* shared) {
    Pipeline<T> pipe;
    i64 row = threadIdx.x / T::PARTS, part = threadIdx.x % T::PARTS * 16;
    pipe.a = a + (p.batch * s.m + p.m0 + row) * s.k + part;
    pipe.b = b + (p.batch * s.n + p.n0 + row) * s.k + part;
    pipe.turn_a = s.batch * s.m * s.k;
    pipe.turn_b = s.batch * s.n * s.k;
    pipe.stride = T::ROWS * s.k;
    pipe.shared = shared;
    return pipe;
}

template <typename T>
__device__ __forceinline__ void clear(i32 (&acc)[T::WM / 16][T::WN / 8][4]) {
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < T::WN / 8; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) acc[i][j][r] = 0;
}

// acc += a pair of tiles: each warp multiplies its part. The next copy starts between loading and multiplying, where
// it costs the least.
template <typename T>
__device__ __forceinline__ void multiply_tile(i32 (&acc)[T::WM / 16][T::WN / 8][4], int t, Pipeline<T>& pipe) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int row_a = warp / T::ACROSS * T::WM + (lane & 15), part_a = lane >> 4;
    int row_b = warp % T::ACROSS * T::WN + (lane & 7) + ((lane >> 4) << 3), part_b = (lane >> 3) & 1;
    const i8 *ta = pipe.tile_a(t), *tb = pipe.tile_b(t);
#pragma unroll
    for (int k = 0; k < T::BK / 32; k++) {
        u32 fa[T::WM / 16][4], fb[T::WN / 16][4];
#pragma unroll
        for (int i = 0; i < T::WM / 16; i++) ldmatrix_x4(fa[i], ta + T::place(row_a + i * 16, k * 2 + part_a));
#pragma unroll
        for (int j = 0; j < T::WN / 16; j++) ldmatrix_x4(fb[j], tb + T::place(row_b + j * 16, k * 2 + part_b));
        if (k == 0) pipe.fetch();
#pragma unroll
        for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < T::WN / 8; j++) mma_m16n8k32_s8(acc[i][j], fa[i], fb[j >> 1] + (j & 1) * 2);
    }
}

// Rows of c that a thread's accumulators [i][..][2 half ..] belong to: calls f(i, half, row) for those inside the matrix.
template <typename T, typename F>
__device__ __forceinline__ void each_row(const Shape& s, const Place& p, F f) {
    i64 row0 = p.m0 + (threadIdx.x >> 5) / T::ACROSS * T::WM + ((threadIdx.x & 31) >> 2);
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row0 + i * 16 + half * 8 < s.m) f(i, half, row0 + i * 16 + half * 8);
}

// Columns likewise: calls f(j, r, column) for accumulators [..][j][.. + r], FIRST <= j < LAST.
template <typename T, int FIRST, int LAST, typename F>
__device__ __forceinline__ void some_columns(const Shape& s, const Place& p, F f) {
    i64 column0 = p.n0 + (threadIdx.x >> 5) % T::ACROSS * T::WN + (threadIdx.x & 3) * 2;
#pragma unroll
    for (int j = FIRST; j < LAST; j++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (column0 + j * 8 + r < s.n) f(j, r, column0 + j * 8 + r);
}

template <typename T, typename F>
__device__ __forceinline__ void each_column(const Shape& s, const Place& p, F f) {
    some_columns<T, 0, T::WN / 8>(s, p, f);
}

// Exponents of a thread's columns.
template <typename T>
__device__ __forceinline__ void load_exponents(i32 (&e)[T::WN / 8][2], const i32* eb, const Shape& s, const Place& p) {
    each_column<T>(s, p, [&](int j, int r, i64 column) { e[j][r] = eb[p.batch * s.n + column]; });
}
