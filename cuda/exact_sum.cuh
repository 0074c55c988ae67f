// Terms of exact sums and sums that never wrap unseen (SPEC.md section 4).
//
// Every sum is of integers, so no order of threads, blocks or atomics can change it. How a range is watched at no cost: a term
// below 2^62 / n in size, n the number of terms, is "small" and added blindly, for all small terms together stay below 2^62. A
// larger one is added with both operands and the result checked for the range -2^62 .. 2^62 - 1. So a sum that stays in the
// range on its way passes, and one that could wrap (2^63) has met a check before: a total that sets no SUM_RANGE is the true
// one, of any size below 2^63, for small terms may come last. Whoever reads the total looks at its range: from_fixed, add_sums,
// and for the loss the host. SPEC.md asks for the range of totals only, so SUM_RANGE means "cannot tell", never "no result".
#pragma once
#include "common.cuh"

#define SUM_LIMIT (1ll << 62)
#define SUM_LIMIT_F32 4611686018427387904.0f

__device__ __forceinline__ bool in_sum_range(i64 s) { return s < SUM_LIMIT && s >= -SUM_LIMIT; }

// rint(scaled) for scaled = x * 2^u, a product that is exact; 0 and NOT_FINITE where it is not below 2^62 in size.
__device__ __forceinline__ i64 fixed_term(float scaled, u32* status) {
    if (fabsf(scaled) < SUM_LIMIT_F32) return __float2ll_rn(scaled);
    atomicOr(status, NOT_FINITE);
    return 0;
}

// Whether a, b and a + b are in the range; the sum of two that are does not wrap.
__device__ __forceinline__ bool sum_stays_in_range(i64 a, i64 b) {
    return in_sum_range(a) && in_sum_range(b) && in_sum_range((i64)((u64)a + (u64)b));
}

// a + b; SUM_RANGE where an operand or the sum is out of range.
__device__ __forceinline__ i64 add_checked(i64 a, i64 b, u32* status) {
    if (!sum_stays_in_range(a, b)) atomicOr(status, SUM_RANGE);
    return (i64)((u64)a + (u64)b);
}

// sum + rint(scaled); `small` is 2^62 / n or less.
__device__ __forceinline__ i64 add_term(i64 sum, float scaled, float small, u32* status) {
    if (fabsf(scaled) < small) return sum + __float2ll_rn(scaled);
    return add_checked(sum, fixed_term(scaled, status), status);
}

// The same for N sums at once. All are added blindly; where a term was not small, a look back at both sides of each addition finds
// what add_term would have found.
template <int N>
__device__ __forceinline__ void add_terms(i64 (&sum)[N], const float (&scaled)[N], float small, u32* status) {
    i64 term[N];
    bool calm = true;
#pragma unroll
    for (int c = 0; c < N; c++) {
        term[c] = __float2ll_rn(scaled[c]);
        sum[c] = (i64)((u64)sum[c] + (u64)term[c]);
        calm &= fabsf(scaled[c]) < small;
    }
    if (calm) return;
    u32 bad = 0;
#pragma unroll
    for (int c = 0; c < N; c++) {
        i64 before = (i64)((u64)sum[c] - (u64)term[c]);
        if (fabsf(scaled[c]) < SUM_LIMIT_F32) {
            if (!in_sum_range(before) || !in_sum_range(sum[c])) bad |= SUM_RANGE;
        } else {
            bad |= NOT_FINITE;
            sum[c] = before;
        }
    }
    if (bad) atomicOr(status, bad);
}

// *at += term, with the sum checked.
__device__ __forceinline__ void atomic_add_checked(i64* at, i64 term, u32* status) {
    add_checked((i64)atomicAdd((u64*)at, (u64)term), term, status);
}

// A call, not inline: compilers would merge its addition with the one below, which then had to wait for the old value as well.
__device__ __noinline__ void atomic_add_large(i64* at, i64 term, u32* status) { atomic_add_checked(at, term, status); }

// The same; a term below `small` in size goes without waiting for the old value.
__device__ __forceinline__ void atomic_add_term(i64* at, i64 term, i64 small, u32* status) {
    if (term < small && term > -small)
        atomicAdd((u64*)at, (u64)term);
    else
        atomic_add_large(at, term, status);
}
