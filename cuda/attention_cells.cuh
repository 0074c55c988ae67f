// What a thread of a warpgroup does to its cells of a 64 x 64 tile of scores (SPEC.md section 8, 14 bits) in registers: softmax,
// gradients, maxima, digits; each in as few instructions as its bits allow.
//
// A thread holds 32 cells: cell 4 i + 2 half + b is row 16 (warp % 4) + lane / 4 + 8 half, column 8 i + 2 (lane % 4) + b, as the
// tensor cores leave their sums (hopper.cuh). Words hold integers or bits of floats, always in place, for registers are few.
//
// fused() rounds once: it stands only where the product is exact, so that it is the addition's one rounding, or where a comment
// proves the bits.
//
// Test: pytest tests/kernels/test_attention_cells.py
#pragma once
#include "attention_quotient.cuh"
#include "common.cuh"
#include "elementary.cuh"

#define CELLS 32
#define WARP 0xffffffffu

// Of cell 4 i + 2 half + b.
__device__ __forceinline__ i32 half_of_cell(i32 cell) { return cell >> 1 & 1; }
__device__ __forceinline__ i32 column_of_cell(i32 cell) { return (cell >> 2) * 8 + (cell & 1); }

// f of each cell in turn: a loop, short in machine code, without an index into registers. What f returns replaces a's word.
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
// The same of two arrays; b is turned round once.
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

// exp_nonpositive(x) for EXP_NORMAL <= x <= 0. n * LN2_HI is exact.
__device__ __forceinline__ float exp_tame(float x) {
    float shifted = x * float_of(0x3fb8aa3bu) + float_of(ROUNDS);
    float n = shifted - float_of(ROUNDS);
    float r = fused(-n, float_of(LN2_HI), x);
    r = r - n * float_of(LN2_LO);
    return float_of(bits_of(exp_polynomial(r)) + (bits_of(shifted) << 23));
}

// From here to 0, e = exp(x) is above 2^-87, and e / l a normal number for l < 2^39.
#define LEAST_TAME -60.0f

// Digits. A weight is a real number w, |w| <= 2^13, and W = rint(w). Adding one of these rounds it (quantise_digits.cuh);
// fused(w', factor, WEIGHT_ROUND) does too, where w' * factor is exact or below one half by far. Signed, the low 15 bits are
// then 128 (h + 128) + (l + 64); of weights that are not negative, 128 h + l with 0 <= h <= 64, 0 <= l < 128, bytes without a sign.
#define SIGNED_ROUND (12582912.0f + 64.0f + 128.0f * 128.0f)
#define UNSIGNED_ROUND 12582912.0f

// Four such words as one word of each plane h, h + l, l.
template <bool SIGNED>
__device__ __forceinline__ void weight_digits(const u32* w, u32* h, u32* s, u32* l) {
    u32 even = __byte_perm(w[0], w[1], 0x5410), odd = __byte_perm(w[2], w[3], 0x5410);
    u32 low = __byte_perm(even, odd, 0x6420) & 0x7f7f7f7fu, high = __byte_perm(even << 1, odd << 1, 0x7531);
    if (SIGNED) {  // no byte leaves its place: 64 <= high <= 192, and h + l + 128 is a byte
        *h = high ^ 0x80808080u;
        *s = (high + low - 0x40404040u) ^ 0x80808080u;
        *l = (low + 0x40404040u) ^ 0x80808080u;
    } else {
        *h = high;
        *s = high + low;
        *l = low;
    }
}

// The digits of all cells by store(half, plane, words): sixteen of a row, in the order of i, then b.
template <bool SIGNED, class Store>
__device__ __forceinline__ void store_weights(const i32 (&w)[CELLS], Store store) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 words[3][4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 of[4];
#pragma unroll
            for (int c = 0; c < 4; c++) of[c] = (u32)w[8 * k + c / 2 * 4 + 2 * half + c % 2];
            weight_digits<SIGNED>(of, words[0] + k, words[1] + k, words[2] + k);
        }
#pragma unroll
        for (int plane = 0; plane < 3; plane++) store(half, plane, words[plane]);
    }
}

// Over the eight lanes that share columns: most[2 i + b] of column 8 i + 2 (lane % 4) + b. Each step hands half of what a lane holds to
// another and halves it, so that in the end columns 2 lane and 2 lane + 1 of the 64 are in most[0] and most[1].
template <int STEP>
__device__ __forceinline__ void halve_columns(float (&most)[16]) {
    bool upper = (threadIdx.x & STEP) != 0;
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        float first = most[i], second = most[i + STEP / 2];
        float kept = upper ? second : first, given = upper ? first : second;
        most[i] = fmaxf(kept, __shfl_xor_sync(WARP, given, STEP));
    }
}
__device__ __forceinline__ void max_of_columns(float (&most)[16]) {
    halve_columns<16>(most);
    halve_columns<8>(most);
    halve_columns<4>(most);
}
