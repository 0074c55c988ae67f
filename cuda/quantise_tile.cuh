// Rows, columns or both of a matrix to digit planes in two passes, the first of which finds the largest magnitudes.
//
//   x         float [batch][m][k]
//   largest   u32, 0 before: the largest magnitudes as bits, [batch][m] of rows, [batch][k] of columns
//
// A tile of 64 rows by 64 columns of x is one block of the planes of its rows and one of the planes of its columns, so one reading
// serves both, and every store fills whole lines. The second pass goes through x from its end, which the first has left in the cache.
//
// Maxima are exact and each integer comes from one element alone, so that no order of blocks, threads or atomics changes a bit.
//
// Test: pytest tests/kernels/test_quantise.py
#pragma once
#include "quad.cuh"
#include "quantise_digits.cuh"

#define TILE 64
#define STRIP 256  // most columns of a block of the first pass

// Shared memory of a block, the same for all kernels.
__device__ __forceinline__ u32 (*strip_memory())[STRIP] {
    __shared__ __align__(16) u32 found[8][STRIP];
    return found;
}
__device__ __forceinline__ float* tile_memory() {
    __shared__ __align__(16) float tile[TILE * TILE + 32];
    return tile;
}

// Elements (row, column .. column + 3) of x [..][k], 0 beyond k. `whole`: k and the address of x are multiples of four elements.
__device__ __forceinline__ Quad get_quad(const float* x, i64 row, i32 column, i64 k, bool whole) {
    return whole ? load_quad(x + row * k + column) : load_quad(x + row * k, column, k);
}
__device__ __forceinline__ void put_quad(float* x, i64 row, i32 column, i64 k, bool whole, const Quad& q) {
    if (whole)
        store_quad(x + row * k + column, q);
    else
        store_quad(x + row * k, column, k, q);
}

// The elements of a matrix in memory; row counts through the batch. Other sources compute theirs as they are read.
struct Plain {
    const float* x;
    i64 k;

    __device__ __forceinline__ Quad at(i64 row, i32 column, bool whole) const { return get_quad(x, row, column, k, whole); }
    __device__ __forceinline__ bool whole() const { return k % 4 == 0 && is_quad(x); }
    static constexpr int INPUTS = 1, RESULTS = 1;
    __device__ __forceinline__ void load(Quad (&in)[1], i64 row, i32 column, bool whole) const { in[0] = at(row, column, whole); }
    __device__ __forceinline__ void make(const Quad (&in)[1], Quad (&out)[1], i64, i32, bool) const { out[0] = in[0]; }
};

// Where a block is: matrix of the batch, first row, first column.
struct Position {
    i64 of, row;
    i32 column;
};

// Blocks of `width` columns are neighbours, then `height` rows.
__device__ __forceinline__ Position position_of(u32 block, u32 across, u32 down, i32 width, i32 height) {
    u32 line = block / across;
    return Position{(i64)(line / down), (i64)(line % down) * height, (i32)(block % across) * width};
}

struct Largest {
    u32 *rows, *columns;
};

// WIDE quads of each lane of a warp, of one row: what a source makes of its inputs.
template <bool BY_ROWS, int WIDE, class Source>
__device__ __forceinline__ void take_row(const Source& source, const Quad (&in)[WIDE][Source::INPUTS],
                                         u32 (&of_column)[Source::RESULTS][WIDE][4], const Largest (&largest)[Source::RESULTS], i64 row,
                                         i32 column, i64 k, bool whole) {
    u32 of_row[Source::RESULTS] = {};
#pragma unroll
    for (int h = 0; h < WIDE; h++) {
        if (column + 128 * h >= k) continue;
        Quad out[Source::RESULTS];
        source.make(in[h], out, row, column + 128 * h, whole);
#pragma unroll
        for (int i = 0; i < Source::RESULTS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                u32 size = magnitude(out[i].v[c]);
                of_row[i] = larger(of_row[i], size);
                of_column[i][h][c] = larger(of_column[i][h][c], size);
            }
    }
    if constexpr (BY_ROWS) {
#pragma unroll
        for (int i = 0; i < Source::RESULTS; i++) {
            of_row[i] = warp_max(of_row[i]);
            if ((threadIdx.x & 31) == 0) atomicMax(largest[i].rows + row, of_row[i]);
        }
    }
}

// First pass, over the RESULTS matrices that a source makes of INPUTS. A block of 256 threads takes 128 * WIDE columns and `height`
// rows, AHEAD rows of a warp under way together.
template <bool BY_ROWS, bool BY_COLUMNS, int WIDE, int AHEAD, class Source>
__device__ __forceinline__ void find_largest(const Source& source, const Largest (&largest)[Source::RESULTS], i64 m, i64 k, u32 across,
                                             u32 down, i32 height) {
    constexpr int RESULTS = Source::RESULTS;
    Position p = position_of(blockIdx.x, across, down, 128 * WIDE, height);
    i32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i32 column = p.column + lane * 4;
    i64 last = p.row + height < m ? p.row + height : m, first = p.row + warp;
    bool whole = source.whole();
    u32 of_column[RESULTS][WIDE][4] = {};
    if (whole && p.column + 128 * WIDE <= k)
        for (; first + 8 * (AHEAD - 1) < last; first += 8 * AHEAD) {
            Quad in[AHEAD][WIDE][Source::INPUTS];
#pragma unroll
            for (int r = 0; r < AHEAD; r++)
#pragma unroll
                for (int h = 0; h < WIDE; h++) source.load(in[r][h], p.of * m + first + 8 * r, column + 128 * h, true);
#pragma unroll
            for (int r = 0; r < AHEAD; r++)
                take_row<BY_ROWS, WIDE>(source, in[r], of_column, largest, p.of * m + first + 8 * r, column, column + 128 * WIDE, true);
        }
#pragma unroll 1
    for (; first < last; first += 8) {
        Quad in[WIDE][Source::INPUTS];
#pragma unroll
        for (int h = 0; h < WIDE; h++)
            if (column + 128 * h < k) source.load(in[h], p.of * m + first, column + 128 * h, whole);
        take_row<BY_ROWS, WIDE>(source, in, of_column, largest, p.of * m + first, column, k, whole);
    }
    if constexpr (BY_COLUMNS) {
        u32(*found)[STRIP] = strip_memory();
#pragma unroll
        for (int i = 0; i < RESULTS; i++) {
            if (i) __syncthreads();  // all have read the last result's
#pragma unroll
            for (int h = 0; h < WIDE; h++)
                *(uint4*)&found[warp][lane * 4 + 128 * h] =
                    make_uint4(of_column[i][h][0], of_column[i][h][1], of_column[i][h][2], of_column[i][h][3]);
            __syncthreads();
            i32 mine = threadIdx.x;
            if (mine >= 128 * WIDE || p.column + mine >= k) continue;
            u32 most = 0;
#pragma unroll
            for (int w = 0; w < 8; w++) most = larger(most, found[w][mine]);
            atomicMax(largest[i].columns + p.of * k + p.column + mine, most);
        }
    }
}

// Place of an element of a tile in shared memory. Each sixteen rows begin eight banks further, so that a warp reads four of them by
// eight columns without a conflict.
__device__ __forceinline__ i32 tile_place(i32 row, i32 column) { return row * TILE + (row >> 4) * 8 + column; }

struct Out {
    const u32* largest;
    i32* exponents;
    i8* planes;
    i64 padded;
};

// Exponents of the rows or columns first .. first + 63 of those below `end`, by the tiles that begin a row or a column.
__device__ __forceinline__ void note_exponents(const Out& out, i64 before, i64 first, i64 end, u32* status) {
    i64 at = first + threadIdx.x;
    if (threadIdx.x < TILE && at < end) note_exponent(out.largest[before + at], out.exponents + before + at, status);
}

// This thread's sixteen elements of a column of the tile.
template <int BITS>
__device__ __forceinline__ void store_columns(const float* tile, const Out& columns, const Position& p, u32 most, i64 batch, i64 k) {
    i32 column = threadIdx.x >> 2, piece = threadIdx.x & 3;
    Scale scale = scale_to_fixed<BITS>(most);
    u32 word[PLANES<BITS>][4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tile[tile_place(piece * 16 + w * 4 + i, column)];
        Words<BITS> words = words_of<BITS>(x, scale);
#pragma unroll
        for (int plane = 0; plane < PLANES<BITS>; plane++) word[plane][w] = words.of[plane];
    }
    Layout layout = layout_of(batch, k, columns.padded);
    i8* to = columns.planes + layout.place(p.of, p.column, p.row) + place_in_block(column, piece * 16);
#pragma unroll
    for (int plane = 0; plane < PLANES<BITS>; plane++)
        *(uint4*)(to + plane * layout.plane) = make_uint4(word[plane][0], word[plane][1], word[plane][2], word[plane][3]);
}

// Second pass. A block of 256 threads takes a tile; tiles at the edge write what pads the rows, zeros.
template <int BITS, bool BY_ROWS, bool BY_COLUMNS, class Source>
__device__ __forceinline__ void quantise_tile(const Source& source, const Out& rows, const Out& columns, u32* status, i64 batch, i64 m,
                                              i64 k, u32 across, u32 down) {
    float* tile = tile_memory();
    Position p = position_of(gridDim.x - 1 - blockIdx.x, across, down, TILE, TILE);
    i32 line = threadIdx.x >> 4, part = (threadIdx.x & 15) * 4;  // of a row: this thread's four elements
    bool whole = source.whole();
    Quad held[4];
    u32 of_row[4];
#pragma unroll
    for (int r = 0; r < 4; r++) of_row[r] = BY_ROWS && p.row + line + 16 * r < m ? rows.largest[p.of * m + p.row + line + 16 * r] : 0;
    i32 column = p.column + (threadIdx.x >> 2);
    u32 of_column = BY_COLUMNS && column < k ? columns.largest[p.of * k + column] : 0;
    if (whole && p.row + TILE <= m && p.column + TILE <= k) {
#pragma unroll
        for (int r = 0; r < 4; r++) held[r] = source.at(p.of * m + p.row + line + 16 * r, p.column + part, true);
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            bool inside = p.row + line + 16 * r < m && p.column + part < k;
            held[r] = inside ? source.at(p.of * m + p.row + line + 16 * r, p.column + part, whole) : Quad{};
        }
    }
    if (BY_ROWS && p.column == 0) note_exponents(rows, p.of * m, p.row, m, status);
    if (BY_COLUMNS && p.row == 0) note_exponents(columns, p.of * k, p.column, k, status);
    if (BY_COLUMNS) {
#pragma unroll
        for (int r = 0; r < 4; r++) store_quad(tile + tile_place(line + 16 * r, part), held[r]);
    }
    if (BY_ROWS && p.row < m) {
        Layout layout = layout_of(batch, m, rows.padded);
        i8* to = rows.planes + layout.place(p.of, p.row, p.column);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            Words<BITS> words = words_of<BITS>(held[r].v, scale_to_fixed<BITS>(of_row[r]));
            store_words<BITS>(to + place_in_block(line + 16 * r, part), layout.plane, words);
        }
    }
    if constexpr (BY_COLUMNS) {
        __syncthreads();
        if (p.column < k) store_columns<BITS>(tile, columns, p, of_column, batch, k);
    }
}
