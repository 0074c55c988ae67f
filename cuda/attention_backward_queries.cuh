// The classes of attention_sm90.cuh for the bounds of the backward pass and for dQ (attention_backward_sm90.cu): what becomes of the dots of a tile.
//
// WHOLE and EDGE tiles take the short forms of attention_cells.cuh, ANY_TILE, cell by cell, those of attention_gradient.cuh. Rows
// beyond the last, which the pipeline gives as well, have numbers that compute and count nothing.
#pragma once
#include "attention_backward_records.cuh"
#include "attention_sm90.cuh"

// A thread's two rows of queries. Vectors are [groups][rows].
struct QueryRows {
    const i32 *q_exponents, *dout_exponents;
    const float *maxima, *sums, *inners;
    i32 rows;
    float scale;

    bool exists[2];
    i32 of_q[2], of_dout[2];
    float score[2], largest[2], sum[2], reciprocal[2], gradient[2], inner[2];

    __device__ __forceinline__ bool begin(i32 group, i32 row) {
        bool tame = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            exists[half] = row + 8 * half < rows;
            i32 at = group * rows + min(row + 8 * half, rows - 1);
            Query of = exists[half] ? Query{q_exponents[at], dout_exponents[at], maxima[at], sums[at], inners[at]}
                                    : Query{ZERO_ROW, ZERO_ROW, 0.0f, 1.0f, 0.0f};
            tame = tame && of.tame();
            of_q[half] = of.of_q, of_dout[half] = of.of_gradient;
            score[half] = exists[half] ? some_factor(of.of_q) * scale : 0.0f;
            gradient[half] = exists[half] ? some_factor(of.of_gradient) : 0.0f;
            largest[half] = of.largest, sum[half] = of.sum, inner[half] = of.inner;
            reciprocal[half] = 1.0f / of.sum;
        }
        return tame;
    }

    // dS of a cell from its rounded dots.
    __device__ __forceinline__ float slope_of(i32 cell, i32 score, i32 dp) const {
        i32 half = half_of_cell(cell);
        float e = weight_e(float_of((u32)score), scale, PICK(largest, half));
        return slope(float_of((u32)dp), e, scale, PICK(sum, half), PICK(inner, half));
    }
};

// Bounds of the weights: of the rows k for each query, of the rows q for each key.
struct SlopeScan {
    static constexpr bool QUERIES = true, SUMS = false, ROW_SUMS = false, TWO_SETS = false;
    static constexpr int PRODUCTS = 2, VECTORS = KeyRecord::VECTORS, SCORERS = 3, TOGETHER = 2, CLUSTER = ATTENTION_CLUSTER;
    static constexpr int ROW_STAGES = 1, COLUMN_STAGES = 1, SUM_STAGES = 0;
    static constexpr int SCORER_REGISTERS = 152;

    QueryRows queries;
    const i32* k_exponents;
    i32 *query_bounds, *key_bounds;
    u32* status;
    i32 tokens;

    i32 bound[2];
    float most[2], lift[2];  // of what is lifted by LIFT

    __device__ __forceinline__ bool begin(i32 group, i32 row, i32*) {
        bool tame = queries.begin(group, row);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bound[half] = NO_BOUND, most[half] = 0.0f;
            lift[half] = some_weight(queries.of_q[half], LIFT);
        }
        return tame;
    }
    __device__ __forceinline__ static bool fast(const i32*, const i32*) { return true; }

    // Cell by cell, from dS; cells that are not seen are 0.
    __device__ __forceinline__ void bounds_of(const Tile& t, i32 (&ds)[32]) {
        i32 first = t.group * tokens;
        bool finite = true;
        one_by_one(ds, [&](i32 cell, i32 word) {
            float w = float_of((u32)word);
            i32 half = half_of_cell(cell);
            finite = finite && is_finite(w);
            if (w != 0.0f && PICK(queries.exists, half)) {
                i32 key = first + t.column + column_of_cell(cell);
                i32 of_query = product_exponent(w, k_exponents[key], NO_BOUND);
                if (half)
                    bound[1] = max(bound[1], of_query);
                else
                    bound[0] = max(bound[0], of_query);
                i32 of_key = product_exponent(w, PICK(queries.of_q, half), NO_BOUND);
                if (of_key != NO_BOUND) atomicMax(key_bounds + key, of_key);
            }
            return word;
        });
        if (!finite) atomicOr(status, NOT_FINITE);
        __syncwarp();
    }

    template <Kind KIND>
    __device__ __forceinline__ void tile(const Tile& t, i32 (&v)[2][32]) {
        if (KIND == ANY_TILE) {
            one_by_one(v[0], v[1], [&](i32 cell, i32 s, i32 dp) {
                return sees_cell(t, cell) && PICK(queries.exists, half_of_cell(cell)) ? (i32)bits_of(queries.slope_of(cell, s, dp)) : 0;
            });
            bounds_of(t, v[0]);
            return;
        }
        const KeyRecord& record = *(const KeyRecord*)t.record;
        i32 pair = (i32)threadIdx.x & 3;
        bool tame = true;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float4 p = record.factors[i / 4 * 4 + pair];
            float x = (float)v[0][i] * (i % 2 ? p.y : p.x) * queries.score[i / 2 % 2] - queries.largest[i / 2 % 2];
            if (KIND == EDGE) x = t.sees(i) ? x : 0.0f;
            tame = tame && x >= LEAST_TAME;
            v[0][i] = (i32)bits_of(x);
        }
        if (__all_sync(WARP, tame)) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float e = exp_tame(float_of((u32)v[0][i]));
                v[0][i] = (i32)bits_of(quotient(e, queries.sum[i / 2 % 2], queries.reciprocal[i / 2 % 2]));
            }
        } else {
            one_by_one(v[0], [&](i32 cell, i32 x) {
                return (i32)bits_of(exp_nonpositive(float_of((u32)x)) / PICK(queries.sum, half_of_cell(cell)));
            });
        }
        float of_rows[2] = {}, of_columns[16];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float4 p = record.factors[i / 4 * 4 + pair], w = record.weights[i / 4 * 4 + pair];
            int half = i / 2 % 2, column = i / 4 * 2 + i % 2;
            float d = fused((float)v[1][i] * (i % 2 ? p.w : p.z), queries.gradient[half], -queries.inner[half]);
            float ds = (d * float_of((u32)v[0][i])) * queries.scale;
            if (KIND == EDGE) ds = t.sees(i) ? ds : 0.0f;
            v[0][i] = (i32)bits_of(ds);
            of_rows[half] = fmaxf(of_rows[half], fabsf(ds * (i % 2 ? w.w : w.z)));
            float lifted = fabsf(ds * lift[half]);
            of_columns[column] = half ? fmaxf(of_columns[column], lifted) : lifted;
        }
        max_of_columns(of_columns);
        constexpr u32 INFINITE = 0x7f800000u;
        if (!__all_sync(WARP, fmaxf(fmaxf(of_rows[0], of_rows[1]), fmaxf(of_columns[0], of_columns[1])) < float_of(INFINITE))) {
            bounds_of(t, v[0]);
            return;
        }
        i32* keys = key_bounds + t.group * tokens + (t.column - 2 * pair) + 2 * ((i32)threadIdx.x & 31);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            most[b] = fmaxf(most[b], of_rows[b]);
            if (of_columns[b] != 0.0f) atomicMax(keys + b, exponent_of_lifted(of_columns[b]));
        }
    }

    __device__ __forceinline__ static i32 exponent_of_lifted(float x) { return (i32)(bits_of(x) >> 23) - 126 - LIFT; }

    __device__ __forceinline__ void end(i32 group, i32 row) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 x = most[half] == 0.0f ? bound[half] : max(bound[half], exponent_of_lifted(most[half]));
            x = max(x, __shfl_xor_sync(WARP, x, 1));
            x = max(x, __shfl_xor_sync(WARP, x, 2));
            if ((threadIdx.x & 3) == 0 && queries.exists[half]) query_bounds[group * queries.rows + row + 8 * half] = settled(x);
        }
        __syncwarp();
    }
};

// dQ: weights dS of the rows k.
struct QuerySum : BackwardSum {
    static constexpr bool QUERIES = true, UNSIGNED = false;
    static constexpr int PRODUCTS = 2, VECTORS = KeyRecord::VECTORS, ROW_STAGES = 1, COLUMN_STAGES = 2;

    QueryRows queries;
    const i32 *k_exponents, *bounds;
    float* out;
    i32 tokens, heads;

    float weight[2];

    __device__ __forceinline__ bool begin(i32 group, i32 row, i32* limits) {
        bool tame = queries.begin(group, row);
        i32 most_of_both = 1000, most_of_keys = 1000;  // x_k + x_v and x_k of a tile in the short form
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 e = queries.exists[half] ? bounds[group * queries.rows + row + 8 * half] : 0;
            tame = tame && is_tame_bound(e);
            weight[half] = power_of_two(13 - (is_tame_bound(e) ? e : 0));
            if (queries.exists[half]) {
                most_of_both = min(most_of_both, MOST_OF_GRADIENT - 5 + e - queries.of_dout[half]);
                i32 of_inner = is_finite(queries.inner[half]) ? row_exponent(queries.inner[half]) : 1000;
                most_of_keys = min(most_of_keys, min(MOST_OF_GRADIENT + e - of_inner, e + 111));
            }
        }
        limits[0] = warp_min_int(most_of_both);
        limits[1] = warp_min_int(most_of_keys);
        return tame;
    }
    __device__ __forceinline__ static bool fast(const i32* head, const i32* limits) {
        i32 largest_k = head[2], largest_v = head[3];
        return (largest_k + largest_v <= limits[0]) & (largest_k <= limits[1]);
    }

    template <Kind KIND>
    __device__ __forceinline__ void tile(const Tile& t, i32 (&v)[2][32]) {
        if (KIND == ANY_TILE) {
            const i32* of_keys = k_exponents + t.group * tokens + t.column;
            const i32* of_rows = bounds + t.group * queries.rows;
            one_by_one(v[0], v[1], [&](i32 cell, i32 s, i32 dp) {
                if (!sees_cell(t, cell)) return (i32)bits_of(SIGNED_ROUND);
                i32 bound = of_rows[min(t.row + 8 * half_of_cell(cell), queries.rows - 1)];
                float w = weight_of<14>(queries.slope_of(cell, s, dp), of_keys[column_of_cell(cell)], bound);
                return (i32)bits_of(w + SIGNED_ROUND);
            });
        } else {
            const KeyRecord& record = *(const KeyRecord*)t.record;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float4 p = record.factors[i / 4 * 4 + ((i32)threadIdx.x & 3)], w = record.weights[i / 4 * 4 + ((i32)threadIdx.x & 3)];
                int half = i / 2 % 2;
                float x = (float)v[0][i] * (i % 2 ? p.y : p.x) * queries.score[half] - queries.largest[half];
                float share = quotient(exp_tame(fmaxf(x, EXP_NORMAL)), queries.sum[half], queries.reciprocal[half]);
                float d = fused((float)v[1][i] * (i % 2 ? p.w : p.z), queries.gradient[half], -queries.inner[half]);
                float ds = (d * share) * (i % 2 ? w.y : w.x);
                if (KIND == EDGE) ds = t.sees(i) ? ds : 0.0f;
                v[0][i] = (i32)bits_of(fused(ds, weight[half], SIGNED_ROUND));
            }
        }
        store_weights<true>(v[0], [&](int half, int plane, const u32* words) { t.store(half, plane, words); });
    }
    __device__ __forceinline__ void end(i32, i32) {}
    __device__ __forceinline__ float* result(i32 group, i32 row, i32* of) const {
        *of = bounds[group * queries.rows + row];
        i32 token = row / heads, head = row - token * heads;
        return out + (((i64)group * heads + head) * tokens + token) * DIM;
    }
};
