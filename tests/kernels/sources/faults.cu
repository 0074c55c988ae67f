// Kernels that do what a GPU does not define, each on demand: the emulator must say so.
#include "common.cuh"

__constant__ u32 TABLE[4] = {10, 20, 30, 40};

GLOBAL void touch(u32* out, const u32* in, i64 at) { out[0] = in[at]; }
GLOBAL void store(u32* out, i64 at) { out[at] = 1; }
GLOBAL void trap() { __trap(); }
GLOBAL void through_table(const u64* table, u32* out) { out[0] = *(const u32*)table[0]; }
GLOBAL void lonely_barrier() {
    if (threadIdx.x != 3) __syncthreads();
}
GLOBAL void two_barriers() {
    if (threadIdx.x % 2) __syncthreads();
    else __syncwarp();
}
GLOBAL void lost_lane(u32* out) {
    if (threadIdx.x < 20) out[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 0);
}
GLOBAL void foreign_lane(u32* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, threadIdx.x, 20);
}
GLOBAL void warp_exchange(u32* out, i32 synced) {
    __shared__ u32 slot[32];
    slot[threadIdx.x] = threadIdx.x;
    if (synced) __syncwarp();
    out[threadIdx.x] = slot[threadIdx.x ^ 1];
}
GLOBAL void neighbour_blocks(u32* x) { x[blockIdx.x + 1] = x[blockIdx.x]; }
GLOBAL void fenced(u32* x) {
    x[1 + blockIdx.x] = 7;
    __threadfence();
    if (atomicAdd(x, 1u) + 1 == gridDim.x) x[1 + gridDim.x] = x[1] + x[gridDim.x];
}
GLOBAL void shift(u32* out, i32 by) { out[0] = 1u << by; }
GLOBAL void cast(i32* out, float x) { out[0] = (i32)x; }
GLOBAL void saturate(i32* out, float x) { out[0] = __float2int_rn(x); }
GLOBAL void divide(i32* out, i32 by) { out[0] = 7 / by; }
GLOBAL void index_of_static(u32* out, i32 at) {
    __shared__ u32 small[8];
    small[threadIdx.x & 7] = 5;
    __syncthreads();
    out[threadIdx.x] = small[at];
}
GLOBAL void unset_shared(u32* out) {
    __shared__ u32 small[8];
    out[0] = small[3];
}
GLOBAL void wide(const u8* x, u32* out, i64 at) { out[0] = ((const uint4*)(x + at))->y; }
GLOBAL void endless(volatile u32* x) {
    while (x[0]) {}
}
GLOBAL void constant(u32* out) { out[threadIdx.x] = TABLE[threadIdx.x & 3]; }
GLOBAL void kinds(i8 a, u8 b, i32 c, u32 d, i64 e, u64 f, float g, double h, const void* p, double* out) {
    out[0] = (double)a + b + c + d + (double)e + (double)f + g + h + (p == nullptr);
}
