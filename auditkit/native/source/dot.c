/* Matrix products of int16 rows: how is in dot.h. */

#include "dot.h"

/* a (m, width) and b (n, width), as quantise.c makes them, with exponents (m) and (n) -> out (m, n), whose rows are
 * `stride` apart. width < 2^25. work: 3 (m + n + 8) doubles. */
int dot(const int16_t *a, const int32_t *ea, int64_t m, const int16_t *b, const int32_t *eb, int64_t n, int64_t width,
        float *out, int64_t stride, double *work) {
    Operand x = operand(a, ea, m, width, width, work);
    Operand y = operand(b, eb, n, width, width, work + 3 * (m + 4));
    for (int64_t top = 0; top < m; top += BLOCK)
        block(&x, top, top + BLOCK < m ? top + BLOCK : m, &y, 0, n, out, stride);
    return 0;
}
