// The PTX of the integer tensor cores and of asynchronous copies, as device functions; only hopper.cuh holds other
// inline PTX.
//
// All lanes of a warp call these together (.sync.aligned). Fragments, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix
// fragments for mma.m16n8k32" and ".m8n8k16"):
//   A 16x32  a[0]: row g, k 4t..4t+3   a[1]: row g+8   a[2]: row g, k+16   a[3]: row g+8, k+16
//   B 32x8   b[0]: k 4t..4t+3, column g                b[1]: k+16
//   D 16x8   d[0], d[1]: row g, columns 2t, 2t+1       d[2], d[3]: row g+8
// Sums wrap modulo 2^32. On sm_75 the 16x8x32 product is four of 8x8x16: the same fragments, the same integers.
// Played on a CPU by tests/kernels/emulator; layouts tested by tests/kernels/test_tensor.py.
#pragma once

#include "common.cuh"

#ifndef AUDITKIT_EMULATED

// An address in shared memory as 32 bits, which the functions below take as well as a pointer.
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mma_m8n8k16_s8(i32* d, u32 a, u32 b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a), "r"(b));
}

#if __CUDA_ARCH__ >= 800

#define MMA_M16N8K32(name, types)                                                                              \
    __device__ __forceinline__ void mma_m16n8k32_##name(i32* d, const u32* a, const u32* b) {                  \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 "                                    \
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                   \
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
    }
MMA_M16N8K32(s8, "s8.s8")
MMA_M16N8K32(u8, "u8.u8")
MMA_M16N8K32(s8u8, "s8.u8")
MMA_M16N8K32(u8s8, "u8.s8")

// Copy 16 bytes from global to shared memory; of fewer `bytes` the rest becomes zero, and with 0 nothing is read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, i32 bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
// The same at constant distances from both addresses, which cost no instruction.
template <int TO, int FROM>
__device__ __forceinline__ void cp_async_16_at(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%3], 16;" ::"r"(to), "l"(from), "n"(TO), "n"(FROM) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most N of this thread's committed groups are pending; other threads' copies need a barrier on top.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif

// r[i] of a lane: the 16-bit elements 2t, 2t+1 of row g of matrix i; lanes 8i..8i+7 point at its eight rows of 16 bytes.
__device__ __forceinline__ void ldmatrix_x1(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(u32* r, const void* row) { ldmatrix_x4(r, shared_address(row)); }
// The same of the transposed matrices: elements [2t][g] (low half) and [2t+1][g].
__device__ __forceinline__ void ldmatrix_x2_trans(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#endif

#if __CUDA_ARCH__ < 800

__device__ __forceinline__ void mma_m16n8k32_s8(i32* d, const u32* a, const u32* b) {
    mma_m8n8k16_s8(d, a[0], b[0]);
    mma_m8n8k16_s8(d, a[2], b[1]);
    mma_m8n8k16_s8(d + 2, a[1], b[0]);
    mma_m8n8k16_s8(d + 2, a[3], b[1]);
}

#ifndef AUDITKIT_EMULATED
__device__ __forceinline__ void* shared_pointer(u32 address) { return __cvta_shared_to_generic(address); }
#endif

// Turing copies at once, through registers.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, i32 bytes = 16) {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        words = *(const uint4*)from;
    } else {
        u32 part[4] = {0, 0, 0, 0};
#pragma unroll
        for (i32 i = 0; i < 16; i++)
            if (i < bytes) part[i / 4] |= (u32)((const u8*)from)[i] << 8 * (i % 4);
        words = make_uint4(part[0], part[1], part[2], part[3]);
    }
    *(uint4*)to = words;
}
template <int TO, int FROM>
__device__ __forceinline__ void cp_async_16_at(u32 to, const void* from) {
    *(uint4*)shared_pointer(to + TO) = *(const uint4*)((const i8*)from + FROM);
}
__device__ __forceinline__ void cp_async_commit() {}
template <int N>
__device__ __forceinline__ void cp_async_wait() {}

#endif
