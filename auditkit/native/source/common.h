/* What the C sources share: types, bit patterns, and the vectors of AVX2.
 *
 * Floating-point expressions are evaluated as written: compiled with -ffp-contract=off, without -ffast-math, for
 * processors without fused operations (-mavx2 does not bring -mfma), so that each operation rounds once, as in
 * auditkit/numerics. Functions that Python calls take integers as int64 and return 0, NOT_FINITE or NOT_TAME. */

#ifndef AUDITKIT_COMMON_H
#define AUDITKIT_COMMON_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define NOT_FINITE 1
#define NOT_TAME 2       /* a sum may leave its range: the reference decides */
#define ZERO_ROW (-149)  /* exponent of a row of zeros, numerics/exact_dot.py */
#define INFINITE 0x7F800000
#define BITS 14          /* of the products here */
#define LANES 16         /* int16 elements of a vector: rows of integers are padded to a multiple of it */

static inline int32_t word_of(float x) {
    int32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static inline float float_of(int32_t word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* 2^n for -126 <= n <= 127. */
static inline float power32(int32_t n) { return float_of((n + 127) << 23); }

/* 2^n for -1022 <= n <= 1023. */
static inline double power64(int64_t n) {
    int64_t word = (n + 1023) << 52;
    double x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* The least e with size < 2^e, where `word` is the pattern of a finite size >= 0; ZERO_ROW for 0. */
static inline int32_t exponent_of(int32_t word) {
    if (word >= 1 << 23) return (word >> 23) - 126;
    return word ? -117 - __builtin_clz((unsigned)word) : ZERO_ROW;
}

static inline int64_t padded(int64_t length) { return (length + LANES - 1) / LANES * LANES; }

/* The transpose of eight vectors of eight int16. */
static inline void turn(__m128i r[8]) {
    __m128i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
        a[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
    }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = _mm_unpacklo_epi16(b[i], b[i + 4]);
        r[2 * i + 1] = _mm_unpackhi_epi16(b[i], b[i + 4]);
    }
}

#endif
