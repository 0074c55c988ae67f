// Rows of binary32 to fixed point (SPEC.md section 3), as digit planes for exact_dot.cu.
//
//   x          float [batch][M][K]
//   exponents  i32 [batch][rows], planes i8 [planes][batch][rows][padded] in blocks (exact_dot_planes.cuh): of the rows of x, or
//              of the rows of its transpose (columns of x)
//   status     u32, bit 0 is set when an element is infinite or NaN
//
// The exponent of a row comes from its exact maximum, and each integer from one element alone: no order enters.
//
// Test: pytest tests/kernels/test_exact_dot.py
#pragma once
#include "common.cuh"
#include "exact_dot_planes.cuh"

// Bits of |x| order like the numbers; inf and NaN are above every finite one.
__device__ __forceinline__ u32 magnitude(float x) { return bits_of(x) & 0x7fffffffu; }

__device__ __forceinline__ i32 exponent_of(u32 largest, u32* status) {
    if (largest >= 0x7f800000u) {
        atomicOr(status, NOT_FINITE);
        return -149;
    }
    return row_exponent(float_of(largest));
}

__device__ __forceinline__ u32 warp_max(u32 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        u32 other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

// One warp a row; its K elements become `padded` bytes a plane.
template <int BITS>
__device__ __forceinline__ void quantise_rows(const float* x, i32* exponents, i8* planes, u32* status, i64 batch, i64 m, i64 k,
                                              i64 padded) {
    i64 row = global_index() >> 5;
    int lane = threadIdx.x & 31;
    if (row >= batch * m) return;
    Layout layout = layout_of(batch, m, padded);
    i64 of = row / m, line = row % m;
    const float* from = x + row * k;
    u32 largest = 0;
    for (i64 i = lane; i < k; i += 32) {
        u32 size = magnitude(from[i]);
        largest = size > largest ? size : largest;
    }
    largest = warp_max(largest);
    i32 e = exponent_of(largest, status);
    if (lane == 0) exponents[row] = e;
    bool finite = largest < 0x7f800000u;
    for (i64 i = (i64)lane * 4; i < padded; i += 128) {
        i32 q[4];
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = finite && i + j < k ? fixed_of<BITS>(from[i + j], e) : 0;
        store_digits<BITS>(planes, layout.place(of, line, i), layout.plane, q);
    }
}

GLOBAL void quantise_rows_14(const float* x, i32* exponents, i8* planes, u32* status, i64 batch, i64 m, i64 k, i64 padded) {
    quantise_rows<14>(x, exponents, planes, status, batch, m, k, padded);
}
GLOBAL void quantise_rows_21(const float* x, i32* exponents, i8* planes, u32* status, i64 batch, i64 m, i64 k, i64 padded) {
    quantise_rows<21>(x, exponents, planes, status, batch, m, k, padded);
}

// The largest magnitude of each column, as bits, into `largest` [batch][K], zero before. A block takes 32 columns and `height`
// rows; the maximum is exact, so the atomics may come in any order.
GLOBAL void column_magnitudes(const float* x, u32* largest, i64 batch, i64 m, i64 k, i64 height) {
    __shared__ u32 found[8][32];
    i64 tiles_k = (k + 31) / 32, tiles_m = (m + height - 1) / height;
    i64 b = blockIdx.x / (tiles_k * tiles_m), rest = blockIdx.x % (tiles_k * tiles_m);
    i64 column = rest % tiles_k * 32 + (threadIdx.x & 31), first = rest / tiles_k * height;
    i64 last = first + height < m ? first + height : m;
    int line = threadIdx.x >> 5;
    u32 mine = 0;
    if (column < k)
        for (i64 row = first + line; row < last; row += 8) {
            u32 size = magnitude(x[(b * m + row) * k + column]);
            mine = size > mine ? size : mine;
        }
    found[line][threadIdx.x & 31] = mine;
    __syncthreads();
    if (line == 0 && column < k) {
#pragma unroll
        for (int i = 1; i < 8; i++) mine = found[i][threadIdx.x] > mine ? found[i][threadIdx.x] : mine;
        atomicMax(largest + b * k + column, mine);
    }
}

// Exponents of `count` columns from their magnitudes.
GLOBAL void column_exponents(const u32* largest, i32* exponents, u32* status, i64 count) {
    i64 i = global_index();
    if (i < count) exponents[i] = exponent_of(largest[i], status);
}

// Planes of the transpose: a block turns 64 rows by 64 columns of x around in shared memory, which makes one block of the planes.
// padded is the length of a row of the transpose, M rounded up; rows of x beyond M give zeros.
template <int BITS>
__device__ __forceinline__ void quantise_columns(const float* x, const i32* exponents, i8* planes, i64 batch, i64 m, i64 k, i64 padded) {
    __shared__ float tile[64][65];
    i64 tiles_k = (k + 63) / 64, tiles_m = padded / 64;
    i64 b = blockIdx.x / (tiles_k * tiles_m), rest = blockIdx.x % (tiles_k * tiles_m);
    i64 k0 = rest % tiles_k * 64, m0 = rest / tiles_k * 64;
    for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
        i64 row = m0 + i / 64, column = k0 + i % 64;
        tile[i / 64][i % 64] = row < m && column < k ? x[(b * m + row) * k + column] : 0.0f;
    }
    __syncthreads();
    Layout layout = layout_of(batch, k, padded);
    i8* to = planes + layout.place(b, k0, m0);
    for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
        int column = i / 16, part = i % 16 * 4;
        if (k0 + column >= k) continue;
        i32 e = exponents[b * k + k0 + column], q[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float value = tile[part + j][column];
            q[j] = is_finite(value) ? fixed_of<BITS>(value, e) : 0;
        }
        store_digits<BITS>(to, place_in_block(column, part), layout.plane, q);
    }
}

GLOBAL void quantise_columns_14(const float* x, const i32* exponents, i8* planes, i64 batch, i64 m, i64 k, i64 padded) {
    quantise_columns<14>(x, exponents, planes, batch, m, k, padded);
}
GLOBAL void quantise_columns_21(const float* x, const i32* exponents, i8* planes, i64 batch, i64 m, i64 k, i64 padded) {
    quantise_columns<21>(x, exponents, planes, batch, m, k, padded);
}
