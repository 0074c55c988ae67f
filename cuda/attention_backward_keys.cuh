// The classes of attention_sm90.cuh for dV and dK (attention_backward_sm90.cu): what becomes of the dots of a tile.
//
// WHOLE and EDGE tiles take the short forms of attention_cells.cuh, ANY_TILE, cell by cell, those of attention_gradient.cuh. Rows
// beyond the last, which the pipeline gives as well, are the last once more.
#pragma once
#include "attention_backward_records.cuh"
#include "attention_sm90.cuh"

// The row of keys of a thread, or the last.
__device__ __forceinline__ i32 key_at(i32 group, i32 row, i32 half, i32 tokens) {
    return group * tokens + min(row + 8 * half, tokens - 1);
}

// dV: weights e of the rows z.
struct ShareSum : BackwardSum {
    static constexpr bool QUERIES = false, UNSIGNED = true, TWO_SETS = ATTENTION_CLUSTER == 1;
    static constexpr int PRODUCTS = 1, VECTORS = ShareRecord::VECTORS, ROW_STAGES = 2, COLUMN_STAGES = 3;

    const i32 *k_exponents, *pairs, *bounds;
    const float* maxima;
    float* out;
    i32 tokens, heads;
    float scale;

    float score[2], weight[2];

    __device__ __forceinline__ bool begin(i32 group, i32 row, i32*) {
        bool tame = true;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 key = key_at(group, row, half, tokens);
            i32 e = bounds[key];
            tame = tame && is_tame_bound(e);
            weight[half] = power_of_two(13 - (is_tame_bound(e) ? e : 0));
            score[half] = some_factor(k_exponents[key]) * scale;
        }
        return tame;
    }
    __device__ __forceinline__ static bool fast(const i32*, const i32*) { return true; }

    template <Kind KIND>
    __device__ __forceinline__ void tile(const Tile& t, i32 (&v)[1][32]) {
        if (KIND == ANY_TILE) {
            i32 first = t.group * tokens * heads + t.column;
            one_by_one(v[0], [&](i32 cell, i32 s) {
                if (!sees_cell(t, cell)) return (i32)bits_of(UNSIGNED_ROUND);
                i32 query = first + column_of_cell(cell);
                float e = weight_e(float_of((u32)s), scale, maxima[query]);
                return (i32)bits_of(weight_of_share<14>(e, of_z(pairs[query]), bounds[key_at(t.group, t.row, half_of_cell(cell), tokens)]) + UNSIGNED_ROUND);
            });
        } else {
            const ShareRecord& record = *(const ShareRecord*)t.record;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float4 p = record.scores[i / 4 * 4 + ((i32)threadIdx.x & 3)];
                float2 w = record.weights[i / 4 * 4 + ((i32)threadIdx.x & 3)];
                // e below 2^-124 weighs 0 whatever it is.
                float x = (float)v[0][i] * (i % 2 ? p.y : p.x) * score[i / 2 % 2] - (i % 2 ? p.w : p.z);
                float e = exp_tame(fmaxf(x, EXP_NORMAL));
                if (KIND == EDGE) e = t.sees(i) ? e : 0.0f;
                v[0][i] = (i32)bits_of(fused(e * (i % 2 ? w.y : w.x), weight[i / 2 % 2], UNSIGNED_ROUND));
            }
        }
        store_weights<false>(v[0], [&](int half, int plane, const u32* words) { t.store(half, plane, words); });
    }
    __device__ __forceinline__ void end(i32, i32) {}
    __device__ __forceinline__ float* result(i32 group, i32 row, i32* of) const {
        i32 at = group * tokens + row;
        *of = bounds[at];
        return out + (i64)at * DIM;
    }
};

// dK: weights dS of the rows q.
struct SlopeSum : BackwardSum {
    static constexpr bool QUERIES = false, UNSIGNED = false;
    static constexpr int PRODUCTS = 2, VECTORS = SlopeRecord::VECTORS, ROW_STAGES = 1, COLUMN_STAGES = 2;

    const i32 *k_exponents, *v_exponents, *q_exponents, *bounds;
    const float *maxima, *sums, *inner;
    float* out;
    i32 tokens, heads;
    float scale;

    float score[2], value[2], weight[2];

    __device__ __forceinline__ bool begin(i32 group, i32 row, i32* limits) {
        bool tame = true;
        i32 most_of_both = 1000, least = 1000;  // x_q + x_dO of a tile in the short form; of the bounds
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i32 key = key_at(group, row, half, tokens);
            i32 e = settled(bounds[key]), of_v = v_exponents[key];
            tame = tame && is_tame_bound(e);
            weight[half] = power_of_two(13 - (is_tame_bound(e) ? e : 0));
            score[half] = some_factor(k_exponents[key]) * scale;
            value[half] = some_factor(of_v);
            most_of_both = min(most_of_both, MOST_OF_GRADIENT - 5 + e - of_v);
            least = min(least, e);
        }
        limits[0] = warp_min_int(most_of_both);
        limits[1] = warp_min_int(least);
        return tame;
    }
    __device__ __forceinline__ static bool fast(const i32* head, const i32* limits) {
        i32 largest_q = head[2], dout = of_q(head[3]), inner = of_z(head[3]), least = limits[1];
        return (largest_q + dout <= limits[0]) & (largest_q <= least + 111) & (largest_q + inner <= least + MOST_OF_GRADIENT);
    }

    template <Kind KIND>
    __device__ __forceinline__ void tile(const Tile& t, i32 (&v)[2][32]) {
        if (KIND == ANY_TILE) {
            i32 first = t.group * tokens * heads + t.column;
            one_by_one(v[0], v[1], [&](i32 cell, i32 s, i32 dp) {
                if (!sees_cell(t, cell)) return (i32)bits_of(SIGNED_ROUND);
                i32 query = first + column_of_cell(cell);
                float e = weight_e(float_of((u32)s), scale, maxima[query]);
                float ds = slope(float_of((u32)dp), e, scale, sums[query], inner[query]);
                i32 bound = settled(bounds[key_at(t.group, t.row, half_of_cell(cell), tokens)]);
                return (i32)bits_of(weight_of<14>(ds, q_exponents[query], bound) + SIGNED_ROUND);
            });
        } else {
            const SlopeRecord& record = *(const SlopeRecord*)t.record;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int at = i / 4 * 4 + ((i32)threadIdx.x & 3), half = i / 2 % 2;
                float4 p = record.scores[at], g = record.gradients[at], l = record.sums[at];
                float2 w = record.weights[at];
                float x = (float)v[0][i] * (i % 2 ? p.y : p.x) * score[half] - (i % 2 ? p.w : p.z);
                float share = quotient(exp_tame(fmaxf(x, EXP_NORMAL)), i % 2 ? l.y : l.x, i % 2 ? l.w : l.z);
                float d = fused((float)v[1][i] * (i % 2 ? g.y : g.x), value[half], -(i % 2 ? g.w : g.z));
                float ds = (d * share) * (i % 2 ? w.y : w.x);
                if (KIND == EDGE) ds = t.sees(i) ? ds : 0.0f;
                v[0][i] = (i32)bits_of(fused(ds, weight[half], SIGNED_ROUND));
            }
        }
        store_weights<true>(v[0], [&](int half, int plane, const u32* words) { t.store(half, plane, words); });
    }
    __device__ __forceinline__ void end(i32, i32) {}
    __device__ __forceinline__ float* result(i32 group, i32 row, i32* of) const {
        i32 at = group * tokens + row;
        *of = settled(bounds[at]);
        return out + (i64)at * DIM;
    }
};
