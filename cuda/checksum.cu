// Four sums of each of many arrays, by which one that was in main memory is known again: has any bit of it changed?
//
//   table  as in tensor_table.cuh, elements are words of 64 bits, little-endian, the last one filled with zeros; field 0: addresses,
//          field 1: bytes
//   sums   u64 [n][4], 0 before: sums[j] of an array is the sum of word(i) * factor(i) modulo 2^64 over its words with i % 4 == j
//
// Factors are odd, so that one word that has changed changes its sum whatever the change is, and they look random, so that changes of
// several words do not cancel out. That is for cells that are broken and bits that flip, at the speed of memory; nobody who means
// harm has a say here. What leaves the process is hashed.
//
// Sums of integers: neither the launch shape nor the order of atomics changes a bit.
//
// Test: pytest tests/kernels/test_checksum.py
#include "tensor_table.cuh"

#define LANES 4

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
__device__ __forceinline__ void load_words(u64 (&x)[LANES], const u8* array, i64 i, i64 bytes) {
    const u8* p = array + 8 * i;
    if ((u64)p % 16 == 0 && 8 * (i + LANES) <= bytes) {
        ulonglong2 low = ((const ulonglong2*)p)[0], high = ((const ulonglong2*)p)[1];
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    } else {
        for (i32 j = 0; j < LANES; j++) x[j] = word_at(p + 8 * j, bytes - 8 * (i + j));
    }
}

GLOBAL void __launch_bounds__(256) checksum(const u64* table, i64 count, i64 tiles, u64* sums) {
    __shared__ u64 found[8][LANES];
    Tile at = tile_of(table, count, blockIdx.x);
    const u8* array = at.field<const u8>(0);
    i64 bytes = (i64)at.word(1);
    u64 sum[LANES] = {};
    for (i64 i = at.first + threadIdx.x * LANES; i < at.end; i += 256 * LANES) {
        u64 x[LANES];
        load_words(x, array, i, bytes);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) sum[lane] += x[lane] * factor(i + lane);
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
