// Shared by every kernel: types, exact helpers, the elementary functions of SPEC.md section 6.
//
// Compiled with --fmad=false --ftz=false --prec-div=true --prec-sqrt=true and nothing else that touches arithmetic, so that
// + - * / sqrtf on float and double are single IEEE operations (auditkit/kernels/compile.py). No CUDA header is needed.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define GLOBAL extern "C" __global__

// Bits of the status word that a step leaves behind; the host reads it once a step.
#define NOT_FINITE 1u  // an operand or a term is infinite or NaN
#define SUM_RANGE 2u   // an exact sum would leave its range
#define TOKEN_RANGE 4u  // a token id is not below the size of the vocabulary

__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(u32 b) { return __uint_as_float(b); }

// Index of this thread in a one-dimensional launch; 64 bits, for tensors beyond 2^31 elements.
__device__ __forceinline__ i64 global_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 global_size() { return (i64)gridDim.x * blockDim.x; }

__device__ __forceinline__ bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

// 2^n as binary32 for -126 <= n <= 127.
__device__ __forceinline__ float power_of_two(i32 n) { return float_of((u32)(n + 127) << 23); }
// 2^n as binary64 for -1022 <= n <= 1023.
__device__ __forceinline__ double power_of_two64(i32 n) { return __longlong_as_double((i64)(n + 1023) << 52); }

// The least e with a < 2^e for a finite a > 0 (frexp); -149, the exponent of a zero row, for a = 0. SPEC.md section 3.
__device__ __forceinline__ i32 row_exponent(float a) {
    u32 b = bits_of(a) & 0x7fffffffu;
    if (b == 0) return -149;
    i32 field = (i32)(b >> 23);
    return field ? field - 126 : -117 - __clz((i32)b);  // subnormal: b * 2^-149, 32 - clz(b) bits
}
