// Exact dot of fixed-point rows (SPEC.md section 3) as exact_dot.cu, by the asynchronous tensor cores of sm_90a.
//
//   a        i8 [planes][batch][M][K], b  i8 [planes][batch][N][K]   as in exact_dot.cu, K in whole 128
//   a_exponents, b_exponents   i32 [batch][M], [batch][N]            of the rows
//   c        float [batch][M][N], or i64 exact sums (Shape)
//
// One block a multiprocessor takes one tile after the other. Its first warp copies blocks of the planes, which lie in memory as
// the tensor cores read them, to a ring of stages; two warpgroups multiply 64 rows each. Planes follow each other without a
// pause. Two blocks make a cluster: their tiles lie below each other, and each copies half of the columns' stage to both.
// All sums are integers, exact whatever the order (exact_dot_sums.cuh), so neither tile, number of blocks nor cluster can
// change the result.
//
// Test: pytest tests/kernels/test_exact_dot_sm90.py
#include "common.cuh"
#include "exact_dot_finish.cuh"
#include "exact_dot_operand.cuh"
#include "exact_dot_planes.cuh"
#include "exact_dot_sums.cuh"
#include "exact_dot_tile.cuh"
#include "hopper.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Choices that change no bit; bench/exact_dot_variants.py compiles others.
#ifndef DOT_COLUMNS
#define DOT_COLUMNS 256
#endif
#ifndef DOT_STAGES
#define DOT_STAGES 4
#endif
#ifndef DOT_CLUSTER
#define DOT_CLUSTER 2
#endif
#ifndef DOT_GROUP
#define DOT_GROUP 16
#endif
#ifndef DOT_STAGED
#define DOT_STAGED 0
#endif

constexpr int CONSUMERS = 2;
constexpr int SLAB = 2 * BLOCK_BYTES;  // of a block of 64 rows in a stage: 128 bytes of K

// BN columns a tile; CLUSTER blocks share them, each with ROWS rows. Tiles run down M in groups of GROUP blocks of ROWS rows.
// STAGED: results go through shared memory to the copy engine.
template <int BN_, int STAGES_, int CLUSTER_, int GROUP_, bool STAGED_>
struct Wide {
    static constexpr int BN = BN_, STAGES = STAGES_, CLUSTER = CLUSTER_, GROUP = GROUP_ / CLUSTER_;
    static constexpr bool STAGED = STAGED_;
    static constexpr int ROWS = 64 * CONSUMERS, BM = ROWS * CLUSTER, BLOCKS_B = BN / BLOCK_ROWS;
    static constexpr int BYTES_A = CONSUMERS * SLAB, BYTES = BYTES_A + BLOCKS_B * SLAB;  // of a stage
    // In shared memory, after the ring: barriers of full stages, of empty ones, then for each consumer the columns' scales of two
    // tiles and whether each warp found them tame, then where its results are staged.
    static constexpr int FULL = STAGES * BYTES, EMPTY = FULL + 8 * STAGES, SCALES = FULL + 128;
    static constexpr int SCALE_BYTES = BN * 4, FLAG_BYTES = 16, STAGE_STRIDE = 64 * 4 + 32, STAGE_BYTES = 16 * STAGE_STRIDE;
    static constexpr int FLAGS = SCALES + CONSUMERS * 2 * SCALE_BYTES, STAGE = FLAGS + CONSUMERS * 2 * FLAG_BYTES;
};

// The tile of this block among those of its cluster.
template <class T>
__device__ __forceinline__ u32 units_of(const Shape& s) {
    return (u32)(s.batch * ((s.m + T::BM - 1) / T::BM) * ((s.n + T::BN - 1) / T::BN));
}
template <class T>
__device__ __forceinline__ Place unit_at(const Shape& s, u32 index, u32 rank) {
    u32 units_m = (u32)((s.m + T::BM - 1) / T::BM), units_n = (u32)((s.n + T::BN - 1) / T::BN);
    u32 matrix = index / (units_m * units_n), rest = index % (units_m * units_n);
    u32 first = rest / (T::GROUP * units_n) * T::GROUP;
    u32 height = units_m - first < T::GROUP ? units_m - first : T::GROUP;
    u32 inside = rest - first * units_n;
    return Place{(i32)matrix, (i32)((first + inside % height) * T::BM + rank * T::ROWS), (i32)(inside / height) * T::BN};
}

// The stage that is next in the ring, and the parity of its turn.
template <class T>
struct Turn {
    u32 slot = 0, parity = 0;

    __device__ __forceinline__ void next() {
        if (++slot == T::STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// One warp: copies for all tiles of the block, one a lane. Lanes of `a` copy a block of 64 rows each; those of `b` half of such a
// block's stage, since in the ring the rows of one half of K follow each other, as one operand. Rows beyond a matrix have no place
// in the result: its last block is copied in their place.
template <int BITS, class T>
__device__ __forceinline__ void produce(const Operand& a, const Operand& b, const Shape& s, u32 ring, u32 rank) {
    i32 lane = threadIdx.x & 31, other = lane - CONSUMERS;
    bool of_a = other < 0;
    if (other >= (T::CLUSTER == 1 ? 2 : 1) * T::BLOCKS_B) return;
    u32 half = T::CLUSTER == 1 ? other & 1 : rank, block = of_a ? lane : T::CLUSTER == 1 ? other >> 1 : other;
    u32 to = of_a ? lane * SLAB : T::BYTES_A + (half * T::BLOCKS_B + block) * BLOCK_BYTES;
    Operand mine = of_a ? a : b;
    i64 turn_of_plane = mine.layout.plane - s.k * BLOCK_ROWS, skip = of_a ? 0 : half * 64;
    i32 last = (i32)(((of_a ? s.m : s.n) - 1) / BLOCK_ROWS), steps = (i32)(s.k / 128);
    Turn<T> turn;
    for (u32 unit = blockIdx.x / T::CLUSTER, units = units_of<T>(s); unit < units; unit += gridDim.x / T::CLUSTER) {
        Place p = unit_at<T>(s, unit, rank);
        i32 index = (of_a ? p.m0 : p.n0) / BLOCK_ROWS + block;
        const i8* from = mine.block_at(p.batch, (index < last ? index : last) * BLOCK_ROWS, skip);
#pragma unroll 1
        for (int plane = 0; plane < PLANES<BITS>; plane++, from += turn_of_plane)
#pragma unroll 1
            for (i32 left = steps; left > 0; left--, from += SLAB, turn.next()) {
                u32 full = ring + T::FULL + 8 * turn.slot, place = ring + turn.slot * T::BYTES + to;
                mbarrier_wait(full + (T::EMPTY - T::FULL), turn.parity ^ 1);
                if (lane == 0) mbarrier_expect(full, T::BYTES);
                if (of_a)
                    bulk_load(place, from, SLAB, full);
                else if (T::CLUSTER == 1)
                    bulk_load(place, from, BLOCK_BYTES, full);
                else
                    bulk_load_to(place, from, BLOCK_BYTES, full, (1u << T::CLUSTER) - 1);
            }
    }
}

// This warp has read a stage.
template <class T>
__device__ __forceinline__ void release(u32 ring, u32 slot) {
    u32 barrier = ring + T::EMPTY + 8 * slot, lane = threadIdx.x & 31;
    if (T::CLUSTER == 1) {
        if (lane == 0) mbarrier_arrive(barrier);
    } else if (lane < T::CLUSTER) {
        mbarrier_arrive_at(barrier, lane);
    }
}

// Multiply `steps` stages. `add`: to what the sums hold already.
template <class T, class S>
__device__ __forceinline__ void multiply(S& sums, Turn<T>& turn, i32 steps, bool add, u64 a, u64 b, u32 ring) {
    u32 before = 0;
#pragma unroll 1
    for (i32 step = 0; step < steps; step++) {
        u64 from_a = advanced(a, turn.slot * T::BYTES), from_b = advanced(b, turn.slot * T::BYTES);
        mbarrier_wait(ring + T::FULL + 8 * turn.slot, turn.parity);
        product_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 inside = i % 2 * 32;
            product_s8(sums.sum, advanced(from_a, i / 2 * BLOCK_BYTES + inside),
                       advanced(from_b, i / 2 * T::BLOCKS_B * BLOCK_BYTES + inside), add);
            add = true;
        }
        product_commit();
        product_wait<1>(sums.sum);
        if (step > 0) release<T>(ring, before);
        before = turn.slot;
        turn.next();
    }
    product_wait<0>(sums.sum);
    release<T>(ring, before);
}

// What a thread of a consumer needs to finish a tile: its first element is at (row, column), the others at row + 8 half,
// column + 8 j + r.
struct Finish {
    i32 row, column;
    float* to;  // the first element of c
};

template <class S>
__device__ __forceinline__ void store_fast(const S& sums, const Shape& s, const Finish& f, const float* scales, const float* scale_a,
                                           const Result& c) {
    bool pairs = c.pairs(s.n);
#pragma unroll
    for (int j = 0; j < S::COUNT / 4; j++) {
        i32 column = f.column + j * 8;
        float2 scale_b = *(const float2*)(scales + j * 8);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (f.row + half * 8 < s.m && column < s.n)
                store_pair(f.to + half * 8 * c.line + j * 8, sums.rounded(4 * j + 2 * half, scale_a[half], scale_b.x),
                           sums.rounded(4 * j + 2 * half + 1, scale_a[half], scale_b.y), pairs, column + 1 < s.n);
    }
}

// Exact sums, before any rounding.
template <class S>
__device__ __forceinline__ void store_exact(const S& sums, const Shape& s, const Finish& f, i64* to, const Result& c) {
    bool pairs = c.pairs(s.n);
#pragma unroll
    for (int j = 0; j < S::COUNT / 4; j++) {
        i32 column = f.column + j * 8;
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (f.row + half * 8 < s.m && column < s.n)
                store_sums(to + half * 8 * c.line + j * 8, sums.value(4 * j + 2 * half), sums.value(4 * j + 2 * half + 1), pairs,
                           column + 1 < s.n);
    }
}

// By the rounding that knows every exponent.
template <class S>
__device__ __forceinline__ void store_any(const S& sums, const Shape& s, const Finish& f, const i32* ea, const i32* eb, const Result& c) {
#pragma unroll
    for (int i = 0; i < S::COUNT; i++) {
        i32 half = i / 2 % 2, column = f.column + i / 4 * 8 + i % 2;
        if (f.row + half * 8 < s.m && column < s.n)
            f.to[half * 8 * c.line + i / 4 * 8 + i % 2] = round_any<S::BITS>(sums.value(i), ea[half * 8], eb[column]);
    }
}

// The same as store_fast by the copy engine, 64 columns at a time: a warp's 16 rows go to a place in shared memory, two of which
// take turns, and sixteen lanes copy a row each.
template <class T, class S>
__device__ __forceinline__ void store_staged(const S& sums, const Shape& s, const Finish& f, const float* scales, const float* scale_a,
                                             const Result& c, i8* shared) {
    i32 lane = threadIdx.x & 31, row = f.row - lane / 4 + lane;
    i8* place = shared + T::STAGE + ((threadIdx.x >> 5) - 4) * 2 * T::STAGE_BYTES;
    i32 mine = lane / 4 * T::STAGE_STRIDE + lane % 4 * 8;
#pragma unroll
    for (int round = 0; round < T::BN / 64; round++) {
        i8* to = place + round % 2 * T::STAGE_BYTES;
        bulk_wait_read<1>();
        __syncwarp();
#pragma unroll
        for (int j = round * 8; j < round * 8 + 8; j++) {
            float2 scale_b = *(const float2*)(scales + j * 8);
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2*)(to + mine + half * 8 * T::STAGE_STRIDE + j % 8 * 32) =
                    make_float2(sums.rounded(4 * j + 2 * half, scale_a[half], scale_b.x),
                                sums.rounded(4 * j + 2 * half + 1, scale_a[half], scale_b.y));
        }
        fence_async();
        __syncwarp();
        i32 column = f.column - lane % 4 * 2 + round * 64;
        if (lane < 16 && row < s.m && column < s.n) {
            i64 left = (s.n - column) * 4;
            bulk_store(f.to + (lane - lane / 4) * c.line - lane % 4 * 2 + round * 64, shared_address(to + lane * T::STAGE_STRIDE),
                       left < 256 ? (u32)left : 256);
        }
        bulk_commit();
    }
}

// A warpgroup: its 64 rows of all tiles of the block. `shared` is where the ring begins.
template <class T, class S>
__device__ __forceinline__ void consume(const Operand& a, const Operand& b, const Result& c, const Shape& s, i8* shared, u32 ring,
                                        u32 rank, u32 group) {
    constexpr int BITS = S::BITS, PARTS = (T::BN + WARPGROUP - 1) / WARPGROUP;
    i32 thread = threadIdx.x % WARPGROUP, lane = thread & 31;
    u64 from_a = operand_of(ring + group * SLAB), from_b = operand_of(ring + T::BYTES_A);
    S sums;
    Turn<T> turn;
    u32 buffer = 0;
    for (u32 unit = blockIdx.x / T::CLUSTER, units = units_of<T>(s); unit < units; unit += gridDim.x / T::CLUSTER, buffer ^= 1) {
        Place p = unit_at<T>(s, unit, rank);
        const i32 *ea = a.exponents_at(p.batch), *eb = b.exponents_at(p.batch);
        Finish f;
        f.row = p.m0 + group * 64 + thread / 32 * 16 + lane / 4;
        f.column = p.n0 + lane % 4 * 2;
        f.to = c.at(p.batch, f.row, f.column);
        i32 e_column[PARTS], e_row[2];
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            i64 column = p.n0 + i * WARPGROUP + thread;
            e_column[i] = eb[column < s.n ? column : s.n - 1];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 row = f.row + half * 8;
            e_row[half] = ea[row < s.m ? row : s.m - 1];
        }
        if constexpr (S::FRESH) sums.clear();
        i64 left = s.k;
        int plane = 0;
        bool add = false;
#pragma unroll 1
        while (plane < PLANES<BITS>) {
            i64 segment = left < S::segment(plane) ? left : S::segment(plane);
            multiply<T>(sums, turn, (i32)(segment / 128), add, from_a, from_b, ring);
            add = !S::FRESH;
            left -= segment;
            sums.after(plane, left == 0);
            if (left == 0) {
                left = s.k;
                plane++;
            }
        }
        if (s.exact) {
            store_exact(sums, s, f, c.sum_at(p.batch, f.row, f.column), c);
            __syncwarp();
            continue;
        }
        float* scales = (float*)(shared + T::SCALES + (group * 2 + buffer) * T::SCALE_BYTES);
        i32* flags = (i32*)(shared + T::FLAGS + (group * 2 + buffer) * T::FLAG_BYTES);
        bool tame = BITS != 14 || s.k < 65536;  // |v| <= 2^26 K
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            tame = tame && is_tame<BITS>(e_column[i]);
            if (i * WARPGROUP + thread < T::BN) scales[i * WARPGROUP + thread] = scale_of<BITS>(e_column[i]);
        }
        tame = __all_sync(0xffffffffu, tame) != 0;
        if (lane == 0) flags[thread / 32] = tame;
        // What the next tile but one writes here is written after all have passed the next tile's barrier, and so read this.
        block_meet(1 + group, WARPGROUP);
        int4 all = *(const int4*)flags;
        tame = all.x && all.y && all.z && all.w && is_tame<BITS>(e_row[0]) && is_tame<BITS>(e_row[1]);
        float scale_a[2] = {scale_of<BITS>(e_row[0]), scale_of<BITS>(e_row[1])};
        const float* scales_here = scales + lane % 4 * 2;
        if (T::STAGED && __all_sync(0xffffffffu, tame && c.quads(s.n)))
            store_staged<T>(sums, s, f, scales_here, scale_a, c, shared);
        else if (tame)
            store_fast(sums, s, f, scales_here, scale_a, c);
        else
            store_any(sums, s, f, ea + f.row, eb, c);
        __syncwarp();  // threads of a warp may have parted, and products want them together
    }
    if (T::STAGED) bulk_wait_read<0>();
}

template <class T, class S>
__device__ __forceinline__ void dot(const Operand& a, const Operand& b, const Result& c, const Shape& s, i8* memory) {
    u32 address = shared_address(memory), ring = (address + 1023) & ~1023u;
    i8* shared = memory + (ring - address);
    u32 rank = T::CLUSTER == 1 ? 0 : cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::STAGES; i++) {
            mbarrier_init(ring + T::FULL + 8 * i, 1);
            mbarrier_init(ring + T::EMPTY + 8 * i, CONSUMERS * 4 * T::CLUSTER);
        }
        mbarrier_init_fence();
    }
    if (T::CLUSTER == 1)
        __syncthreads();
    else
        cluster_sync();
    u32 group = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);  // the same for a warp, as the compiler now knows
    if (group == 0) {
        registers_down<40>();
        if (threadIdx.x < 32) produce<S::BITS, T>(a, b, s, ring, rank);
    } else {
        registers_up<232>();
        consume<T, S>(a, b, c, s, shared, ring, rank, group - 1);
    }
    if (T::CLUSTER != 1) {
        __syncwarp();
        cluster_sync();  // the other block may still arrive at this one's barriers
    }
}

#define KERNEL(NAME, T, S)                                                                                                         \
    GLOBAL void __cluster_dims__(T::CLUSTER, 1, 1) __launch_bounds__(WARPGROUP*(1 + CONSUMERS), 1) exact_dot_##NAME(               \
        OPERAND(a), OPERAND(b), RESULT, i64 batch, i64 m, i64 n, i64 k, i32 exact) {                                                \
        extern __shared__ __align__(1024) i8 memory[];                                                                             \
        dot<T, S>(OPERAND_OF(a), OPERAND_OF(b), RESULT_OF, Shape{m, n, k, batch, exact != 0}, memory);                                         \
    }

using Broad = Wide<DOT_COLUMNS, DOT_STAGES, DOT_CLUSTER, DOT_GROUP, DOT_STAGED>;
using Narrow = Wide<128, DOT_COLUMNS == 256 ? DOT_STAGES * 3 / 2 : DOT_STAGES, DOT_CLUSTER, DOT_GROUP, DOT_STAGED>;

KERNEL(wgmma_short_14, Broad, ShortSums<DOT_COLUMNS>)
KERNEL(wgmma_long_14, Broad, LongSums<DOT_COLUMNS>)
using Wide14 = WideSums<14, 128>;
using Wide21 = WideSums<21, 128>;
KERNEL(wgmma_wide_14, Narrow, Wide14)
KERNEL(wgmma_wide_21, Narrow, Wide21)

#endif
