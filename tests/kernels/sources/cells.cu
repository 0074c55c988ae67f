// cuda/attention_cells.cuh by itself, one warpgroup a block, for its test. Matrices are [64][64].
#include "attention_cells.cuh"

#define ONE GLOBAL void __launch_bounds__(128)

struct Matrix {
    i32 row = cell_row(), column = cell_column();
    __device__ __forceinline__ i32 at(i32 cell) const { return (row + row_of_cell(cell)) * 64 + column + column_of_cell(cell); }
};

__device__ __forceinline__ void load(i32 (&r)[CELLS], const i32* from) {
    Matrix m;
#pragma unroll
    for (int i = 0; i < CELLS; i++) r[i] = from[m.at(i)];
}
__device__ __forceinline__ void store(i32* to, const i32 (&r)[CELLS]) {
    Matrix m;
#pragma unroll
    for (int i = 0; i < CELLS; i++) to[m.at(i)] = r[i];
}

// Dots times `scale` of rows and columns with exponents x and y, block by block; which form each warp took.
ONE dots_of(const i32* hh, const i32* ss, const i32* ll, const i32* x, const i32* y, i32* out, i32* reach, float scale) {
    __shared__ float4 factors[64];
    __shared__ i32 tame;
    i64 at = (i64)blockIdx.x * 4096;
    x += blockIdx.x * 64, y += blockIdx.x * 64;
    if (threadIdx.x == 0) {
        tame = true;
        for (int i = 0; i < 64; i++) tame = tame && tame_dot(x[i]) && tame_dot(y[i]);
    }
    __syncthreads();
    if (threadIdx.x < 32 && tame) {
        DotFactors f(y[2 * threadIdx.x]), g(y[2 * threadIdx.x + 1]);
        factors[threadIdx.x] = make_float4(f.a, g.a, f.c, g.c);
        factors[32 + threadIdx.x] = make_float4(f.n, g.n, 0.0f, 0.0f);
    }
    __syncthreads();
    i32 r[CELLS], middle[CELLS], low[CELLS];
    load(r, hh + at);
    load(middle, ss + at);
    load(low, ll + at);
    before_middle(r);
#pragma unroll
    for (int i = 0; i < CELLS; i++) r[i] += middle[i];
    Matrix m;
    i32 found = tame ? reach_of(r) : ANY;
    if (threadIdx.x % 32 == 0) reach[blockIdx.x * 4 + threadIdx.x / 32] = found;
    float by[2] = {};
    if (tame) by[0] = scale * row_factor(x[m.row]), by[1] = scale * row_factor(x[m.row + 8]);
    const float4* mine = factors + threadIdx.x % 4;
    dots(
        r, low, tame, mine, mine + 32, [&](float f, int half, float) { return f * by[half]; },
        [&](i32 cell) { return make_int2(x[m.row + row_of_cell(cell)], y[m.column + column_of_cell(cell)]); },
        [&](i32, float dot) { return dot * scale; });
    store(out + at, r);
}

// exp(s - m) by rows; whether each warp found its cells tame.
ONE exps_of(const i32* s, const float* largest, i32* out, i32* tame) {
    i64 at = (i64)blockIdx.x * 4096;
    i32 r[CELLS];
    load(r, s + at);
    Matrix m;
    float of[2] = {largest[blockIdx.x * 64 + m.row], largest[blockIdx.x * 64 + m.row + 8]};
    bool all = exps(r, [&](i32 cell) { return of[cell >> 1 & 1]; });
    store(out + at, r);
    if (threadIdx.x % 32 == 0) tame[blockIdx.x * 4 + threadIdx.x / 32] = all;
}

ONE quotients(const float* e, const float* l, float* out, i64 n) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = quotient(e[i], l[i], 1.0f / l[i]);
}

// Weights w times `factor` as digits, 3 blocks of 4096 bytes.
ONE digits_of_weights(const float* w, i8* out, float factor) {
    Matrix m;
    i32 t[CELLS];
#pragma unroll
    for (int i = 0; i < CELLS; i++) t[i] = (i32)bits_of(fused(w[(i64)blockIdx.x * 4096 + m.at(i)], factor, WEIGHT_ROUND));
    store_weights(t, out + (i64)blockIdx.x * 3 * BLOCK_BYTES, BLOCK_BYTES);
}

ONE maxima(const float* x, float* rows, float* columns) {
    Matrix m;
    for (int half = 0; half < 2; half++) {
        float most = 0.0f;
        for (int i = 0; i < CELLS; i++)
            if ((i >> 1 & 1) == half) most = fmaxf(most, x[m.at(i)]);
        most = max_of_row(most);
        if (threadIdx.x % 4 == 0) rows[m.row + 8 * half] = most;
    }
    for (int i = 0; i < CELLS; i++)
        if ((i & 2) == 0) {
            float most = max_of_column(fmaxf(x[m.at(i)], x[m.at(i + 2)]));
            if (threadIdx.x % 32 < 4) columns[threadIdx.x / 32 * 64 + m.column + column_of_cell(i)] = most;
        }
}
