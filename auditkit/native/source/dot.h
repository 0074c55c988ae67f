/* Exact dot products of int16 rows, fx14 (SPEC.md section 3); reference: numerics/exact_dot.py.
 *
 * Pairs of products are added in int32 lanes (one instruction, pmaddwd) and the lanes in the end: integers, so no order
 * and no tile size can change the sum. It is rounded once, to binary32, after an exact scaling in binary64.
 *
 * When may a lane be added up to the end? Whatever part of the products it holds, by Cauchy and Schwarz their sum is at
 * most sqrt(A B) in size, where A and B are the sums of squares of its elements in either row. So the largest lane's
 * sum of squares is found for every row, and that of the whole row; where the bound is not below 2^31 for a pair of
 * rows, lanes are emptied after 15 steps: |q| <= 2^13, so a pair of products is at most 2^27. */

#ifndef AUDITKIT_DOT_H
#define AUDITKIT_DOT_H

#include "common.h"

enum {
    BLOCK = 64,        /* rows of a that stay in the second cache */
    LONGEST = 1 << 22, /* elements of rows whose squares are added in binary32 */
};

/* Below 2^62 by more than a sum of 2^18 squares in binary32 can be wrong. */
static const double SAFE = 0.95 * 4611686018427387904.0;

/* Keeps a vector in its register: read again for every use, loads would be what limits the loop. */
#define KEEP(vector) __asm__("" : "+x"(vector))

static inline __m256i load(const int16_t *at) { return _mm256_loadu_si256((const __m256i *)at); }

static inline __m256i widen(__m256i lanes) {
    return _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(lanes)),
                            _mm256_cvtepi32_epi64(_mm256_extracti128_si256(lanes, 1)));
}

/* The four sums over the lanes of four accumulators, as int64. */
static inline __m256i lane_sums(const __m256i *sums) {
    __m256i a = widen(sums[0]), b = widen(sums[1]), c = widen(sums[2]), d = widen(sums[3]);
    __m256i ab = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    __m256i cd = _mm256_add_epi64(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    return _mm256_add_epi64(_mm256_permute2x128_si256(ab, cd, 0x20), _mm256_permute2x128_si256(ab, cd, 0x31));
}

/* The same where the sums, too, fit int32. */
static inline __m128i small_lane_sums(const __m256i *sums) {
    __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

/* s (2, 4) lanes += two rows of a with four rows of b, elements start .. stop - 1. */
static inline __attribute__((always_inline)) void add_products(const int16_t *a0, const int16_t *a1,
                                                               const int16_t *const b[4], int64_t start, int64_t stop,
                                                               __m256i s[8]) {
    const int16_t *r0 = b[0], *r1 = b[1], *r2 = b[2], *r3 = b[3];
    for (int64_t k = start; k < stop; k += LANES) {
        __m256i b0 = load(r0 + k), b1 = load(r1 + k), b2 = load(r2 + k), b3 = load(r3 + k);
        KEEP(b0);
        KEEP(b1);
        KEEP(b2);
        KEEP(b3);
        __m256i x = load(a0 + k);
        s[0] = _mm256_add_epi32(s[0], _mm256_madd_epi16(x, b0));
        s[1] = _mm256_add_epi32(s[1], _mm256_madd_epi16(x, b1));
        s[2] = _mm256_add_epi32(s[2], _mm256_madd_epi16(x, b2));
        s[3] = _mm256_add_epi32(s[3], _mm256_madd_epi16(x, b3));
        x = load(a1 + k);
        s[4] = _mm256_add_epi32(s[4], _mm256_madd_epi16(x, b0));
        s[5] = _mm256_add_epi32(s[5], _mm256_madd_epi16(x, b1));
        s[6] = _mm256_add_epi32(s[6], _mm256_madd_epi16(x, b2));
        s[7] = _mm256_add_epi32(s[7], _mm256_madd_epi16(x, b3));
    }
}

/* sums (2, 4) int64; lanes are emptied after `steps` steps. */
static inline __attribute__((always_inline)) void tile(const int16_t *a0, const int16_t *a1, const int16_t *const b[4],
                                                       int64_t width, int64_t steps, __m256i sums[2]) {
    sums[0] = sums[1] = _mm256_setzero_si256();
    for (int64_t start = 0; start < width; start += steps * LANES) {
        __m256i s[8];
        for (int i = 0; i < 8; i++) s[i] = _mm256_setzero_si256();
        add_products(a0, a1, b, start, start + steps * LANES < width ? start + steps * LANES : width, s);
        sums[0] = _mm256_add_epi64(sums[0], lane_sums(s));
        sums[1] = _mm256_add_epi64(sums[1], lane_sums(s + 4));
    }
}

/* int64 below 2^51 in size as binary64: added to the pattern of 1.5 * 2^52 they are its last bits. */
static inline __m256d to_doubles(__m256i sums) {
    const __m256i magic = _mm256_set1_epi64x(0x4338000000000000);
    return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_add_epi64(sums, magic)), _mm256_castsi256_pd(magic));
}

static inline void finish(__m256d exact, double scale, const double *scales, int count, float *out) {
    __m256d scaled = _mm256_mul_pd(_mm256_mul_pd(exact, _mm256_set1_pd(scale)), _mm256_loadu_pd(scales));
    __m128 rounded = _mm256_cvtpd_ps(scaled);
    if (count == 4) {
        _mm_storeu_ps(out, rounded);
    } else {
        float found[4];
        _mm_storeu_ps(found, rounded);
        for (int i = 0; i < count; i++) out[i] = found[i];
    }
}

/* Rows of integers, `stride` apart, and for each row its scale and two energies: the sum of squares of its largest lane
 * and of all of it. */
typedef struct {
    const int16_t *values;
    int64_t rows, width, stride;
    double *scales, *lane, *whole;
} Operand;

/* work: 3 (rows + 4) doubles; exponents: of the rows, NULL for 0 everywhere. */
static Operand operand(const int16_t *values, const int32_t *exponents, int64_t rows, int64_t width, int64_t stride,
                       double *work) {
    Operand found = {values, rows, width, stride, work, work + rows + 4, work + 2 * rows + 8};
    for (int64_t i = 0; i < rows; i++) {
        __m256 lanes = _mm256_setzero_ps();
        for (int64_t k = 0; k < width; k += LANES) {
            __m256i x = load(values + i * stride + k);
            lanes = _mm256_add_ps(lanes, _mm256_cvtepi32_ps(_mm256_madd_epi16(x, x)));
        }
        float squares[8];
        double largest = 0, total = 0;
        _mm256_storeu_ps(squares, lanes);
        for (int k = 0; k < 8; k++) largest = squares[k] > largest ? squares[k] : largest, total += squares[k];
        found.scales[i] = power64((exponents ? (int64_t)exponents[i] : 0) - (BITS - 1));
        found.lane[i] = largest, found.whole[i] = total;
    }
    for (int64_t i = rows; i < rows + 4; i++) found.scales[i] = found.lane[i] = found.whole[i] = 0;
    return found;
}

static inline double largest_energy(const double *four) {
    double x = four[0] > four[1] ? four[0] : four[1], y = four[2] > four[3] ? four[2] : four[3];
    return x > y ? x : y;
}

static inline double larger(const double *two) { return two[0] > two[1] ? two[0] : two[1]; }

/* The operand without its first elements and with fewer of them; lanes stay lanes where `first` is a multiple of LANES. */
static inline Operand part(const Operand *rows, int64_t first, int64_t width) {
    Operand found = *rows;
    found.values += first, found.width = width;
    return found;
}

/* Rows top .. stop - 1 of a with rows j .. j + 3 of b -> out[i * stride + j]. */
static void strip(const Operand *a, int64_t top, int64_t stop, const Operand *b, int64_t j, float *out,
                  int64_t stride) {
    const int64_t width = a->width;
    const int count = b->rows - j < 4 ? (int)(b->rows - j) : 4;
    const int16_t *y[4];
    for (int k = 0; k < 4; k++) y[k] = b->values + (j + (k < count ? k : 0)) * b->stride;
    const double lane = SAFE / (largest_energy(b->lane + j) + 1), whole = SAFE / (largest_energy(b->whole + j) + 1);
    for (int64_t i = top; i < stop; i += 2) {
        const int both = i + 1 < stop;
        const int16_t *x0 = a->values + i * a->stride, *x1 = both ? x0 + a->stride : x0;
        __m256d exact[2];
        if (larger(a->whole + i) < whole && width <= LONGEST) {
            __m256i s[8];
            for (int k = 0; k < 8; k++) s[k] = _mm256_setzero_si256();
            add_products(x0, x1, y, 0, width, s);
            exact[0] = _mm256_cvtepi32_pd(small_lane_sums(s));
            exact[1] = _mm256_cvtepi32_pd(small_lane_sums(s + 4));
        } else {
            __m256i sums[2];
            tile(x0, x1, y, width, larger(a->lane + i) < lane && width <= LONGEST ? width : 15, sums);
            exact[0] = to_doubles(sums[0]), exact[1] = to_doubles(sums[1]);
        }
        finish(exact[0], a->scales[i], b->scales + j, count, out + i * stride + j);
        if (both) finish(exact[1], a->scales[i + 1], b->scales + j, count, out + (i + 1) * stride + j);
    }
}

/* Rows top .. stop - 1 of a with rows first .. last - 1 of b. */
static void block(const Operand *a, int64_t top, int64_t stop, const Operand *b, int64_t first, int64_t last, float *out,
                  int64_t stride) {
    Operand cut = *b;
    cut.rows = last;
    for (int64_t j = first; j < last; j += 4) strip(a, top, stop, &cut, j, out, stride);
}

#endif
