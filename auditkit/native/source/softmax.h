/* What attention and cross-entropy share: e^(x - m) of a row and its exact sum (SPEC.md sections 4, 8 and 12). */

#ifndef AUDITKIT_SOFTMAX_H
#define AUDITKIT_SOFTMAX_H

#include "vector.h"

static inline float largest_of(F8 x) {
    float most = x[0];
    for (int k = 1; k < 8; k++) most = x[k] > most ? x[k] : most;
    return most;
}

/* The sum of eight int32 and four int64. */
static inline __m256i add_wide(__m256i sums, __m256i terms) {
    return _mm256_add_epi64(sums, _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(terms)),
                                                   _mm256_cvtepi32_epi64(_mm256_extracti128_si256(terms, 1))));
}

/* x (n) becomes e = exp(x - largest); returns the sum of rint(e * 2^30), times 2^-30, rounded once; NaN if one e is. */
static inline float exponentials(float *x, int64_t n, float largest) {
    __m256i sums = _mm256_setzero_si256();
    I8 sound = all_words(-1);
    for (int64_t k = 0; k < n; k += 8) {
        F8 e = exp8(read8(x, k, n, -__builtin_inff()) - all(largest));
        if (k + 8 > n)  /* beyond the end: inf - inf where the largest is infinite */
            for (int64_t i = n; i < k + 8; i++) e[i - k] = 0;
        write8(x, k, n, e);
        sound &= e == e;
        sums = add_wide(sums, _mm256_cvtps_epi32((__m256)(e * all(1073741824.0f))));
    }
    int64_t total = 0;
    for (int k = 0; k < 4; k++) total += ((int64_t __attribute__((vector_size(32))))sums)[k];
    for (int k = 0; k < 8; k++)
        if (!sound[k]) return float_of(0x7FC00000);
    return (float)((double)total * power64(-30));
}

#endif
