// Four sums of each of many arrays, by which one that was in main memory is known again: has any bit of it changed?
//
//   table  as in tensor_table.cuh, elements are words of 64 bits, little-endian, the last one filled with zeros; field 0: addresses,
//          field 1: bytes
//   sums   u64 [n][4], 0 before: sums[j] of an array is the sum of (w ^ w >> 29) * factor(i) modulo 2^64 over its words w with i % 4 == j
//
// Before it is multiplied, a word has its upper bits added without carry, 29 places lower: the highest bit times any odd factor is the
// highest bit again, and two of them would always cancel out. (By 32 places, that would be true of the two signs of a pair of binary32.)
// Factors are odd, so that one word that has changed changes its sum
// whatever the change is, and look random, so that changes of several words do not cancel out but for one in 2^32 or less. That is
// for cells that are broken and bits that flip, at the speed of memory; nobody who means harm has a say here. What leaves the process
// is hashed.
//
// Sums of integers: neither the launch shape nor the order of atomics changes a bit.
//
// Test: pytest tests/kernels/test_checksum.py
#include "tensor_table.cuh"

#define LANES 4
#define ROUNDS (TILE / (256 * LANES))

// As auditkit/kernels/checksum.py: the multiply-xorshift finalizer of a counter, made odd.
__device__ __forceinline__ u64 factor(u64 place) {
    u64 z = place * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
    return (z ^ z >> 32) | 1;
}

// Up to eight bytes at p; nothing beyond `bytes` is read.
__device__ __forceinline__ u64 word_at(const u8* p, i64 bytes) {
    u64 word = 0;
    for (i32 i = 0; i < 8; i++)
        if (i < bytes) word |= (u64)p[i] << 8 * i;
    return word;
}

// Words i .. i + 3 of an array; 0 beyond its end.
__device__ __forceinline__ void some_words(u64 (&x)[LANES], const u8* array, i64 i, i64 bytes) {
    for (i32 j = 0; j < LANES; j++) x[j] = word_at(array + 8 * (i + j), bytes - 8 * (i + j));
}

__device__ __forceinline__ void add_words(u64 (&sum)[LANES], const u64 (&x)[LANES], i64 i) {
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) sum[lane] += (x[lane] ^ x[lane] >> 29) * factor(i + lane);
}

// A whole tile at an address of 16 bytes: all of a thread's words are under way together.
__device__ __forceinline__ void add_tile(u64 (&sum)[LANES], const u8* array, i64 first) {
    const ulonglong2* words = (const ulonglong2*)(array + 8 * first) + threadIdx.x * 2;
    u64 x[ROUNDS][LANES];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        ulonglong2 low = words[512 * round], high = words[512 * round + 1];
        x[round][0] = low.x, x[round][1] = low.y, x[round][2] = high.x, x[round][3] = high.y;
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) add_words(sum, x[round], first + (256 * round + threadIdx.x) * LANES);
}

GLOBAL void __launch_bounds__(256) checksum(const u64* table, i64 count, i64 tiles, u64* sums) {
    __shared__ u64 found[8][LANES];
    Tile at = tile_of(table, count, blockIdx.x);
    const u8* array = at.field<const u8>(0);
    i64 bytes = (i64)at.word(1);
    u64 sum[LANES] = {};
    if ((u64)array % 16 == 0 && 8 * (at.first + TILE) <= bytes)
        add_tile(sum, array, at.first);
    else
        for (i64 i = at.first + threadIdx.x * LANES; i < at.end; i += 256 * LANES) {
            u64 x[LANES];
            some_words(x, array, i, bytes);
            add_words(sum, x, i);
        }
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) {
        for (int offset = 16; offset > 0; offset >>= 1) sum[lane] += __shfl_xor_sync(0xffffffffu, sum[lane], offset);
        if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5][lane] = sum[lane];
    }
    __syncthreads();
    if (threadIdx.x < LANES) {
        u64 total = 0;
#pragma unroll
        for (int warp = 0; warp < 8; warp++) total += found[warp][threadIdx.x];
        atomicAdd(sums + LANES * at.tensor + threadIdx.x, total);
    }
}
