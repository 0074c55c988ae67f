// Four sums of each of many arrays, by which one that was in main memory is known again: has any bit of it changed?
//
//   table  as in tensor_table.cuh, elements are words of 64 bits, little-endian, the last one filled with zeros; field 0: addresses,
//          field 1: bytes
//   sums   u64 [n][4], 0 before: of an array's words i with i % 2 == j, sums[j] of word(i) * factor(i / 2) and sums[2 + j] of the word
//          with its bits in reverse order times other(i / 2), modulo 2^64
//
// Factors are odd and look random. So one word that has changed changes its sums, whatever the change is, since an odd number has an
// inverse. Of several words that change, let one's lowest bit that does be L and its highest H: with all others as they are, at most
// one in 2^(63 - L) of its factors hides it from the first sum, one in 2^H from the second, and one in 2^63 or less from both. That is
// for cells that are broken and bits that flip, at the speed of memory; nobody who means harm has a say here. What leaves the process
// is hashed.
//
// Sums of integers: neither the launch shape nor the order of atomics changes a bit.
//
// Test: pytest tests/kernels/test_checksum.py
#include "tensor_table.cuh"

#define WORDS 4  // of a thread at a time
#define ROUNDS (TILE / (256 * WORDS))

// As auditkit/kernels/checksum.py: the multiply-xorshift finalizer of a counter, made odd; and another step of it.
struct Factors {
    u64 first, second;
};
__device__ __forceinline__ Factors factors_of(u64 place) {
    u64 z = place * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
    z ^= z >> 32;
    u64 more = z * 0xd6e8feb86659fd93ull;
    return Factors{z | 1, (more ^ more >> 32) | 1};
}

__device__ __forceinline__ u64 reversed(u64 x) { return (u64)__brev((u32)x) << 32 | __brev((u32)(x >> 32)); }

// Up to eight bytes at p; nothing beyond `bytes` is read.
__device__ __forceinline__ u64 word_at(const u8* p, i64 bytes) {
    u64 word = 0;
    for (i32 i = 0; i < 8; i++)
        if (i < bytes) word |= (u64)p[i] << 8 * i;
    return word;
}

// Words i .. i + 3 of an array; 0 beyond its end.
__device__ __forceinline__ void some_words(u64 (&x)[WORDS], const u8* array, i64 i, i64 bytes) {
    for (i32 j = 0; j < WORDS; j++) x[j] = word_at(array + 8 * (i + j), bytes - 8 * (i + j));
}

__device__ __forceinline__ void add_words(u64 (&sum)[4], const u64 (&x)[WORDS], i64 i) {
#pragma unroll
    for (int pair = 0; pair < WORDS / 2; pair++) {
        Factors by = factors_of(i / 2 + pair);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            sum[j] += x[2 * pair + j] * by.first;
            sum[2 + j] += reversed(x[2 * pair + j]) * by.second;
        }
    }
}

// A whole tile at an address of 16 bytes: all of a thread's words are under way together.
__device__ __forceinline__ void add_tile(u64 (&sum)[4], const u8* array, i64 first) {
    const ulonglong2* words = (const ulonglong2*)(array + 8 * first) + threadIdx.x * 2;
    u64 x[ROUNDS][WORDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        ulonglong2 low = words[512 * round], high = words[512 * round + 1];
        x[round][0] = low.x, x[round][1] = low.y, x[round][2] = high.x, x[round][3] = high.y;
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) add_words(sum, x[round], first + (256 * round + threadIdx.x) * WORDS);
}

GLOBAL void __launch_bounds__(256) checksum(const u64* table, i64 count, i64 tiles, u64* sums) {
    __shared__ u64 found[8][4];
    Tile at = tile_of(table, count, blockIdx.x);
    const u8* array = at.field<const u8>(0);
    i64 bytes = (i64)at.word(1);
    u64 sum[4] = {};
    if ((u64)array % 16 == 0 && 8 * (at.first + TILE) <= bytes)
        add_tile(sum, array, at.first);
    else
        for (i64 i = at.first + threadIdx.x * WORDS; i < at.end; i += 256 * WORDS) {
            u64 x[WORDS];
            some_words(x, array, i, bytes);
            add_words(sum, x, i);
        }
#pragma unroll
    for (int lane = 0; lane < 4; lane++) {
        for (int offset = 16; offset > 0; offset >>= 1) sum[lane] += __shfl_xor_sync(0xffffffffu, sum[lane], offset);
        if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5][lane] = sum[lane];
    }
    __syncthreads();
    if (threadIdx.x < 4) {
        u64 total = 0;
#pragma unroll
        for (int warp = 0; warp < 8; warp++) total += found[warp][threadIdx.x];
        atomicAdd(sums + 4 * at.tensor + threadIdx.x, total);
    }
}
