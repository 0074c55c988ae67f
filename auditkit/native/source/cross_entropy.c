/* The two passes of cross-entropy over the logits (SPEC.md section 12); reference: numerics/cross_entropy.py. */

#include "softmax.h"

/* x (rows, n) becomes exp(x - m); its maxima m and exact sums Z, (rows). */
int softmax_rows(float *x, int64_t rows, int64_t n, float *largest, float *total) {
    for (int64_t i = 0; i < rows; i++) {
        float *row = x + i * n;
        F8 most = all(-__builtin_inff());
        for (int64_t k = 0; k < n; k += 8)
            most = (F8)_mm256_max_ps((__m256)read8(row, k, n, -__builtin_inff()), (__m256)most);
        largest[i] = largest_of(most);
        total[i] = exponentials(row, n, largest[i]);
    }
    return 0;
}

/* x (rows, n) times a factor of each row; at the row's target, `scale` less. */
int scale_rows(float *x, int64_t rows, int64_t n, const float *factor, const int64_t *targets, float scale) {
    for (int64_t i = 0; i < rows; i++) {
        float *row = x + i * n;
        for (int64_t k = 0; k < n; k += 8) write8(row, k, n, read8(row, k, n, 0) * all(factor[i]));
        row[targets[i]] = row[targets[i]] - scale;
    }
    return 0;
}
