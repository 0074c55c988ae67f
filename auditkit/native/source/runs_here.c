/* Whether this processor has what the others were compiled for. This file is of the oldest instructions alone. */

#include <stdint.h>

__attribute__((target("no-avx"))) int runs_here(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}
