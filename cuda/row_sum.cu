// Ordered sum of each row (SPEC.md section 5).
//
//   x     float [rows][width]
//   sums  float [rows]
//   padded  the smallest power of two that is not below width
//   team  threads that share a row: 32, or the whole block
//
// row_sum.cuh says why the number of threads changes no addition. The kernels with a number hold so many cells of a row in
// registers, all loaded before the first addition; the one named _any takes every width.
//
// Test: pytest tests/kernels/test_row_sum.py
#include "row_cells.cuh"

template <int HELD>
__device__ __forceinline__ void held_row_sum(const float* x, float* sums, i64 rows, i64 width, i64 padded, i32 threads) {
    Team team = team_of(threads);
    for (i64 row = first_row(threads); row < rows; row += next_row(threads)) {
        Quad cell[HELD];
        load_cells(cell, team, x + row * width, (i32)width);
        float sum = sum_cells<HELD>(team, (i32)width, padded, [&](int p, int c) { return cell[p < HELD ? p : 0].v[c]; });
        if (threadIdx.x % threads == 0) sums[row] = sum;
    }
}

#define ROW_SUM(held, threads)                                                                                              \
    GLOBAL void __launch_bounds__(threads)                                                                                  \
        row_sum_##held(const float* x, float* sums, i64 rows, i64 width, i64 padded, i32 team) {                            \
        held_row_sum<held>(x, sums, rows, width, padded, team);                                                             \
    }
ROW_SUM(1, 1024)
ROW_SUM(2, 1024)
ROW_SUM(3, 1024)
ROW_SUM(4, 1024)
ROW_SUM(6, 512)
ROW_SUM(8, 512)

GLOBAL void __launch_bounds__(1024) row_sum_any(const float* x, float* sums, i64 rows, i64 width, i64 padded, i32 team) {
    Team mine = team_of(team);
    for (i64 row = first_row(team); row < rows; row += next_row(team)) {
        const float* from = x + row * width;
        float sum = row_sum_of(mine, width, padded, [&](i64 i) { return from[i]; });
        if (threadIdx.x % team == 0) sums[row] = sum;
    }
}
