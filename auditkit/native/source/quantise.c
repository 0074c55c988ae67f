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

/* Eight rows by eight columns of x, of which `tall` by `wide` exist, onto the same columns of out, turned. */
static void turn_tile(const float *x, int64_t stride, int tall, int wide, const float *first, const float *second,
                      int16_t *out, int64_t width) {
    __m128i q[8];
    const __m256 f = _mm256_loadu_ps(first), g = _mm256_loadu_ps(second);
    for (int i = 0; i < 8; i++) {
        float rest[8] = {0};
        if (i < tall && wide < 8) memcpy(rest, x + i * stride, (size_t)wide * sizeof *x);
        q[i] = narrow(to_integers(_mm256_loadu_ps(i < tall && wide == 8 ? x + i * stride : rest), f, g));
    }
    turn(q);
    for (int k = 0; k < wide; k++) _mm_storeu_si128((__m128i *)(out + k * width), q[k]);
}

static int at_most(int64_t count, int most) { return (int)(count < 0 ? 0 : count < most ? count : most); }

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
    for (int64_t i = 0; i < width; i += 32)
        for (int64_t k = 0; k < n; k += 8)
            for (int64_t r = i; r < i + 32 && r < width; r += 8)
                turn_tile(x + r * stride + k, stride, at_most(rows - r, 8), at_most(n - k, 8), first + k, second + k,
                          out + k * width + r, width);
    return 0;
}
