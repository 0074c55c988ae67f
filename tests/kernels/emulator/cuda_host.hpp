// CUDA C++ on the host: enough of the language and its built-in functions to run cuda/*.cu bit for bit (see README.md).
//
// Everything here follows the CUDA C++ Programming Guide and the PTX ISA; where those leave a result undefined (a shift by 32,
// a lane outside the mask, a barrier that not all threads reach), the emulator stops with an error instead.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime.hpp"

#define AUDITKIT_EMULATED 1
#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
// __global__, __launch_bounds__, __cluster_dims__ and __shared__ are left to build.py, which rewrites the preprocessed source.
#define __constant__ static const
#define threadIdx (emu_thread_index())
#define blockIdx (emu_block_index())
#define blockDim (emu_block_dim())
#define gridDim (emu_grid_dim())
#define warpSize 32

#define EMU_VECTORS(T, name, align2, align4)                                                                  \
    struct __align__(sizeof(T)) name##1 { T x; };                                                             \
    struct __align__(align2) name##2 { T x, y; };                                                             \
    struct __align__(align4) name##4 { T x, y, z, w; };                                                       \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                         \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(signed char, char, 2, 4)
EMU_VECTORS(unsigned char, uchar, 2, 4)
EMU_VECTORS(short, short, 4, 8)
EMU_VECTORS(unsigned short, ushort, 4, 8)
EMU_VECTORS(int, int, 8, 16)
EMU_VECTORS(unsigned, uint, 8, 16)
EMU_VECTORS(long long, longlong, 16, 16)
EMU_VECTORS(unsigned long long, ulonglong, 16, 16)
EMU_VECTORS(float, float, 8, 16)
EMU_VECTORS(double, double, 16, 16)
struct int3 { int x, y, z; };
struct float3 { float x, y, z; };
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
static inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }

[[noreturn]] static inline void __trap() { emu_fail("trap"); }

#include "cuda_math.hpp"
#include "cuda_warp.hpp"
#include "cuda_hopper.hpp"

// The kernels of a file, found by build.py in the preprocessed source.
template <class T>
constexpr char emu_kind() {
    static_assert(std::is_pointer_v<T> || std::is_arithmetic_v<T>, "kernel parameters are pointers and numbers");
    if (std::is_pointer_v<T>) return 'p';
    if (std::is_floating_point_v<T>) return sizeof(T) == 4 ? 'f' : 'd';
    constexpr char kinds[] = "bBhHiIlL";
    int size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return kinds[2 * size + std::is_unsigned_v<T>];
}

template <auto F>
struct emu_trampoline;
template <class... A, void (*F)(A...)>
struct emu_trampoline<F> {
    static constexpr char kinds[] = {emu_kind<A>()..., 0};
    template <size_t... I>
    __attribute__((no_sanitize("thread"))) static void spread(void** args, std::index_sequence<I...>) {
        F(*(std::remove_cv_t<A>*)args[I]...);
    }
    __attribute__((no_sanitize("thread"))) static void call(void** args) { spread(args, std::index_sequence_for<A...>()); }
};

constexpr int emu_first(int bound = 0, int = 0, int = 0) { return bound; }
