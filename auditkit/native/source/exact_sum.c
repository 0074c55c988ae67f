/* Terms of an exact sum (SPEC.md section 4); reference: numerics/exact_sum.py. */

#include "vector.h"

/* rint(x * 2^unit) of n elements as int64; NOT_FINITE where one is 2^62 or more in size, infinite or NaN. */
int to_fixed(const float *x, int64_t n, int64_t unit, int64_t *out) {
    const double scale = power64(unit);
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t word = word_of(x[i]) & INT32_MAX;
        largest = word > largest ? word : largest;
        out[i] = _mm_cvtsd_si64(_mm_set_sd((double)x[i] * scale));
    }
    return largest < INFINITE && (double)float_of(largest) * scale < power64(62) ? 0 : NOT_FINITE;
}
