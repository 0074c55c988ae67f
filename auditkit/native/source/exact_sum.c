/* Terms of an exact sum (SPEC.md section 4); reference: numerics/exact_sum.py. */

#include "vector.h"

/* Four binary64 below 2^51 in size as integers: added to 1.5 * 2^52 they are rounded, to nearest even, to its last bits. */
static inline __m256i small_integers(__m256d x) {
    const __m256d magic = _mm256_set1_pd(6755399441055744.0);
    return _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(x, magic)), _mm256_castpd_si256(magic));
}

static inline int below(F8 x, int32_t word) {
    __m256i large = _mm256_cmpgt_epi32((__m256i)absolute(x), _mm256_set1_epi32(word - 1));
    return _mm256_testz_si256(large, large);
}

/* rint(x * 2^unit) of n elements as int64; NOT_FINITE where one is 2^62 or more in size, infinite or NaN. */
int to_fixed(const float *x, int64_t n, int64_t unit, int64_t *out) {
    const double scale = power64(unit);
    const __m256d scales = _mm256_set1_pd(scale);
    const int32_t small = word_of((float)power64(51 - unit)), limit = word_of((float)power64(62 - unit));
    int64_t i = 0;
    for (; i < n; i += 8) {
        F8 eight = read8(x, i, n, 0);
        if (i + 8 <= n && below(eight, small)) {
            __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128((__m256)eight));
            __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)eight, 1));
            _mm256_storeu_si256((__m256i *)(out + i), small_integers(_mm256_mul_pd(low, scales)));
            _mm256_storeu_si256((__m256i *)(out + i + 4), small_integers(_mm256_mul_pd(high, scales)));
        } else {
            if (!below(eight, limit)) return NOT_FINITE;
            for (int64_t k = i; k < n && k < i + 8; k++) out[k] = _mm_cvtsd_si64(_mm_set_sd((double)x[k] * scale));
        }
    }
    return 0;
}

/* sums (4) += a high and a low part, each cut at 2^32: 2^31 of them do not wrap. */
static inline void add_halves(int64_t *sums, int64_t high, int64_t low) {
    sums[0] += high >> 32, sums[1] += high & 0xFFFFFFFF, sums[2] += low >> 32, sums[3] += low & 0xFFFFFFFF;
}

/* The squares of n elements, n < 2^31, numerics/global_norm.py: hi = rint(x * 2^30) and lo = rint((x * 2^30 - hi) *
 * 2^32) of x = g * g in binary32, the sums of both as (hi >> 32, hi mod 2^32, lo >> 32, lo mod 2^32). */
int squares(const float *g, int64_t n, int64_t *sums) {
    const __m256d unit = _mm256_set1_pd(power64(30)), rest = _mm256_set1_pd(power64(32));
    __m256i highs = _mm256_setzero_si256(), lows = highs;
    memset(sums, 0, 4 * sizeof *sums);
    for (int64_t i = 0; i < n; i += 8) {
        F8 eight = read8(g, i, n, 0), x = eight * eight;
        if (!below(x, word_of((float)power64(32)))) return NOT_FINITE;
        for (int part = 0; part < 2; part++) {
            __m128 four = part ? _mm256_extractf128_ps((__m256)x, 1) : _mm256_castps256_ps128((__m256)x);
            __m256d scaled = _mm256_mul_pd(_mm256_cvtps_pd(four), unit);
            __m256d high = _mm256_round_pd(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            __m256i low = small_integers(_mm256_mul_pd(_mm256_sub_pd(scaled, high), rest));
            if (below(x, word_of(1.0f))) {  /* high is at most 2^30, so 2^31 of them fit */
                highs = _mm256_add_epi64(highs, small_integers(high));
                lows = _mm256_add_epi64(lows, low);
            } else {
                double one[4];
                int64_t other[4];
                _mm256_storeu_pd(one, high);
                _mm256_storeu_si256((__m256i *)other, low);
                for (int k = 0; k < 4; k++) add_halves(sums, _mm_cvtsd_si64(_mm_set_sd(one[k])), other[k]);
            }
        }
    }
    for (int k = 0; k < 4; k++)
        add_halves(sums, ((int64_t __attribute__((vector_size(32))))highs)[k],
                   ((int64_t __attribute__((vector_size(32))))lows)[k]);
    return 0;
}
