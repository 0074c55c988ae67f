// What a thread of a warpgroup does to its cells of a 64 x 64 tile of scores (SPEC.md section 8, 14 bits): sums of products to floats,
// softmax, gradients, digits.
//
// A thread holds 32 cells: cell 4 i + 2 half + b is row 16 (warp % 4) + lane / 4 + 8 half, column 8 i + 2 (lane % 4) + b, as the
// tensor cores leave their sums (hopper.cuh). Words of r hold first R = 127 HH + SS, then floats, then integers to be cut into
// digits: always in place, for registers are few.
//
// Every step has a form for the numbers that training meets, of few instructions, and one for all others, chosen by a warp for
// its cells: the tests of the first cost less than one instruction a cell, and the second is a loop, short in machine code.
// fused() rounds once: it stands only where the product is exact, so that it is the addition's one rounding, or where a comment
// proves the bits (tests/kernels/test_attention_cells.py).
#pragma once
#include "common.cuh"
#include "elementary.cuh"
#include "exact_dot_planes.cuh"

#define CELLS 32
#define WARP 0xffffffffu

// 1.5 * 2^23 as a word: with an integer of -2^22 .. 2^22 - 1 added it is the float of that much more.
#define DOT_BIAS 0x4b400000
#define DOT_BIAS_FLOAT 12582912.0f

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ __forceinline__ i32 cell_row() { return (i32)(threadIdx.x >> 5 & 3) * 16 + (i32)(threadIdx.x & 31) / 4; }
__device__ __forceinline__ i32 cell_column() { return (i32)(threadIdx.x & 3) * 2; }
// Of cell 4 i + 2 half + b, from this thread's first row and column on.
__device__ __forceinline__ i32 row_of_cell(i32 cell) { return (cell & 2) * 4; }
__device__ __forceinline__ i32 column_of_cell(i32 cell) { return (cell >> 2) * 8 + (cell & 1); }

// f of each cell in turn, of two arrays or of one: a loop without an index into registers. What f returns replaces a's word.
template <class F>
__device__ __forceinline__ void one_by_one(i32 (&a)[CELLS], i32 (&b)[CELLS], F f) {
#pragma unroll 1
    for (i32 cell = 0; cell < CELLS; cell++) {
        i32 made = f(cell, a[0], b[0]), kept = b[0];
#pragma unroll
        for (int i = 0; i < CELLS - 1; i++) a[i] = a[i + 1], b[i] = b[i + 1];
        a[CELLS - 1] = made, b[CELLS - 1] = kept;
    }
}
template <class F>
__device__ __forceinline__ void one_by_one(i32 (&a)[CELLS], F f) {
#pragma unroll 1
    for (i32 cell = 0; cell < CELLS; cell++) {
        i32 made = f(cell, a[0]);
#pragma unroll
        for (int i = 0; i < CELLS - 1; i++) a[i] = a[i + 1];
        a[CELLS - 1] = made;
    }
}

// ---- Dots. v = 16256 HH + 128 SS - 127 LL = 128 R - 127 LL.

// HH to 127 HH + DOT_BIAS, on which SS is then added: one instruction, and R needs no conversion.
__device__ __forceinline__ void before_middle(i32 (&r)[CELLS]) {
#pragma unroll
    for (int i = 0; i < CELLS; i++) r[i] = r[i] * 127 + DOT_BIAS;
}

// How far R of a warp's cells reach: NEAR |R| < 2^22 or R = -2^22, FAR |R| < 2^24, or ANY.
enum Reach { NEAR, FAR, ANY };

// Bits in which three words are not all the same; one instruction.
__device__ __forceinline__ u32 uneven(i32 a, i32 b, i32 c) { return (u32)((a ^ b) | (b ^ c)); }

__device__ __forceinline__ Reach reach_of(const i32 (&r)[CELLS]) {
    u32 differ = 0;
    i32 last = DOT_BIAS;
#pragma unroll
    for (int i = 0; i < CELLS; i += 4) {
        differ |= uneven(last, r[i], r[i + 1]) | uneven(r[i + 1], r[i + 2], r[i + 3]);
        last = r[i + 3];
    }
    if (__all_sync(WARP, differ < 1u << 23)) return NEAR;
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < CELLS; i++) most |= (u32)abs(r[i] - DOT_BIAS);
    return __all_sync(WARP, most < 1u << 24) ? FAR : ANY;
}

// Exponents that both rows of a dot may have in the forms NEAR and FAR: a dot is then a multiple of 2^-148, so that multiplying by a
// power of two and by the scale at once rounds no more than the scale alone does.
__device__ __forceinline__ bool tame_dot(i32 x) { return (u32)(x + 61) <= 122u; }

// A pair of columns with exponents x, y as two float4 of shared memory, each kind in an array of its own: {A, A', C, C'} and
// {N, N', other, other'}: A = 128 p, C = -DOT_BIAS 128 p, N = -127 p, p = 2^(x - 13). `other` is for whoever needs it.
struct DotFactors {
    float a, c, n;

    __device__ __forceinline__ explicit DotFactors(i32 x) {
        a = power_of_two(x - 6);
        c = -DOT_BIAS_FLOAT * a;
        n = -127.0f * power_of_two(x - 13);
    }
};

// The factor of a row.
__device__ __forceinline__ float row_factor(i32 x) { return power_of_two(x - 13); }

// r = then(f, half, other) of f = RN(v p), the dot before its row's factor. `a`, `n`: the columns' pairs, from this thread's first
// (the one of column cell_column()) on. NEAR: R + DOT_BIAS as a float, times A, less what the bias made, is exact, and so is -127 p;
// the sum rounds once. FAR: R as a float is exact.
template <bool IS_NEAR, class Then>
__device__ __forceinline__ void tame_dots(i32 (&r)[CELLS], const i32 (&ll)[CELLS], const float4* a, const float4* n, Then then) {
#pragma unroll
    for (int i = 0; i < CELLS / 4; i++) {
        float4 p = a[4 * i], q = n[4 * i];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float factor = c & 1 ? p.y : p.x;
            float upper = IS_NEAR ? fused(float_of((u32)r[4 * i + c]), factor, c & 1 ? p.w : p.z)
                                  : (float)(r[4 * i + c] - DOT_BIAS) * factor;
            float f = fused((float)ll[4 * i + c], c & 1 ? q.y : q.x, upper);
            r[4 * i + c] = (i32)bits_of(then(f, c >> 1, c & 1 ? q.w : q.z));
        }
    }
}

// v of a cell, for the form of ANY: then round_any knows every exponent.
__device__ __forceinline__ i64 dot_of(i32 r, i32 ll) { return 128 * (i64)(r - DOT_BIAS) - 127 * (i64)ll; }

// RN32(v * 2^(x + y - 26)) as round_any, for |v| < 2^53.
__device__ __forceinline__ float any_dot(i32 r, i32 ll, i32 x, i32 y) {
    i32 scale = x + y - 26, half = scale / 2;
    return (float)(((double)dot_of(r, ll) * power_of_two64(half)) * power_of_two64(scale - half));
}

// r = then(f, half, other) in the warp's form, or in the form of ANY, r = rounded(cell, dot): see tame_dots. `tame`: all exponents are,
// the same in a warp. exponents(cell) is {x of the row, y of the column}.
template <class Then, class Exponents, class Rounded>
__device__ __forceinline__ void dots(i32 (&r)[CELLS], i32 (&ll)[CELLS], bool tame, const float4* a, const float4* n, Then then,
                                     Exponents exponents, Rounded rounded) {
    Reach reach = tame ? reach_of(r) : ANY;
    if (reach == NEAR)
        tame_dots<true>(r, ll, a, n, then);
    else if (reach == FAR)
        tame_dots<false>(r, ll, a, n, then);
    else
        one_by_one(r, ll, [&](i32 cell, i32 upper, i32 lower) {
            int2 x = exponents(cell);
            return (i32)bits_of(rounded(cell, any_dot(upper, lower, x.x, x.y)));
        });
}

// ---- Softmax.

#define LEAST_TAME -60.0f  // of s - m: e is above 2^-87, and e / l a normal number for l < 2^39

// exp_nonpositive(x) for LEAST_TAME <= x <= 0. n * LN2_HI is exact.
__device__ __forceinline__ float exp_tame(float x) {
    float shifted = x * float_of(0x3fb8aa3bu) + float_of(ROUNDS);
    float n = shifted - float_of(ROUNDS);
    float r = fused(-n, float_of(LN2_HI), x);
    r = r - n * float_of(LN2_LO);
    return float_of(bits_of(exp_polynomial(r)) + (bits_of(shifted) << 23));
}

// r = exp(r - m) of each cell, m = largest(cell) for the cell's row or column; whether the warp's all were at least LEAST_TAME.
template <class Largest>
__device__ __forceinline__ bool exps(i32 (&r)[CELLS], Largest largest) {
    bool tame = true;
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        float x = float_of((u32)r[i]) - largest(i);
        tame = tame && x >= LEAST_TAME;
        r[i] = (i32)bits_of(x);
    }
    tame = __all_sync(WARP, tame);
    if (tame) {
#pragma unroll
        for (int i = 0; i < CELLS; i++) r[i] = (i32)bits_of(exp_tame(float_of((u32)r[i])));
    } else {
        one_by_one(r, [](i32, i32 x) { return (i32)bits_of(exp_nonpositive(float_of((u32)x))); });
    }
    return tame;
}

// e / l, rounded once, for 2^-87 <= e <= 1, 1 <= l < 2^39 and `reciprocal` = RN(1 / l). The quotient by the reciprocal is
// off by at most 1.5 units; what remains is exact or off by half a unit that is far below; only quotients within 12 / 2^25 / l of the
// middle between two floats could then round wrongly, and the test goes through all of these.
__device__ __forceinline__ float quotient(float e, float l, float reciprocal) {
    float q = e * reciprocal;
    return fused(fused(-q, l, e), reciprocal, q);
}

// ---- Digits of weights.
//
// A weight is a real number w, |w| <= 2^13, and W = rint(w): adding WEIGHT_ROUND rounds it and makes of the low 15 bits of
// the word 128 (h + 128) + (l + 64) (quantise_digits.cuh); fused(w', factor, WEIGHT_ROUND) does, where w' * factor is exact or below
// one half by far.
#define WEIGHT_ROUND (12582912.0f + 64.0f + 128.0f * 128.0f)

// One word of each plane from four such words.
__device__ __forceinline__ void weight_digits(const i32* t, u32* h, u32* s, u32* l) {
    u32 even = __byte_perm((u32)t[0], (u32)t[1], 0x5410), odd = __byte_perm((u32)t[2], (u32)t[3], 0x5410);
    u32 low = __byte_perm(even, odd, 0x6420) & 0x7f7f7f7fu;       // l + 64
    u32 high = __byte_perm(even << 1, odd << 1, 0x7531);          // h + 128
    *h = high ^ 0x80808080u;
    *s = (high + low - 0x40404040u) ^ 0x80808080u;                // no byte of the sum, h + l + 128, leaves its place
    *l = (low + 0x40404040u) ^ 0x80808080u;
}

// The digits of all cells to the block of each plane (64 rows of 64 bytes, place_in_block), planes `stride` bytes apart. A row's columns
// stand in the order 16 c + 2 i + b for column 8 i + 2 c + b, so that a thread's sixteen are side by side: what is summed over
// must lie in this order too (attention_transpose_ordered).
__device__ __forceinline__ void store_weights(const i32 (&t)[CELLS], i8* block, i32 stride) {
    i32 lane = (i32)threadIdx.x & 31, row = cell_row();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 h[4], s[4], l[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            i32 of[4] = {t[8 * k + 2 * half], t[8 * k + 2 * half + 1], t[8 * k + 4 + 2 * half], t[8 * k + 5 + 2 * half]};
            weight_digits(of, h + k, s + k, l + k);
        }
        i8* to = block + place_in_block(row + 8 * half, lane % 4 * 16);
        *(uint4*)to = make_uint4(h[0], h[1], h[2], h[3]);
        *(uint4*)(to + stride) = make_uint4(s[0], s[1], s[2], s[3]);
        *(uint4*)(to + 2 * stride) = make_uint4(l[0], l[1], l[2], l[3]);
    }
}

// ---- Maxima.

// Over the four lanes that share a row; over the eight that share a column.
__device__ __forceinline__ float max_of_row(float v) {
    v = fmaxf(v, __shfl_xor_sync(WARP, v, 1));
    return fmaxf(v, __shfl_xor_sync(WARP, v, 2));
}
__device__ __forceinline__ float max_of_column(float v) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) v = fmaxf(v, __shfl_xor_sync(WARP, v, offset));
    return v;
}
