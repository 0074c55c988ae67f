// Weighted sums of attention's backward pass on sm_90a from e and dS in memory (attention_stored.cuh; SPEC.md section 8), 14 bits, 128
// elements a row. Each reads a tile once: no product and no exponential is computed again.
//
//   attention_stored_query   dQ: weights dS of the rows k
//   attention_stored_share   dV: weights e of the rows z
//   attention_stored_slope   dK: weights dS of the rows q
//
// A block keeps the sums of 64 rows (attention_sums.cuh); scorers make digits of the cells of a tile each.
//
// Test: pytest tests/kernels/test_attention_backward_sm90.py
#include "attention_backward_records.cuh"
#include "attention_sm90.cuh"
#include "attention_stored.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What the three have in common; of attention_sm90.cuh's choices those that concern sums.
struct StoredSum {
    static constexpr bool SUMS = true, ROW_SUMS = false, TWO_SETS = false;
    static constexpr int PRODUCTS = 1, VECTORS = 0, SCORERS = 3, TOGETHER = 1, CLUSTER = 1;
    static constexpr int ROW_STAGES = 0, COLUMN_STAGES = 0, SUM_STAGES = 4;
    static constexpr int LOADER_REGISTERS = 24, SCORER_REGISTERS = 72, SUMMER_REGISTERS = 224;

    StoredCells stored;
    const i32 *exponents, *bounds;  // of the columns and of the rows, [groups][...]
    float* out;
    i32 rows, columns, heads;

    i32 bound[2];
    float weight[2];  // 2^(13 - bound)

    __device__ __forceinline__ bool begin(i32 group, i32 row) {
        bool tame = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bound[half] = settled(bounds[group * rows + min(row + 8 * half, rows - 1)]);
            tame = tame && is_tame_bound(bound[half]);
            weight[half] = power_of_two(13 - (is_tame_bound(bound[half]) ? bound[half] : 0));
        }
        return __all_sync(WARP, tame);
    }
};

struct StoredQuery : StoredSum {
    static constexpr bool QUERIES = true, UNSIGNED = false, SHARES = false, PAIRS = false;

    __device__ __forceinline__ float* result(i32 group, i32 row, i32* of) const {
        *of = bounds[group * rows + row];
        i32 token = row / heads, head = row - token * heads;
        return out + (((i64)group * heads + head) * columns + token) * DIM;
    }
};

// PAIRS: exponents are those of pair_of, of which dV takes the second.
struct StoredKey : StoredSum {
    static constexpr bool QUERIES = false;

    __device__ __forceinline__ float* result(i32 group, i32 row, i32* of) const {
        i32 at = group * rows + row;
        *of = settled(bounds[at]);
        return out + (i64)at * DIM;
    }
};
struct StoredShare : StoredKey {
    static constexpr bool UNSIGNED = true, SHARES = true, PAIRS = true;
};
struct StoredSlope : StoredKey {
    static constexpr bool UNSIGNED = false, SHARES = false, PAIRS = false;
};

// A thread's cells of a tile, as words.
template <class C>
__device__ __forceinline__ void read_cells(const C& cells, const Tile& t, i32 (&v)[CELLS]) {
    const StoredCells& s = cells.stored;
    const float* from = C::SHARES ? s.e : s.ds;
    if (C::QUERIES) {
        from += s.place(t);
#pragma unroll
        for (int i = 0; i < CELLS; i += 2) {
            float2 two = *(const float2*)(from + i / 2 % 2 * 8 * BLOCK_ROWS + i / 4 * 8);
            v[i] = (i32)bits_of(two.x), v[i + 1] = (i32)bits_of(two.y);
        }
    } else {  // the tile the other way round
        from += s.tile(t.group, t.column / BLOCK_ROWS, t.row / BLOCK_ROWS) + t.column % BLOCK_ROWS * BLOCK_ROWS + t.row % BLOCK_ROWS;
#pragma unroll
        for (int i = 0; i < CELLS; i++) v[i] = (i32)bits_of(from[(i / 4 * 8 + i % 2) * BLOCK_ROWS + i / 2 % 2 * 8]);
    }
}

// Digits of the weights of a tile's cells. Columns beyond the last have turned rows of zeros: any weight will do.
//
// In the short form, of tame columns and bounds, w 2^x is exact, or below 2^-126; then the weight is below 2^(-126 + 13 + 110), and 0.
template <class C>
__device__ __forceinline__ void store_stored(const C& cells, const Tile& t, i32 (&v)[CELLS], bool tame) {
    constexpr float ROUND = C::UNSIGNED ? UNSIGNED_ROUND : SIGNED_ROUND;
    const i32* exponents = cells.exponents + t.group * cells.columns;
    i32 x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        i32 of = exponents[min(t.column + i / 2 * 8 + i % 2, cells.columns - 1)];
        x[i] = C::PAIRS ? of_z(of) : of;
        tame = tame && is_tame_row(x[i]);
    }
    if (__all_sync(WARP, tame)) {
#pragma unroll
        for (int i = 0; i < CELLS; i++) {
            float w = float_of((u32)v[i]) * factor_of_weight(x[i / 4 * 2 + i % 2]);
            v[i] = (i32)bits_of(fused(w, cells.weight[i / 2 % 2], ROUND));
        }
    } else {
        one_by_one(v, [&](i32 cell, i32 word) {
            i32 of = exponents[min(t.column + column_of_cell(cell), cells.columns - 1)], bound = PICK(cells.bound, half_of_cell(cell));
            float w = float_of((u32)word);
            w = C::SHARES ? weight_of_share<14>(w, C::PAIRS ? of_z(of) : of, bound) : weight_of<14>(w, of, bound);
            return (i32)bits_of(w + ROUND);
        });
    }
    store_weights<!C::UNSIGNED>(v, [&](int half, int plane, const u32* words) { t.store(half, plane, words); });
}

// A warpgroup: weights of its tiles.
template <class C>
__device__ __forceinline__ void score_stored(const Chunk& c, C& cells, i8* shared, u32 ring, i32 scorer) {
    using P = Pipe<C>;
    i32 warp = (i32)(threadIdx.x / 32 % 4), lane = (i32)(threadIdx.x & 31);
    u32 round = 0, passed = 0;
#pragma unroll 1
    for (Unit u = unit_at<C>(c, 0, 0); u.exists; u = unit_at<C>(c, ++round, 0)) {
        Tile t;
        t.group = u.group;
        t.row = u.row + warp * 16 + lane / 4;
        bool tame = cells.begin(u.group, t.row);
#pragma unroll 1
        for (i32 tile = u.first; tile <= u.last; tile++, passed++) {
            if (passed % C::SCORERS != (u32)scorer) continue;
            Place<C::SUM_STAGES> digit(passed);
            t.column = tile * BLOCK_ROWS + lane % 4 * 2;
            t.digits = shared + P::DIGIT + digit.slot * DIGITS;
            i32 v[CELLS];
            read_cells(cells, t, v);
            mbarrier_wait(ring + P::DIGIT_EMPTY + 8 * digit.slot, digit.parity ^ 1);
            store_stored(cells, t, v, tame);
            fence_async();
            arrive(ring + P::DIGIT_FULL + 8 * digit.slot);
        }
    }
}

// A kernel of blocks of Pipe<C>::THREADS threads, with Pipe<C>::BYTES + 1024 bytes of shared memory.
template <class C>
__device__ __forceinline__ void sum_stored(const i8* turned, const Chunk& c, C cells, i8* memory) {
    using P = Pipe<C>;
    u32 address = shared_address(memory), ring = (address + 1023) & ~1023u;
    i8* shared = memory + (ring - address);
    if (threadIdx.x == 0) {
        init_ring<C::SUM_STAGES>(ring + P::TURNED_FULL, 1, 4);
        init_ring<C::SUM_STAGES>(ring + P::DIGIT_FULL, 4, 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    i32 group = __shfl_sync(0xffffffffu, (i32)threadIdx.x / WARPGROUP, 0);
    if (group == 0) {
        take_registers<C, C::LOADER_REGISTERS>();
        Given given{};
        given.turned = turned;
        if (threadIdx.x < 32) load_turned<C>(given, c, ring, 0);
    } else if (group <= C::SCORERS) {
        take_registers<C, C::SCORER_REGISTERS>();
        score_stored<C>(c, cells, shared, ring, group - 1);
    } else {
        take_registers<C, C::SUMMER_REGISTERS>();
        sum_up<C>(c, cells, shared, ring, 0);
    }
}

#define STORED_SUM(C, NAME, CHUNK_OF_ALL)                                                                                             \
    GLOBAL void __cluster_dims__(1, 1, 1) __launch_bounds__(Pipe<C>::THREADS, 1) attention_stored_##NAME(                                                  \
        const i8* turned, float* cells_of, const i32* exponents, const i32* bounds, float* out, i32 first, i32 count, SIZES) {        \
        extern __shared__ __align__(1024) i8 memory[];                                                                                \
        Chunk chunk = CHUNK_OF_ALL;                                                                                                   \
        chunk.first = first, chunk.count = count;                                                                                     \
        C cells{};                                                                                                                    \
        cells.stored = StoredCells{cells_of, cells_of, first, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS,                                   \
                                   (tokens + BLOCK_ROWS - 1) / BLOCK_ROWS};                                                           \
        cells.exponents = exponents, cells.bounds = bounds, cells.out = out;                                                          \
        cells.rows = chunk.rows, cells.columns = chunk.columns, cells.heads = heads;                                                  \
        sum_stored<C>(turned, chunk, cells, memory);                                                                                  \
    }

STORED_SUM(StoredQuery, query, QUERY_CHUNK)
STORED_SUM(StoredShare, share, KEY_CHUNK)
STORED_SUM(StoredSlope, slope, KEY_CHUNK)

#endif
