// Binary32 to fixed point, sums of integers, and back (SPEC.md section 4). Elements are treated alone, by any thread.
//
// Many tensors at once: table u64 as in tensor_table.cuh, one tile a block.
//
// Test: pytest tests/kernels/test_exact_sum.py tests/kernels/test_add_pieces.py
#include "blake3.cuh"
#include "exact_sum.cuh"
#include "quad.cuh"
#include "tensor_table.cuh"

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

// Terms of exact sums, hashed while they are added (SPEC.md sections 4 and 15). A block's 128 chunks go by in slices: its threads
// make the terms of a slice together, so that they read and write whole sectors, and leave them in shared memory, from which each
// thread hashes those of its own chunk.
#define CHUNK_TERMS (CHUNK_BYTES / 8)
#define SLICE 16            // terms of a chunk in a slice: two blocks of BLAKE3
#define FOURS (SLICE / 4)   // a thread's share of a slice, in fours of terms
#define TOGETHER 2          // of them, loaded at a time
#define PLACES (CHUNKS + 1) // from one word of a chunk to its next: a warp that writes meets every bank once, as one that reads

struct Four {
    i64 v[4];
};

// Elements x[at .. at+3] of those below `end`; 0 beyond.
__device__ __forceinline__ Four load_four(const i64* x, i64 at, i64 end) {
    Pair64 a = load_pair(x, at, end), b = load_pair(x, at + 2, end);
    return Four{{a.v[0], a.v[1], b.v[0], b.v[1]}};
}

// One tensor: its terms, rint(product * unit) or int64 as they are; totals to be added to, or none; and where the sums go.
struct Terms {
    const float* products;
    const i64* terms;
    const i64* totals;
    i64* sums;
    i64 size;
};

// The fours of this thread in a slice whose first chunk begins at element `from`: four i is the (t % 4)-th of chunk t / 4 + 32 i.
__device__ __forceinline__ i64 four_at(i64 from, i32 i) {
    u32 t = threadIdx.x;
    return from + (i64)(t / FOURS + i * (CHUNKS / FOURS)) * CHUNK_TERMS + t % FOURS * 4;
}

// Adds the terms of a slice to the totals, and leaves their words in `words`: word w of chunk c at words[w * PLACES + c], 0 beyond
// the tensor. Returns whether all sums stayed in their range. Some fours at a time, whose loads come before what waits for them:
// all at once would take so many registers that fewer blocks had room.
__device__ __forceinline__ bool add_slice(const Terms& tensor, i64 from, float unit, u32* words, u32* status) {
    bool good = true;
    u32 chunk = threadIdx.x / FOURS, word = threadIdx.x % FOURS * 8;
#pragma unroll 1
    for (i32 first = 0; first < FOURS; first += TOGETHER) {
        Four term[TOGETHER], total[TOGETHER];
#pragma unroll
        for (i32 i = 0; i < TOGETHER; i++)
            total[i] = tensor.totals ? load_four(tensor.totals, four_at(from, first + i), tensor.size) : Four{};
        if (tensor.products) {
            Quad x[TOGETHER];
#pragma unroll
            for (i32 i = 0; i < TOGETHER; i++) x[i] = load_quad(tensor.products, four_at(from, first + i), tensor.size);
#pragma unroll
            for (i32 i = 0; i < TOGETHER; i++)
#pragma unroll
                for (i32 c = 0; c < 4; c++) term[i].v[c] = fixed_term(x[i].v[c] * unit, status);
        } else {
#pragma unroll
            for (i32 i = 0; i < TOGETHER; i++) term[i] = load_four(tensor.terms, four_at(from, first + i), tensor.size);
        }
#pragma unroll
        for (i32 i = 0; i < TOGETHER; i++) {
            i64 sum[4], at = four_at(from, first + i);
            u32* place = words + word * PLACES + chunk + (first + i) * (CHUNKS / FOURS);
#pragma unroll
            for (i32 c = 0; c < 4; c++) {
                i64 a = total[i].v[c], b = term[i].v[c];
                good = good && (!tensor.totals || sum_stays_in_range(a, b));
                sum[c] = (i64)((u64)a + (u64)b);
                place[2 * c * PLACES] = (u32)b;
                place[(2 * c + 1) * PLACES] = (u32)((u64)b >> 32);
            }
            store_pair(tensor.sums, at, tensor.size, sum[0], sum[1]);
            store_pair(tensor.sums, at + 2, tensor.size, sum[2], sum[3]);
        }
    }
    return good;
}

// cv <- the blocks of this thread's chunk that lie in a slice: those of its terms from number `done` on, of `size`, at least one.
__device__ __forceinline__ void hash_slice(u32* cv, const u32* words, i32 done, i32 size, u64 chunk, u32 root) {
#pragma unroll 1
    for (i32 block = 0; block < SLICE / 8; block++) {
        i32 at = done + 8 * block, left = size - at;
        if (left <= 0 && at > 0) return;
        u32 m[16];
#pragma unroll
        for (i32 w = 0; w < 16; w++) m[w] = words[(16 * block + w) * PLACES + threadIdx.x];
        u32 flags = (at == 0 ? CHUNK_START : 0) | (left <= 8 ? CHUNK_END | root : 0);
        compress(cv, m, chunk, (u32)(left < 8 ? 8 * left : BLOCK_BYTES), flags);
    }
}

// Sums and digests of the terms of n tensors, int64 in C order. table u64 [6][n]: the elements of each; addresses of its products
// f32, or 0, of its terms i64 otherwise, of its totals i64, or 0, and of its sums i64, which may be its totals; and the number of
// its blocks, of 128 KiB of terms, before those that are asked for here. first, out and digests as of `chunks`; unit = 2^u.
// NOT_FINITE for a product that is no term, SUM_RANGE for a total, a term or a sum out of range, where there is a total.
GLOBAL void __launch_bounds__(CHUNKS, 8) add_hashed(const u64* __restrict__ table, const u64* __restrict__ first, i64 n, u32* status,
                                                float unit, u32* __restrict__ out, u32* __restrict__ digests) {
    __shared__ u32 words[2 * SLICE * PLACES];
    i64 buffer = buffer_of(first, n, blockIdx.x);
    Terms tensor = {(const float*)table[n + buffer], (const i64*)table[2 * n + buffer], (const i64*)table[3 * n + buffer],
                    (i64*)table[4 * n + buffer], (i64)table[buffer]};
    u64 begin = (blockIdx.x - first[buffer] + table[5 * n + buffer]) * CHUNKS;
    u64 total = tensor.size ? (u64)(tensor.size - 1) / CHUNK_TERMS + 1 : 1;
    u32 t = threadIdx.x, count = (u32)(total - begin < CHUNKS ? total - begin : CHUNKS), cv[8];
    i64 left = tensor.size - (i64)(begin + t) * CHUNK_TERMS;
    i32 size = (i32)(left < CHUNK_TERMS ? left : CHUNK_TERMS);
    bool is_last = total <= CHUNKS, good = true;
    initial_vector(cv);
#pragma unroll 1
    for (i32 done = 0; done < CHUNK_TERMS; done += SLICE) {
        i64 from = (i64)begin * CHUNK_TERMS + done;
        if (done && from >= tensor.size) break;  // for all threads: chunk 0 of a block is the longest
        good = add_slice(tensor, from, unit, words, status) && good;
        __syncthreads();
        if (t < count) hash_slice(cv, words, done, size, begin + t, total == 1 ? ROOT : 0);
        __syncthreads();
    }
    if (!good) atomicOr(status, SUM_RANGE);
    if (t < count) {
#pragma unroll
        for (i32 w = 0; w < 8; w++) words[w * CHUNKS + t] = cv[w];
    }
    __syncthreads();
    join(Plain{}, words, CHUNKS, count, is_last);
    if (t < 8) (is_last ? digests + 8 * buffer : out + 8 * (i64)blockIdx.x)[t] = words[t * CHUNKS];
}
