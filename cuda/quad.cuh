// Four neighbouring elements at a time: one 16-byte access where address and length allow it, single ones where not.
#pragma once
#include "common.cuh"

struct Quad {
    float v[4];
};

__device__ __forceinline__ bool is_quad(const void* address) { return ((u64)address & 15) == 0; }

// Elements x[0..3]; x is 16-byte aligned.
__device__ __forceinline__ Quad load_quad(const float* x) {
    float4 f = *(const float4*)x;
    return Quad{{f.x, f.y, f.z, f.w}};
}

__device__ __forceinline__ void store_quad(float* x, const Quad& q) {
    *(float4*)x = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}

// Elements x[at .. at+3] of those below `end`; 0 beyond.
__device__ __forceinline__ Quad load_quad(const float* x, i64 at, i64 end) {
    if (at + 4 <= end && is_quad(x + at)) return load_quad(x + at);
    Quad q = {};
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (at + c < end) q.v[c] = x[at + c];
    return q;
}

__device__ __forceinline__ void store_quad(float* x, i64 at, i64 end, const Quad& q) {
    if (at + 4 <= end && is_quad(x + at)) {
        store_quad(x + at, q);
        return;
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (at + c < end) x[at + c] = q.v[c];
}

// The same for int64, two at a time.
struct Pair64 {
    i64 v[2];
};

__device__ __forceinline__ Pair64 load_pair(const i64* x, i64 at, i64 end) {
    if (at + 2 <= end && is_quad(x + at)) {
        longlong2 both = *(const longlong2*)(x + at);
        return Pair64{{both.x, both.y}};
    }
    return Pair64{{at < end ? x[at] : 0, at + 1 < end ? x[at + 1] : 0}};
}

__device__ __forceinline__ void store_pair(i64* x, i64 at, i64 end, i64 a, i64 b) {
    if (at + 2 <= end && is_quad(x + at)) {
        *(longlong2*)(x + at) = make_longlong2(a, b);
        return;
    }
    if (at < end) x[at] = a;
    if (at + 1 < end) x[at + 1] = b;
}

struct Division {
    i64 quotient, rest;
};

// a / b for a >= 0, b > 0. In 32 bits where both fit: a division of 64 bits would cost more than the memory it waits for.
__device__ __forceinline__ Division divide(i64 a, i64 b) {
    if (((u64)(a | b) >> 32) == 0) {
        u32 quotient = (u32)a / (u32)b;
        return Division{quotient, (u32)a - quotient * (u32)b};
    }
    i64 quotient = a / b;
    return Division{quotient, a - quotient * b};
}

// First element and stride of this thread in an elementwise launch over quads.
__device__ __forceinline__ i64 first_quad() { return global_index() * 4; }
__device__ __forceinline__ i64 next_quad() { return global_size() * 4; }
