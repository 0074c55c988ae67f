// Random words of blocks start .. start + count - 1 (SPEC.md section 6.6): words u32 [count][4]. A block of words is computed
// alone, by any thread.
//
// Test: pytest tests/kernels/test_philox.py
#include "philox.cuh"

GLOBAL void philox(u32* words, u64 seed, u64 stream, u64 start, i64 count) {
    for (i64 i = global_index(); i < count; i += global_size()) {
        Words made = philox4x32(seed, stream, start + (u64)i);
#pragma unroll
        for (int c = 0; c < 4; c++) words[i * 4 + c] = made.w[c];
    }
}
