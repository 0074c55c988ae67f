// Kernels for the tests of the emulator and of tensor.cuh: each built-in function of several threads on its own.
#include "tensor.cuh"

GLOBAL void shuffles(const u64* x, u64* out, i32 arg, i32 width) {
    u32 lane = threadIdx.x, all = 0xffffffffu;
    u64 v = x[lane];
    out[lane] = __shfl_sync(all, v, arg, width);
    out[32 + lane] = __shfl_up_sync(all, v, (u32)arg, width);
    out[64 + lane] = __shfl_down_sync(all, v, (u32)arg, width);
    out[96 + lane] = __shfl_xor_sync(all, v, arg, width);
    out[128 + lane] = (u32)__shfl_sync(all, (u32)v, arg, width);
    out[160 + lane] = bits_of(__shfl_xor_sync(all, float_of((u32)v), arg, width));
}

GLOBAL void votes(const u32* x, u32* out) {
    u32 lane = threadIdx.x, all = 0xffffffffu, v = x[lane];
    out[lane] = __ballot_sync(all, v & 1);
    out[32 + lane] = (u32)(__any_sync(all, v > 9) + 2 * __all_sync(all, v > 9));
    out[64 + lane] = lane < 12 ? __ballot_sync(0xfffu, v & 1) : 0;
#if __CUDA_ARCH__ >= 800
    out[96 + lane] = __reduce_add_sync(all, v);
    out[128 + lane] = (u32)__reduce_max_sync(all, (i32)v);
    out[160 + lane] = __reduce_xor_sync(all, v);
#endif
}

// Sum over the block by halving; without the barrier inside (races = 1) neighbours race.
GLOBAL void __launch_bounds__(128) block_sum(const u32* x, u32* out, i32 races) {
    __shared__ u32 part[128];
    u32 t = threadIdx.x;
    part[t] = x[blockIdx.x * 128 + t];
    __syncthreads();
    for (u32 half = 64; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        if (!races) __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

// The order of the threads decides the bits: global memory of one's own block, no barrier.
GLOBAL void last_writer(u32* out, u32* count) {
    atomicAdd(count, 1u);
    out[0] = threadIdx.x;
}

GLOBAL void order_of_atomics(u32* place) { place[1 + threadIdx.x] = atomicAdd(place, 1u); }

GLOBAL void votes_of_block(const u32* x, u32* out) {
    u32 p = x[threadIdx.x];
    out[3 * threadIdx.x] = (u32)__syncthreads_and((i32)p);
    out[3 * threadIdx.x + 1] = (u32)__syncthreads_or((i32)p);
    out[3 * threadIdx.x + 2] = (u32)__syncthreads_count((i32)p);
}

GLOBAL void mma_tall(const u32* a, const u32* b, i32* d) {  // one fragment a lane, as they lie in registers
    u32 lane = threadIdx.x;
    mma_m16n8k32_s8(d + 4 * lane, a + 4 * lane, b + 2 * lane);
}

GLOBAL void mma_small(const u32* a, const u32* b, i32* d) { mma_m8n8k16_s8(d + 2 * threadIdx.x, a[threadIdx.x], b[threadIdx.x]); }

GLOBAL void matrices(const uint4* rows, u32* out) {  // 32 rows of 16 bytes
    __shared__ uint4 tile[32];
    u32 lane = threadIdx.x;
    tile[lane] = rows[lane];
    __syncwarp();
    ldmatrix_x4(out + 4 * lane, tile + lane);
    ldmatrix_x4_trans(out + 128 + 4 * lane, tile + lane);
    ldmatrix_x2(out + 256 + 2 * lane, tile + lane);
    ldmatrix_x2_trans(out + 320 + 2 * lane, tile + lane);
}

// Copies two rows in two groups, waits for the first only, then for both; `early`: reads the second too early.
GLOBAL void copies(const uint4* rows, uint4* out, i32 bytes, i32 early) {
    extern __shared__ __align__(16) u8 shared[];
    uint4* tile = (uint4*)shared;
    u32 t = threadIdx.x, n = blockDim.x;
    cp_async_16(tile + t, rows + t);
    cp_async_commit();
    cp_async_16(tile + n + t, rows + n + t, bytes);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    out[t] = tile[n - 1 - t];
    if (!early) cp_async_wait<0>();
    __syncthreads();
    out[n + t] = tile[2 * n - 1 - t];
    __syncthreads();
    cp_async_wait<0>();
}
