// Chunks, parents and the tree of BLAKE3 (the BLAKE3 paper, sections 2.1 to 2.5), for kernels of a thread a chunk.
#pragma once
#include "common.cuh"

#define CHUNK_BYTES 1024
#define BLOCK_BYTES 64
#define CHUNKS 128  // of a buffer that a block joins to one node

#define CHUNK_START 1u
#define CHUNK_END 2u
#define PARENT 4u
#define ROOT 8u
#define KEYED_HASH 16u

__device__ __forceinline__ u32 rotated(u32 x, u32 n) { return __funnelshift_r(x, x, n); }

__device__ __forceinline__ void mix(u32& a, u32& b, u32& c, u32& d, u32 x, u32 y) {
    a = a + b + x;
    d = rotated(d ^ a, 16);
    c = c + d;
    b = rotated(b ^ c, 12);
    a = a + b + y;
    d = rotated(d ^ a, 8);
    c = c + d;
    b = rotated(b ^ c, 7);
}

__device__ __forceinline__ void initial_vector(u32* cv) {
    const u32 iv[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
#pragma unroll
    for (i32 i = 0; i < 8; i++) cv[i] = iv[i];
}

// What every chunk and parent begins from, and the flag of the mode. The two modes are types, so that each kernel is compiled for one.
struct Plain {
    static constexpr u32 flag = 0;
    __device__ __forceinline__ void first_value(u32* cv) const { initial_vector(cv); }
};

struct Keyed {
    static constexpr u32 flag = KEYED_HASH;
    const u32* __restrict__ key;  // (8), the key's 32 bytes as little-endian words
    __device__ __forceinline__ void first_value(u32* cv) const {
#pragma unroll
        for (i32 i = 0; i < 8; i++) cv[i] = __ldg(key + i);
    }
};

// cv (8) <- the compression of m (16) under cv. m is permuted on the way, at compile time: all indices are constants.
__device__ __forceinline__ void compress(u32* cv, u32* m, u64 counter, u32 bytes, u32 flags) {
    u32 v[16];
    initial_vector(v + 8);
#pragma unroll
    for (i32 i = 0; i < 8; i++) v[i] = cv[i];
    v[12] = (u32)counter;
    v[13] = (u32)(counter >> 32);
    v[14] = bytes;
    v[15] = flags;
#pragma unroll
    for (i32 round = 0; round < 7; round++) {
        mix(v[0], v[4], v[8], v[12], m[0], m[1]);
        mix(v[1], v[5], v[9], v[13], m[2], m[3]);
        mix(v[2], v[6], v[10], v[14], m[4], m[5]);
        mix(v[3], v[7], v[11], v[15], m[6], m[7]);
        mix(v[0], v[5], v[10], v[15], m[8], m[9]);
        mix(v[1], v[6], v[11], v[12], m[10], m[11]);
        mix(v[2], v[7], v[8], v[13], m[12], m[13]);
        mix(v[3], v[4], v[9], v[14], m[14], m[15]);
        const i32 from[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
        u32 next[16];
#pragma unroll
        for (i32 i = 0; i < 16; i++) next[i] = m[from[i]];
#pragma unroll
        for (i32 i = 0; i < 16; i++) m[i] = next[i];
    }
#pragma unroll
    for (i32 i = 0; i < 8; i++) cv[i] = v[i] ^ v[i + 8];
}

// The buffer whose blocks this one is among: the last i with first[i] <= block.
__device__ __forceinline__ i64 buffer_of(const u64* first, i64 n, u64 block) {
    i64 low = 0, high = n;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (first[middle] <= block) low = middle;
        else high = middle;
    }
    return low;
}

// Joins nodes[.][0..count) to nodes[.][0]; count <= 2 * blockDim.x. With is_last the final joint is the root of the buffer.
// Node j's word w lies at nodes[w * stride + j], so that neighbouring threads use neighbouring banks.
template <class Mode>
__device__ __forceinline__ void join(const Mode& mode, u32* nodes, u32 stride, u32 count, bool is_last) {
    while (count > 1) {
        u32 pairs = count / 2, next = count - pairs, t = threadIdx.x;
        u32 m[16], cv[8];
        if (t < pairs) {
#pragma unroll
            for (i32 w = 0; w < 8; w++) {
                m[w] = nodes[w * stride + 2 * t];
                m[8 + w] = nodes[w * stride + 2 * t + 1];
            }
            mode.first_value(cv);
            compress(cv, m, 0, BLOCK_BYTES, Mode::flag | PARENT | (is_last && next == 1 ? ROOT : 0));
        } else if (t < next) {
#pragma unroll
            for (i32 w = 0; w < 8; w++) cv[w] = nodes[w * stride + 2 * t];
        }
        __syncthreads();
        if (t < next) {
#pragma unroll
            for (i32 w = 0; w < 8; w++) nodes[w * stride + t] = cv[w];
        }
        __syncthreads();
        count = next;
    }
}
