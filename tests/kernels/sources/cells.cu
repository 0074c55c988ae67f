// cuda/attention_cells.cuh by itself, one warpgroup a block, for its test. Matrices are [64][64].
#include "attention_cells.cuh"
#include "exact_dot_planes.cuh"

#define ONE GLOBAL void __launch_bounds__(128)

struct Matrix {
    i32 lane = (i32)threadIdx.x & 31, row = (i32)(threadIdx.x >> 5) * 16 + lane / 4, column = lane % 4 * 2;
    __device__ __forceinline__ i32 at(i32 cell) const {
        return (row + 8 * half_of_cell(cell)) * 64 + column + column_of_cell(cell);
    }
};

// Where each cell of one and of two arrays is, found one by one.
ONE places(i32* alone, i32* both, i32* kept) {
    Matrix m;
    i32 a[CELLS], b[CELLS], c[CELLS];
#pragma unroll
    for (int i = 0; i < CELLS; i++) a[i] = b[i] = i, c[i] = 100 + i;
    one_by_one(a, [&](i32 cell, i32 word) { return cell == word ? m.at(cell) : -1; });
    one_by_one(b, c, [&](i32 cell, i32 word, i32 other) { return cell == word && other == 100 + cell ? m.at(cell) : -1; });
#pragma unroll
    for (int i = 0; i < CELLS; i++) alone[m.at(i)] = a[i], both[m.at(i)] = b[i], kept[m.at(i)] = c[i] == 100 + i;
}

GLOBAL void exps(const float* x, float* y, i64 n) {
    i64 i = global_index();
    if (i < n) y[i] = exp_tame(x[i]);
}
// Weights w times `factor` as digits, 3 blocks of 4096 bytes.
template <bool SIGNED>
__device__ __forceinline__ void digits_of(const float* w, i8* out, float factor) {
    Matrix m;
    i32 t[CELLS];
#pragma unroll
    for (int i = 0; i < CELLS; i++)
        t[i] = (i32)bits_of(fused(w[(i64)blockIdx.x * 4096 + m.at(i)], factor, SIGNED ? SIGNED_ROUND : UNSIGNED_ROUND));
    i8* block = out + (i64)blockIdx.x * 3 * BLOCK_BYTES;
    store_weights<SIGNED>(t, [&](int half, int plane, const u32* words) {
        *(uint4*)(block + plane * BLOCK_BYTES + place_in_block(m.row + 8 * half, m.lane % 4 * 16)) =
            make_uint4(words[0], words[1], words[2], words[3]);
    });
}
ONE signed_digits(const float* w, i8* out, float factor) { digits_of<true>(w, out, factor); }
ONE unsigned_digits(const float* w, i8* out, float factor) { digits_of<false>(w, out, factor); }

// Maxima of each warp's columns [4][64].
ONE maxima(const float* x, float* columns) {
    Matrix m;
    float most[16] = {};
#pragma unroll
    for (int i = 0; i < CELLS; i++) most[i / 4 * 2 + i % 2] = fmaxf(most[i / 4 * 2 + i % 2], x[m.at(i)]);
    max_of_columns(most);
#pragma unroll
    for (int b = 0; b < 2; b++) columns[threadIdx.x / 32 * 64 + 2 * m.lane + b] = most[b];
}
