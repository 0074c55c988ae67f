/* RMSNorm of rows, forward and backward (SPEC.md section 7); reference: numerics/rms_norm.py. */

#include "vector.h"

/* The ordered sum of SPEC.md section 5: buffer holds n terms and zeros up to a power of two, `size`. */
static inline float row_sum(float *buffer, int64_t size) {
    while (size > 1) {
        size /= 2;
        if (size >= 8) {
            for (int64_t k = 0; k < size; k += 8)
                write8(buffer, k, size, read8(buffer, k, size, 0) + read8(buffer + size, k, size, 0));
        } else {
            for (int64_t k = 0; k < size; k++) buffer[k] = buffer[k] + buffer[k + size];
        }
    }
    return buffer[0];
}

static int64_t power_from(int64_t n) {
    int64_t size = 1;
    while (size < n) size *= 2;
    return size;
}

static void clear(float *buffer, int64_t from, int64_t to) {
    for (int64_t k = from; k < to; k++) buffer[k] = 0;
}

/* x (rows, n), weight (n) -> y and xhat (rows, n), rstd (rows). buffer: the next power of two of n, and 8. */
int rms_norm_forward(const float *x, const float *weight, int64_t rows, int64_t n, float eps, float *y, float *xhat,
                     float *rstd, float *buffer) {
    const int64_t size = power_from(n);
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * n;
        for (int64_t k = 0; k < n; k += 8) {
            F8 v = read8(row, k, n, 0);
            write8(buffer, k, n, v * v);
        }
        clear(buffer, n, size);
        float mean = row_sum(buffer, size) / (float)n;
        rstd[i] = 1.0f / __builtin_sqrtf(mean + eps);
        for (int64_t k = 0; k < n; k += 8) {
            F8 v = read8(row, k, n, 0) * all(rstd[i]);
            write8(xhat + i * n, k, n, v);
            write8(y + i * n, k, n, v * read8(weight, k, n, 0));
        }
    }
    return 0;
}

/* dweight += rint(dy * xhat * 2^56); returns the largest |dy * xhat| as a pattern. */
static int32_t add_weight_terms(const float *dy, const float *xhat, int64_t n, int64_t *dweight, int32_t largest) {
    for (int64_t k = 0; k < n; k++) {
        float term = dy[k] * xhat[k];
        int32_t word = word_of(term) & INT32_MAX;
        largest = word > largest ? word : largest;
        dweight[k] = (int64_t)((uint64_t)dweight[k] + (uint64_t)_mm_cvtsd_si64(_mm_set_sd((double)term * power64(56))));
    }
    return largest;
}

/* dy (rows, n) -> dx (rows, n) and dweight (n) int64, units 2^-56. NOT_TAME where terms may add up to 2^62. */
int rms_norm_backward(const float *dy, const float *weight, const float *xhat, const float *rstd, int64_t rows,
                      int64_t n, float *dx, int64_t *dweight, float *buffer) {
    const int64_t size = power_from(n);
    int32_t largest = 0;
    memset(dweight, 0, (size_t)n * sizeof *dweight);
    for (int64_t i = 0; i < rows; i++) {
        const float *d = dy + i * n, *h = xhat + i * n;
        float *out = dx + i * n;
        largest = add_weight_terms(d, h, n, dweight, largest);
        for (int64_t k = 0; k < n; k += 8) {
            F8 g = read8(d, k, n, 0) * read8(weight, k, n, 0);
            write8(out, k, n, g);
            write8(buffer, k, n, g * read8(h, k, n, 0));
        }
        clear(buffer, n, size);
        float mean = row_sum(buffer, size) / (float)n;
        for (int64_t k = 0; k < n; k += 8)
            write8(out, k, n, (read8(out, k, n, 0) - read8(h, k, n, 0) * all(mean)) * all(rstd[i]));
    }
    /* written so that a NaN is not tame */
    return (double)float_of(largest) * (double)rows < 32.0 ? 0 : NOT_TAME;
}
