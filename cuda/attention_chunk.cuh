// A chunk of scores: which of its columns a row sees (SPEC.md section 8), and a row in the registers of a block.
//
// Rows of queries are numbered token by token, the R query heads of a key head side by side: row t * R + r. Rows of a chunk are
// queries from token `query` on and its columns keys from `key` on, or the other way round.
#pragma once
#include "attention_weights.cuh"
#include "quad.cuh"
#include "quantise_digits.cuh"

#define QUADS 4  // of columns that a thread holds

struct Chunk {
    i32 batch, rows, columns, padded;  // padded: bytes of a row of its planes
    i32 tokens, heads;                 // T and R
    i32 query, key;
    i32 window;                        // 0 for none, at most T
};

// Parameters of a kernel, and the chunk that they make.
#define CHUNK i32 batch, i32 rows, i32 columns, i32 padded, i32 tokens, i32 heads, i32 query, i32 key, i32 window
#define CHUNK_OF \
    Chunk { batch, rows, columns, padded, tokens, heads, query, key, window }

// Columns first .. last of a chunk.
struct Seen {
    i32 first, last;

    __device__ __forceinline__ bool has(i32 column) const { return column >= first && column <= last; }
    // Whether it has any of four columns.
    __device__ __forceinline__ bool meets(i32 column) const { return column + 3 >= first && column <= last; }
};

// The keys that a row of queries sees.
__device__ __forceinline__ Seen keys_seen(const Chunk& c, i32 row) {
    i32 position = c.query + row / c.heads;
    i32 first = c.window > 0 && position >= c.window ? position - c.window + 1 : 0;
    return Seen{first - c.key, position - c.key};
}

// The rows of queries that see the key of a row.
__device__ __forceinline__ Seen queries_seeing(const Chunk& c, i32 row) {
    i32 key = c.key + row;
    i32 end = c.window > 0 && c.window < c.tokens - key ? key + c.window : c.tokens;
    return Seen{(key - c.query) * c.heads, (end - c.query) * c.heads - 1};
}

// A block works on one row: tile after tile, of which each thread holds QUADS quads, a block's quads side by side. Mostly there is
// one tile.
__device__ __forceinline__ i32 tiles_of(i32 columns) {
    i32 tile = (i32)blockDim.x * QUADS * 4;
    return (columns + tile - 1) / tile;
}
__device__ __forceinline__ i32 column_of(i32 tile, int quad) {
    return ((tile * QUADS + quad) * (i32)blockDim.x + (i32)threadIdx.x) * 4;
}

struct IntQuad {
    i32 v[4];
};

// Elements row[at .. at+3] of a row of `end`, 0 beyond. `wide`: the row is aligned to 16 bytes and `end` a multiple of 4.
__device__ __forceinline__ Quad read_quad(const float* row, i32 at, i32 end, bool wide) {
    Quad q = {};
    if (wide) {
        if (at < end) q = load_quad(row + at);
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (at + c < end) q.v[c] = row[at + c];
    }
    return q;
}
__device__ __forceinline__ IntQuad read_quad(const i32* row, i32 at, i32 end, bool wide) {
    IntQuad q = {};
    if (wide) {
        if (at < end) {
            int4 v = *(const int4*)(row + at);
            q = IntQuad{{v.x, v.y, v.z, v.w}};
        }
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (at + c < end) q.v[c] = row[at + c];
    }
    return q;
}

// This thread's part of a tile of a row; quads that are not seen are not read.
__device__ __forceinline__ void read_tile(Quad (&held)[QUADS], const float* row, i32 tile, const Seen& seen, i32 end, bool wide) {
#pragma unroll
    for (int p = 0; p < QUADS; p++) {
        i32 at = column_of(tile, p);
        held[p] = seen.meets(at) ? read_quad(row, at, end, wide) : Quad{};
    }
}

// Where the digits of a row begin, and of its four columns from `at` on; 32 bits inside a row.
struct RowPlanes {
    i8* begin;
    i64 plane;
    i32 line;

    __device__ __forceinline__ RowPlanes(i8* planes, const Layout& layout, i32 of, i32 row)
        : begin(planes + layout.place(of, row & ~63, 0)), plane(layout.plane), line(row & 63) {}

    // Four numbers of integer parts, rounded.
    template <int BITS>
    __device__ __forceinline__ void store(i32 at, const Quad& q) const {
        store_words(begin + (i64)(at >> 6) * BLOCK_BYTES + place_in_block(line, at & 63), plane, words_of<BITS>(q.v, Scale{1.0f, 1.0f}));
    }
};

// Over all threads of a block, for each of them. `places` (32 of shared memory) belongs to one call alone; `none` changes no fold. All
// are exact in any order.
template <class T, class Fold>
__device__ __forceinline__ T over_block(T value, T* places, T none, Fold fold) {
    value = fold(value);
    if (blockDim.x == 32) return value;
    if ((threadIdx.x & 31) == 0) places[threadIdx.x >> 5] = value;
    __syncthreads();
    i32 lane = threadIdx.x & 31, warps = (i32)blockDim.x >> 5;
    return fold(lane < warps ? places[lane] : none);
}
