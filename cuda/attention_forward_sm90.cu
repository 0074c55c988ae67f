// Attention's forward pass on sm_90a without scores in memory (attention_sm90.cuh, SPEC.md section 8), 14 bits, 128 elements a row.
//
//   attention_row_norms        norms of each 64 rows of q
//   attention_key_records      what scorers want to know of each 64 keys
//   attention_forward_scan     the row maxima m, and the bounds X
//   attention_forward_sums     e, l, the weighted sums of the value rows, divided by l
//
// Maxima are exact, sums are those of integers, and each number is rounded where the specification rounds it: neither the number of
// blocks nor their order can change a bit.
//
// Test: pytest tests/kernels/test_attention_forward_sm90.py
#include "attention_cells.cuh"
#include "attention_norms.cuh"
#include "attention_sm90.cuh"
#include "elementary.cuh"
#include "quantise_digits.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A choice that changes no bit: blocks that share their columns, 1 or 2 (auditkit/kernels/attention_forward_sm90.py must know).
#ifndef ATTENTION_CLUSTER
#define ATTENTION_CLUSTER 1
#endif

#define UNSEEN (-float_of(0x7f800000u))

// Of a key's record: 2^(x_k - 13), 2^(x_v), 0 for zero rows. The header: the keys' norm, the largest x_v (an integer), whether all
// value rows are tame (an integer).
#define KEY_NUMBERS 2

GLOBAL void __launch_bounds__(NORM_THREADS) attention_row_norms(const i8* planes, const i32* exponents, float* norms, i32 groups, i32 rows) {
    i32 blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, group = (i32)blockIdx.x / blocks, block = (i32)blockIdx.x % blocks;
    Layout layout = layout_of(groups, rows, DIM);
    float norm = norm_of_block(planes + group * layout.matrix + block * layout.block, layout.plane,
                               exponents + (i64)group * rows + block * BLOCK_ROWS, rows - block * BLOCK_ROWS);
    if (threadIdx.x == 0) norms[blockIdx.x] = norm;
}

GLOBAL void __launch_bounds__(NORM_THREADS)
    attention_key_records(const i8* planes, const i32* k_exponents, const i32* v_exponents, i8* records, i32 groups, i32 tokens) {
    i32 blocks = (tokens + BLOCK_ROWS - 1) / BLOCK_ROWS, group = (i32)blockIdx.x / blocks, block = (i32)blockIdx.x % blocks;
    Layout layout = layout_of(groups, tokens, DIM);
    i64 first = (i64)group * tokens + block * BLOCK_ROWS;
    i32 count = tokens - block * BLOCK_ROWS;
    float norm = norm_of_block(planes + group * layout.matrix + block * layout.block, layout.plane, k_exponents + first, count);
    i8* record = records + (i64)blockIdx.x * (HEADER + KEY_NUMBERS * 4 * BLOCK_ROWS);
    if (threadIdx.x >= 32) return;
    i32 top = -149;
    bool tame = true;
#pragma unroll
    for (int b = 0; b < 2; b++) {
        i32 at = (i32)threadIdx.x * 2 + b;
        i32 of_k = at < count ? k_exponents[first + at] : -149, of_v = at < count ? v_exponents[first + at] : -149;
        float* numbers = (float*)(record + HEADER) + threadIdx.x * 2 * KEY_NUMBERS + b;
        numbers[0] = is_tame_row(of_k) ? factor_of_row(of_k) : 1.0f;
        numbers[2] = is_tame_row(of_v) ? factor_of_weight(of_v) : 0.0f;
        top = max(top, of_v);
        tame = tame && is_tame_row(of_v);
    }
    top = warp_max_int(top);
    tame = __all_sync(0xffffffffu, tame) != 0;
    if (threadIdx.x == 0) *(int4*)record = make_int4((i32)bits_of(norm), top, tame, 0);
}


// Row maxima m and bounds X, [groups][T * R].
struct Scan {
    static constexpr bool QUERIES = true, SUMS = false, ROW_SUMS = false, TWO_SETS = true;
    static constexpr int PRODUCTS = 1, VECTORS = KEY_NUMBERS, SCORERS = 3, TOGETHER = 2, CLUSTER = ATTENTION_CLUSTER;
    static constexpr int ROW_STAGES = 1, COLUMN_STAGES = 4, SUM_STAGES = 0;
    static constexpr int SCORER_REGISTERS = 152;

    const i32 *q_exponents, *v_exponents;
    float* maxima;
    i32* bounds;
    u32* status;
    i32 rows, tokens;
    float scale;

    float largest[2], factor[2];
    i32 bound[2];
    const i32* of_values;

    __device__ __forceinline__ bool begin(i32 group, i32 row, i32*) {
        bool tame = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 x = q_exponents[group * rows + min(row + 8 * half, rows - 1)];
            tame = tame && is_tame_row(x);
            factor[half] = factor_of_row(is_tame_row(x) ? x : 0) * scale;
            largest[half] = UNSEEN;
            bound[half] = -149;
        }
        of_values = v_exponents + group * tokens;
        return tame;
    }
    __device__ __forceinline__ static bool fast(const i32*, const i32*) { return true; }

    template <Kind KIND>
    __device__ __forceinline__ void tile(const Tile& t, i32 (&v)[1][32]) {
        float most[2] = {UNSEEN, UNSEEN};
        if (KIND == WHOLE) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float4 p = *(const float4*)t.numbers(i, KEY_NUMBERS);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    most[half] = fmaxf(most[half], (float)v[0][4 * i + 2 * half] * p.x);
                    most[half] = fmaxf(most[half], (float)v[0][4 * i + 2 * half + 1] * p.y);
                }
            }
            i32 top = ((const i32*)t.record)[1];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                largest[half] = fmaxf(largest[half], most[half] * factor[half]);
                bound[half] = max(bound[half], top);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (t.sees(i)) {
                    int half = i / 2 % 2;
                    float s = KIND == EDGE ? (float)v[0][i] * t.numbers(i / 4, KEY_NUMBERS)[i % 2] * factor[half]
                                           : float_of((u32)v[0][i]) * scale;
                    largest[half] = s > largest[half] ? s : largest[half];
                    bound[half] = max(bound[half], of_values[t.column + i / 4 * 8 + i % 2]);
                }
        }
    }
    __device__ __forceinline__ void end(i32 group, i32 row) {
        bool finite = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float m = largest[half];
            i32 x = bound[half];
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) {
                m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
                x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
            }
            if ((threadIdx.x & 3) == 0 && row + 8 * half < rows) {
                maxima[group * rows + row + 8 * half] = m;
                bounds[group * rows + row + 8 * half] = x;
                finite = finite && is_finite(m);
            }
        }
        // A score of -inf has the weight 0; an infinite maximum is less itself a NaN.
        if (!finite) atomicOr(status, NOT_FINITE);
        __syncwarp();
    }
};

// Weights of the value rows, their sums, and what these are divided by.
struct Sum {
    static constexpr bool QUERIES = true, SUMS = true, ROW_SUMS = true, UNSIGNED = true;
    static constexpr bool TWO_SETS = ATTENTION_CLUSTER == 1;  // a pair of blocks has no registers for the second
    static constexpr int PRODUCTS = 1, VECTORS = KEY_NUMBERS, SCORERS = 2, TOGETHER = 1, CLUSTER = ATTENTION_CLUSTER;
    static constexpr int ROW_STAGES = 2, COLUMN_STAGES = 3, SUM_STAGES = 2;
    static constexpr int SCORER_REGISTERS = 128, SUMMER_REGISTERS = 224;

    const i32 *q_exponents, *v_exponents, *bounds;
    const float* maxima;
    float *sums, *out;
    i32 rows, tokens, heads;
    float scale;

    float largest[2], factor[2], weight[2];
    u64 sum_of[2];

    __device__ __forceinline__ bool begin(i32 group, i32 row, i32*) {
        bool tame = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 at = group * rows + min(row + 8 * half, rows - 1);
            i32 x = q_exponents[at];
            i32 bound = bounds[at];
            largest[half] = maxima[at];
            bool is_tame = is_tame_row(x) && (u32)(bound + 48) <= 96u;
            tame = tame && is_tame;
            factor[half] = factor_of_row(is_tame ? x : 0) * scale;
            weight[half] = power_of_two((is_tame ? -bound : 0) + 13 - 30);  // of e 2^30
            sum_of[half] = 0;
        }
        return tame;
    }
    __device__ __forceinline__ static bool fast(const i32* head, const i32*) { return head[2] != 0; }

    // e 2^30, for x <= 0. Below -86 e is less than 2^-124, and e 2^30 and every weight round to 0 whatever it is. A magic number with
    // 30 added, which is even, rounds to the same n and leaves n + 30; the product n LN2_HI is exact, and the difference rounds once.
    __device__ __forceinline__ static float exp_2_30(float x) {
        constexpr float MAGIC = 12582912.0f + 30.0f;
        x = fmaxf(x, -86.0f);
        float shifted = x * float_of(0x3fb8aa3bu) + MAGIC;
        float n = shifted - MAGIC;
        float r = __fmaf_rn(n, -float_of(LN2_HI), x);
        r = r - n * float_of(LN2_LO);
        return float_of(bits_of(shifted) * (1u << 23) + bits_of(exp_polynomial(r)));
    }

    // A cell of a tile that is not tame: rounds to its weight.
    __device__ __forceinline__ i32 cell_of(const Tile& t, i32 cell, i32 score) {
        i32 half = half_of_cell(cell), column = t.column + column_of_cell(cell);
        bool sees = half ? t.seen[1].has(column) : t.seen[0].has(column);
        float e = sees ? exp_nonpositive(float_of((u32)score) * scale - PICK(largest, half)) : 0.0f;
        u64 count = (u32)__float2int_rn(e * 1073741824.0f);
        sum_of[0] += half ? 0 : count, sum_of[1] += half ? count : 0;
        i32 x = sees ? v_exponents[t.group * tokens + column] : ZERO_ROW, bound = bounds[t.group * rows + min(t.row + 8 * half, rows - 1)];
        return (i32)bits_of(weight_of_share<14>(e, x, bound) + UNSIGNED_ROUND);
    }

    template <Kind KIND>
    __device__ __forceinline__ void tile(const Tile& t, i32 (&v)[1][32]) {
        if constexpr (KIND == ANY_TILE) {
            one_by_one(v[0], [&](i32 cell, i32 score) { return cell_of(t, cell, score); });
            store_weights<false>(v[0], [&](int half, int plane, const u32* words) { t.store(half, plane, words); });
        } else {
            tame_tile<KIND>(t, v[0]);
        }
    }

    template <Kind KIND>
    __device__ __forceinline__ void tame_tile(const Tile& t, i32 (&v)[32]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 words[3][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 count[4], w[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    int i = 4 * (2 * j + c / 2) + 2 * half + c % 2;
                    float4 of = *(const float4*)t.numbers(2 * j + c / 2, KEY_NUMBERS);
                    float s = (float)v[i] * (c % 2 ? of.y : of.x) * factor[half];
                    float e = exp_2_30(s - largest[half]);
                    if (KIND == EDGE) e = t.sees(i) ? e : 0.0f;
                    count[c] = (u32)__float2int_rn(e);
                    // Where the first product is below 2^-126 the second is far below one half.
                    w[c] = bits_of(fused(e * (c % 2 ? of.w : of.z), weight[half], UNSIGNED_ROUND));
                }
                sum_of[half] += (u64)(count[0] + count[1] + count[2]) + count[3];
                weight_digits<false>(w, words[0] + j, words[1] + j, words[2] + j);
            }
#pragma unroll
            for (int plane = 0; plane < 3; plane++) t.store(half, plane, words[plane]);
        }
    }
    __device__ __forceinline__ void end(i32, i32) {}
    __device__ __forceinline__ i64 sum(int half) const { return (i64)sum_of[half]; }
    __device__ __forceinline__ float* result(i32 group, i32 row, i32* of) const {
        *of = bounds[group * rows + row];
        i32 token = row / heads, head = row - token * heads;
        return out + (((i64)group * heads + head) * tokens + token) * DIM;
    }
    __device__ __forceinline__ void total(i32 group, i32 row, float sum) const { sums[group * rows + row] = sum; }
};

#define FUSED(C) GLOBAL void __cluster_dims__(C::CLUSTER, 1, 1) __launch_bounds__(Pipe<C>::THREADS, 1)
#define SIZES i32 groups, i32 tokens, i32 heads, i32 window, float scale
#define QUERY_CHUNK \
    Chunk { groups, tokens * heads, tokens, tokens <= 64 ? 64 : (tokens + 127) / 128 * 128, tokens, heads, 0, 0, window }

FUSED(Scan)
attention_forward_scan(const i8* q, const i8* k, const i32* q_exponents, const i32* k_exponents, const i32* v_exponents,
                       const float* norms, const i8* records, float* maxima, i32* bounds, u32* status, SIZES) {
    extern __shared__ __align__(1024) i8 memory[];
    Scan cells{};
    cells.q_exponents = q_exponents, cells.v_exponents = v_exponents, cells.maxima = maxima, cells.bounds = bounds;
    cells.status = status, cells.rows = tokens * heads, cells.tokens = tokens, cells.scale = scale;
    Given given{{q, q}, {k, k}, k, records, {norms, norms}, {q_exponents, q_exponents}, {k_exponents, k_exponents}};
    attend<Scan>(given, QUERY_CHUNK, cells, memory);
}

FUSED(Sum)
attention_forward_sums(const i8* q, const i8* k, const i8* v_turned, const i32* q_exponents, const i32* k_exponents,
                       const i32* v_exponents, const float* norms, const i8* records, const float* maxima, const i32* bounds,
                       float* sums, float* out, SIZES) {
    extern __shared__ __align__(1024) i8 memory[];
    Sum cells{};
    cells.q_exponents = q_exponents, cells.v_exponents = v_exponents, cells.maxima = maxima, cells.bounds = bounds;
    cells.sums = sums, cells.out = out, cells.rows = tokens * heads, cells.tokens = tokens, cells.heads = heads;
    cells.scale = scale;
    Given given{{q, q}, {k, k}, v_turned, records, {norms, norms}, {q_exponents, q_exponents}, {k_exponents, k_exponents}};
    attend<Sum>(given, QUERY_CHUNK, cells, memory);
}

#endif
