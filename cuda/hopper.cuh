// The PTX that only sm_90a has, as device functions: asynchronous bulk copies, their barriers, clusters, products of a warpgroup.
//
// A warpgroup is four warps, the first with an index divisible by four. An asynchronous product reads both operands from shared
// memory; its sums belong to the tensor cores until it was waited for. Sums of m64nNk32: d[i] of thread t of the warpgroup is row
// 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2 (PTX ISA, "Register fragments for wgmma").
// Addresses of shared memory are 32 bits (shared_address); those of barriers too.
// Played on a CPU by tests/kernels/emulator; tested by tests/kernels/test_hopper.py.
#pragma once

#include "common.cuh"
#include "tensor.cuh"

#define WARPGROUP 128

// Describes an operand of `rows` rows and 32 bytes of K whose rows of 64 bytes lie as in place_in_block: eight rows make 512
// bytes, in which the 16-byte pieces are permuted by the address (swizzle of 64 bytes); the next eight rows follow. Blocks of
// 64 rows that follow each other make a larger operand. (PTX ISA, "Matrix descriptor format": address, leading dimension, which
// does not matter here, stride of eight rows, each in units of 16 bytes; mode 2 in the last two bits.)
__device__ __forceinline__ u64 operand_of(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | (u64)(512 >> 4) << 32 | 2ull << 62;
}
// Bytes of K further on in the same piece of 64 bytes; the permutation takes the bits of the address that it needs.
__device__ __forceinline__ u64 advanced(u64 operand, u32 bytes) { return operand + (bytes >> 4); }

#ifndef AUDITKIT_EMULATED

// A barrier in shared memory: a phase ends when `count` arrivals were made and all announced bytes have come.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes initialised barriers known to the copy engine and to the cluster, before the threads meet.
__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the barrier of the same address in block `rank` of the cluster. With .release.cluster it would become a fence of the whole
// device in machine code; what is released here are reads of the tensor cores, which have been waited for.
__device__ __forceinline__ void mbarrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(
            barrier),
        "r"(rank)
        : "memory");
}
// Arrives and announces bytes.
__device__ __forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity has ended; the first phase is 0.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Copy bytes, a multiple of 16, to shared memory; they count at the barrier.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
// To the same address in each block of the cluster whose bit is set; they count at each one's barrier.
__device__ __forceinline__ void bulk_load_to(u32 to, const void* from, u32 bytes, u32 barrier, u32 blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"((u16)blocks)
        : "memory");
}
// Copy bytes from shared memory, written by ordinary stores and a fence_async before; commit, then wait before writing there.
__device__ __forceinline__ void bulk_store(void* to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most N of this thread's groups still read shared memory.
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
// Between ordinary stores to shared memory and what the copy engine or the tensor cores read there.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// All threads of the cluster meet.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
// The given number of threads meet at a barrier of the block, 1 to 15; whole warps.
__device__ __forceinline__ void block_meet(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Give back or ask for registers: so many per thread of a warpgroup from here on.
template <int N>
__device__ __forceinline__ void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// A number that the compiler takes for a new one each time: what is made of it is made where it is needed, not kept in registers.
__device__ __forceinline__ u32 made_anew(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Before the first product, and after anything else has touched the sums.
__device__ __forceinline__ void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// The same where `d` was worked on just before: none of that comes after the fence.
template <int COUNT>
__device__ __forceinline__ void product_fence(i32 (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");
    product_fence();
}
__device__ __forceinline__ void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most N groups of products are under way. With 0, `d` holds their sums.
template <int N, int COUNT>
__device__ __forceinline__ void product_wait(i32 (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
    if (N == 0)
#pragma unroll
        for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");  // no use of a sum moves above
}
// The same where the products of `d` are in none of these groups: d holds its sums.
template <int N, int COUNT>
__device__ __forceinline__ void product_wait_before(i32 (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");
}

#define SUMS8(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
    "+r"(d[i + 7])
#define SUMS32(i) SUMS8(i), SUMS8(i + 8), SUMS8(i + 16), SUMS8(i + 24)
#define NAMES32                                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"   \
    "%29,%30,%31"
#define NAMES64                                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"   \
    "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
    "%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES96                                                                                                            \
    NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91," \
            "%92,%93,%94,%95"
#define NAMES128                                                                                                             \
    NAMES96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118," \
            "%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define TYPED_PRODUCT(NAME, TYPES, N, NAMES, A, B, ADD, ...)                                                          \
    __device__ __forceinline__ void NAME(i32 (&d)[N / 2], u64 a, u64 b, bool add) {                                \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" ADD ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." TYPES " {" NAMES "}, %" A ", %" B ", add;\n}" \
                     : __VA_ARGS__                                                                                 \
                     : "l"(a), "l"(b), "r"((i32)add)                                                               \
                     : "memory");                                                                                  \
    }
#define PRODUCT(N, ...) TYPED_PRODUCT(product_s8, "s8.s8", N, __VA_ARGS__)
// d = a . b, or += if `add`, modulo 2^32: 64 rows of a, as many of b as d has columns, 32 bytes of K. product_u8s8: bytes of a
// are unsigned.
PRODUCT(64, NAMES32, "32", "33", "34", SUMS32(0))
TYPED_PRODUCT(product_u8s8, "u8.s8", 128, NAMES64, "64", "65", "66", SUMS32(0), SUMS32(32))
PRODUCT(128, NAMES64, "64", "65", "66", SUMS32(0), SUMS32(32))
PRODUCT(192, NAMES96, "96", "97", "98", SUMS32(0), SUMS32(32), SUMS32(64))
PRODUCT(256, NAMES128, "128", "129", "130", SUMS32(0), SUMS32(32), SUMS32(64), SUMS32(96))

#endif
