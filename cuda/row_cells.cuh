// A row that stays in the registers of its team: HELD cells of four elements a thread, loaded at once.
//
// width is a multiple of 4 and at most 4 * HELD * threads of the team. HELD need not be a power of two: the places of the parts
// that follow, up to one, hold what pads the row.
#pragma once
#include "quad.cuh"
#include "row_sum.cuh"

// First element of the cell that this thread holds as its part `part`; 32 bits are enough for a row in registers.
__device__ __forceinline__ i32 place_of(const Team& team, int part) { return (i32)cell_of(team, part) * 4; }

template <int HELD>
__device__ __forceinline__ void load_cells(Quad (&cells)[HELD], const Team& team, const float* row, i32 width) {
#pragma unroll
    for (int p = 0; p < HELD; p++) {
        i32 at = place_of(team, p);
        cells[p] = at < width ? load_quad(row + at) : Quad{};
    }
}

// The row sum: parts folded inside the thread, then over the team; term(part, c) belongs to element c of a cell.
template <int HELD, class Term>
__device__ __forceinline__ float sum_cells(Team& team, i32 width, i64 padded, Term term) {
    constexpr int PARTS = HELD <= 2 ? HELD : HELD <= 4 ? 4 : 8;
    float folded[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float list[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            i32 at = place_of(team, p);
            list[p] = p < HELD && at < width ? term(p, c) : row_padding(at, padded);
        }
        folded[c] = fold_list(list);
    }
    return fold_team(team, folded);
}
