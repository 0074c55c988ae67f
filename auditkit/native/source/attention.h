/* What both passes of attention share: scores, and weights rounded under a bound (SPEC.md section 8).
 *
 * Query row i of a group of R heads is head i mod R of token i / R, so that what sees a key is one range of rows. */

#ifndef AUDITKIT_ATTENTION_H
#define AUDITKIT_ATTENTION_H

#include "dot.h"
#include "softmax.h"

enum { NO_PRODUCT = -100000 };  /* instead of an exponent where there is no product but 0 */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first key that the query of a token sees; the last is its own. */
static inline int64_t first_key(int64_t token, int64_t window) {
    return window && token >= window ? token - window + 1 : 0;
}

static inline I8 words8(const int32_t *x, int64_t i, int64_t n) {
    return (I8)read8((const float *)x, i, n, 0);
}

/* 2^n as two factors, each within binary32, for eight n: a product with both is exact, or so small that it rounds to 0. */
static inline F8 times_power(F8 x, I8 n) {
    I8 first = (I8)_mm256_min_epi32(_mm256_max_epi32((__m256i)n, _mm256_set1_epi32(-126)), _mm256_set1_epi32(127));
    I8 rest = n - first;
    I8 second = (I8)_mm256_min_epi32(_mm256_max_epi32((__m256i)rest, _mm256_set1_epi32(-126)), _mm256_set1_epi32(127));
    return (x * (F8)((first + 127) << 23)) * (F8)((second + 127) << 23);
}

/* rint(w * 2^(x - bound + 13)) of eight weights, 0 for a zero row; x, bound: exponents. */
static inline __m128i round_weights(F8 weights, I8 x, I8 bound) {
    __m256i q = _mm256_cvtps_epi32((__m256)times_power(weights, x - bound + (BITS - 1)));
    q = _mm256_andnot_si256((__m256i)(x == all_words(ZERO_ROW)), q);
    return _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
}

/* The exponents of |w| 2^x for eight weights, NO_PRODUCT where w or the row is 0. */
static inline I8 product_exponents(F8 weights, I8 x) {
    I8 words = (I8)absolute(weights);
    /* a subnormal number times 2^24 is normal and exact */
    I8 tiny = words < all_words(1 << 23);
    I8 raised = (I8)((F8)words * all(16777216.0f));
    I8 exponents = (((tiny & (raised - (24 << 23))) | (~tiny & words)) >> 23) - 126 + x;
    I8 none = (words == all_words(0)) | (x == all_words(ZERO_ROW));
    return (none & all_words(NO_PRODUCT)) | (~none & exponents);
}

static inline int32_t largest_of_words(I8 x) {
    int32_t most = x[0];
    for (int k = 1; k < 8; k++) most = x[k] > most ? x[k] : most;
    return most;
}

/* rows (n, stride) of integers -> out (width, padded(n)), turned; zeros beyond n. */
static void turn_rows(const int16_t *rows, int64_t n, int64_t stride, int64_t width, int16_t *out) {
    for (int64_t d = 0; d < width; d++)
        for (int64_t i = 0; i < padded(n); i++) out[d * padded(n) + i] = i < n ? rows[i * stride + d] : 0;
}

#endif
