// Gradients of a chunk of scores as weights: of the key rows for dQ; of the query rows for dK and dV (SPEC.md section 8).
#pragma once
#include "attention_chunk.cuh"
#include "elementary.cuh"

// Of a row of queries: the maximum m and sum l of its softmax, and D.
struct QueryRow {
    float largest, sum, inner;
};

__device__ __forceinline__ float weight_e(float score, float scale, float largest) { return exp_nonpositive(score * scale - largest); }

// dS from dP and e.
__device__ __forceinline__ float slope(float dp, float e, float scale, float sum, float inner) {
    return ((dp - inner) * (e / sum)) * scale;
}

// The bound that follows from the largest product: any number will do where there is none, NO_BOUND is outside the exponents.
__device__ __forceinline__ i32 settled(i32 bound) { return bound == NO_BOUND ? 0 : bound; }

// dS of a tile of a row of queries, 0 where not seen.
__device__ __forceinline__ void slopes_of_query(Quad (&ds)[QUADS], const float* scores, const float* dp, i32 tile, const Seen& seen,
                                                i32 columns, bool wide, const QueryRow& query, float scale) {
    Quad s[QUADS];
    read_tile(s, scores, tile, seen, columns, wide);
    read_tile(ds, dp, tile, seen, columns, wide);
#pragma unroll
    for (int p = 0; p < QUADS; p++) {
        i32 at = column_of(tile, p);
        if (!seen.meets(at)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float e = weight_e(s[p].v[i], scale, query.largest);
            ds[p].v[i] = seen.has(at + i) ? slope(ds[p].v[i], e, scale, query.sum, query.inner) : 0.0f;
        }
    }
}

// A block a row of queries: from raw scores and raw dP (exact dots) [batch][rows][columns] the weights dS of the key rows, whose
// exponents are [batch][tokens], as planes [planes][batch][rows][padded] under their true bounds [batch][rows]. maxima, sums and inner,
// the D, are [batch][tokens * heads].
template <int BITS>
__device__ __forceinline__ void query_gradient(const float* scores, const float* dp, const float* maxima, const float* sums,
                                               const float* inner, const i32* exponents, i32* bounds, i8* planes, u32* status,
                                               const Chunk& c, float scale) {
    __shared__ i32 bounds_of_warps[32];
    i32 group = (i32)blockIdx.x / c.rows, row = (i32)blockIdx.x - group * c.rows;
    Seen seen = keys_seen(c, row);
    const float *s = scores + (i64)blockIdx.x * c.columns, *from = dp + (i64)blockIdx.x * c.columns;
    const i32* x = exponents + (i64)group * c.tokens + c.key;
    i64 of = (i64)group * c.tokens * c.heads + (i64)c.query * c.heads + row;
    QueryRow query{maxima[of], sums[of], inner[of]};
    bool wide = ((c.columns | c.tokens) & 3) == 0, finite = true;
    i32 tiles = tiles_of(c.padded), bound = NO_BOUND;
    Quad ds[QUADS];

#pragma unroll 1
    for (i32 tile = 0; tile < tiles; tile++) {
        slopes_of_query(ds, s, from, tile, seen, c.columns, wide, query, scale);
#pragma unroll
        for (int p = 0; p < QUADS; p++) {
            i32 at = column_of(tile, p);
            if (!seen.meets(at)) continue;
            IntQuad exponent = read_quad(x, at, c.columns, wide);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                finite = finite && is_finite(ds[p].v[i]);
                bound = product_exponent(ds[p].v[i], exponent.v[i], bound);
            }
        }
    }
    bound = settled(over_block(bound, bounds_of_warps, (i32)NO_BOUND, [](i32 v) { return warp_max_int(v); }));
    if (!finite) atomicOr(status, NOT_FINITE);
    if (threadIdx.x == 0) bounds[blockIdx.x] = bound;

    RowPlanes to(planes, layout_of(c.batch, c.rows, c.padded), group, row);
#pragma unroll 1
    for (i32 tile = 0; tile < tiles; tile++) {
        if (tiles > 1) slopes_of_query(ds, s, from, tile, seen, c.columns, wide, query, scale);
#pragma unroll
        for (int p = 0; p < QUADS; p++) {
            i32 at = column_of(tile, p);
            Quad q = {};
            if (at >= c.padded) continue;
            if (seen.meets(at)) {
                IntQuad exponent = read_quad(x, at, c.columns, wide);
#pragma unroll
                for (int i = 0; i < 4; i++) q.v[i] = weight_of<BITS>(ds[p].v[i], exponent.v[i], bound);
            }
            to.store<BITS>(at, q);
        }
    }
}

// Vectors over the rows of queries of a group, from the first column of a chunk on.
struct Queries {
    const float *maxima, *sums, *inner;
    const i32* exponents;  // pair_of
};

// Exponents of a row of q and a row of z in one word; both fit 16 bits.
__device__ __forceinline__ i32 pair_of(i32 of_q, i32 of_z) { return (i32)((u32)of_z << 16 | ((u32)of_q & 0xffffu)); }
__device__ __forceinline__ i32 of_q(i32 pair) { return (i32)((u32)pair << 16) >> 16; }
__device__ __forceinline__ i32 of_z(i32 pair) { return pair >> 16; }

// e and dS of a tile of a row of keys, 0 where not seen.
__device__ __forceinline__ void slopes_of_key(Quad (&e)[QUADS], Quad (&ds)[QUADS], const float* scores, const float* dp, i32 tile,
                                              const Seen& seen, i32 columns, bool wide, const Queries& queries, float scale) {
    read_tile(e, scores, tile, seen, columns, wide);
    read_tile(ds, dp, tile, seen, columns, wide);
#pragma unroll
    for (int p = 0; p < QUADS; p++) {
        i32 at = column_of(tile, p);
        if (!seen.meets(at)) continue;
        Quad largest = read_quad(queries.maxima, at, columns, wide);
        Quad sum = read_quad(queries.sums, at, columns, wide);
        Quad inner = read_quad(queries.inner, at, columns, wide);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool has = seen.has(at + i);
            e[p].v[i] = has ? weight_e(e[p].v[i], scale, largest.v[i]) : 0.0f;
            ds[p].v[i] = has ? slope(ds[p].v[i], e[p].v[i], scale, sum.v[i], inner.v[i]) : 0.0f;
        }
    }
}

// A block a row of keys: from raw scores and raw dP the other way round, [batch][rows][columns], the weights e of the rows z and dS of
// the rows q as planes [planes][2][batch][rows][padded], e first, under bounds [2][batch][rows]. maxima, sums, inner and pairs are
// [batch][tokens * heads].
template <int BITS>
__device__ __forceinline__ void key_gradient(const float* scores, const float* dp, const float* maxima, const float* sums,
                                             const float* inner, const i32* pairs, i32* bounds, i8* planes, u32* status,
                                             const Chunk& c, float scale) {
    __shared__ i32 slopes_of_warps[32], largest_of_warps[32];
    i32 group = (i32)blockIdx.x / c.rows, row = (i32)blockIdx.x - group * c.rows;
    Seen seen = queries_seeing(c, row);
    const float *s = scores + (i64)blockIdx.x * c.columns, *from = dp + (i64)blockIdx.x * c.columns;
    i64 first = (i64)group * c.tokens * c.heads + (i64)c.query * c.heads;
    Queries queries{maxima + first, sums + first, inner + first, pairs + first};
    bool wide = ((c.columns | (c.tokens * c.heads)) & 3) == 0, finite = true;
    i32 tiles = tiles_of(c.padded), bound = NO_BOUND, top = ZERO_ROW;
    Quad e[QUADS], ds[QUADS];

#pragma unroll 1
    for (i32 tile = 0; tile < tiles; tile++) {
        slopes_of_key(e, ds, s, from, tile, seen, c.columns, wide, queries, scale);
#pragma unroll
        for (int p = 0; p < QUADS; p++) {
            i32 at = column_of(tile, p);
            if (!seen.meets(at)) continue;
            IntQuad pair = read_quad(queries.exponents, at, c.columns, wide);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                finite = finite && is_finite(ds[p].v[i]);
                bound = product_exponent(ds[p].v[i], of_q(pair.v[i]), bound);
                if (seen.has(at + i)) top = max(top, of_z(pair.v[i]));
            }
        }
    }
    bound = settled(over_block(bound, slopes_of_warps, (i32)NO_BOUND, [](i32 v) { return warp_max_int(v); }));
    top = over_block(top, largest_of_warps, (i32)ZERO_ROW, [](i32 v) { return warp_max_int(v); });
    if (!finite) atomicOr(status, NOT_FINITE);
    if (threadIdx.x == 0) {
        bounds[blockIdx.x] = top;
        bounds[(i64)c.batch * c.rows + blockIdx.x] = bound;
    }

    Layout layout = layout_of(2 * c.batch, c.rows, c.padded);
    RowPlanes to_e(planes, layout, group, row), to_ds(planes, layout, c.batch + group, row);
#pragma unroll 1
    for (i32 tile = 0; tile < tiles; tile++) {
        if (tiles > 1) slopes_of_key(e, ds, s, from, tile, seen, c.columns, wide, queries, scale);
#pragma unroll
        for (int p = 0; p < QUADS; p++) {
            i32 at = column_of(tile, p);
            Quad q = {};
            if (at >= c.padded) continue;
            if (!seen.meets(at)) {
                to_e.store<BITS>(at, q);
                to_ds.store<BITS>(at, q);
                continue;
            }
            IntQuad pair = read_quad(queries.exponents, at, c.columns, wide);
#pragma unroll
            for (int i = 0; i < 4; i++) q.v[i] = seen.has(at + i) ? weight_of_share<BITS>(e[p].v[i], of_z(pair.v[i]), top) : 0.0f;
            to_e.store<BITS>(at, q);
#pragma unroll
            for (int i = 0; i < 4; i++) q.v[i] = weight_of<BITS>(ds[p].v[i], of_q(pair.v[i]), bound);
            to_ds.store<BITS>(at, q);
        }
    }
}
