/* Rows rounded to fixed point of any width up to 24 bits, as binary64 numbers for a BLAS (SPEC.md section 3); reference:
 * numerics/exact_dot.py. The numbers are q * 2^(e - (bits - 1)) themselves. */

#include "grid.h"

/* Eight elements with a factor and a scale each. */
static inline void round8(const float *x, const float *first, const float *second, const double *scale, double *out) {
    __m256i q = to_integers(_mm256_loadu_ps(x), _mm256_loadu_ps(first), _mm256_loadu_ps(second));
    __m256d low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(q)), high = _mm256_cvtepi32_pd(_mm256_extracti128_si256(q, 1));
    _mm256_storeu_pd(out, _mm256_mul_pd(low, _mm256_loadu_pd(scale)));
    _mm256_storeu_pd(out + 4, _mm256_mul_pd(high, _mm256_loadu_pd(scale + 4)));
}

static inline void round_elements(const float *x, int64_t n, const float *first, const float *second,
                                  const double *scale, int64_t step, double *out) {
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) round8(x + k, first + step * k, second + step * k, scale + step * k, out + k);
    if (k < n) {
        float rest[8] = {0};
        double rounded[8];
        memcpy(rest, x + k, (size_t)(n - k) * sizeof *x);
        round8(rest, first + step * k, second + step * k, scale + step * k, rounded);
        memcpy(out + k, rounded, (size_t)(n - k) * sizeof *out);
    }
}

/* x (rows, n), rows `stride` apart -> out (rows, n) and exponents (rows). */
int quantise_wide(const float *x, int64_t rows, int64_t n, int64_t stride, int64_t bits, double *out,
                  int32_t *exponents) {
    for (int64_t i = 0; i < rows; i++) {
        int32_t word = largest_word(x + i * stride, n);
        if (word >= INFINITE) return NOT_FINITE;
        exponents[i] = exponent_of(word);
        Factor factor = factor_of((int32_t)bits - 1 - exponents[i]);
        float first[8], second[8];
        double scale[8];
        for (int k = 0; k < 8; k++)
            first[k] = factor.first, second[k] = factor.second, scale[k] = power64(exponents[i] - (bits - 1));
        round_elements(x + i * stride, n, first, second, scale, 0, out + i * n);
    }
    return 0;
}

/* The same for the columns: out (rows, n), exponents (n). work: 2 (n + 8) doubles. */
int quantise_wide_t(const float *x, int64_t rows, int64_t n, int64_t stride, int64_t bits, double *out,
                    int32_t *exponents, double *work) {
    double *scale = work;
    float *first = (float *)(work + n + 8), *second = first + n + 8;
    memset(work, 0, (size_t)(2 * (n + 8)) * sizeof *work);
    if (column_exponents(x, rows, n, stride, exponents)) return NOT_FINITE;
    for (int64_t k = 0; k < n; k++) {
        Factor factor = factor_of((int32_t)bits - 1 - exponents[k]);
        first[k] = factor.first, second[k] = factor.second, scale[k] = power64(exponents[k] - (bits - 1));
    }
    for (int64_t i = 0; i < rows; i++) round_elements(x + i * stride, n, first, second, scale, 1, out + i * n);
    return 0;
}
