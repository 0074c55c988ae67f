/* SwiGLU, forward and backward (SPEC.md section 10); reference: numerics/swiglu.py. All arrays have n elements. */

#include "vector.h"

int swiglu_forward(const float *gate, const float *up, int64_t n, float *y, float *sigmoid) {
    const F8 one = all(1.0f), zero = all(0.0f);
    for (int64_t i = 0; i < n; i += 8) {
        F8 a = read8(gate, i, n, 0), t = exp8((F8)((I8)absolute(a) | all_words(INT32_MIN)));
        F8 s = choose(a >= zero, one, t) / (t + one);  /* t <= 1 */
        write8(sigmoid, i, n, s);
        write8(y, i, n, (a * s) * read8(up, i, n, 0));
    }
    return 0;
}

int swiglu_backward(const float *dy, const float *gate, const float *up, const float *sigmoid, int64_t n, float *dgate,
                    float *dup) {
    const F8 one = all(1.0f);
    for (int64_t i = 0; i < n; i += 8) {
        F8 d = read8(dy, i, n, 0), a = read8(gate, i, n, 0), s = read8(sigmoid, i, n, 0);
        F8 slope = ((one - s) * a + one) * s;
        write8(dup, i, n, (a * s) * d);
        write8(dgate, i, n, (d * read8(up, i, n, 0)) * slope);
    }
    return 0;
}
