// Attention (SPEC.md section 8) around the exact dots of exact_dot.cu, chunk by chunk of the scores.
//
// A "group" is one sequence and one key head with its R query heads. Its queries are T * R rows, token by token, the R of a token
// side by side, so that the queries that a key meets are a range of rows. It has T keys. A chunk (attention_chunk.cuh) is a range of
// rows of some groups and the columns that they meet; planes lie in blocks (exact_dot_planes.cuh).
//
// One block works on one row of a chunk, one warp on one row of q or dO. Every maximum is exact and every sum one of integers but D,
// which has its tree: the launch shape cannot change a bit.
//
// Test: pytest tests/kernels/test_attention.py
#include "attention_gradient.cuh"
#include "attention_inner.cuh"
#include "attention_softmax.cuh"
#include "common.cuh"
#include "exact_dot_planes.cuh"
#include "quad.cuh"

// The most threads of a block by kernel, so that registers suffice on every architecture (auditkit/kernels/attention.py).
#define SOFTMAX_THREADS 1024
#define QUERY_THREADS 704
#define KEY_THREADS 640
#define TURNING_THREADS 256  // exactly

// Where row n = t * R + r of a group lies among rows of heads: [group][R][T].
__device__ __forceinline__ i64 row_by_heads(i64 group, i64 n, i64 tokens, i64 heads) {
    Division d = divide(n, heads);
    return (group * heads + d.rest) * tokens + d.quotient;
}

// A row of D elements, each divided by `by`, to fixed point by one warp (SPEC.md section 3); its exponent to *exponent, in lane 0.
template <int BITS>
__device__ __forceinline__ void round_row(const float* x, float by, i32 dim, i32 padded, const RowPlanes& to, i32* exponent,
                                          u32* status) {
    i32 lane = threadIdx.x & 31;
    u32 largest = 0;
    for (i32 at = lane * 4; at < dim; at += 128) {
        Quad quad = load_quad(x, at, dim);
#pragma unroll
        for (int c = 0; c < 4; c++) largest = larger(largest, magnitude(quad.v[c] / by));
    }
    largest = warp_max(largest);
    if (lane == 0) note_exponent(largest, exponent, status);
    Scale scale = scale_to_fixed<BITS>(largest);
    for (i32 at = lane * 4; at < padded; at += 128) {
        Quad quad = load_quad(x, at, dim);
#pragma unroll
        for (int c = 0; c < 4; c++) quad.v[c] = (quad.v[c] / by * scale.first) * scale.second;
        to.store<BITS>(at, quad);
    }
}

// The same of a row of at most HELD_WIDTH elements that its lanes hold.
template <int BITS>
__device__ __forceinline__ void round_held(const Quad& x, i32 padded, const RowPlanes& to, i32* exponent, u32* status) {
    i32 at = ((i32)threadIdx.x & 31) * 4;
    u32 largest = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) largest = larger(largest, magnitude(x.v[c]));
    largest = warp_max(largest);
    if (at == 0) note_exponent(largest, exponent, status);
    Scale scale = scale_to_fixed<BITS>(largest);
    Quad scaled;
#pragma unroll
    for (int c = 0; c < 4; c++) scaled.v[c] = (x.v[c] * scale.first) * scale.second;
    if (at < padded) to.store<BITS>(at, scaled);
}

// Rows x float [groups][R][T][D] as fixed-point rows [groups][T * R]; exponents i32 and planes in that order.
template <int BITS>
__device__ __forceinline__ void stack_rows(const float* x, i32* exponents, i8* planes, u32* status, i64 groups, i64 heads, i64 tokens,
                                           i64 dim, i64 padded) {
    i64 row = global_index() >> 5, queries = heads * tokens;
    if (row >= groups * queries) return;
    Division d = divide(row, queries);
    const float* from = x + row_by_heads(d.quotient, d.rest, tokens, heads) * dim;
    RowPlanes to(planes, layout_of(groups, queries, padded), (i32)d.quotient, (i32)d.rest);
    if (dim <= HELD_WIDTH)
        round_held<BITS>(load_quad(from, (threadIdx.x & 31) * 4, dim), (i32)padded, to, exponents + row, status);
    else
        round_row<BITS>(from, 1.0f, (i32)dim, (i32)padded, to, exponents + row, status);
}

// Of each row dO and O, float [groups][R][T][D]: D, the fixed-point row dO with its exponent, and the one of z = dO / l, of whose
// exponent and that of q `pairs` is made. Results and the sums l are [groups][T * R].
// Dynamic shared memory: one float for each of the `width` (D rounded up to a power of two) elements of each warp; none for HELD_WIDTH.
template <int BITS>
__device__ __forceinline__ void gradient_rows(const float* dout, const float* out, const float* sums, const i32* q_exponents,
                                              float* inner, i32* exponents, i8* planes, i32* pairs, i8* z_planes, u32* status,
                                              i64 groups, i64 heads, i64 tokens, i64 dim, i64 padded, i64 width) {
    extern __shared__ float products[];
    i64 row = global_index() >> 5, queries = heads * tokens;
    if (row >= groups * queries) return;
    Division d = divide(row, queries);
    i64 at = row_by_heads(d.quotient, d.rest, tokens, heads) * dim;
    Layout layout = layout_of(groups, queries, padded);
    RowPlanes to(planes, layout, (i32)d.quotient, (i32)d.rest), to_z(z_planes, layout, (i32)d.quotient, (i32)d.rest);
    i32 of_z = 0;
    float dot;
    if (width == HELD_WIDTH) {
        i64 mine = (threadIdx.x & 31) * 4;
        Quad gradient = load_quad(dout + at, mine, dim), z = gradient;
        dot = inner_product_held(load_quad(out + at, mine, dim), gradient);
        round_held<BITS>(gradient, (i32)padded, to, exponents + row, status);
        float by = sums[row];
#pragma unroll
        for (int c = 0; c < 4; c++) z.v[c] = z.v[c] / by;
        round_held<BITS>(z, (i32)padded, to_z, &of_z, status);
    } else {
        dot = inner_product(out + at, dout + at, dim, width, products + (threadIdx.x >> 5) * width);
        round_row<BITS>(dout + at, 1.0f, (i32)dim, (i32)padded, to, exponents + row, status);
        round_row<BITS>(dout + at, sums[row], (i32)dim, (i32)padded, to_z, &of_z, status);
    }
    if ((threadIdx.x & 31) == 0) {
        inner[row] = dot;
        pairs[row] = pair_of(q_exponents[row], of_z);
    }
}

// Rows x float [groups][T * R][D] as y [groups][R][T][D], divided by sums [groups][T * R] unless that is null.
GLOBAL void attention_unstack_rows(const float* x, const float* sums, float* y, i64 groups, i64 heads, i64 tokens, i64 dim) {
    i64 quads = (dim + 3) / 4, rows = groups * heads * tokens;
    for (i64 index = global_index(); index < rows * quads; index += global_size()) {
        Division row = divide(index, quads), of = divide(row.quotient, heads * tokens);
        i64 at = row.rest * 4, to = row_by_heads(of.quotient, of.rest, tokens, heads);
        Quad quad = load_quad(x + row.quotient * dim, at, dim);
        float by = sums ? sums[row.quotient] : 1.0f;
#pragma unroll
        for (int c = 0; c < 4; c++) quad.v[c] = quad.v[c] / by;
        store_quad(y + to * dim, at, dim, quad);
    }
}

// Four words as four by four bytes, turned: word k of byte k of each.
__device__ __forceinline__ void turn_words(u32 (&w)[4]) {
    u32 low = __byte_perm(w[0], w[1], 0x5140), high = __byte_perm(w[0], w[1], 0x7362);
    u32 low_two = __byte_perm(w[2], w[3], 0x5140), high_two = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(low, low_two, 0x5410);
    w[1] = __byte_perm(low, low_two, 0x7632);
    w[2] = __byte_perm(high, high_two, 0x5410);
    w[3] = __byte_perm(high, high_two, 0x7632);
}

// Planes of rows [planes][groups][rows][padded_dim] turned around: [planes][batch][dim][padded], matrix `first` + group of the
// batch, rows beyond `rows` zero. A block turns one block of a plane, of which it reads and writes whole
// lines. ORDERED: inside each 64 rows in the order of store_weights (attention_cells.cuh), row 8 i + 2 c + b at 16 c + 2 i + b.
template <bool ORDERED>
__device__ __forceinline__ void transpose_planes(const i8* from, i8* to, i64 planes, i64 groups, i64 rows, i64 dim, i64 padded_dim,
                                                 i64 padded, i64 batch, i64 first) {
    __shared__ u32 tile[64][17], made[64][17];
    u32 tiles_d = (u32)((dim + 63) / 64), tiles_m = (u32)(padded / 64), rest = blockIdx.x;
    i64 d0 = rest % tiles_d * 64;
    rest /= tiles_d;
    i64 m0 = rest % tiles_m * 64;
    rest /= tiles_m;
    i64 group = rest % (u32)groups, plane = rest / (u32)groups;
    Layout source = layout_of(groups, rows, padded_dim), target = layout_of(batch, dim, padded);
    const i8* block = from + plane * source.plane + source.place(group, m0, d0);
    i32 thread = (i32)threadIdx.x, line = thread / 4, piece = ((thread % 4) ^ (line >> 1)) & 3;  // in place_in_block, 16 bytes a thread
    int4 read = m0 + line < rows ? *(const int4*)(block + thread * 16) : int4{};
    const i32 words[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int i = 0; i < 4; i++) tile[line][piece * 4 + i] = (u32)words[i];
    __syncthreads();
    i32 d = thread % 16, quad = thread / 16;
    u32 w[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        i32 m = quad * 4 + n;
        w[n] = tile[ORDERED ? m / 2 % 8 * 8 + m / 16 * 2 + m % 2 : m][d];
    }
    turn_words(w);
#pragma unroll
    for (int n = 0; n < 4; n++) made[d * 4 + n][quad] = w[n];
    __syncthreads();
    const u32* mine = &made[line][piece * 4];
    i8* turned = to + plane * target.plane + target.place(first + group, d0, m0);
    *(uint4*)(turned + thread * 16) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
}

#define TURNED \
    const i8 *from, i8 *to, i64 planes, i64 groups, i64 rows, i64 dim, i64 padded_dim, i64 padded, i64 batch, i64 first
GLOBAL void __launch_bounds__(TURNING_THREADS) attention_transpose_planes(TURNED) {
    transpose_planes<false>(from, to, planes, groups, rows, dim, padded_dim, padded, batch, first);
}
GLOBAL void __launch_bounds__(TURNING_THREADS) attention_transpose_ordered(TURNED) {
    transpose_planes<true>(from, to, planes, groups, rows, dim, padded_dim, padded, batch, first);
}

#define ROWS i64 groups, i64 heads, i64 tokens, i64 dim, i64 padded
#define KERNELS(BITS)                                                                                                               \
    GLOBAL void attention_stack_rows_##BITS(const float* x, i32* exponents, i8* planes, u32* status, ROWS) {                        \
        stack_rows<BITS>(x, exponents, planes, status, groups, heads, tokens, dim, padded);                                         \
    }                                                                                                                               \
    GLOBAL void attention_gradient_rows_##BITS(const float* dout, const float* out, const float* sums, const i32* q_exponents,      \
                                               float* inner, i32* exponents, i8* planes, i32* pairs, i8* z_planes, u32* status,     \
                                               ROWS, i64 width) {                                                                   \
        gradient_rows<BITS>(dout, out, sums, q_exponents, inner, exponents, planes, pairs, z_planes, status, groups, heads, tokens, \
                            dim, padded, width);                                                                                    \
    }                                                                                                                               \
    GLOBAL void __launch_bounds__(SOFTMAX_THREADS)                                                                                  \
        attention_softmax_##BITS(const float* scores, const i32* exponents, float* maxima, float* sums, i32* bounds, i8* planes,    \
                                 u32* status, CHUNK, float scale) {                                                                 \
        softmax_weights<BITS>(scores, exponents, maxima, sums, bounds, planes, status, CHUNK_OF, scale);                            \
    }                                                                                                                               \
    GLOBAL void __launch_bounds__(QUERY_THREADS)                                                                                    \
        attention_query_gradient_##BITS(const float* scores, const float* dp, const float* maxima, const float* sums,               \
                                        const float* inner, const i32* exponents, i32* bounds, i8* planes, u32* status, CHUNK,      \
                                        float scale) {                                                                              \
        query_gradient<BITS>(scores, dp, maxima, sums, inner, exponents, bounds, planes, status, CHUNK_OF, scale);                  \
    }                                                                                                                               \
    GLOBAL void __launch_bounds__(KEY_THREADS)                                                                                      \
        attention_key_gradient_##BITS(const float* scores, const float* dp, const float* maxima, const float* sums,                 \
                                      const float* inner, const i32* pairs, i32* bounds, i8* planes, u32* status, CHUNK,            \
                                      float scale) {                                                                                \
        key_gradient<BITS>(scores, dp, maxima, sums, inner, pairs, bounds, planes, status, CHUNK_OF, scale);                        \
    }

KERNELS(14)
KERNELS(21)
