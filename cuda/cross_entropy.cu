// Cross-entropy with z-loss over rows of logits, with its gradient (SPEC.md section 12).
//
//   logits   float [rows][vocab], overwritten with the gradient
//   targets  u32 [rows], below vocab; a larger one sets TOKEN_RANGE in status
//   loss     i64 [1], units 2^-32, 0 before: the exact sum of the rows' losses
//   scale    RN32(1 / n)
//   kept     float [rows][2], written where `keep` is not 0: the rows' maxima and the factors of e in the gradient
//   found    u32 [rows], written where `keep` is not 0: the largest magnitudes of the rows of the gradient as bits, for quantise.cu
//   held     elements of a row kept in shared memory between the passes (dynamic, held * 4 bytes); the rest is read again and
//            its exp computed again, the same bits
//
// One block a row. The maximum is exact and both sums are of integers, so the launch shape changes no bit. A row whose maximum
// is not finite has no loss: NOT_FINITE.
//
// Test: pytest tests/kernels/test_cross_entropy.py
#include "elementary.cuh"
#include "exact_sum.cuh"
#include "quad.cuh"
#include "quantise_digits.cuh"

#define SOFTMAX_UNIT 1073741824.0f  // 2^30
#define LOSS_UNIT 4294967296.0f     // 2^32
#define BATCH 4                     // cells that a thread reads at a time

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define RESIDENT 1  // two would spill
#else
#define RESIDENT 2  // blocks a multiprocessor
#endif

// The fold of all threads' values, for all of them. Each type has its own shared array, so the maximum of the next row may be
// written while the sum of this one is read: the barrier of the sum lies between two maxima, and the other way round.
template <class T, class Fold>
__device__ __forceinline__ T fold_block(T value, T neutral, Fold fold) {
    __shared__ T partial[32];
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value = fold(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (lane == 0) partial[threadIdx.x >> 5] = value;
    __syncthreads();
    value = lane < warps ? partial[lane] : neutral;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value = fold(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

__device__ __forceinline__ void load_cell(const float* from, float (&v)[1]) { v[0] = *from; }
__device__ __forceinline__ void load_cell(const float* from, float (&v)[4]) {
    Quad q = load_quad(from);
#pragma unroll
    for (int c = 0; c < 4; c++) v[c] = q.v[c];
}
__device__ __forceinline__ void store_cell(float* to, const float (&v)[1]) { *to = v[0]; }
__device__ __forceinline__ void store_cell(float* to, const float (&v)[4]) { store_quad(to, Quad{{v[0], v[1], v[2], v[3]}}); }

// A thread's cells of N elements: body(at, v) for each; from shared memory below `held`, else from the row. BATCH of them are
// under way before the first is worked on.
template <int N, class Body>
__device__ __forceinline__ void for_cells(const float* row, const float* kept, i64 vocab, i64 held, Body body) {
    i64 step = (i64)blockDim.x * N;
    for (i64 first = (i64)threadIdx.x * N; first < vocab; first += BATCH * step) {
        float v[BATCH][N];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            i64 at = first + b * step;
            if (at < held)
                load_cell(kept + at, v[b]);
            else if (at < vocab)
                load_cell(row + at, v[b]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * step < vocab) body(first + b * step, v[b]);
    }
}

template <int N>
__device__ __forceinline__ float largest_of(const float* row, float* kept, i64 vocab, i64 held) {
    float largest = -float_of(0x7f800000u);
    for_cells<N>(row, kept, vocab, 0, [&](i64 at, float (&v)[N]) {
        if (at < held) store_cell(kept + at, v);
#pragma unroll
        for (int c = 0; c < N; c++) largest = fmaxf(largest, v[c]);
    });
    return fold_block(largest, largest, [](float a, float b) { return fmaxf(a, b); });
}

// Z; false in *valid where an e is not a number from 0 to 1, which a NaN or an infinite maximum brings.
template <int N>
__device__ __forceinline__ float softmax_sum(const float* row, float* kept, i64 vocab, i64 held, float largest, bool* valid) {
    i64 total = 0;
    for_cells<N>(row, kept, vocab, held, [&](i64 at, float (&v)[N]) {
        u32 part = 0;
#pragma unroll
        for (int c = 0; c < N; c++) {
            v[c] = exp_nonpositive(v[c] - largest);
            *valid = *valid && v[c] <= 1.0f;
            part += (u32)__float2int_rn(v[c] * SOFTMAX_UNIT);
            if (c % 2 == 1 || c == N - 1) total += part, part = 0;  // two terms are at most 2^31
        }
        if (at < held) store_cell(kept + at, v);
    });
    total = fold_block(total, (i64)0, [](i64 a, i64 b) { return a + b; });
    return __ll2float_rn(total) * 9.313225746154785e-10f;  // 2^-30
}

// `small` is 2^62 / rows or less.
template <int N>
__device__ __forceinline__ void rows_of(float* logits, const u32* targets, i64* loss_sum, u32* status, float* known_rows, u32* found, float* kept, i64 rows,
                                        i64 vocab, i64 held, i64 small, int keep, float z_loss, float scale) {
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        float* x = logits + row * vocab;
        i64 target = targets[row];
        bool known = target < vocab, valid = true;
        float target_logit = x[known ? target : 0];
        float largest = largest_of<N>(x, kept, vocab, held);
        float total = softmax_sum<N>(x, kept, vocab, held, largest, &valid);
        float log_total = log_f32(total);
        float lse = largest + log_total;
        float loss = (log_total + (largest - target_logit)) + z_loss * (lse * lse);
        float slope = 1.0f + lse * (2.0f * z_loss);
        float factor = ((1.0f / total) * slope) * scale;
        if (!valid) atomicOr(status, NOT_FINITE);
        if (!known) atomicOr(status, TOKEN_RANGE);
        if (threadIdx.x == 0 && keep) known_rows[2 * row] = largest, known_rows[2 * row + 1] = factor;
        if (threadIdx.x == 0) atomic_add_term(loss_sum, fixed_term(loss * LOSS_UNIT, status), small, status);
        u32 most = 0;
        for_cells<N>(x, kept, vocab, held, [&](i64 at, float (&v)[N]) {
#pragma unroll
            for (int c = 0; c < N; c++) {
                float e = at < held ? v[c] : exp_nonpositive(v[c] - largest);
                float gradient = e * factor;
                v[c] = at + c == target ? gradient - scale : gradient;
                most = larger(most, magnitude(v[c]));
            }
            store_cell(x + at, v);
        });
        if (!keep) continue;
        most = fold_block(most, 0u, [](u32 a, u32 b) { return larger(a, b); });
        if (threadIdx.x == 0) found[row] = most;
    }
}

GLOBAL void __launch_bounds__(512, 1)
    cross_entropy_1(float* logits, const u32* targets, i64* loss, u32* status, float* kept, u32* found, i64 rows, i64 vocab, i64 held, i64 small, int keep,
                    float z_loss, float scale) {
    extern __shared__ float4 shared[];
    rows_of<1>(logits, targets, loss, status, kept, found, (float*)shared, rows, vocab, held, small, keep, z_loss, scale);
}
GLOBAL void __launch_bounds__(512, RESIDENT)
    cross_entropy_4(float* logits, const u32* targets, i64* loss, u32* status, float* kept, u32* found, i64 rows, i64 vocab, i64 held, i64 small, int keep,
                    float z_loss, float scale) {
    extern __shared__ float4 shared[];
    rows_of<4>(logits, targets, loss, status, kept, found, (float*)shared, rows, vocab, held, small, keep, z_loss, scale);
}

// The gradient of the columns first .. first + columns - 1 alone: logits float [rows][columns], overwritten. kept as above.
GLOBAL void __launch_bounds__(256)
    cross_entropy_columns(float* logits, const u32* targets, const float* kept, i64 rows, i64 columns, i64 first, float scale) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
        i64 row = i / columns, column = first + i % columns;
        float gradient = exp_nonpositive(logits[i] - kept[2 * row]) * kept[2 * row + 1];
        logits[i] = column == (i64)targets[row] ? gradient - scale : gradient;
    }
}
