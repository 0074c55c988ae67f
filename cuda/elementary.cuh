// exp and log in binary32 (SPEC.md sections 6.2, 6.3), operation by operation as written there.
#pragma once
#include "common.cuh"

#define LN2_HI 0x3f317200u  // 15 significant bits: n * LN2_HI is exact for |n| < 2^9
#define LN2_LO 0x35bfbe8eu
#define ROUNDS 0x4b400000u  // 1.5 * 2^23: adding it rounds to an integer
#define EXP_NORMAL -86.0f   // from here to 0, e^x = p * 2^n is a normal number and the product exact

// v * x + c, two roundings.
__device__ __forceinline__ float horner_step(float v, float x, u32 c) { return v * x + float_of(c); }

// e^r for |r| <= ln 2 / 2.
__device__ __forceinline__ float exp_polynomial(float r) {
    float p = float_of(0x3ab4c11bu);
    p = horner_step(p, r, 0x3c091d90u);
    p = horner_step(p, r, 0x3d2aacfeu);
    p = horner_step(p, r, 0x3e2aaa48u);
    p = horner_step(p, r, 0x3efffffdu);
    p = p * r;
    p = p * r;
    p = p + r;
    return p + 1.0f;
}

// p with e^x = p * 2^n, and n + ROUNDS in *shifted.
__device__ __forceinline__ float exp_reduced(float x, float* shifted) {
    *shifted = x * float_of(0x3fb8aa3bu) + float_of(ROUNDS);
    float n = *shifted - float_of(ROUNDS);
    float r = x - n * float_of(LN2_HI);
    r = r - n * float_of(LN2_LO);
    return exp_polynomial(r);
}

// e^x: inf above 88.72283, 0 below -103.97208, NaN 7fc00000 for a NaN.
__device__ __forceinline__ float exp_f32(float x) {
    float shifted, p = exp_reduced(fminf(fmaxf(x, -105.0f), 89.0f), &shifted);
    // 2^n in two factors: the first product is exact, only the second can round or overflow.
    i32 whole = (i32)bits_of(shifted) - (i32)ROUNDS, half = whole >> 1;
    float result = (p * power_of_two(half)) * power_of_two(whole - half);
    return x == x ? result : float_of(0x7fc00000u);
}

// exp_f32(x) for x <= 0 or NaN, the same bits: near 0, where most arguments of a softmax lie, n is added to the exponent.
__device__ __forceinline__ float exp_nonpositive(float x) {
    if (!(x >= EXP_NORMAL)) return exp_f32(x);
    float shifted, p = exp_reduced(x, &shifted);
    return float_of(bits_of(p) + (bits_of(shifted) << 23));  // the shift drops all but n
}

// ln x: -inf for +-0, inf for inf, NaN 7fc00000 for a negative number or NaN.
__device__ __forceinline__ float log_f32(float x) {
    if (!(x > 0.0f)) return x == 0.0f ? float_of(0xff800000u) : float_of(0x7fc00000u);
    if (x == float_of(0x7f800000u)) return x;
    bool subnormal = x < float_of(0x00800000u);
    i32 bits = (i32)bits_of(subnormal ? x * 8388608.0f : x);
    i32 exponent = (bits - 0x3f3504f3) >> 23;  // from sqrt(1/2) on
    float f = float_of((u32)(bits - (exponent << 23))) - 1.0f;
    float k = (float)(exponent - (subnormal ? 23 : 0));
    float s = f / (2.0f + f);
    float z = s * s;
    float r = float_of(0x3e638e39u);
    r = horner_step(r, z, 0x3e924925u);
    r = horner_step(r, z, 0x3ecccccdu);
    r = horner_step(r, z, 0x3f2aaaabu);
    r = z * r;
    float h = (0.5f * f) * f;
    return k * float_of(LN2_HI) - ((h - (s * (h + r) + k * float_of(LN2_LO))) - f);
}
