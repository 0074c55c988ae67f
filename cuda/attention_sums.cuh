// The summer of the fused attention (attention_sm90.cuh): weighted sums over all tiles of a unit, in registers, rounded once.
#pragma once
#include "attention_quotient.cuh"
#include "attention_tiles.cuh"
#include "exact_dot_sums.cuh"

// RN32(n * 2^scale) for |n| < 2^53 and a scale of at least -900: the double is exact, one rounding.
__device__ __forceinline__ float round_scaled(i64 n, i32 scale) { return (float)((double)n * power_of_two64(scale)); }

// d += weights . turned rows.
template <class C>
__device__ __forceinline__ void add_weighted(i32 (&d)[64], u64 a, u64 b, bool add) {
    if constexpr (C::UNSIGNED)
        product_u8s8(d, a, b, add);
    else
        product_s8(d, a, b, add);
}

// This warp has read weights and turned rows.
template <class C>
__device__ __forceinline__ void release_sums(u32 ring, u32 slot) {
    arrive(ring + Pipe<C>::DIGIT_EMPTY + 8 * slot);
    arrive_at_all<C::CLUSTER>(ring + Pipe<C>::TURNED_EMPTY + 8 * slot);
}

// Rounded sums of one of a thread's rows, divided if C::ROW_SUMS. |n| < 2^42.
template <class C, class Round, class Divide>
__device__ __forceinline__ void store_weighted(const i32 (&hh)[64], const i32 (&ss)[64], const i32 (&ll)[64], int half, float* to,
                                               Round round, Divide divide) {
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        float x[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            int i = 4 * j + 2 * half + b;
            x[b] = round(16256ll * hh[i] + 128ll * ss[i] - 127ll * ll[i]);
            if constexpr (C::ROW_SUMS) x[b] = divide(x[b]);
        }
        *(float2*)(to + 8 * j) = make_float2(x[0], x[1]);
    }
}

// The last warpgroup: all sums of a unit's rows.
template <class C>
__device__ __forceinline__ void sum_up(const Chunk& c, C& cells, i8* shared, u32 ring, u32 rank) {
    using P = Pipe<C>;
    i32 warp = (i32)(threadIdx.x / 32 % 4), lane = (i32)(threadIdx.x & 31);
    Turn<C::SUM_STAGES> turn;
    u32 round = 0;
    i32 hh[64] = {}, ss[64] = {}, ll[64] = {};
#pragma unroll 1
    for (Unit u = unit_at<C>(c, 0, rank); u.exists; u = unit_at<C>(c, ++round, rank)) {
        bool add = false;
#pragma unroll 1
        for (i32 left = u.last - u.first; left >= 0; left--) {
            u64 a = operand_of(ring + P::DIGIT + turn.slot * DIGITS), b = operand_of(ring + P::TURNED + turn.slot * OPERAND);
            mbarrier_wait(ring + P::TURNED_FULL + 8 * turn.slot, turn.parity);
            mbarrier_wait(ring + P::DIGIT_FULL + 8 * turn.slot, turn.parity);
            product_fence();
#pragma unroll
            for (int k = 0; k < 2; k++) {
                add_weighted<C>(hh, advanced(a, 32 * k), advanced(b, 32 * k), add || k > 0);
                add_weighted<C>(ss, advanced(a, BLOCK_BYTES + 32 * k), advanced(b, PLANE + 32 * k), add || k > 0);
                add_weighted<C>(ll, advanced(a, 2 * BLOCK_BYTES + 32 * k), advanced(b, 2 * PLANE + 32 * k), add || k > 0);
            }
            product_commit();
            // At once, not while the next is under way: until then a scorer waits for the place of its digits.
            product_wait<0>(hh);
            product_wait<0>(ss);
            product_wait<0>(ll);
            release_sums<C>(ring, turn.slot);
            add = true;
            turn.next();
        }
        i32 row = u.row + warp * 16 + lane / 4;
        float by[2] = {1.0f, 1.0f};
        if constexpr (C::ROW_SUMS) {
            mbarrier_wait(ring + P::TOTAL_FULL, round & 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u64 sum = 0;  // taken, so that the next unit begins with 0
                if (lane % 4 == 0) sum = atomicExch((u64*)(shared + P::TOTAL) + warp * 16 + lane / 4 + 8 * half, sum);
                sum = __shfl_sync(0xffffffffu, sum, lane & ~3);
                by[half] = (float)(i64)sum * 9.313225746154785e-10f;  // RN32(sum), times 2^-30
                if (lane % 4 == 0 && row + 8 * half < c.rows) cells.total(u.group, row + 8 * half, by[half]);
            }
            arrive(ring + P::TOTAL_EMPTY);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half >= c.rows) continue;
            i32 bound = 0;
            float* to = cells.result(u.group, row + 8 * half, &bound) + lane % 4 * 2;
            float l = by[half], reciprocal = 1.0f / l;
            if ((u32)(bound + 48) <= 96u)
                store_weighted<C>(
                    hh, ss, ll, half, to, [=](i64 n) { return round_tame<14>(n, power_of_two(bound - 26), 1.0f); },
                    [=](float x) { return quotient(x, l, reciprocal); });
            else
                store_weighted<C>(
                    hh, ss, ll, half, to, [=](i64 n) { return round_scaled(n, bound - 26); }, [=](float x) { return x / l; });
        }
        __syncwarp();  // threads may have parted, and products want them together
    }
}
