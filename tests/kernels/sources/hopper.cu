// What sm_90a adds, for tests of cuda/hopper.cuh on the emulator: one right way, and the ways to go wrong that it must find.
#include "common.cuh"
#include "hopper.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define ONE GLOBAL void __cluster_dims__(1, 1, 1) __launch_bounds__(384, 1)
#define PAIR GLOBAL void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)

// d [64][N] = a . b, +1 in each element, K of 32 bytes: a and b are copied as they are to `place` and `place` + 64 KiB. The
// descriptors are arguments, as is what to leave out.
enum Fault { NONE, NO_FENCE, EARLY, TOUCHED, NO_COPY_WAIT, OVERWRITTEN, OTHER_OPERANDS, NO_WAIT, FEW_BYTES, STORED, STORED_FENCED };

template <int N, bool UNSIGNED = false>
__device__ __forceinline__ void one_product(const i8* a, const i8* b, i32* d, u64 operand_a, u64 operand_b, i64 bytes, i32 fault) {
    extern __shared__ __align__(1024) i8 shared[];
    u32 base = shared_address(shared), barrier = base + 128 * 1024, empty = barrier + 8;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init(empty, 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect(barrier, (u32)(fault == FEW_BYTES ? bytes : 2 * bytes));
        bulk_load(base, a, (u32)bytes, barrier);
        bulk_load(base + 65536, b, (u32)bytes, barrier);
    }
    if (fault != NO_COPY_WAIT) mbarrier_wait(barrier, 0);
    if (fault == STORED || fault == STORED_FENCED) {
        if (threadIdx.x == 5) shared[0] = a[0];
        if (fault == STORED_FENCED) fence_async();
        __syncthreads();
    }
    i32 sums[N / 2];
    for (int i = 0; i < N / 2; i++) sums[i] = 1;
    if (fault != NO_FENCE) product_fence();
    u64 from_a = fault == OTHER_OPERANDS && threadIdx.x / 32 == 2 ? operand_b : operand_a;
    if constexpr (UNSIGNED)
        product_u8s8(sums, from_a, operand_b, true);
    else
        product_s8(sums, from_a, operand_b, true);
    product_commit();
    if (fault == TOUCHED) sums[3]++;
    if (fault == OVERWRITTEN) {
        if (threadIdx.x == 0) {
            mbarrier_expect(barrier, 4096);
            bulk_load(base + 65536, a, 4096, barrier);
        }
        mbarrier_wait(barrier, 1);
    }
    if (fault == NO_WAIT) return;
    if (fault == EARLY)
        product_wait<1>(sums);
    else
        product_wait<0>(sums);
    i32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (int i = 0; i < N / 2; i++) d[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = sums[i];
    if (fault == EARLY) product_wait<0>(sums);
}
#define PRODUCT_OF(N)                                                                                                \
    ONE product_##N(const i8* a, const i8* b, i32* d, u64 operand_a, u64 operand_b, i64 bytes, i32 fault) {          \
        one_product<N>(a, b, d, operand_a, operand_b, bytes, fault);                                                 \
    }
ONE product_unsigned(const i8* a, const i8* b, i32* d, u64 operand_a, u64 operand_b, i64 bytes, i32 fault) {
    one_product<128, true>(a, b, d, operand_a, operand_b, bytes, fault);
}
PRODUCT_OF(64)
PRODUCT_OF(128)
PRODUCT_OF(192)
PRODUCT_OF(256)

// A ring of two stages of 64 bytes from the first warp to the second, which adds up words; `fault` leaves something out.
enum RingFault { RING_NONE, NOT_WAITED, NOT_RELEASED, PARITY, TOO_FEW_BYTES, TOO_MANY, UNFENCED };

ONE ring(const u32* x, u32* out, i64 count, i32 fault) {
    extern __shared__ __align__(1024) u32 stages[];
    u32 base = shared_address(stages), full = base + 128, empty = full + 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(full + 8 * i, 1);
            mbarrier_init(empty + 8 * i, 1);
        }
        if (fault != UNFENCED) mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (i32 i = 0; i < count; i++) {
            u32 slot = i % 2, turn = i / 2 % 2;
            if (fault != NOT_WAITED) mbarrier_wait(empty + 8 * slot, turn ^ 1);
            mbarrier_expect(full + 8 * slot, fault == TOO_MANY ? 80 : fault == TOO_FEW_BYTES ? 48 : 64);
            bulk_load(base + 64 * slot, x + 16 * i, 64, full + 8 * slot);
        }
    } else if (threadIdx.x / 32 == 1) {
        u32 sum = 0;
        for (i32 i = 0; i < count; i++) {
            u32 slot = i % 2, turn = i / 2 % 2;
            mbarrier_wait(full + 8 * slot, fault == PARITY ? turn ^ 1 : turn);
            if (threadIdx.x < 48) sum += stages[16 * slot + threadIdx.x % 32];
            __syncwarp();
            if (threadIdx.x == 32 && fault != NOT_RELEASED) mbarrier_arrive(empty + 8 * slot);
        }
        if (threadIdx.x < 48) out[threadIdx.x % 32] = sum;
    }
}

// Each block of a pair copies 64 bytes to both; out[block][which][16]. `fault`: 1 no meeting after the barriers' initialisation,
// 2 the first block neither waits nor meets the other at the end, 3 a block reads the other's part without waiting, 4 arrives at the other's barrier once more.
PAIR exchange(const u32* x, u32* out, i32 fault) {
    extern __shared__ __align__(1024) u32 both[];
    u32 base = shared_address(both), barrier = base + 256, rank = cluster_rank();
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 3);
        mbarrier_init_fence();
    }
    if (fault != 1) cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_expect(barrier, 128);
        bulk_load_to(base + 64 * rank, x + (blockIdx.x * 16), 64, barrier, 3);
        mbarrier_arrive_at(barrier, 0);
        mbarrier_arrive_at(barrier, 1);
        if (fault == 4 && rank == 0) mbarrier_arrive_at(barrier, 1);
    }
    if (fault == 2 && rank == 0) return;
    if (fault != 3) mbarrier_wait(barrier, 0);
    if (threadIdx.x < 32) out[blockIdx.x * 32 + threadIdx.x] = both[threadIdx.x];
    if (fault == 3) mbarrier_wait(barrier, 0);
    if (fault != 2) cluster_sync();
}

// Rows of 64 bytes go to `out` by the copy engine, through one place. `fault`: 1 no fence, 2 no wait before the place is written
// again, 3 none at the end, 4 no meeting of the threads before the copy.
ONE staged(const u32* x, u32* out, i64 rows, i32 fault) {
    extern __shared__ __align__(1024) u32 row[];
    for (i64 i = 0; i < rows; i++) {
        if (threadIdx.x == 0 && fault != 2) bulk_wait_read<0>();
        block_meet(3, 64);
        if (threadIdx.x < 16) row[threadIdx.x] = x[i * 16 + threadIdx.x] + 1;
        if (fault != 1) fence_async();
        if (fault != 4) block_meet(3, 64);
        if (threadIdx.x == 0) {
            bulk_store(out + i * 16, shared_address(row), 64);
            bulk_commit();
        }
    }
    if (threadIdx.x == 0 && fault != 3) bulk_wait_read<0>();
}

// Half of the threads meet at one barrier, half at another, between a write and a read of their neighbours' words. `fault`: 1 the
// halves meet at one barrier, 2 a thread reads the other half's word.
ONE halves(u32* out, i32 fault) {
    extern __shared__ __align__(1024) u32 words[];
    u32 half = threadIdx.x / 64;
    words[threadIdx.x] = threadIdx.x * 3;
    block_meet(fault == 1 ? 1 : 1 + half, fault == 1 && half ? 96 : 64);
    out[threadIdx.x] = words[threadIdx.x ^ (fault == 2 ? 64 : 1)];
}

// Registers of a thread, of the 168 that one of 384 begins with, or the 128 of one of 512.
GLOBAL void __cluster_dims__(1, 1, 1) __launch_bounds__(512, 1) registers(i32 up) {
    if (up)
        registers_up<152>();
    else
        registers_down<136>();
}

#endif
