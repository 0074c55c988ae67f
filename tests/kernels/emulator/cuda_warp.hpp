// Built-in functions of several threads: barriers, shuffles, votes, atomics; and the primitives that cuda/tensor.cuh writes in PTX.
#pragma once

static inline void __syncthreads() { emu_barrier(EMU_BARRIER, 0); }
static inline int __syncthreads_and(int p) { return emu_barrier(EMU_BARRIER_AND, p); }
static inline int __syncthreads_or(int p) { return emu_barrier(EMU_BARRIER_OR, p); }
static inline int __syncthreads_count(int p) { return emu_barrier(EMU_BARRIER_COUNT, p); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { emu_warp(EMU_SYNCWARP, mask, 0, 0, 32); }
static inline void __threadfence() { emu_fence(); }
static inline void __threadfence_block() {}

template <class T>
static inline T emu_shuffle(emu_op op, unsigned mask, T value, int arg, int width) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
    using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    return emu_cast<T>((U)emu_warp(op, mask, emu_cast<U>(value), arg, width));
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return emu_shuffle(EMU_SHFL, mask, value, lane, width);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return emu_shuffle(EMU_SHFL_UP, mask, value, (int)delta, width);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return emu_shuffle(EMU_SHFL_DOWN, mask, value, (int)delta, width);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    return emu_shuffle(EMU_SHFL_XOR, mask, value, lane_mask, width);
}

static inline unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)emu_warp(EMU_BALLOT, mask, p != 0, 0, 32); }
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
static inline unsigned __match_any_sync(unsigned mask, unsigned value) {
    return (unsigned)emu_warp(EMU_MATCH_ANY, mask, value, 0, 32);
}

#if __CUDA_ARCH__ >= 800  // as on the device: redux.sync came with sm_80
#define EMU_REDUCE(name, T, op) \
    static inline T __reduce_##name##_sync(unsigned mask, T x) { return (T)emu_warp(op, mask, (unsigned)x, 0, 32); }
EMU_REDUCE(add, int, EMU_REDUCE_ADD)
EMU_REDUCE(add, unsigned, EMU_REDUCE_ADD)
EMU_REDUCE(min, int, EMU_REDUCE_MIN_S)
EMU_REDUCE(max, int, EMU_REDUCE_MAX_S)
EMU_REDUCE(min, unsigned, EMU_REDUCE_MIN_U)
EMU_REDUCE(max, unsigned, EMU_REDUCE_MAX_U)
EMU_REDUCE(and, unsigned, EMU_REDUCE_AND)
EMU_REDUCE(or, unsigned, EMU_REDUCE_OR)
EMU_REDUCE(xor, unsigned, EMU_REDUCE_XOR)
#endif

// Atomics: integers only, on purpose. A float atomic has no defined order, so it does not compile here.
template <class T>
__attribute__((noinline, no_sanitize("thread"))) static T emu_atomic_load(T* p) {
    emu_check(p, sizeof(T), EMU_ATOMIC, __builtin_return_address(0));
    return *(volatile T*)p;
}
#define EMU_ATOMIC_OP(name, T, expression)                                                      \
    __attribute__((no_sanitize("thread"))) static inline T atomic##name(T* p, T value) {        \
        T old = emu_atomic_load(p);                                                             \
        *p = (expression);                                                                      \
        return old;                                                                             \
    }
#define EMU_ATOMIC_OPS(T)                                   \
    EMU_ATOMIC_OP(Add, T, old + value)                      \
    EMU_ATOMIC_OP(Max, T, old > value ? old : value)        \
    EMU_ATOMIC_OP(Min, T, old < value ? old : value)        \
    EMU_ATOMIC_OP(Or, T, old | value)                       \
    EMU_ATOMIC_OP(And, T, old & value)                      \
    EMU_ATOMIC_OP(Xor, T, old ^ value)                      \
    EMU_ATOMIC_OP(Exch, T, value)                           \
    __attribute__((no_sanitize("thread"))) static inline T atomicCAS(T* p, T expected, T value) { \
        T old = emu_atomic_load(p);                                                             \
        if (old == expected) *p = value;                                                        \
        return old;                                                                             \
    }
EMU_ATOMIC_OPS(int)
EMU_ATOMIC_OPS(unsigned)
EMU_ATOMIC_OPS(unsigned long long)
EMU_ATOMIC_OP(Max, long long, old > value ? old : value)
EMU_ATOMIC_OP(Min, long long, old < value ? old : value)

// Addresses in dynamic shared memory as 32 bits.
static inline unsigned shared_address(const void* p) { return (unsigned)((uintptr_t)p - (uintptr_t)emu_dynamic_base()); }
static inline void* shared_pointer(unsigned address) { return (char*)emu_dynamic_base() + (int)address; }

// What cuda/tensor.cuh takes as primitives; there they are PTX, here the scheduler plays them for the 32 lanes of a warp.
static inline void mma_m8n8k16_s8(int* d, unsigned a, unsigned b) { emu_warp_registers(EMU_MMA_8816, 3, (unsigned*)d, &a, &b); }
#if __CUDA_ARCH__ >= 800
#define EMU_MMA(name, arg)                                                                          \
    static inline void mma_m16n8k32_##name(int* d, const unsigned* a, const unsigned* b) {          \
        emu_warp_registers(EMU_MMA_16832, arg, (unsigned*)d, a, b);                                 \
    }
EMU_MMA(s8, 3)
EMU_MMA(u8, 0)
EMU_MMA(s8u8, 1)
EMU_MMA(u8s8, 2)
static inline void cp_async_16(void* to, const void* from, int bytes = 16) { emu_copy_async(to, from, 16, bytes); }
template <int TO, int FROM>
static inline void cp_async_16_at(unsigned to, const void* from) {
    emu_copy_async(shared_pointer(to + TO), (const char*)from + FROM, 16, 16);
}
static inline void cp_async_commit() { emu_copy_commit(); }
template <int N>
static inline void cp_async_wait() { emu_copy_wait(N); }
#endif
#define EMU_LDMATRIX(name, arg)                                                                     \
    static inline void ldmatrix_##name(unsigned* r, const void* row) {                              \
        unsigned address[2] = {(unsigned)(uintptr_t)row, (unsigned)((uintptr_t)row >> 32)};         \
        emu_warp_registers(EMU_LDMATRIX, arg, r, address, nullptr);                                 \
    }
EMU_LDMATRIX(x1, 1)
EMU_LDMATRIX(x2, 2)
EMU_LDMATRIX(x4, 4)
static inline void ldmatrix_x4(unsigned* r, unsigned row) { ldmatrix_x4(r, shared_pointer(row)); }
EMU_LDMATRIX(x2_trans, 0x102)
EMU_LDMATRIX(x4_trans, 0x104)
