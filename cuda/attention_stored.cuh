// e and dS of the backward pass in memory, so that they are computed once: left there by its scan (attention_backward_queries.cuh), made
// weights of for dQ, dK and dV (attention_stored_sm90.cu).
//
// [group][64 rows of queries][64 keys][64 rows][64 keys] float32, from group `first` on. 0 where a query does not see a key; of queries
// beyond the last, anything. Tiles that nobody sees have no values.
#pragma once
#include "attention_cells.cuh"
#include "attention_tiles.cuh"

#define STORED_TILE (BLOCK_ROWS * BLOCK_ROWS)

struct StoredCells {
    float *e, *ds;
    i32 first, blocks, tiles;  // the first group; blocks of 64 queries and of 64 keys of a group

    __device__ __forceinline__ i64 tile(i32 group, i32 block, i32 keys) const {
        return (((i64)(group - first) * blocks + block) * tiles + keys) * STORED_TILE;
    }
    // Of this thread's first cell of a tile whose rows are queries.
    __device__ __forceinline__ i64 place(const Tile& t) const {
        return tile(t.group, t.row / BLOCK_ROWS, t.column / BLOCK_ROWS) + t.row % BLOCK_ROWS * BLOCK_ROWS + t.column % BLOCK_ROWS;
    }
    // Cells i and i + 1, i even. A pipeline's second 64 rows may all be beyond the last.
    __device__ __forceinline__ void store(float* to, const Tile& t, int i, float first_of_two, float second) const {
        if (t.row / BLOCK_ROWS < blocks)
            *(float2*)(to + place(t) + i / 2 % 2 * 8 * BLOCK_ROWS + i / 4 * 8) = make_float2(first_of_two, second);
    }
    __device__ __forceinline__ void store_cell(const Tile& t, i32 cell, float of_e, float of_ds) const {
        if (t.row / BLOCK_ROWS >= blocks) return;
        i64 at = place(t) + half_of_cell(cell) * 8 * BLOCK_ROWS + column_of_cell(cell);
        e[at] = of_e, ds[at] = of_ds;
    }
};
