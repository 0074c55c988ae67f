/* Attention, backward (SPEC.md section 8); reference: numerics/attention.py.
 *
 * Two passes over a group, for the bounds of dK are maxima over all queries: the first makes the weights e and the
 * gradients dS of all pairs and, row by row, dQ; the second takes 64 keys at a time with the queries that see them. */

#include "attention.h"

enum { SPAN = 64 };

/* What both passes know of a group; pairs are (rows, length) binary32, +0 where a query does not see a key. */
typedef struct {
    int64_t tokens, heads, dim, window, rows, depth, length;
    float scale;
    const int32_t *q_exponents, *k_exponents, *z_exponents, *z_bound;
    const float *row_max, *row_sum, *inner;
    float *e, *ds;
    int32_t *k_bound; /* (length) of dK */
} Group;

/* From scores and dP of a row to e and dS, in place; returns NOT_FINITE where one is not. */
static int row_gradient(const Group *g, int64_t i, float *e, float *ds, int32_t *exponent) {
    const int64_t token = i / g->heads, first = first_key(token, g->window), stop = token + 1;
    I8 most = all_words(NO_PRODUCT), sizes = all_words(0);
    const I8 own = all_words(g->q_exponents[i]);
    for (int64_t j = first; j < stop; j += 8) {
        F8 weight = exp8(read8(e, j, stop, 0) * all(g->scale) - all(g->row_max[i]));
        F8 slope = ((read8(ds, j, stop, 0) - all(g->inner[i])) * (weight / all(g->row_sum[i]))) * all(g->scale);
        if (j + 8 > stop)  /* no pairs */
            for (int64_t n = stop; n < j + 8; n++) weight[n - j] = 0, slope[n - j] = 0;
        write8(e, j, stop, weight);
        write8(ds, j, stop, slope);
        sizes |= (I8)absolute(slope);
        I8 found = product_exponents(slope, words8(g->k_exponents, j, stop));
        most = (I8)_mm256_max_epi32((__m256i)most, (__m256i)found);
        I8 of_keys = product_exponents(slope, own), kept = words8(g->k_bound, j, stop);
        write8((float *)g->k_bound, j, stop, (F8)_mm256_max_epi32((__m256i)kept, (__m256i)of_keys));
    }
    memset(e, 0, (size_t)first * sizeof *e), memset(ds, 0, (size_t)first * sizeof *ds);
    memset(e + stop, 0, (size_t)(g->length - stop) * sizeof *e);
    memset(ds + stop, 0, (size_t)(g->length - stop) * sizeof *ds);
    *exponent = largest_of_words(most);
    if (*exponent == NO_PRODUCT) *exponent = 0;
    for (int n = 0; n < 8; n++)  /* the words were joined, so this may see too large an exponent: then each is looked at */
        if (sizes[n] >= INFINITE)
            for (int64_t j = first; j < stop; j++)
                if ((word_of(ds[j]) & INT32_MAX) >= INFINITE) return NOT_FINITE;
    return 0;
}

/* dQ of all queries, e and dS of all pairs, k_bound. */
static int over_keys(Group *g, const Operand *q, const Operand *k, const Operand *v, const Operand *gradient,
                     const Operand *k_columns, float *dq, int16_t *weights, double *work) {
    int32_t exponents[SPAN];
    for (int64_t j = 0; j < g->length; j++) g->k_bound[j] = NO_PRODUCT;
    for (int64_t top = 0; top < g->rows; top += SPAN) {
        const int64_t stop = least(g->rows, top + SPAN), last = (stop - 1) / g->heads + 1;
        const int64_t base = first_key(top / g->heads, g->window) / LANES * LANES, width = padded(last - base);
        block(q, top, stop, k, base, last, g->e, g->length);
        block(gradient, top, stop, v, base, last, g->ds, g->length);
        for (int64_t i = top; i < stop; i++) {
            float *ds = g->ds + i * g->length;
            if (row_gradient(g, i, g->e + i * g->length, ds, exponents + i - top)) return NOT_FINITE;
            const I8 bound = all_words(exponents[i - top]);
            for (int64_t j = base; j < base + width; j += 8)
                _mm_storeu_si128((__m128i *)(weights + (i - top) * width + j - base),
                                 round_weights(read8(ds, j, g->length, 0), words8(g->k_exponents, j, g->tokens), bound));
        }
        const Operand rounded = operand(weights, exponents, stop - top, width, width, work);
        const Operand seen = part(k_columns, base, width);
        block(&rounded, 0, stop - top, &seen, 0, g->dim, dq + top * g->dim, g->dim);
    }
    for (int64_t j = 0; j < g->length; j++)
        if (g->k_bound[j] == NO_PRODUCT) g->k_bound[j] = 0;
    return 0;
}

/* Eight queries by eight keys of pairs as integer weights, turned: keys are the rows. */
static inline void turn_weights(const float *pairs, int64_t length, const int32_t *exponents, int64_t count, I8 bound,
                                int16_t *out, int64_t width) {
    __m128i q[8];
    for (int i = 0; i < 8; i++)
        q[i] = i < count ? round_weights((F8)_mm256_loadu_ps(pairs + i * length), all_words(exponents[i]), bound)
                         : _mm_setzero_si128();
    turn(q);
    for (int i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)(out + i * width), q[i]);
}

/* The weighted sums of `columns` (dim, rows) for each key, weights from `pairs` -> out (tokens, dim). */
static void over_queries(const Group *g, const float *pairs, const int32_t *exponents, const int32_t *bound,
                         const Operand *columns, float *out, int16_t *weights, double *work) {
    for (int64_t key = 0; key < g->tokens; key += SPAN) {
        const int64_t end = least(g->tokens, key + SPAN), after = g->window ? end - 1 + g->window : g->tokens;
        const int64_t base = key * g->heads / LANES * LANES, last = least(g->tokens, after) * g->heads;
        const int64_t width = padded(last - base);
        for (int64_t i = base; i < base + width; i += 8)
            for (int64_t j = key; j < padded(end); j += 8)
                turn_weights(pairs + i * g->length + j, g->length, exponents + i, last - i, words8(bound, j, g->length),
                             weights + (j - key) * width + i - base, width);
        const Operand rounded = operand(weights, bound + key, end - key, width, width, work);
        const Operand seen = part(columns, base, width);
        block(&rounded, 0, end - key, &seen, 0, g->dim, out + key * g->dim, g->dim);
    }
}

/* Gradients of groups: integers and exponents of q (tokens * heads rows), k, v (tokens rows), of the output's gradient
 * and of that divided by row_sum; z_bound (tokens) of dV -> dq, dk, dv.
 *
 * work, with rows = tokens * heads, depth = padded(dim), length = padded(tokens), high = padded(rows): 3 (2 rows +
 * 2 tokens + 3 depth + 128) doubles; 2 rows length floats; length int32; depth (length + 2 high) + 64 (length + high)
 * int16. */
int attention_backward(const int16_t *q, const int32_t *eq, const int16_t *k, const int32_t *ek, const int16_t *v,
                       const int32_t *ev, const int16_t *gradient, const int32_t *eg, const int16_t *z,
                       const int32_t *ez, const int32_t *z_bound, const float *row_max, const float *row_sum,
                       const float *inner, int64_t groups, int64_t tokens, int64_t heads, int64_t dim, int64_t window,
                       float scale, float *dq, float *dk, float *dv, double *work, float *pairs, int16_t *integers,
                       int32_t *k_bound, int32_t *bounds) {
    const int64_t rows = tokens * heads, depth = padded(dim), length = padded(tokens), high = padded(rows);
    double *of_k = work + 3 * (rows + 4), *of_v = of_k + 3 * (tokens + 4), *of_g = of_v + 3 * (tokens + 4);
    double *of_kt = of_g + 3 * (rows + 4), *of_qt = of_kt + 3 * (depth + 4), *of_zt = of_qt + 3 * (depth + 4);
    double *of_w = of_zt + 3 * (depth + 4);
    int16_t *kt = integers, *qt = kt + depth * length, *zt = qt + depth * high, *weights = zt + depth * high;
    for (int64_t n = 0; n < groups; n++) {
        const int64_t a = n * rows, b = n * tokens;
        memcpy(bounds, z_bound + b, (size_t)tokens * sizeof *bounds);
        Group g = {tokens, heads, dim, window, rows, depth, length, scale, eq + a, ek + b, ez + a, bounds,
                   row_max + a, row_sum + a, inner + a, pairs, pairs + rows * length, k_bound};
        turn_rows(k + b * depth, tokens, depth, dim, kt);
        turn_rows(q + a * depth, rows, depth, dim, qt);
        turn_rows(z + a * depth, rows, depth, dim, zt);
        const Operand x = operand(q + a * depth, eq + a, rows, depth, depth, work);
        const Operand y = operand(k + b * depth, ek + b, tokens, depth, depth, of_k);
        const Operand u = operand(v + b * depth, ev + b, tokens, depth, depth, of_v);
        const Operand d = operand(gradient + a * depth, eg + a, rows, depth, depth, of_g);
        const Operand yt = operand(kt, 0, dim, length, length, of_kt);
        const Operand xt = operand(qt, 0, dim, high, high, of_qt), wt = operand(zt, 0, dim, high, high, of_zt);
        if (over_keys(&g, &x, &y, &u, &d, &yt, dq + a * dim, weights, of_w)) return NOT_FINITE;
        over_queries(&g, g.ds, g.q_exponents, k_bound, &xt, dk + b * dim, weights, of_w);
        over_queries(&g, g.e, g.z_exponents, bounds, &wt, dv + b * dim, weights, of_w);
    }
    return 0;
}
