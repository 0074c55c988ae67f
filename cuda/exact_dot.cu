// Exact dot of fixed-point rows (SPEC.md section 3): the integer product of two matrices of digit planes, rounded once.
//
//   a        i8 [planes][batch][M][K], b  i8 [planes][batch][N][K]   zero beyond the row's own length
//   ea, eb   i32 [batch][M], [batch][N]                              exponents of the rows
//   c        float [batch][M][N]
//
// A row of integers q is kept as planes of 7-bit digits (exact_dot_planes.cuh), so that every product of planes is an int8
// matrix product with int32 sums, exact below 2^31 whatever the order. No tile size, number of warps or order of blocks can
// change the result: all sums are integers, and the one rounding happens once per element at the end.
//
// Test: pytest tests/kernels/test_exact_dot.py
#include "common.cuh"
#include "exact_dot_planes.cuh"
#include "exact_dot_quantise.cuh"
#include "exact_dot_tile.cuh"

// Small tiles, any number of bits: 64-bit sums in registers. K is cut where an int32 sum could overflow.
template <int BITS>
__device__ __forceinline__ void dot_small(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, const Shape& s, i8* shared) {
    using T = Small;
    constexpr i64 CHUNK = 1 << 16;  // 128 * 128 * 2^16 < 2^31
    Place p = place_of<T>(s, blockIdx.x);
    Pipeline<T> pipe = pipeline_of<T>(s, p, a, b, shared);
    i32 acc[T::WM / 16][T::WN / 8][4];
    i64 total[T::WM / 16][T::WN / 8][4] = {};
    clear<T>(acc);
#pragma unroll 1
    for (i64 k0 = 0; k0 < s.k; k0 += CHUNK) {
        pipe.start(k0, k0 + CHUNK < s.k ? k0 + CHUNK : s.k, PLANES<BITS>);
        int plane = 0, left = pipe.tiles_k;
#pragma unroll 1
        for (int t = 0; t < pipe.count; t++) {
            pipe.advance();
            multiply_tile<T>(acc, t, pipe);
            if (--left > 0) continue;
            i64 weight = plane_weight<BITS>(plane);
#pragma unroll
            for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
                for (int j = 0; j < T::WN / 8; j++)
#pragma unroll
                    for (int r = 0; r < 4; r++) total[i][j][r] += weight * acc[i][j][r];
            clear<T>(acc);
            plane++;
            left = pipe.tiles_k;
        }
        pipe.finish();
    }
    i32 ec[T::WN / 8][2];
    load_exponents<T>(ec, eb, s, p);
    each_row<T>(s, p, [&](int i, int half, i64 row) {
        i32 er = ea[p.batch * s.m + row];
        float* to = c + (p.batch * s.m + row) * s.n;
        each_column<T>(s, p, [&](int j, int r, i64 column) {
            to[column] = round_scaled<BITS>(total[i][j][2 * half + r], er, ec[j][r]);
        });
    });
}

// Large tiles for 14 bits: 128 int32 sums a thread and no room for 64-bit ones. The planes are h, s, l (q = 128 h + l,
// s = h + l); v = 16256 HH + 128 SS - 127 LL = 128 R - 127 LL with R = 127 HH + SS, which fits 31 bits up to K = 4064
// (|R| <= 528352 K). R waits in the thread's own elements of c while LL is summed in the same registers. Longer rows are
// cut into chunks whose v are added up in `wide`, i64 [batch][M][N].
#define LARGE_CHUNK 3840

// v = 128 R - 127 LL of half a row of a thread's elements, added to what earlier chunks left in `wide`; rounded after the last.
// All loads come before the first store, for the compiler cannot know that the elements do not alias, and one load after the
// other would take longer than the products.
template <typename T, int FIRST, int LAST>
__device__ __forceinline__ void finish_columns(const Shape& s, const Place& p, const i32 (&acc)[T::WN / 8][4], int half, i64 row,
                                               bool first, bool last, const i32* ea, const i32* eb, float* c, i64* wide) {
    i64 line = (p.batch * s.m + row) * s.n;
    i64 v[LAST - FIRST][2];
    some_columns<T, FIRST, LAST>(s, p, [&](int j, int r, i64 column) { v[j - FIRST][r] = ((i32*)c)[line + column]; });
    some_columns<T, FIRST, LAST>(s, p, [&](int j, int r, i64 column) {
        i64& mine = v[j - FIRST][r];
        mine = 128 * mine - 127 * (i64)acc[j][2 * half + r];
        if (!first) mine += wide[line + column];
    });
    i32 er = ea[p.batch * s.m + row];
    some_columns<T, FIRST, LAST>(s, p, [&](int j, int r, i64 column) {
        if (last)
            c[line + column] = round_scaled<14>(v[j - FIRST][r], er, eb[p.batch * s.n + column]);
        else
            wide[line + column] = v[j - FIRST][r];
    });
}

template <typename T>
__device__ __forceinline__ void dot_large(const i8* a, const i8* b, const i32* ea, const i32* eb, float* c, i64* wide, const Shape& s,
                                          i8* shared) {
    Place p = place_of<T>(s, blockIdx.x);
    Pipeline<T> pipe = pipeline_of<T>(s, p, a, b, shared);
    i32 acc[T::WM / 16][T::WN / 8][4];
    clear<T>(acc);
#pragma unroll 1
    for (i64 k0 = 0; k0 < s.k; k0 += LARGE_CHUNK) {
        i64 k1 = k0 + LARGE_CHUNK < s.k ? k0 + LARGE_CHUNK : s.k;
        pipe.start(k0, k1, 3);
        int plane = 0, left = pipe.tiles_k;
#pragma unroll 1
        for (int t = 0; t < pipe.count; t++) {
            pipe.advance();
            multiply_tile<T>(acc, t, pipe);
            if (--left > 0) continue;
            left = pipe.tiles_k;
            if (plane == 0) {
#pragma unroll
                for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
                    for (int j = 0; j < T::WN / 8; j++)
#pragma unroll
                        for (int r = 0; r < 4; r++) acc[i][j][r] *= 127;
            } else if (plane == 1) {
                each_row<T>(s, p, [&](int i, int half, i64 row) {
                    i32* to = (i32*)c + (p.batch * s.m + row) * s.n;
                    each_column<T>(s, p, [&](int j, int r, i64 column) { to[column] = acc[i][j][2 * half + r]; });
                });
                clear<T>(acc);
            }
            plane++;
        }
        each_row<T>(s, p, [&](int i, int half, i64 row) {
            finish_columns<T, 0, T::WN / 16>(s, p, acc[i], half, row, k0 == 0, k1 == s.k, ea, eb, c, wide);
            finish_columns<T, T::WN / 16, T::WN / 8>(s, p, acc[i], half, row, k0 == 0, k1 == s.k, ea, eb, c, wide);
        });
        clear<T>(acc);
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

#define ARGUMENTS const i8 *a, const i8 *b, const i32 *ea, const i32 *eb, float *c
#define SIZES i64 batch, i64 m, i64 n, i64 k
#define SMALL_KERNEL(BITS)                                                                                   \
    GLOBAL void __launch_bounds__(Small::THREADS, Small::BLOCKS) exact_dot_small_##BITS(ARGUMENTS, SIZES) {  \
        extern __shared__ i8 shared[];                                                                       \
        dot_small<BITS>(a, b, ea, eb, c, Shape{m, n, k, batch}, shared);                                     \
    }
#define LARGE_KERNEL(NAME, T)                                                                                   \
    GLOBAL void __launch_bounds__(T::THREADS, T::BLOCKS) exact_dot_##NAME##_14(ARGUMENTS, i64* wide, SIZES) {   \
        extern __shared__ i8 shared[];                                                                          \
        dot_large<T>(a, b, ea, eb, c, wide, Shape{m, n, k, batch}, shared);                                     \
    }
#define PLAIN_KERNEL(BITS)                                               \
    GLOBAL void exact_dot_plain_##BITS(ARGUMENTS, SIZES) {               \
        dot_plain<BITS>(a, b, ea, eb, c, Shape{m, n, k, batch});         \
    }

SMALL_KERNEL(14)
SMALL_KERNEL(21)
LARGE_KERNEL(large64, Large64)
LARGE_KERNEL(large128, Large128)
PLAIN_KERNEL(14)
PLAIN_KERNEL(21)
