// Exact dot of fixed-point rows (SPEC.md section 3): the integer product of two matrices of digit planes, rounded once.
//
//   a        i8 [planes][batch][M][K], b  i8 [planes][batch][N][K]   K a multiple of 64, zero beyond the row's own length
//   ea, eb   i32 [batch][M], [batch][N]                              exponents of the rows
//   c        float [batch][M][N]
//
// A row of integers q is kept as planes of 7-bit digits (exact_dot_planes.cuh), so that every product of planes is an int8
// matrix product with int32 sums, exact below 2^31 whatever the order. No tile size, number of warps or order of blocks can
// change the result: all sums are integers, and the one rounding happens once per element at the end.
//
// Test: pytest tests/kernels/test_exact_dot.py
#include "common.cuh"
#include "tensor.cuh"
#include "exact_dot_planes.cuh"
#include "exact_dot_quantise.cuh"

#define BK 64      // bytes of K in a tile: four 16-byte pieces
#define STAGES 4   // tiles in flight
#define THREADS 128  // four warps, two by two

struct Shape {
    i64 m, n, k;          // k padded to BK
    i64 batch;
};

// A block's place: which matrix of the batch and which tile of it. Tiles run down M in groups of 16 before they move along N,
// so that blocks that run together share their operands in the L2 cache.
struct Place {
    i64 batch, m0, n0;
};

template <int BM, int BN>
__device__ __forceinline__ Place place_of(const Shape& s, i64 index) {
    i64 tiles_m = (s.m + BM - 1) / BM, tiles_n = (s.n + BN - 1) / BN;
    i64 per = tiles_m * tiles_n;
    Place p;
    p.batch = index / per;
    i64 rest = index % per;
    i64 group = rest / (16 * tiles_n);
    i64 first = group * 16;
    i64 height = tiles_m - first < 16 ? tiles_m - first : 16;
    i64 inside = rest - first * tiles_n;
    p.m0 = (first + inside % height) * BM;
    p.n0 = (inside / height) * BN;
    return p;
}

// Copy ROWS rows of BK bytes to shared memory; rows from `limit` on become zeros. 16-byte pieces are permuted inside each
// pair of rows so that the eight rows which ldmatrix reads together lie in eight different groups of banks.
template <int ROWS>
__device__ __forceinline__ void load_rows(i8* tile, const i8* from, i64 stride, i64 limit) {
#pragma unroll
    for (int i = 0; i < ROWS * 4 / THREADS; i++) {
        int piece = i * THREADS + threadIdx.x;
        int row = piece >> 2, part = piece & 3;
        bool inside = row < limit;
        const i8* source = from + (inside ? (i64)row * stride + part * 16 : 0);
        cp_async_16(tile + row * BK + ((part ^ ((row >> 1) & 3)) << 4), source, inside ? 16 : 0);
    }
}

// Fragments of 16 rows and 32 bytes of K at `part` (in 16-byte pieces): the A operand, or two B operands of 8 columns.
__device__ __forceinline__ const i8* piece_of(const i8* tile, int row, int part) {
    return tile + row * BK + ((part ^ ((row >> 1) & 3)) << 4);
}

// acc += a tile pair: each of four warps multiplies its WM x WN part. acc is [WM/16][WN/8][4] int32.
template <int WM, int WN>
__device__ __forceinline__ void multiply_tile(i32 (&acc)[WM / 16][WN / 8][4], const i8* ta, const i8* tb) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int row_a = (warp >> 1) * WM + (lane & 15), part_a = lane >> 4;
    int row_b = (warp & 1) * WN + (lane & 7) + ((lane >> 4) << 3), part_b = (lane >> 3) & 1;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 fa[WM / 16][4], fb[WN / 16][4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) ldmatrix_x4(fa[i], piece_of(ta, row_a + i * 16, half * 2 + part_a));
#pragma unroll
        for (int j = 0; j < WN / 16; j++) ldmatrix_x4(fb[j], piece_of(tb, row_b + j * 16, half * 2 + part_b));
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma_m16n8k32_s8(acc[i][j], fa[i], fb[j >> 1] + (j & 1) * 2);
    }
}

template <int WM, int WN>
__device__ __forceinline__ void clear(i32 (&acc)[WM / 16][WN / 8][4]) {
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) acc[i][j][r] = 0;
}

// What one block multiplies, and its pipeline of tiles: all tiles of K of plane 0, then of plane 1, and so on.
template <int WM, int WN>
struct Pipeline {
    const i8 *a, *b;           // at the block's first row of plane 0
    i64 stride_a, stride_b;    // bytes from plane to plane
    i64 k, rows_a, rows_b;     // row length in bytes, rows left in the matrix
    i8* shared;
    int tiles_k, count;        // tiles of K in the present chunk, tiles in all
    const i8 *next_a, *next_b; // the tile to fetch next
    int left, fetched;         // tiles of K left in its plane, tiles fetched

    __device__ __forceinline__ i8* tile_a(int t) { return shared + (t % STAGES) * (2 * WM + 2 * WN) * BK; }
    __device__ __forceinline__ i8* tile_b(int t) { return tile_a(t) + 2 * WM * BK; }

    __device__ __forceinline__ void fetch() {
        if (fetched < count) {
            load_rows<2 * WM>(tile_a(fetched), next_a, k, rows_a);
            load_rows<2 * WN>(tile_b(fetched), next_b, k, rows_b);
            i64 step = BK;
            bool turn = --left == 0;
            if (turn) left = tiles_k;
            next_a += turn ? stride_a - (i64)(tiles_k - 1) * BK : step;
            next_b += turn ? stride_b - (i64)(tiles_k - 1) * BK : step;
        }
        fetched++;
        cp_async_commit();
    }

    __device__ __forceinline__ void start(i64 k0, i64 k1, int planes) {
        tiles_k = left = (int)((k1 - k0) / BK);
        count = tiles_k * planes;
        next_a = a + k0;
        next_b = b + k0;
        fetched = 0;
        for (int t = 0; t < STAGES - 1; t++) fetch();
    }

    // Make the next tile readable by all, and start the copy that reuses the buffer read before it.
    __device__ __forceinline__ void advance() {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        fetch();
    }

    __device__ __forceinline__ void finish() {
        cp_async_wait<0>();
        __syncthreads();
    }
};

template <int WM, int WN>
__device__ __forceinline__ Pipeline<WM, WN> pipeline_of(const Shape& s, const Place& p, const i8* a, const i8* b, i8* shared) {
    Pipeline<WM, WN> pipe;
    pipe.a = a + (p.batch * s.m + p.m0) * s.k;
    pipe.b = b + (p.batch * s.n + p.n0) * s.k;
    pipe.stride_a = s.batch * s.m * s.k;
    pipe.stride_b = s.batch * s.n * s.k;
    pipe.k = s.k;
    pipe.rows_a = s.m - p.m0;
    pipe.rows_b = s.n - p.n0;
    pipe.shared = shared;
    return pipe;
}

// The elements of c that a thread's accumulators are: calls f(i, j, r, row, column) for those inside the matrix.
template <int WM, int WN, typename F>
__device__ __forceinline__ void each_element(const Shape& s, const Place& p, F f) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 row0 = p.m0 + (warp >> 1) * WM + (lane >> 2), column0 = p.n0 + (warp & 1) * WN + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                i64 row = row0 + i * 16 + (r >> 1) * 8, column = column0 + j * 8 + (r & 1);
                if (row < s.m && column < s.n) f(i, j, r, row, column);
            }
}

// Small tiles, any number of bits: 64-bit sums in registers. K is cut where an int32 sum could overflow.
template <int BITS>
__device__ __forceinline__ void dot_small(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, const Shape& s, i8* shared) {
    constexpr int WM = 32, WN = 32;
    constexpr i64 CHUNK = 1 << 16;  // 127 * 128 * 2^16 < 2^31
    Place p = place_of<2 * WM, 2 * WN>(s, blockIdx.x);
    Pipeline<WM, WN> pipe = pipeline_of<WM, WN>(s, p, a, b, shared);
    i32 acc[WM / 16][WN / 8][4];
    i64 total[WM / 16][WN / 8][4] = {};
    clear<WM, WN>(acc);
#pragma unroll 1
    for (i64 k0 = 0; k0 < s.k; k0 += CHUNK) {
        i64 k1 = k0 + CHUNK < s.k ? k0 + CHUNK : s.k;
        pipe.start(k0, k1, PLANES<BITS>);
        int plane = 0, left = pipe.tiles_k;
#pragma unroll 1
        for (int t = 0; t < pipe.count; t++) {
            pipe.advance();
            multiply_tile<WM, WN>(acc, pipe.tile_a(t), pipe.tile_b(t));
            if (--left == 0) {
                i64 weight = plane_weight<BITS>(plane);
#pragma unroll
                for (int i = 0; i < WM / 16; i++)
#pragma unroll
                    for (int j = 0; j < WN / 8; j++)
#pragma unroll
                        for (int r = 0; r < 4; r++) total[i][j][r] += weight * acc[i][j][r];
                clear<WM, WN>(acc);
                plane++;
                left = pipe.tiles_k;
            }
        }
        pipe.finish();
    }
    each_element<WM, WN>(s, p, [&](int i, int j, int r, i64 row, i64 column) {
        i64 at = p.batch * s.m + row;
        c[at * s.n + column] = round_scaled<BITS>(total[i][j][r], ea[at], eb[p.batch * s.n + column]);
    });
}

GLOBAL void __launch_bounds__(THREADS, 3)
exact_dot_small_14(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, i64 batch, i64 m, i64 n, i64 k) {
    extern __shared__ i8 shared[];
    dot_small<14>(a, b, ea, eb, c, Shape{m, n, k, batch}, shared);
}

GLOBAL void __launch_bounds__(THREADS, 3)
exact_dot_small_21(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, i64 batch, i64 m, i64 n, i64 k) {
    extern __shared__ i8 shared[];
    dot_small<21>(a, b, ea, eb, c, Shape{m, n, k, batch}, shared);
}

// Large tiles for 14 bits: 128 int32 sums a thread and no room for 64-bit ones. The planes are h, s, l (q = 128 h + l,
// s = h + l); v = 16256 HH + 128 SS - 127 LL = 128 R - 127 LL with R = 127 HH + SS, which fits 31 bits up to K = 4064
// (|R| <= 528352 K). R waits in the thread's own elements of c while LL is summed in the same registers. Longer rows are
// cut into chunks whose v are added up in `wide`.
#define LARGE_CHUNK 3840

GLOBAL void __launch_bounds__(THREADS, 2)
exact_dot_large_14(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, i64* wide, i64 batch, i64 m, i64 n, i64 k) {
    extern __shared__ i8 shared[];
    constexpr int WM = 64, WN = 64;
    Shape s{m, n, k, batch};
    Place p = place_of<2 * WM, 2 * WN>(s, blockIdx.x);
    Pipeline<WM, WN> pipe = pipeline_of<WM, WN>(s, p, a, b, shared);
    i32 acc[WM / 16][WN / 8][4];
    i32* parked = (i32*)c;
    clear<WM, WN>(acc);
#pragma unroll 1
    for (i64 k0 = 0; k0 < k; k0 += LARGE_CHUNK) {
        i64 k1 = k0 + LARGE_CHUNK < k ? k0 + LARGE_CHUNK : k;
        pipe.start(k0, k1, 3);
        int plane = 0, left = pipe.tiles_k;
#pragma unroll 1
        for (int t = 0; t < pipe.count; t++) {
            pipe.advance();
            multiply_tile<WM, WN>(acc, pipe.tile_a(t), pipe.tile_b(t));
            if (--left > 0) continue;
            left = pipe.tiles_k;
            if (plane == 0) {
#pragma unroll
                for (int i = 0; i < WM / 16; i++)
#pragma unroll
                    for (int j = 0; j < WN / 8; j++)
#pragma unroll
                        for (int r = 0; r < 4; r++) acc[i][j][r] *= 127;
            } else if (plane == 1) {
                each_element<WM, WN>(s, p, [&](int i, int j, int r, i64 row, i64 column) {
                    parked[(p.batch * m + row) * n + column] = acc[i][j][r];
                });
                clear<WM, WN>(acc);
            }
            plane++;
        }
        bool first = k0 == 0, last = k1 == k;
        each_element<WM, WN>(s, p, [&](int i, int j, int r, i64 row, i64 column) {
            i64 at = p.batch * m + row, element = at * n + column;
            i64 v = 128 * (i64)parked[element] - 127 * (i64)acc[i][j][r];
            if (!first) v += wide[element];
            if (last)
                c[element] = round_scaled<14>(v, ea[at], eb[p.batch * n + column]);
            else
                wide[element] = v;
        });
        clear<WM, WN>(acc);
        pipe.finish();
    }
}

// No tensor cores: one thread an element, digits put together again, plain 64-bit integers. The second opinion of the
// self-test, and the way for any other architecture.
template <int BITS>
__device__ __forceinline__ void dot_plain(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, const Shape& s) {
    i64 count = s.batch * s.m * s.n;
    for (i64 at = global_index(); at < count; at += global_size()) {
        i64 row = at / s.n, column = row / s.m * s.n + at % s.n;
        i64 total = 0;
        for (i64 k = 0; k < s.k; k++)
            total += (i64)integer_of<BITS>(a + row * s.k + k, s.batch * s.m * s.k) *
                     integer_of<BITS>(b + column * s.k + k, s.batch * s.n * s.k);
        c[at] = round_scaled<BITS>(total, ea[row], eb[column]);
    }
}

GLOBAL void exact_dot_plain_14(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, i64 batch, i64 m, i64 n, i64 k) {
    dot_plain<14>(a, b, ea, eb, c, Shape{m, n, k, batch});
}

GLOBAL void exact_dot_plain_21(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, i64 batch, i64 m, i64 n, i64 k) {
    dot_plain<21>(a, b, ea, eb, c, Shape{m, n, k, batch});
}
