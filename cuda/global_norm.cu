// Exact sum of the squares of the elements of many tensors (SPEC.md section 13).
//
//   table   u64 as in tensor_table.cuh, field 0: gradients, float
//   total   i64 [2], 0 before: A = total[0] * 2^32 + total[1], in units 2^-62
//   status  u32
//   small   2^62 / n or less, n the number of all elements, as binary32
//
// Sums of integers: the launch shape changes no bit of A. total[1] grows by less than 2^32 a block.
//
// Test: pytest tests/kernels/test_global_norm.py
#include "exact_sum.cuh"
#include "quad.cuh"
#include "tensor_table.cuh"

#define HIGH_UNIT 1073741824.0f  // 2^30
#define LOW_UNIT 4294967296.0f   // 2^32

// A block's i64 sums in its thread 0; blockDim.x is a multiple of 32.
__device__ __forceinline__ void sum_block(i64* high, i64* low, u32* status) {
    __shared__ i64 partial[2][32];
    for (int offset = 16; offset > 0; offset >>= 1) {
        *high = add_checked(*high, __shfl_xor_sync(0xffffffffu, *high, offset), status);
        *low = *low + __shfl_xor_sync(0xffffffffu, *low, offset);
    }
    if ((threadIdx.x & 31) == 0) {
        partial[0][threadIdx.x >> 5] = *high;
        partial[1][threadIdx.x >> 5] = *low;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < blockDim.x >> 5; warp++) {
            *high = add_checked(*high, partial[0][warp], status);
            *low = *low + partial[1][warp];
        }
}

GLOBAL void squares(const u64* table, i64 count, i64 tiles, i64* total, u32* status, float small) {
    i64 high = 0, low = 0;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile at = tile_of(table, count, tile);
        const float* x = at.field<const float>(0);
        for (i64 i = at.first + threadIdx.x * 4; i < at.end; i += blockDim.x * 4) {
            Quad q = load_quad(x, i, at.end);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float scaled = (q.v[c] * q.v[c]) * HIGH_UNIT;
                high = add_term(high, scaled, small, status);
                low += __float2ll_rn((scaled - rintf(scaled)) * LOW_UNIT);  // exact but for the rounding to an integer
            }
        }
    }
    sum_block(&high, &low, status);
    if (threadIdx.x == 0) {
        high = add_checked(high, low >> 32, status);
        atomicAdd((u64*)total + 1, (u64)low & 0xffffffffu);
        atomic_add_checked(total, high, status);
    }
}
