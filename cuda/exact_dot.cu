// Exact dot of fixed-point rows (SPEC.md section 3): the integer product of two matrices of digit planes, rounded once.
//
//   a        i8 [planes][batch][M][K], b  i8 [planes][batch][N][K]   zero beyond the row's own length; in blocks of 64 rows and
//                                                                    64 bytes (exact_dot_planes.cuh), with 64 rows to spare
//   a_exponents, b_exponents   i32 [batch][M], [batch][N]            of the rows
//   c        float [batch][M][N]
//            each with strides, so that it may be a part of a larger one (exact_dot_operand.cuh); or i64 exact sums
//            (Shape), which exact_dot_round adds up and rounds: ranges of K are a batch where a product has few tiles
//   scratch  i64, one for every element of the tiles of all blocks   what a block parks between planes
//
// A row of integers q is kept as planes of 7-bit digits, so that every product of planes is an int8 matrix product with int32
// sums, exact below 2^31 whatever the order. No tile size, number of warps, number or order of blocks can change the result: all
// sums are integers, and the one rounding happens once per element at the end.
//
// Test: pytest tests/kernels/test_exact_dot.py
#include "common.cuh"
#include "exact_dot_finish.cuh"
#include "exact_dot_operand.cuh"
#include "exact_dot_planes.cuh"
#include "exact_dot_tile.cuh"

// K at a time: 128 * 128 * 2^16 < 2^31.
#define CHUNK 65536
// 14 bits, planes h, s, l: v = 16256 HH + 128 SS - 127 LL = 128 R - 127 LL with R = 127 HH + SS, which fits 32 bits up to here
// (|R| <= 528352 K), so that less has to be parked.
#define NARROW_K 3968

// A block takes every gridDim.x-th tile. Each plane's product is summed in the same int32 registers; in between, sums wait as 64-bit
// numbers in the workspace. The copies for the next tile begin before the present one is rounded and stored.
template <int BITS, typename T>
__device__ __forceinline__ void dot(const Operand& a, const Operand& b, const Result& c, uint4* scratch, const Shape& s, i8* shared) {
    Parked<T> parked{scratch + (i64)blockIdx.x * (T::BM * T::BN / 2) + threadIdx.x};
    u32 ring = shared_address(shared);
    Reader<T> reader(ring);
    Pipeline<T> pipe;
    pipe.ring = ring + pipe.first_piece();
    Sums<T> sums;
    Fragments<T> fragments[1 + AHEAD];
    const bool narrow = BITS == 14 && s.k <= NARROW_K;
    u32 tile = blockIdx.x, tiles = tiles_of<T>(s);
    if (tile >= tiles) return;
    Place p = place_of<T>(s, tile);
    i64 k0 = 0;
    i64 k1 = s.k < CHUNK ? s.k : CHUNK;
    pipe.start(a, b, p, k0, k1, PLANES<BITS>);
    pipe.advance();
    sums.clear();
    int plane = 0;
#pragma unroll 1
    while (true) {
        if (AHEAD) reader.load(fragments[0], pipe.reading, 0);
#pragma unroll 1
        for (i32 step = pipe.steps; step > 0; step--) multiply_stage<T>(sums, fragments, pipe, reader);
        i64 weight = plane_weight<BITS>(plane);
        bool first = k0 == 0 && plane == 0;
        if (++plane < PLANES<BITS>) {
            if (!narrow) {
                park<T>(sums, weight, first, parked);
                sums.clear();
            } else if (plane == 1) {
                sums.scale(127);
            } else {
                park32<T>(sums, parked);
                sums.clear();
            }
            continue;
        }
        plane = 0;
        __syncthreads();  // all have read the ring
        Place done = p;
        bool last = k1 == s.k;
        k0 = last ? 0 : k1;
        k1 = s.k - k0 < CHUNK ? s.k : k0 + CHUNK;
        if (last) tile += gridDim.x;
        if (tile < tiles) {
            p = place_of<T>(s, tile);
            pipe.start(a, b, p, k0, k1, PLANES<BITS>);
        }
        if (last && s.exact)
            finish_sums<T>(s, done, sums, weight, narrow, parked, c);
        else if (last)
            finish<BITS, T>(s, done, sums, weight, narrow, parked, a, b, c);
        else
            park<T>(sums, weight, false, parked);
        if (tile >= tiles) break;
        sums.clear();
        pipe.advance();
    }
}

// No tensor cores: one thread an element, digits put together again, plain 64-bit integers. The second opinion of the
// self-test, and the way for any other architecture.
template <int BITS>
__device__ __forceinline__ void dot_plain(const Operand& a, const Operand& b, const Result& c, const Shape& s) {
    for (i64 at = global_index(); at < s.batch * s.m * s.n; at += global_size()) {
        i64 row = at / s.n % s.m, column = at % s.n;
        i32 of = (i32)(at / s.n / s.m);
        i64 total = 0;
        for (i64 k = 0; k < s.k; k++)
            total += (i64)integer_of<BITS>(a.planes + a.layout.place(of / a.share, row, k), a.layout.plane) *
                     integer_of<BITS>(b.planes + b.layout.place(of / b.share, column, k), b.layout.plane);
        *c.at(of, row, column) = round_any<BITS>(total, a.exponents_at(of)[row], b.exponents_at(of)[column]);
    }
}

// c [M][N] from the exact sums of `ranges` ranges of K, i64 [ranges][M][N]; K is that of all together.
template <int BITS>
__device__ __forceinline__ void round_sums(const i64* sums, const Operand& a, const Operand& b, const Result& c, const Shape& s,
                                           i64 ranges) {
    i64 count = s.m * s.n;
    for (i64 at = global_index(); at < count; at += global_size()) {
        i64 row = at / s.n, column = at % s.n, total = 0;
#pragma unroll 4
        for (i64 range = 0; range < ranges; range++) total += sums[range * count + at];
        i32 ea = a.exponents[row], eb = b.exponents[column];
        bool tame = (BITS != 14 || s.k < 65536) && is_tame<BITS>(ea) && is_tame<BITS>(eb);  // |v| <= 2^26 K
        *c.at(0, row, column) =
            tame ? round_tame<BITS>(total, scale_of<BITS>(ea), scale_of<BITS>(eb)) : round_any<BITS>(total, ea, eb);
    }
}

#define ARGUMENTS OPERAND(a), OPERAND(b), RESULT
#define SIZES i64 batch, i64 m, i64 n, i64 k
#define KERNEL(NAME, T, BITS)                                                                                               \
    GLOBAL void __launch_bounds__(T::THREADS, T::RESIDENT)                                                                  \
        exact_dot_##NAME##_##BITS(ARGUMENTS, SIZES, i32 exact, uint4* scratch) {                                            \
        extern __shared__ __align__(128) i8 shared[];                                                                       \
        dot<BITS, T>(OPERAND_OF(a), OPERAND_OF(b), RESULT_OF, scratch, Shape{m, n, k, batch, exact != 0}, shared);          \
    }
#define PLAIN_KERNELS(BITS)                                                                                                 \
    GLOBAL void exact_dot_plain_##BITS(ARGUMENTS, SIZES) {                                                                  \
        dot_plain<BITS>(OPERAND_OF(a), OPERAND_OF(b), RESULT_OF, Shape{m, n, k, batch, false});                             \
    }                                                                                                                       \
    GLOBAL void exact_dot_round_##BITS(ARGUMENTS, SIZES, const i64* sums, i64 ranges) {                                     \
        round_sums<BITS>(sums, OPERAND_OF(a), OPERAND_OF(b), RESULT_OF, Shape{m, n, k, batch, false}, ranges);              \
    }

KERNEL(small, Small, 14)
KERNEL(small, Small, 21)
// What auditkit/kernels/exact_dot_choice.py chooses from: 21 bits would spill in large tiles from sm_100 on, and two blocks of
// large128 fit a multiprocessor of sm_90 and sm_100 only.
KERNEL(large64, Large64, 14)
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
KERNEL(large128, Large128, 14)
#endif
#if !(__CUDA_ARCH__ >= 1000)
KERNEL(large64, Large64, 21)
#endif
#if __CUDA_ARCH__ == 900
KERNEL(large128, Large128, 21)
#endif
PLAIN_KERNELS(14)
PLAIN_KERNELS(21)
