/* The grid of a row in fixed point: its exponent, and x * 2^n as the integer next to it (SPEC.md section 3). */

#ifndef AUDITKIT_GRID_H
#define AUDITKIT_GRID_H

#include "common.h"

/* x times 2^n as two factors, each in range: exact unless the result is far below 1. */
typedef struct {
    float first, second;
} Factor;

static inline Factor factor_of(int32_t n) {
    int32_t first = n > 100 ? 100 : n;
    Factor factor = {power32(first), power32(n - first)};
    return factor;
}

static inline __m256i to_integers(__m256 x, __m256 first, __m256 second) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_mul_ps(x, first), second));
}

/* The largest pattern of |x| of n elements. */
static inline int32_t largest_word(const float *x, int64_t n) {
    const __m256i mask = _mm256_set1_epi32(INT32_MAX);
    __m256i most = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(mask, _mm256_loadu_si256((const __m256i *)(x + i))));
    int32_t lanes[8], largest = 0;
    _mm256_storeu_si256((__m256i *)lanes, most);
    for (int k = 0; k < 8; k++) largest = lanes[k] > largest ? lanes[k] : largest;
    for (; i < n; i++) {
        int32_t word = word_of(x[i]) & INT32_MAX;
        largest = word > largest ? word : largest;
    }
    return largest;
}

/* The exponents (n) of the columns of x (rows, n), rows `stride` apart; NOT_FINITE where one is not. */
static inline int column_exponents(const float *x, int64_t rows, int64_t n, int64_t stride, int32_t *exponents) {
    const __m256i mask = _mm256_set1_epi32(INT32_MAX);
    memset(exponents, 0, (size_t)n * sizeof *exponents);
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * stride;
        int64_t k = 0;
        for (; k + 8 <= n; k += 8) {
            __m256i *most = (__m256i *)(exponents + k), words = _mm256_loadu_si256((const __m256i *)(row + k));
            _mm256_storeu_si256(most, _mm256_max_epi32(_mm256_loadu_si256(most), _mm256_and_si256(mask, words)));
        }
        for (; k < n; k++) {
            int32_t word = word_of(row[k]) & INT32_MAX;
            exponents[k] = word > exponents[k] ? word : exponents[k];
        }
    }
    for (int64_t k = 0; k < n; k++) {
        if (exponents[k] >= INFINITE) return NOT_FINITE;
        exponents[k] = exponent_of(exponents[k]);
    }
    return 0;
}

#endif
