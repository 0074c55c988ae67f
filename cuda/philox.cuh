// Philox4x32-10 (SPEC.md section 6.6): random words as a pure function of (seed, stream, block).
#pragma once
#include "common.cuh"

struct Words {
    u32 w[4];
};

__device__ __forceinline__ Words philox4x32(u64 seed, u64 stream, u64 block) {
    u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)stream, c3 = (u32)(stream >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 first = (u64)c0 * 0xd2511f53u, second = (u64)c2 * 0xcd9e8d57u;
        c0 = (u32)(second >> 32) ^ c1 ^ k0;
        c1 = (u32)second;
        c2 = (u32)(first >> 32) ^ c3 ^ k1;
        c3 = (u32)first;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return Words{{c0, c1, c2, c3}};
}
