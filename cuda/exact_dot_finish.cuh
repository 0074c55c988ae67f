// The end of a tile of an exact dot: sums of planes put together and rounded once.
#pragma once
#include "common.cuh"
#include "exact_dot_operand.cuh"
#include "exact_dot_planes.cuh"
#include "exact_dot_tile.cuh"

// A thread's part of the workspace: one 64-bit sum for each of its elements, or 32-bit ones. Threads of a block lie side by side, so
// that accesses are whole lines; and the workspace belongs to the blocks that run, not to the result, so that it stays in the
// L2 cache.
template <typename T>
struct Parked {
    uint4* mine;

    __device__ __forceinline__ uint4* at(int i, int j, int half) const {
        return mine + ((i * (T::WN / 8) + j) * 2 + half) * T::THREADS;
    }
    __device__ __forceinline__ static i64 join(u32 low, u32 high) { return (i64)((u64)high << 32 | low); }

    __device__ __forceinline__ void load(int i, int j, i64* v) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 words = *at(i, j, half);
            v[2 * half] = join(words.x, words.y);
            v[2 * half + 1] = join(words.z, words.w);
        }
    }
    __device__ __forceinline__ void store(int i, int j, const i64* v) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u64 one = (u64)v[2 * half], two = (u64)v[2 * half + 1];
            *at(i, j, half) = make_uint4((u32)one, (u32)(one >> 32), (u32)two, (u32)(two >> 32));
        }
    }
    __device__ __forceinline__ void load32(int i, int j, i64* v) const {
        uint4 words = *at(i, j, 0);
        v[0] = (i32)words.x, v[1] = (i32)words.y, v[2] = (i32)words.z, v[3] = (i32)words.w;
    }
    __device__ __forceinline__ void store32(int i, int j, const i32* v) const {
        *at(i, j, 0) = make_uint4((u32)v[0], (u32)v[1], (u32)v[2], (u32)v[3]);
    }
};

// Columns of sums that are loaded before the first of them is needed, as many as registers allow.
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1000
#define TOGETHER 4
#else
#define TOGETHER 2
#endif

// weight * sums, added to what is parked unless it is the first.
template <typename T>
__device__ __forceinline__ void park(const Sums<T>& sums, i64 weight, bool first, const Parked<T>& parked) {
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int j0 = 0; j0 < T::WN / 8; j0 += TOGETHER) {
            i64 v[TOGETHER][4] = {};
            if (!first)
#pragma unroll
                for (int j = 0; j < TOGETHER; j++) parked.load(i, j0 + j, v[j]);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
#pragma unroll
                for (int r = 0; r < 4; r++) v[j][r] += weight * sums.of[i][j0 + j][r];
                parked.store(i, j0 + j, v[j]);
            }
        }
}

template <typename T>
__device__ __forceinline__ void park32(const Sums<T>& sums, const Parked<T>& parked) {
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < T::WN / 8; j++) parked.store32(i, j, sums.of[i][j]);
}

// A thread's first element of a tile; its others are at row + 16 i + 8 half, column + 8 j + r.
struct Corner {
    i32 row, column;
};

template <typename T>
__device__ __forceinline__ Corner corner_of(const Place& p) {
    i32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return Corner{p.m0 + warp / T::ACROSS * T::WM + (lane >> 2), p.n0 + warp % T::ACROSS * T::WN + (lane & 3) * 2};
}

// Parked sums to c by the rounding that knows every case, one after the other.
template <int BITS, typename T>
__device__ __forceinline__ void finish_any(const Shape& s, const Place& p, const Parked<T>& parked, const i32* ea, const i32* eb,
                                           const Result& c) {
    Corner corner = corner_of<T>(p);
#pragma unroll 1
    for (int at = 0; at < T::WM / 16 * (T::WN / 8) * 4; at++) {
        int r = at & 3, j = at / 4 % (T::WN / 8), i = at / 4 / (T::WN / 8);
        i64 row = corner.row + i * 16 + (r >> 1) * 8, column = corner.column + j * 8 + (r & 1);
        if (row >= s.m || column >= s.n) continue;
        i64 v = ((const i64*)parked.at(i, j, r >> 1))[r & 1];
        *c.at(p.batch, row, column) = round_any<BITS>(v, ea[row], eb[column]);
    }
}

// Two neighbouring elements of c, the second of which may be outside.
__device__ __forceinline__ void store_pair(float* to, float x, float y, bool pairs, bool second) {
    if (pairs) {
        *(float2*)to = make_float2(x, y);
    } else {
        to[0] = x;
        if (second) to[1] = y;
    }
}

// Exact sums: parked + weight * sums. `narrow` as in finish.
template <typename T>
__device__ __forceinline__ void finish_sums(const Shape& s, const Place& p, const Sums<T>& sums, i64 weight, bool narrow,
                                            const Parked<T>& parked, const Result& c) {
    Corner corner = corner_of<T>(p);
    bool pairs = c.pairs(s.n);
    i64* to = c.sum_at(p.batch, corner.row, corner.column);
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < T::WN / 8; j++) {
            i64 v[4];
            if (narrow)
                parked.load32(i, j, v);
            else
                parked.load(i, j, v);
#pragma unroll
            for (int r = 0; r < 4; r++) v[r] = (narrow ? v[r] * 128 : v[r]) + weight * sums.of[i][j][r];
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (corner.row + i * 16 + half * 8 < s.m && corner.column + j * 8 < s.n)
                    store_sums(to + (i * 16 + half * 8) * c.line + j * 8, v[2 * half], v[2 * half + 1], pairs,
                               corner.column + j * 8 + 1 < s.n);
        }
}

// c = parked + weight * sums, rounded. `narrow`: 32-bit sums are parked, which count 128.
template <int BITS, typename T>
__device__ __forceinline__ void finish(const Shape& s, const Place& p, const Sums<T>& sums, i64 weight, bool narrow,
                                       const Parked<T>& parked, const Operand& a, const Operand& b, const Result& c) {
    const i32 *ea = a.exponents_at(p.batch), *eb = b.exponents_at(p.batch);
    Corner corner = corner_of<T>(p);
    bool tame = BITS != 14 || s.k < 65536;  // |v| <= 2^26 K
    float scale_b[T::WN / 8][2];
#pragma unroll
    for (int j = 0; j < T::WN / 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i64 column = corner.column + j * 8 + r;
            i32 e = eb[column < s.n ? column : s.n - 1];
            tame = tame && is_tame<BITS>(e);
            scale_b[j][r] = scale_of<BITS>(e);
        }
    float scale_a[T::WM / 16][2];
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 row = corner.row + i * 16 + half * 8;
            i32 e = ea[row < s.m ? row : s.m - 1];
            tame = tame && is_tame<BITS>(e);
            scale_a[i][half] = scale_of<BITS>(e);
        }
    bool pairs = c.pairs(s.n);
    float* to = c.at(p.batch, corner.row, corner.column);
#pragma unroll
    for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
        for (int j0 = 0; j0 < T::WN / 8; j0 += TOGETHER) {
            i64 v[TOGETHER][4];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (narrow)
                    parked.load32(i, j0 + j, v[j]);
                else
                    parked.load(i, j0 + j, v[j]);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
#pragma unroll
                for (int r = 0; r < 4; r++) v[j][r] = (narrow ? v[j][r] * 128 : v[j][r]) + weight * sums.of[i][j0 + j][r];
                if (!tame) parked.store(i, j0 + j, v[j]);
                i32 column = (j0 + j) * 8;
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (tame && corner.row + i * 16 + half * 8 < s.m && corner.column + column < s.n)
                        store_pair(to + (i * 16 + half * 8) * c.line + column,
                                   round_tame<BITS>(v[j][2 * half], scale_a[i][half], scale_b[j0 + j][0]),
                                   round_tame<BITS>(v[j][2 * half + 1], scale_a[i][half], scale_b[j0 + j][1]), pairs,
                                   corner.column + column + 1 < s.n);
            }
        }
    if (!tame) finish_any<BITS, T>(s, p, parked, ea, eb, c);
}
