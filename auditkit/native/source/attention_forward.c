/* Attention, forward (SPEC.md section 8); reference: numerics/attention.py.
 *
 * One group after the other, 64 queries at a time with the keys that any of them sees: scores stay in the cache. */

#include "attention.h"

enum { QUERIES = 64 };

/* Scores of a row -> its maximum, its sum, and the weights of keys first .. stop - 1 as integers from column `base` on. */
static int row_weights(float *s, int64_t first, int64_t stop, float scale, const int32_t *exponents, int32_t bound,
                       float *row_max, float *row_sum, int16_t *weights, int64_t base, int64_t width) {
    F8 most = all(-__builtin_inff());
    for (int64_t j = first; j < stop; j += 8) {
        write8(s, j, stop, read8(s, j, stop, 0) * all(scale));
        most = (F8)_mm256_max_ps((__m256)read8(s, j, stop, -__builtin_inff()), (__m256)most);
    }
    *row_max = largest_of(most);
    if ((word_of(*row_max) & INT32_MAX) >= INFINITE) return NOT_FINITE;
    *row_sum = exponentials(s + first, stop - first, *row_max);
    memset(weights, 0, (size_t)width * sizeof *weights);
    for (int64_t j = first; j < stop; j += 8) {
        __m128i q = round_weights(read8(s, j, stop, 0), words8(exponents, j, stop), all_words(bound));
        int16_t lanes[8];
        _mm_storeu_si128((__m128i *)lanes, q);
        memcpy(weights + j - base, lanes, (size_t)least(8, stop - j) * sizeof *lanes);
    }
    return 0;
}

/* One group: q (tokens * heads, depth), k and v (tokens, depth) integers, their exponents, the bound of each token ->
 * out (tokens * heads, dim), row_max and row_sum (tokens * heads). work: see attention_forward. */
static int group(const int16_t *q, const int32_t *eq, const int16_t *k, const int32_t *ek, const int16_t *v,
                 const int32_t *ev, const int32_t *bound, int64_t tokens, int64_t heads, int64_t dim, int64_t window,
                 float scale, float *out, float *row_max, float *row_sum, double *work) {
    const int64_t rows = tokens * heads, depth = padded(dim), length = padded(tokens);
    double *of_k = work + 3 * (rows + 4), *of_v = of_k + 3 * (tokens + 4), *of_w = of_v + 3 * (depth + 4);
    float *s = (float *)(of_w + 3 * (QUERIES + 4));
    int16_t *turned = (int16_t *)(s + QUERIES * length), *weights = turned + depth * length;
    int32_t bounds[QUERIES];
    turn_rows(v, tokens, depth, dim, turned);
    const Operand queries = operand(q, eq, rows, depth, depth, work), keys = operand(k, ek, tokens, depth, depth, of_k);
    const Operand values = operand(turned, 0, dim, length, length, of_v);
    for (int64_t top = 0; top < rows; top += QUERIES) {
        const int64_t stop = least(rows, top + QUERIES), last = (stop - 1) / heads + 1;
        const int64_t base = first_key(top / heads, window) / LANES * LANES, width = padded(last - base);
        block(&queries, top, stop, &keys, base, last, s - top * length, length);
        for (int64_t i = top; i < stop; i++) {
            const int64_t token = i / heads;
            bounds[i - top] = bound[token];
            if (row_weights(s + (i - top) * length, first_key(token, window), token + 1, scale, ev, bound[token],
                            row_max + i, row_sum + i, weights + (i - top) * width, base, width))
                return NOT_FINITE;
        }
        const Operand rounded = operand(weights, bounds, stop - top, width, width, of_w);
        const Operand seen = part(&values, base, width);
        block(&rounded, 0, stop - top, &seen, 0, dim, out + top * dim, dim);
        for (int64_t i = top; i < stop; i++)
            for (int64_t d = 0; d < dim; d += 8)
                write8(out + i * dim, d, dim, read8(out + i * dim, d, dim, 0) / all(row_sum[i]));
    }
    return 0;
}

/* `groups` groups of `group`. work: 3 (rows + tokens + depth + 80) doubles and, in bytes, 256 length + 2 depth length +
 * 128 length, with rows = tokens * heads, depth = padded(dim), length = padded(tokens). */
int attention_forward(const int16_t *q, const int32_t *eq, const int16_t *k, const int32_t *ek, const int16_t *v,
                      const int32_t *ev, const int32_t *bound, int64_t groups, int64_t tokens, int64_t heads,
                      int64_t dim, int64_t window, float scale, float *out, float *row_max, float *row_sum,
                      double *work) {
    const int64_t rows = tokens * heads, depth = padded(dim);
    for (int64_t g = 0; g < groups; g++)
        if (group(q + g * rows * depth, eq + g * rows, k + g * tokens * depth, ek + g * tokens,
                  v + g * tokens * depth, ev + g * tokens, bound + g * tokens, tokens, heads, dim, window, scale,
                  out + g * rows * dim, row_max + g * rows, row_sum + g * rows, work))
            return NOT_FINITE;
    return 0;
}
