// Binary32 to fixed point, sums of integers, and back (SPEC.md section 4). Elements are treated alone, by any thread.
//
// Many tensors at once: table u64 as in tensor_table.cuh, one tile a block.
//
// Test: pytest tests/kernels/test_exact_sum.py
#include "exact_sum.cuh"
#include "quad.cuh"
#include "tensor_table.cuh"

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

// t = rint(x * unit), unit = 2^u. x float [n], t i64 [n].
GLOBAL void to_fixed(const float* x, i64* t, u32* status, float unit, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad q = load_quad(x, at, n);
        i64 f[4];
#pragma unroll
        for (int c = 0; c < 4; c++) f[c] = fixed_term(q.v[c] * unit, status);
        store_pair(t, at, n, f[0], f[1]);
        store_pair(t, at + 2, n, f[2], f[3]);
    }
}

// total += rint(x * unit).
GLOBAL void add_fixed(const float* x, i64* total, u32* status, float unit, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad q = load_quad(x, at, n);
        Pair64 a = load_pair(total, at, n), b = load_pair(total, at + 2, n);
        i64 f[4] = {a.v[0], a.v[1], b.v[0], b.v[1]};
#pragma unroll
        for (int c = 0; c < 4; c++) f[c] = add_checked(f[c], fixed_term(q.v[c] * unit, status), status);
        store_pair(total, at, n, f[0], f[1]);
        store_pair(total, at + 2, n, f[2], f[3]);
    }
}

// Field 0: sums i64, SUM_RANGE where one is out of range; field 1: rounded float = RN32(sum) * unit, unit = 2^-u; the product is
// exact.
GLOBAL void from_fixed(const u64* table, i64 count, i64 tiles, u32* status, float unit) {
    bool good = true;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile at = tile_of(table, count, tile);
        const i64* sums = at.field<const i64>(0);
        float* rounded = at.field<float>(1);
        for (i64 i = at.first + threadIdx.x * 4; i < at.end; i += blockDim.x * 4) {
            Pair64 a = load_pair(sums, i, at.end), b = load_pair(sums, i + 2, at.end);
            Quad q = {{__ll2float_rn(a.v[0]) * unit, __ll2float_rn(a.v[1]) * unit, __ll2float_rn(b.v[0]) * unit,
                       __ll2float_rn(b.v[1]) * unit}};
            store_quad(rounded, i, at.end, q);
            good = good && in_sum_range(a.v[0]) && in_sum_range(a.v[1]) && in_sum_range(b.v[0]) && in_sum_range(b.v[1]);
        }
    }
    if (!good) atomicOr(status, SUM_RANGE);
}

// *found becomes max |x| over all elements of all tensors, if it was less; field 0: i64. A maximum is the same in any order.
GLOBAL void largest(const u64* table, i64 count, i64 tiles, u64* found) {
    u64 most = 0;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile at = tile_of(table, count, tile);
        const i64* x = at.field<const i64>(0);
        for (i64 i = at.first + threadIdx.x * 2; i < at.end; i += blockDim.x * 2) {
            Pair64 pair = load_pair(x, i, at.end);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                u64 size = pair.v[c] < 0 ? 0 - (u64)pair.v[c] : (u64)pair.v[c];
                most = size > most ? size : most;
            }
        }
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, most, offset);
        most = other > most ? other : most;
    }
    if ((threadIdx.x & 31) == 0) atomicMax(found, most);
}

// Field 0: totals, field 1: terms, field 2: totals + terms, all i64; field 2 may be field 0.
GLOBAL void add_sums(const u64* table, i64 count, i64 tiles, u32* status) {
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile at = tile_of(table, count, tile);
        const i64 *totals = at.field<const i64>(0), *terms = at.field<const i64>(1);
        i64* sums = at.field<i64>(2);
        for (i64 i = at.first + threadIdx.x * 2; i < at.end; i += blockDim.x * 2) {
            Pair64 a = load_pair(totals, i, at.end), b = load_pair(terms, i, at.end);
            store_pair(sums, i, at.end, add_checked(a.v[0], b.v[0], status), add_checked(a.v[1], b.v[1], status));
        }
    }
}
