// RMSNorm of rows, forward and backward (SPEC.md section 7).
//
//   x, y, dy, dx  float [rows][width]
//   weight        float [width]
//   rstd          float [rows]; with x it is what backward needs, for xhat = x * rstd is one rounding
//   dweight       i64 [width], units 2^-56, holds a sum below 2^62 on entry (0 for a new one)
//   status        u32
//   padded        the smallest power of two that is not below width
//   team          threads that share a row: 32, or the whole block
//
// A row stays in registers between its two passes: PARTS cells of four elements a thread. The kernels named _any read it again
// and take every width. The row sum is that of row_sum.cuh, the weight's gradient a sum of integers, so the launch shape changes
// no bit.
//
// Test: pytest tests/kernels/test_rms_norm.py
#include "exact_sum.cuh"
#include "quad.cuh"
#include "row_sum.cuh"

#define GRADIENT_UNIT 72057594037927936.0f  // 2^56

__device__ __forceinline__ float rstd_of(float sum, i64 width, float eps) {
    float mean = sum / (float)width;
    return 1.0f / sqrtf(mean + eps);
}

// Parts folded inside the thread, then over the team; term(part, c) is a product of the row's element.
template <int PARTS, class Term>
__device__ __forceinline__ float sum_cells(Team& team, i64 width, i64 padded, Term term) {
    float folded[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float list[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            i64 at = cell_of(team, p) * 4;
            list[p] = at < width ? term(p, c) : row_padding(at, padded);
        }
        folded[c] = fold_list(list);
    }
    return fold_team(team, folded);
}

template <int PARTS>
__device__ __forceinline__ void load_cells(Quad (&cells)[PARTS], const Team& team, const float* row, i64 width) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        i64 at = cell_of(team, p) * 4;
        cells[p] = at < width ? load_quad(row + at) : Quad{};
    }
}

// width is a multiple of 4 and at most 4 * PARTS * team.
template <int PARTS>
__device__ __forceinline__ void forward(const float* x, const float* weight, float* y, float* rstd, float eps, i64 rows,
                                        i64 width, i64 padded, i32 threads) {
    Team team = team_of(threads);
    for (i64 row = first_row(threads); row < rows; row += next_row(threads)) {
        Quad cell[PARTS];
        load_cells(cell, team, x + row * width, width);
        float sum = sum_cells<PARTS>(team, width, padded, [&](int p, int c) { return cell[p].v[c] * cell[p].v[c]; });
        float r = rstd_of(sum, width, eps);
        if (threadIdx.x % threads == 0) rstd[row] = r;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            i64 at = cell_of(team, p) * 4;
            if (at >= width) continue;
            Quad w = load_quad(weight + at), out;
#pragma unroll
            for (int c = 0; c < 4; c++) out.v[c] = (cell[p].v[c] * r) * w.v[c];
            store_quad(y + row * width + at, out);
        }
    }
}

#define FORWARD(parts)                                                                                                     \
    GLOBAL void __launch_bounds__(512)                                                                                     \
        rms_norm_forward_##parts(const float* x, const float* weight, float* y, float* rstd, float eps, i64 rows, i64 width, \
                                 i64 padded, i32 team) {                                                                   \
        forward<parts>(x, weight, y, rstd, eps, rows, width, padded, team);                                                \
    }
FORWARD(1)
FORWARD(2)
FORWARD(4)

GLOBAL void __launch_bounds__(512) rms_norm_forward_any(const float* x, const float* weight, float* y, float* rstd, float eps,
                                                        i64 rows, i64 width, i64 padded, i32 team) {
    Team mine = team_of(team);
    for (i64 row = first_row(team); row < rows; row += next_row(team)) {
        const float* from = x + row * width;
        float r = rstd_of(row_sum_of(mine, width, padded, [&](i64 i) { return from[i] * from[i]; }), width, eps);
        if (threadIdx.x % team == 0) rstd[row] = r;
        for (i64 i = threadIdx.x % team; i < width; i += team) y[row * width + i] = (from[i] * r) * weight[i];
    }
}

// width as in forward. `small` is 2^62 / rows or less, so a thread's sums over its rows need no check for small terms.
template <int PARTS>
__device__ __forceinline__ void backward(const float* dy, const float* weight, const float* x, const float* rstd, float* dx,
                                         i64* dweight, u32* status, i64 rows, i64 width, i64 padded, float small, i32 threads) {
    Team team = team_of(threads);
    i64 total[PARTS][4] = {};
    for (i64 row = first_row(threads); row < rows; row += next_row(threads)) {
        Quad xhat[PARTS], g[PARTS];
        load_cells(g, team, dy + row * width, width);
        load_cells(xhat, team, x + row * width, width);
        float r = rstd[row];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            i64 at = cell_of(team, p) * 4;
            Quad w = at < width ? load_quad(weight + at) : Quad{};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                xhat[p].v[c] = xhat[p].v[c] * r;
                total[p][c] = add_term(total[p][c], (g[p].v[c] * xhat[p].v[c]) * GRADIENT_UNIT, small, status);
                g[p].v[c] = g[p].v[c] * w.v[c];
            }
        }
        float mean = sum_cells<PARTS>(team, width, padded, [&](int p, int c) { return g[p].v[c] * xhat[p].v[c]; });
        mean = mean / (float)width;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            i64 at = cell_of(team, p) * 4;
            if (at >= width) continue;
#pragma unroll
            for (int c = 0; c < 4; c++) g[p].v[c] = (g[p].v[c] - xhat[p].v[c] * mean) * r;
            store_quad(dx + row * width + at, g[p]);
        }
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            i64 at = cell_of(team, p) * 4 + c;
            if (at < width) atomic_add_checked(dweight + at, total[p][c], status);
        }
}

#define BACKWARD(parts)                                                                                                       \
    GLOBAL void __launch_bounds__(512)                                                                                        \
        rms_norm_backward_##parts(const float* dy, const float* weight, const float* x, const float* rstd, float* dx,         \
                                  i64* dweight, u32* status, i64 rows, i64 width, i64 padded, float small, i32 team) {        \
        backward<parts>(dy, weight, x, rstd, dx, dweight, status, rows, width, padded, small, team);                          \
    }
BACKWARD(1)
BACKWARD(2)
BACKWARD(4)

GLOBAL void __launch_bounds__(512)
    rms_norm_backward_any(const float* dy, const float* weight, const float* x, const float* rstd, float* dx, i64* dweight,
                          u32* status, i64 rows, i64 width, i64 padded, float small, i32 team) {
    Team mine = team_of(team);
    i64 limit = __float2ll_rn(small);
    for (i64 row = first_row(team); row < rows; row += next_row(team)) {
        const float *from = x + row * width, *above = dy + row * width;
        float r = rstd[row];
        float sum = row_sum_of(mine, width, padded, [&](i64 i) { return (above[i] * weight[i]) * (from[i] * r); });
        float mean = sum / (float)width;
        for (i64 i = threadIdx.x % team; i < width; i += team) {
            float xhat = from[i] * r;
            atomic_add_term(dweight + i, fixed_term((above[i] * xhat) * GRADIENT_UNIT, status), limit, status);
            dx[row * width + i] = (above[i] * weight[i] - xhat * mean) * r;
        }
    }
}
