// How large the integers of 64 rows are together, for the fused attention (attention_sm90.cuh), and which exponents it takes as tame.
#pragma once
#include "common.cuh"
#include "exact_dot_planes.cuh"

// A row of zeros, or one with an exponent so small that a dot of two such rows, and the dot times the scale, is zero or a normal number
// of binary32: both |x| <= 48, so that 2^(x + y - 26) >= 2^-122 and |dot| < 2^31 2^70.
__device__ __forceinline__ bool is_tame_row(i32 x) { return x == -149 || (u32)(x + 48) <= 96u; }
// 2^(x - 13) of such a row; anything for zeros, whose dots are 0.
__device__ __forceinline__ float factor_of_row(i32 x) { return power_of_two(max(x, -100) - 13); }
// 2^x as a factor of weights of such a row, 0 for zeros.
__device__ __forceinline__ float factor_of_weight(i32 x) { return x == -149 ? 0.0f : power_of_two(x); }

#define NORM_THREADS 256

// At least the largest norm of the integers of 64 rows from `block` on, of which `rows` are there; infinite if one is not tame. Planes of
// 128 elements; exponents of the first row on. By a block of NORM_THREADS threads, for all of them.
__device__ __forceinline__ float norm_of_block(const i8* block, i64 plane, const i32* exponents, i32 rows) {
    __shared__ float found[NORM_THREADS / 32];
    i32 row = (i32)threadIdx.x / 4, piece = (i32)threadIdx.x % 4;
    i64 sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const i8* at = block + i * BLOCK_BYTES + place_in_block(row, piece * 16);
        int4 high = *(const int4*)at, low = *(const int4*)(at + 2 * plane);
        const i32 h[4] = {high.x, high.y, high.z, high.w}, l[4] = {low.x, low.y, low.z, low.w};
        i32 hh = 0, hl = 0, ll = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) hh = __dp4a(h[w], h[w], hh), hl = __dp4a(h[w], l[w], hl), ll = __dp4a(l[w], l[w], ll);
        sum += 16384ll * hh + 256ll * hl + ll;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float norm = row < rows ? sqrtf((float)sum) * 1.000001f : 0.0f;
    if (row < rows && !is_tame_row(exponents[row])) norm = float_of(0x7f800000u);
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) norm = fmaxf(norm, __shfl_xor_sync(0xffffffffu, norm, offset));
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = norm;
    __syncthreads();
    norm = found[0];
#pragma unroll
    for (int w = 1; w < NORM_THREADS / 32; w++) norm = fmaxf(norm, found[w]);
    return norm;
}
