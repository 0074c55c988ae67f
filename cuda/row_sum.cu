// Ordered sum of each row (SPEC.md section 5).
//
//   x     float [rows][width]
//   sums  float [rows]
//   padded  the smallest power of two that is not below width
//   team  threads that share a row: 32, or the whole block
//
// row_sum.cuh says why the number of threads changes no addition.
//
// Test: pytest tests/kernels/test_row_sum.py
#include "row_sum.cuh"

GLOBAL void __launch_bounds__(1024) row_sum(const float* x, float* sums, i64 rows, i64 width, i64 padded, i32 team) {
    Team mine = team_of(team);
    for (i64 row = first_row(team); row < rows; row += next_row(team)) {
        const float* from = x + row * width;
        float sum = row_sum_of(mine, width, padded, [&](i64 i) { return from[i]; });
        if (threadIdx.x % team == 0) sums[row] = sum;
    }
}
