// D_i of attention's backward pass: the row sum of dO * O (SPEC.md sections 5 and 8).
#pragma once
#include "quad.cuh"

// The sum of out * dout over D elements by the halving tree, by one warp; in lane 0. `mine`: shared memory for `width` (D rounded up to
// a power of two) floats.
__device__ __forceinline__ float inner_product(const float* out, const float* dout, i64 dim, i64 width, float* mine) {
    int lane = threadIdx.x & 31;
    for (i64 d = lane; d < width; d += 32) mine[d] = d < dim ? dout[d] * out[d] : 0.0f;
    __syncwarp();
    for (i64 half = width / 2; half > 0; half /= 2) {
        for (i64 d = lane; d < half; d += 32) mine[d] = mine[d] + mine[d + half];
        __syncwarp();
    }
    return mine[0];
}

// The same tree where a lane holds four neighbours of 128 elements, which are 0 beyond the last.
#define HELD_WIDTH 128
__device__ __forceinline__ float inner_product_held(const Quad& out, const Quad& dout) {
    float product[4];
#pragma unroll
    for (int c = 0; c < 4; c++) product[c] = dout.v[c] * out.v[c];
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
#pragma unroll
        for (int c = 0; c < 4; c++) product[c] = product[c] + __shfl_down_sync(0xffffffffu, product[c], lanes);
    return (product[0] + product[2]) + (product[1] + product[3]);
}
