/* Whether this processor has what the others were compiled for, and this thread computes as IEEE 754 says. This file is of the oldest
 * instructions alone. */

#include <stdint.h>

__attribute__((target("no-avx"))) int runs_here(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}

/* MXCSR: no flush-to-zero (bit 15), rounding to the nearest even number (bits 13 and 14), no denormals-are-zero (bit 6). */
__attribute__((target("no-avx"))) int is_ieee(void) { return (__builtin_ia32_stmxcsr() & 0xe040) == 0; }
