// RMSNorm of rows, forward and backward (SPEC.md section 7).
//
//   x, y, dx      float [rows][width]
//   dy            float [rows][width], what comes back: (dy + second) + third of the gradients that are given
//   second, third, residual  float [rows][width] or null; dx is added to residual
//   weight        float [width]
//   rstd          float [rows]; with x it is what backward needs, for xhat = x * rstd is one rounding
//   dweight       i64 [width], units 2^-56, 0 before
//   status        u32
//   padded        the smallest power of two that is not below width
//   team          threads that share a row: 32, or the whole block
//   of_rows              u32 [rows]: the largest magnitudes of y as bits, for quantise_tile.cuh; 0 before
//   of_columns           u32 [teams][width]: those of the columns of the rows that a team has taken
//
// Where y is only an operand of products it is not stored: rms_norm_largest finds rstd and the largest magnitudes, and
// rms_norm_both makes y again from x while it is rounded to fixed point.
//
// A row stays in registers between its two passes (row_cells.cuh). The kernels named _any read it again and take every width.
// The row sum is that of row_sum.cuh, the weight's gradient a sum of integers, so the launch shape changes no bit.
//
// Test: pytest tests/kernels/test_rms_norm.py
#include "exact_sum.cuh"
#include "quantise_tile.cuh"
#include "row_cells.cuh"

#define GRADIENT_UNIT 72057594037927936.0f  // 2^56

__device__ __forceinline__ float rstd_of(float sum, i64 width, float eps) {
    float mean = sum / (float)width;
    return 1.0f / sqrtf(mean + eps);
}

template <int HELD>
__device__ __forceinline__ void forward(const float* x, const float* weight, float* y, float* rstd, float eps, i64 rows,
                                        i64 width, i64 padded, i32 threads) {
    Team team = team_of(threads);
    for (i64 row = first_row(threads); row < rows; row += next_row(threads)) {
        Quad cell[HELD];
        load_cells(cell, team, x + row * width, (i32)width);
        float sum = sum_cells<HELD>(team, (i32)width, padded, [&](int p, int c) { return cell[p].v[c] * cell[p].v[c]; });
        float r = rstd_of(sum, width, eps);
        if (threadIdx.x % threads == 0) rstd[row] = r;
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            i32 at = place_of(team, p);
            if (at >= width) continue;
            Quad w = load_quad(weight + at), out;
#pragma unroll
            for (int c = 0; c < 4; c++) out.v[c] = (cell[p].v[c] * r) * w.v[c];
            store_quad(y + row * width + at, out);
        }
    }
}

#define FORWARD(held)                                                                                                     \
    GLOBAL void __launch_bounds__(512)                                                                                     \
        rms_norm_forward_##held(const float* x, const float* weight, float* y, float* rstd, float eps, i64 rows, i64 width, \
                                 i64 padded, i32 team) {                                                                   \
        forward<held>(x, weight, y, rstd, eps, rows, width, padded, team);                                                \
    }
FORWARD(1)
FORWARD(2)
FORWARD(3)
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

// The largest of all threads of a team. Two calls have a barrier of the row sum between them, so one buffer is enough.
__device__ __forceinline__ u32 team_most(const Team& team, u32 value) {
    __shared__ u32 most[MAX_WARPS];
    value = warp_max(value);
    if (team.warps == 1) return value;
    if (team.lane == 0) most[team.warp] = value;
    __syncthreads();
    return warp_max(team.lane < team.warps ? most[team.lane] : 0);
}

// AHEAD: the next row is under way while this one is worked on. A thread keeps its columns' largest over all its rows, and stores
// them: atomic maxima by all teams at the end took more than a quarter of the kernel's time (docs/log.md).
template <int HELD, bool AHEAD>
__device__ __forceinline__ void largest_of_y(const float* x, const float* weight, float* rstd, u32* of_rows, u32* of_columns, float eps,
                                             i64 rows, i32 width, i64 padded, i32 threads) {
    Team team = team_of(threads);
    i64 step = next_row(threads), row = first_row(threads);
    u32 of_column[HELD][4] = {};
    Quad next[HELD] = {};
    if (AHEAD && row < rows) load_cells(next, team, x + row * width, width);
    for (; row < rows; row += step) {
        Quad cell[HELD];
        if (!AHEAD) load_cells(next, team, x + row * width, width);
#pragma unroll
        for (int p = 0; p < HELD; p++) cell[p] = next[p];
        if (AHEAD && row + step < rows) load_cells(next, team, x + (row + step) * width, width);
        float sum = sum_cells<HELD>(team, width, padded, [&](int p, int c) {
            return cell[p < HELD ? p : 0].v[c] * cell[p < HELD ? p : 0].v[c];
        });
        float r = rstd_of(sum, width, eps);
        u32 of_row = 0;
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            i32 at = place_of(team, p);
            if (at >= width) continue;
            Quad w = load_quad(weight + at);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                u32 size = magnitude((cell[p].v[c] * r) * w.v[c]);
                of_row = larger(of_row, size);
                of_column[p][c] = larger(of_column[p][c], size);
            }
        }
        of_row = warp_max(of_row);
        if (team.lane == 0) atomicMax(of_rows + row, of_row);
        if (threadIdx.x % threads == 0) rstd[row] = r;
    }
    u32* to = of_columns + first_row(threads) * width;  // teams are numbered as their first rows
#pragma unroll
    for (int p = 0; p < HELD; p++)
        if (place_of(team, p) < width)
            *(uint4*)(to + place_of(team, p)) = make_uint4(of_column[p][0], of_column[p][1], of_column[p][2], of_column[p][3]);
}

#define LARGEST_OF_Y(held, ahead)                                                                                              \
    GLOBAL void __launch_bounds__(512)                                                                                         \
        rms_norm_largest_##held(const float* x, const float* weight, float* rstd, u32* of_rows, u32* of_columns, float eps,    \
                                i64 rows, i64 width, i64 padded, i32 team) {                                                   \
        largest_of_y<held, ahead>(x, weight, rstd, of_rows, of_columns, eps, rows, (i32)width, padded, team);                  \
    }
LARGEST_OF_Y(1, true)
LARGEST_OF_Y(2, true)
LARGEST_OF_Y(3, true)
LARGEST_OF_Y(4, true)

// Rows of y in fixed point, of whole pairs of pieces; y is never stored.
template <int HELD>
__device__ __forceinline__ void rows_of_y(const float* x, const float* weight, float* rstd, i32* exponents, i8* planes, u32* status,
                                          float eps, i64 rows, i32 width, i64 padded, i32 threads) {
    Team team = team_of(threads);
    Layout layout = layout_of(1, rows, width);
    for (i64 row = first_row(threads); row < rows; row += next_row(threads)) {
        Quad cell[HELD];
        load_cells(cell, team, x + row * width, width);
        float sum = sum_cells<HELD>(team, width, padded, [&](int p, int c) {
            return cell[p < HELD ? p : 0].v[c] * cell[p < HELD ? p : 0].v[c];
        });
        float r = rstd_of(sum, width, eps);
        u32 largest = 0;
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            i32 at = place_of(team, p);
            Quad w = at < width ? load_quad(weight + at) : Quad{};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                cell[p].v[c] = (cell[p].v[c] * r) * w.v[c];
                if (at < width) largest = larger(largest, magnitude(cell[p].v[c]));
            }
        }
        largest = team_most(team, largest);
        if (threadIdx.x % threads == 0) rstd[row] = r, note_exponent(largest, exponents + row, status);
        Scale scale = scale_to_fixed<14>(largest);
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            i32 at = place_of(team, p);
            if (at < width) store_words<14>(planes + layout.place(0, row, at), layout.plane, words_of<14>(cell[p].v, scale));
        }
    }
}

#define ROWS_OF_Y(held)                                                                                                            \
    GLOBAL void __launch_bounds__(512)                                                                                             \
        rms_norm_rows_14_##held(const float* x, const float* weight, float* rstd, i32* exponents, i8* planes, u32* status, float eps, \
                                i64 rows, i64 width, i64 padded, i32 team) {                                                       \
        rows_of_y<held>(x, weight, rstd, exponents, planes, status, eps, rows, (i32)width, padded, team);                          \
    }
ROWS_OF_Y(1)
ROWS_OF_Y(2)
ROWS_OF_Y(3)
ROWS_OF_Y(4)

// y, element by element, for quantise_tile.
struct Normed {
    const float *x, *rstd, *weight;
    i64 width;

    __device__ __forceinline__ bool whole() const { return width % 4 == 0 && is_quad(x) && is_quad(weight); }
    __device__ __forceinline__ Quad at(i64 row, i32 column, bool whole) const {
        Quad y = get_quad(x, row, column, width, whole), w = get_quad(weight, 0, column, width, whole);
        float r = rstd[row];
#pragma unroll
        for (int c = 0; c < 4; c++) y.v[c] = (y.v[c] * r) * w.v[c];
        return y;
    }
};

GLOBAL void __launch_bounds__(256, 4)
    rms_norm_both_14(const float* x, const float* rstd, const float* weight, const u32* of_rows, i32* row_exponents, i8* row_planes,
                     i64 row_padded, const u32* of_columns, i32* column_exponents, i8* column_planes, i64 column_padded, u32* status,
                     i64 batch, i64 rows, i64 width, u32 across, u32 down) {
    Out of_row{of_rows, row_exponents, row_planes, row_padded}, of_column{of_columns, column_exponents, column_planes, column_padded};
    quantise_tile<14, true, true>(Normed{x, rstd, weight, width}, of_row, of_column, status, batch, rows, width, across, down);
}

// What backward works on. Of what is null each element is -0, which adds nothing to any number.
struct Gradients {
    const float *dy, *second, *third, *residual, *x, *rstd;
    float* dx;
};

// What backward reads of a row before it begins.
template <int HELD>
struct Row {
    Quad dy[HELD], second[HELD], third[HELD], x[HELD];
    float rstd;
};

// load_cells of the row that begins at element `begin` of `rows`, which may be null.
template <int HELD>
__device__ __forceinline__ void load_if_given(Quad (&cells)[HELD], const Team& team, const float* rows, i64 begin, i32 width) {
#pragma unroll
    for (int p = 0; p < HELD; p++) {
        i32 at = place_of(team, p);
        cells[p] = rows && at < width ? load_quad(rows + begin + at) : Quad{{-0.0f, -0.0f, -0.0f, -0.0f}};
    }
}

template <int HELD>
__device__ __forceinline__ void load_row(Row<HELD>& to, const Team& team, const Gradients& all, i64 row, i32 width) {
    load_cells(to.dy, team, all.dy + row * width, width);
    load_if_given(to.second, team, all.second, row * width, width);
    load_if_given(to.third, team, all.third, row * width, width);
    load_cells(to.x, team, all.x + row * width, width);
    to.rstd = all.rstd[row];
}

template <int HELD>
__device__ __forceinline__ void add_gradients(Row<HELD>& row) {
#pragma unroll
    for (int p = 0; p < HELD; p++)
#pragma unroll
        for (int c = 0; c < 4; c++) row.dy[p].v[c] = (row.dy[p].v[c] + row.second[p].v[c]) + row.third[p].v[c];
}

// dx of a row, which is used up; it begins at element `begin`. The residual is under way during the row sum, but for rows of four
// cells, beside which there are no registers for it.
template <int HELD>
__device__ __forceinline__ void differentiate(Row<HELD>& row, Team& team, const float* weight, const Gradients& all, i64 begin,
                                              i64 (&total)[HELD][4], u32* status, i32 width, i64 padded, float small) {
    Quad residual[HELD];
    if (HELD < 4) load_if_given(residual, team, all.residual, begin, width);
    add_gradients(row);
#pragma unroll
    for (int p = 0; p < HELD; p++) {
        i32 at = place_of(team, p);
        if (at >= width) continue;
        Quad w = load_quad(weight + at);
        float scaled[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            row.x[p].v[c] = row.x[p].v[c] * row.rstd;
            scaled[c] = (row.dy[p].v[c] * row.x[p].v[c]) * GRADIENT_UNIT;
        }
        add_terms(total[p], scaled, small, status);
#pragma unroll
        for (int c = 0; c < 4; c++) row.dy[p].v[c] = row.dy[p].v[c] * w.v[c];
    }
    float mean = sum_cells<HELD>(team, width, padded, [&](int p, int c) {
        return row.dy[p < HELD ? p : 0].v[c] * row.x[p < HELD ? p : 0].v[c];
    });
    mean = mean / (float)width;
    if (HELD == 4) load_if_given(residual, team, all.residual, begin, width);
#pragma unroll
    for (int p = 0; p < HELD; p++) {
        i32 at = place_of(team, p);
        if (at >= width) continue;
#pragma unroll
        for (int c = 0; c < 4; c++)
            row.dy[p].v[c] = residual[p].v[c] + (row.dy[p].v[c] - row.x[p].v[c] * mean) * row.rstd;
        store_quad(all.dx + begin + at, row.dy[p]);
    }
}

// All atomics are under way before the first old value is looked at.
template <int HELD>
__device__ __forceinline__ void add_totals(i64* dweight, const i64 (&total)[HELD][4], const Team& team, i32 width, u32* status) {
    i64 old[HELD][4];
#pragma unroll
    for (int p = 0; p < HELD; p++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            i32 at = place_of(team, p) + c;
            old[p][c] = at < width ? (i64)atomicAdd((u64*)dweight + at, (u64)total[p][c]) : 0;
        }
    u32 bad = 0;
#pragma unroll
    for (int p = 0; p < HELD; p++)
#pragma unroll
        for (int c = 0; c < 4; c++) bad |= !sum_stays_in_range(old[p][c], total[p][c]);
    if (bad) atomicOr(status, SUM_RANGE);
}

// `small` is 2^62 / rows or less, so a thread's sums over its rows need no check for small terms. AHEAD: the next row is under
// way while this one is worked on, for one block fills a multiprocessor's registers and has nobody else to wait for.
template <int HELD, bool AHEAD>
__device__ __forceinline__ void backward(const Gradients& all, const float* weight, i64* dweight, u32* status, i64 rows, i32 width,
                                         i64 padded, float small, i32 threads) {
    Team team = team_of(threads);
    i64 total[HELD][4] = {}, step = next_row(threads);
    Row<HELD> next = {};
    i64 row = first_row(threads);
    if (AHEAD && row < rows) load_row(next, team, all, row, width);
    for (; row < rows; row += step) {
        if (!AHEAD) load_row(next, team, all, row, width);
        Row<HELD> held = next;
        if (AHEAD && row + step < rows) load_row(next, team, all, row + step, width);
        differentiate(held, team, weight, all, row * width, total, status, width, padded, small);
    }
    add_totals(dweight, total, team, width, status);
}

// From sm_120 on a block is told that it may be alone on its multiprocessor: so that two blocks of one cell a thread fit there, NVRTC
// 13.5 would keep something in local memory.
#if __CUDA_ARCH__ >= 1200
#define ALONE , 1
#else
#define ALONE
#endif

// ADDS: `second`, `third` or `residual` may be given. Kernels that never have them leave their registers to the next row.
#define BACKWARD(name, held, ahead, adds)                                                                                       \
    GLOBAL void __launch_bounds__(512 ALONE)                                                                                    \
        rms_norm_backward_##name(const float* dy, const float* second, const float* third, const float* residual,               \
                                 const float* weight, const float* x, const float* rstd, float* dx, i64* dweight, u32* status,  \
                                 i64 rows, i64 width, i64 padded, float small, i32 team) {                                      \
        Gradients all{dy, adds ? second : nullptr, adds ? third : nullptr, adds ? residual : nullptr, x, rstd, dx};             \
        backward<held, ahead>(all, weight, dweight, status, rows, (i32)width, padded, small, team);                             \
    }
BACKWARD(1, 1, true, false)
BACKWARD(2, 2, true, false)
BACKWARD(3, 3, true, false)
BACKWARD(4, 4, false, false)
BACKWARD(add_1, 1, false, true)
BACKWARD(add_2, 2, true, true)
BACKWARD(add_3, 3, false, true)
BACKWARD(add_4, 4, false, true)

GLOBAL void __launch_bounds__(512)
    rms_norm_backward_any(const float* dy, const float* second, const float* third, const float* residual, const float* weight,
                          const float* x, const float* rstd, float* dx, i64* dweight, u32* status, i64 rows, i64 width, i64 padded,
                          float small, i32 team) {
    Team mine = team_of(team);
    i64 limit = __float2ll_rn(small);
    for (i64 row = first_row(team); row < rows; row += next_row(team)) {
        i64 begin = row * width;
        auto if_given = [&](const float* of, i64 i) { return of ? of[begin + i] : -0.0f; };
        auto above = [&](i64 i) { return (dy[begin + i] + if_given(second, i)) + if_given(third, i); };
        const float* from = x + begin;
        float r = rstd[row];
        float sum = row_sum_of(mine, width, padded, [&](i64 i) { return (above(i) * weight[i]) * (from[i] * r); });
        float mean = sum / (float)width;
        for (i64 i = threadIdx.x % team; i < width; i += team) {
            float xhat = from[i] * r, gradient = above(i);
            atomic_add_term(dweight + i, fixed_term((gradient * xhat) * GRADIENT_UNIT, status), limit, status);
            dx[begin + i] = if_given(residual, i) + (gradient * weight[i] - xhat * mean) * r;
        }
    }
}
