// What cuda/hopper.cuh takes as primitives; there they are PTX, here asynchronous.cpp and product.cpp play them.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

static inline void mbarrier_init(unsigned barrier, unsigned count) { emu_mbarrier_init(barrier, count); }
static inline void mbarrier_init_fence() { emu_mbarrier_init_fence(); }
static inline void mbarrier_arrive(unsigned barrier) { emu_mbarrier_arrive(barrier, -1, 0); }
static inline void mbarrier_arrive_at(unsigned barrier, unsigned rank) { emu_mbarrier_arrive(barrier, (int)rank, 0); }
static inline void mbarrier_expect(unsigned barrier, unsigned bytes) { emu_mbarrier_arrive(barrier, -1, bytes); }
static inline void mbarrier_wait(unsigned barrier, unsigned parity) { emu_mbarrier_wait(barrier, parity); }

static inline void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    emu_bulk_load(to, from, bytes, barrier, -1);
}
static inline void bulk_load_to(unsigned to, const void* from, unsigned bytes, unsigned barrier, unsigned blocks) {
    emu_bulk_load(to, from, bytes, barrier, (int)blocks);
}
static inline void bulk_store(void* to, unsigned from, unsigned bytes) { emu_bulk_store(to, from, bytes); }
static inline void bulk_commit() { emu_bulk_commit(); }
template <int N>
static inline void bulk_wait_read() { emu_bulk_wait(N); }
static inline void fence_async() { emu_fence_async(); }

static inline unsigned cluster_rank() { return emu_cluster_rank(); }
static inline void cluster_sync() { emu_cluster_sync(); }
static inline void block_meet(unsigned barrier, unsigned threads) { emu_named_barrier(barrier, threads); }
// A block that has a multiprocessor for itself begins with an equal share of its 65,536 registers for each thread, in whole eights. On a
// card a change in the wrong direction is an illegal instruction.
static inline int emu_registers_at_start() {
    uint3 of = emu_block_dim();
    return 65536 / (int)(of.x * of.y * of.z) / 8 * 8;
}
template <int N>
static inline void registers_down() {
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "what setmaxnreg takes");
    if (N > emu_registers_at_start()) emu_fail("registers_down to more registers than a thread begins with");
}
template <int N>
static inline void registers_up() {
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "what setmaxnreg takes");
    if (N < emu_registers_at_start()) emu_fail("registers_up to fewer registers than a thread begins with");
}

static inline unsigned made_anew(unsigned x) { return x; }
static inline void product_fence() { emu_product_step(EMU_PRODUCT_FENCE, 0); }
template <int COUNT>
static inline void product_fence(int (&)[COUNT]) { product_fence(); }
static inline void product_commit() { emu_product_step(EMU_PRODUCT_COMMIT, 0); }
template <int N, int COUNT>
static inline void product_wait(int (&)[COUNT]) { emu_product_step(EMU_PRODUCT_WAIT, N); }
template <int N, int COUNT>
static inline void product_wait_before(int (&)[COUNT]) { emu_product_step(EMU_PRODUCT_WAIT, N); }
template <int COUNT>
static inline void product_s8(int (&d)[COUNT], unsigned long long a, unsigned long long b, bool add) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "wgmma has 8 to 256 columns");
    emu_product(d, 2 * COUNT, a, b, add, false);
}
template <int COUNT>
static inline void product_u8s8(int (&d)[COUNT], unsigned long long a, unsigned long long b, bool add) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "wgmma has 8 to 256 columns");
    emu_product(d, 2 * COUNT, a, b, add, true);
}

#endif
