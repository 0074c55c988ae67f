/* Rows of binary32 rounded to 14-bit fixed point, as int16 (SPEC.md section 3); reference: numerics/exact_dot.py.
 *
 * A row of integers has `padded(length)` elements, zeros at the end. x * 2^(13-e) is exact or so small that it rounds to
 * 0, so converting it with the rounding of the processor, to nearest even, is rint of the exact product. */

#include "grid.h"

static inline __m128i narrow(__m256i q) {
    return _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
}

/* n elements of x on the grid of an exponent -> padded(n) integers. */
static void round_row(const float *x, int64_t n, int32_t exponent, int16_t *out) {
    Factor factor = factor_of(BITS - 1 - exponent);
    const __m256 first = _mm256_set1_ps(factor.first), second = _mm256_set1_ps(factor.second);
    for (int64_t i = 0; i < padded(n); i += 8) {
        float rest[8] = {0};
        if (i + 8 > n && i < n) memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        __m256i integers = to_integers(_mm256_loadu_ps(i + 8 > n ? rest : x + i), first, second);
        _mm_storeu_si128((__m128i *)(out + i), narrow(integers));
    }
}

/* x (rows, n), rows `stride` apart -> out (rows, padded(n)) and exponents (rows). */
int quantise(const float *x, int64_t rows, int64_t n, int64_t stride, int16_t *out, int32_t *exponents) {
    for (int64_t i = 0; i < rows; i++) {
        int32_t word = largest_word(x + i * stride, n);
        if (word >= INFINITE) return NOT_FINITE;
        exponents[i] = exponent_of(word);
        round_row(x + i * stride, n, exponents[i], out + i * padded(n));
    }
    return 0;
}

enum { TALL = 32, WIDE = 64 };  /* of a part that is turned at a time: whole cache lines of its rows and columns */

/* Up to TALL rows by WIDE columns of x, rounded, into a buffer of their own: in x they may compete for the same places
 * of the cache. Zeros beyond the last row. */
static void round_part(const float *x, int64_t stride, int64_t tall, int64_t wide, const float *first,
                       const float *second, int16_t part[TALL][WIDE]) {
    for (int64_t i = 0; i < TALL; i++)
        for (int64_t k = 0; k < wide; k += 8) {
            __m128i q = _mm_setzero_si128();
            if (i < tall) {
                float rest[8] = {0};
                if (k + 8 > wide) memcpy(rest, x + i * stride + k, (size_t)(wide - k) * sizeof *x);
                __m256 eight = _mm256_loadu_ps(k + 8 > wide ? rest : x + i * stride + k);
                q = narrow(to_integers(eight, _mm256_loadu_ps(first + k), _mm256_loadu_ps(second + k)));
            }
            _mm_storeu_si128((__m128i *)(part[i] + k), q);
        }
}

/* The part's columns onto `tall` elements of rows of out, `width` apart; tall is a multiple of 8. */
static void turn_part(int16_t part[TALL][WIDE], int64_t tall, int64_t wide, int16_t *out, int64_t width) {
    for (int64_t k = 0; k < wide; k += 8)
        for (int64_t i = 0; i < tall; i += 8) {
            __m128i q[8];
            for (int r = 0; r < 8; r++) q[r] = _mm_loadu_si128((const __m128i *)(part[i + r] + k));
            turn(q);
            for (int64_t c = 0; c < 8 && k + c < wide; c++)
                _mm_storeu_si128((__m128i *)(out + (k + c) * width + i), q[c]);
        }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* x (rows, n), rows `stride` apart -> out (n, padded(rows)), the rows of the transpose, and exponents (n).
 *
 * work: 2 (n + 8) floats. */
int quantise_t(const float *x, int64_t rows, int64_t n, int64_t stride, int16_t *out, int32_t *exponents, float *work) {
    float *first = work, *second = work + n + 8;
    memset(work, 0, (size_t)(2 * (n + 8)) * sizeof *work);
    if (column_exponents(x, rows, n, stride, exponents)) return NOT_FINITE;
    for (int64_t k = 0; k < n; k++) {
        Factor factor = factor_of(BITS - 1 - exponents[k]);
        first[k] = factor.first, second[k] = factor.second;
    }
    const int64_t width = padded(rows);
    int16_t part[TALL][WIDE];
    for (int64_t i = 0; i < width; i += TALL)
        for (int64_t k = 0; k < n; k += WIDE) {
            const int64_t wide = least(WIDE, n - k);
            round_part(x + i * stride + k, stride, least(TALL, rows - i), wide, first + k, second + k, part);
            turn_part(part, least(TALL, width - i), wide, out + k * width + i, width);
        }
    return 0;
}
