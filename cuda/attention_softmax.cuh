// Softmax of the rows of a chunk of scores, and the weights of the value rows (SPEC.md section 8).
#pragma once
#include "attention_chunk.cuh"
#include "elementary.cuh"

// Whether an e that is not finite is told where it is met, not at the end of the row: a register less, without which NVRTC 13.5 would
// keep something in local memory for sm_100.
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define TOLD_AT_ONCE true
#else
#define TOLD_AT_ONCE false
#endif

// Raw scores to scores: times the scale.
__device__ __forceinline__ void scale_tile(Quad (&held)[QUADS], float scale) {
#pragma unroll
    for (int p = 0; p < QUADS; p++)
#pragma unroll
        for (int c = 0; c < 4; c++) held[p].v[c] *= scale;
}

// A block a row of queries: of raw scores (exact dots) [batch][rows][columns] the row maxima m and sums l, both [batch][tokens *
// heads], and the weights of the value rows, whose exponents are [batch][tokens], as digit planes [planes][batch][rows][padded] under
// the bounds X [batch][rows].
template <int BITS>
__device__ __forceinline__ void softmax_weights(const float* scores, const i32* exponents, float* maxima, float* sums, i32* bounds,
                                                i8* planes, u32* status, const Chunk& c, float scale) {
    __shared__ float maxima_of_warps[32];
    __shared__ i32 bounds_of_warps[32];
    __shared__ i64 sums_of_warps[32];
    i32 group = (i32)blockIdx.x / c.rows, row = (i32)blockIdx.x - group * c.rows;
    Seen seen = keys_seen(c, row);
    const float* s = scores + (i64)blockIdx.x * c.columns;
    const i32* x = exponents + (i64)group * c.tokens + c.key;
    bool wide = ((c.columns | c.tokens) & 3) == 0;
    i32 tiles = tiles_of(c.padded);
    Quad held[QUADS];

    float largest = -float_of(0x7f800000u);
    i32 bound = ZERO_ROW;
#pragma unroll 1
    for (i32 tile = 0; tile < tiles; tile++) {
        read_tile(held, s, tile, seen, c.columns, wide);
        scale_tile(held, scale);
#pragma unroll
        for (int p = 0; p < QUADS; p++) {
            i32 at = column_of(tile, p);
            if (!seen.meets(at)) continue;
            IntQuad exponent = read_quad(x, at, c.columns, wide);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (!seen.has(at + i)) continue;
                largest = held[p].v[i] > largest ? held[p].v[i] : largest;
                bound = max(bound, exponent.v[i]);
            }
        }
    }
    largest = over_block(largest, maxima_of_warps, -float_of(0x7f800000u), [](float v) { return warp_max_float(v); });
    bound = over_block(bound, bounds_of_warps, (i32)ZERO_ROW, [](i32 v) { return warp_max_int(v); });

    RowPlanes to(planes, layout_of(c.batch, c.rows, c.padded), group, row);
    i64 total = 0;
    bool finite = true;
#pragma unroll 1
    for (i32 tile = 0; tile < tiles; tile++) {
        if (tiles > 1) {
            read_tile(held, s, tile, seen, c.columns, wide);
            scale_tile(held, scale);
        }
#pragma unroll
        for (int p = 0; p < QUADS; p++) {
            i32 at = column_of(tile, p);
            Quad q = {};
            if (at >= c.padded) continue;
            if (seen.meets(at)) {
                IntQuad exponent = read_quad(x, at, c.columns, wide);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float e = seen.has(at + i) ? exp_nonpositive(held[p].v[i] - largest) : 0.0f;
                    if (TOLD_AT_ONCE && !is_finite(e)) atomicOr(status, NOT_FINITE);
                    finite = finite && (TOLD_AT_ONCE || is_finite(e));  // a score of -inf has the weight 0; one of +inf or NaN has none
                    total += __float2int_rn(e * 1073741824.0f);
                    q.v[i] = seen.has(at + i) ? weight_of_share<BITS>(e, exponent.v[i], bound) : 0.0f;
                }
            }
            to.store<BITS>(at, q);
        }
    }
    total = over_block(total, sums_of_warps, (i64)0, [](i64 v) { return warp_sum_i64(v); });
    if (!finite) atomicOr(status, NOT_FINITE);
    if (threadIdx.x == 0) {
        i64 at = (i64)group * c.tokens * c.heads + (i64)c.query * c.heads + row;
        maxima[at] = largest;
        sums[at] = (float)total * 9.313225746154785e-10f;  // RN32(total), times 2^-30
        bounds[blockIdx.x] = bound;
    }
}
