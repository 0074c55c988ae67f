/* Vectors of eight binary32 numbers, and e^x on them (SPEC.md section 6.2; reference: numerics/exp.py). */

#ifndef AUDITKIT_VECTOR_H
#define AUDITKIT_VECTOR_H

#include "common.h"

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

static inline F8 all(float x) { return (F8){x, x, x, x, x, x, x, x}; }
static inline I8 all_words(int32_t x) { return (I8){x, x, x, x, x, x, x, x}; }
static inline F8 choose(I8 mask, F8 yes, F8 no) { return (F8)((mask & (I8)yes) | (~mask & (I8)no)); }
static inline F8 absolute(F8 x) { return (F8)((I8)x & all_words(INT32_MAX)); }

/* Elements i .. i + 7 of n, of which those beyond n are `rest`. */
static inline F8 read8(const float *x, int64_t i, int64_t n, float rest) {
    if (i + 8 <= n) return (F8)_mm256_loadu_ps(x + i);
    float lanes[8] = {rest, rest, rest, rest, rest, rest, rest, rest};
    for (int64_t k = i; k < n; k++) lanes[k - i] = x[k];
    return (F8)_mm256_loadu_ps(lanes);
}

static inline void write8(float *x, int64_t i, int64_t n, F8 value) {
    if (i + 8 <= n) {
        _mm256_storeu_ps(x + i, (__m256)value);
    } else {
        for (int64_t k = i; k < n; k++) x[k] = value[k - i];
    }
}

/* e^x: 2^n e^r with n = rint(x / ln 2), scaled in two steps of which only the last can round or overflow. */
static inline F8 exp8(F8 x) {
    const F8 magic = all(float_of(0x4B400000));
    F8 c = (F8)_mm256_max_ps((__m256)x, (__m256)all(float_of((int32_t)0xC2D20000)));
    c = (F8)_mm256_min_ps((__m256)c, (__m256)all(float_of(0x42B20000)));
    F8 t = c * all(float_of(0x3FB8AA3B)) + magic, n = t - magic;
    F8 r = (c - n * all(float_of(0x3F317200))) - n * all(float_of(0x35BFBE8E));
    F8 p = r * all(float_of(0x3AB4C11B)) + all(float_of(0x3C091D90));
    p = p * r + all(float_of(0x3D2AACFE));
    p = p * r + all(float_of(0x3E2AAA48));
    p = p * r + all(float_of(0x3EFFFFFD));
    p = ((p * r) * r + r) + all(1.0f);
    I8 power = (I8)t - (I8)magic, half = power >> 1;
    F8 first = (F8)((half + 127) << 23), second = (F8)((power - half + 127) << 23);
    return choose(x == x, (p * first) * second, all(float_of(0x7FC00000)));
}

#endif
