// Attention's backward pass on sm_90a without scores in memory (attention_sm90.cuh, SPEC.md section 8), 14 bits, 128 elements a row.
//
//   attention_backward_keys, _queries   norms and records of 64 keys or queries (attention_backward_records.cuh)
//   attention_backward_tops    Y, the bounds of dV
//   attention_backward_scan    the bounds of dQ and dK
//   attention_backward_query   dQ
//   attention_backward_share   dV
//   attention_backward_slope   dK
//
// Maxima are exact, sums are those of integers, and each number is rounded where the specification rounds it: neither the number of
// blocks nor their order can change a bit.
//
// Test: pytest tests/kernels/test_attention_backward_sm90.py
#include "attention_backward_keys.cuh"
#include "attention_backward_queries.cuh"
#include "attention_backward_records.cuh"
#include "attention_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A block makes the record of 64 keys, their norms [2][groups][blocks], and clears their bounds.
GLOBAL void __launch_bounds__(NORM_THREADS)
    attention_backward_keys(const i8* k, const i8* v, const i32* k_exponents, const i32* v_exponents, KeyRecord* records, float* norms,
                            i32* bounds, i32 groups, i32 tokens, float scale) {
    i32 blocks = (tokens + BLOCK_ROWS - 1) / BLOCK_ROWS, group = (i32)blockIdx.x / blocks, block = (i32)blockIdx.x % blocks;
    i32 count = tokens - block * BLOCK_ROWS, lane = (i32)threadIdx.x;
    Layout layout = layout_of(groups, tokens, DIM);
    i64 place = group * layout.matrix + block * layout.block, first = (i64)group * tokens + block * BLOCK_ROWS;
    float of_k = norm_of_block(k + place, layout.plane, k_exponents + first, count);
    __syncthreads();
    float of_v = norm_of_block(v + place, layout.plane, v_exponents + first, count);
    if (lane >= 32) return;
    i32 x[2], y[2];
    for (int b = 0; b < 2; b++) {
        i32 at = lane * 2 + b;
        x[b] = at < count ? k_exponents[first + at] : ZERO_ROW;
        y[b] = at < count ? v_exponents[first + at] : ZERO_ROW;
        if (at < count) bounds[first + at] = NO_BOUND;
    }
    KeyRecord& record = records[blockIdx.x];
    record.factors[lane] = make_float4(some_factor(x[0]), some_factor(x[1]), some_factor(y[0]), some_factor(y[1]));
    record.weights[lane] = make_float4(scale * some_weight(x[0], 0), scale * some_weight(x[1], 0), some_weight(x[0], LIFT), some_weight(x[1], LIFT));
    i32 largest_k = warp_max_int(max(x[0], x[1])), largest_v = warp_max_int(max(y[0], y[1]));
    if (lane == 0) {
        record.norms[0] = norms[blockIdx.x] = of_k;
        record.norms[1] = norms[groups * blocks + blockIdx.x] = of_v;
        record.largest_k = largest_k;
        record.largest_v = largest_v;
    }
}

// A block makes the records of 64 queries, their norms [2][groups][blocks] and their largest y.
GLOBAL void __launch_bounds__(NORM_THREADS)
    attention_backward_queries(const i8* q, const i8* dout, const i32* pairs, const i32* dout_exponents, const float* maxima,
                               const float* sums, const float* inner, const i32* q_exponents, ShareRecord* shares,
                               SlopeRecord* slopes, float* norms, i32* tops, i32 groups, i32 rows, float scale) {
    i32 blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, group = (i32)blockIdx.x / blocks, block = (i32)blockIdx.x % blocks;
    i32 count = rows - block * BLOCK_ROWS, lane = (i32)threadIdx.x;
    Layout layout = layout_of(groups, rows, DIM);
    i64 place = group * layout.matrix + block * layout.block, first = (i64)group * rows + block * BLOCK_ROWS;
    float norm = norm_of_block(q + place, layout.plane, q_exponents + first, count);
    __syncthreads();
    float of_dout = norm_of_block(dout + place, layout.plane, dout_exponents + first, count);
    if (lane >= 32) return;
    Query of[2];
    i32 y[2];
    float factor[2], weight[2];
    bool tame = true;
    i32 inner_exponent = -149;
    for (int b = 0; b < 2; b++) {
        i32 at = lane * 2 + b;
        of[b] = Query{ZERO_ROW, ZERO_ROW, 0.0f, 1.0f, 0.0f};
        y[b] = ZERO_ROW;
        if (at < count) {
            of[b] = Query{q_exponents[first + at], dout_exponents[first + at], maxima[first + at], sums[first + at], inner[first + at]};
            y[b] = of_z(pairs[first + at]);
        }
        tame = tame && of[b].tame();
        // Under a tame bound, which is no less than y, weights are 0 where 2^y is below 2^-126.
        weight[b] = y[b] < -126 || y[b] > 100 ? 0.0f : power_of_two(y[b]);
        factor[b] = some_factor(of[b].of_q);
        inner_exponent = max(inner_exponent, is_finite(of[b].inner) ? row_exponent(of[b].inner) : 1000);
    }
    ShareRecord& share = shares[blockIdx.x];
    SlopeRecord& slope = slopes[blockIdx.x];
    share.scores[lane] = slope.scores[lane] = make_float4(factor[0], factor[1], of[0].largest, of[1].largest);
    share.weights[lane] = make_float2(weight[0], weight[1]);
    slope.gradients[lane] = make_float4(some_factor(of[0].of_gradient), some_factor(of[1].of_gradient), of[0].inner, of[1].inner);
    slope.sums[lane] = make_float4(of[0].sum, of[1].sum, 1.0f / of[0].sum, 1.0f / of[1].sum);
    slope.weights[lane] = make_float2(scale * some_weight(of[0].of_q, 0), scale * some_weight(of[1].of_q, 0));
    tame = __all_sync(WARP, tame) != 0;
    i32 largest = warp_max_int(max(of[0].of_q, of[1].of_q)), gradient = warp_max_int(max(of[0].of_gradient, of[1].of_gradient));
    inner_exponent = warp_max_int(inner_exponent);
    i32 top = warp_max_int(max(y[0], y[1]));
    if (lane == 0) {
        // An infinite norm lets no dot be tame.
        share.norm = slope.norms[0] = norms[blockIdx.x] = tame ? norm : float_of(0x7f800000u);
        slope.norms[1] = norms[groups * blocks + blockIdx.x] = of_dout;
        slope.largest_q = largest;
        slope.largest_gradients = pair_of(gradient, inner_exponent);
        tops[blockIdx.x] = top;
    }
}

// Y of each key, by a warp: the largest y of the queries that see it. tops: of each 64 rows of queries.
GLOBAL void attention_backward_tops(const i32* pairs, const i32* tops, i32* bounds, SIZES) {
    i64 key = global_index() >> 5;
    i32 lane = (i32)threadIdx.x & 31, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (key >= (i64)groups * tokens) return;
    i64 group = key / tokens;
    Chunk c = KEY_CHUNK;
    Seen seen = queries_seeing(c, (i32)(key - group * tokens));
    i32 first = (seen.first + BLOCK_ROWS - 1) / BLOCK_ROWS, last = (seen.last + 1) / BLOCK_ROWS, top = ZERO_ROW;  // whole blocks
    pairs += group * rows;
    tops += group * blocks;
    if (first < last) {
        for (i32 i = first + lane; i < last; i += 32) top = max(top, tops[i]);
        for (i32 i = seen.first + lane; i < first * BLOCK_ROWS; i += 32) top = max(top, of_z(pairs[i]));
        for (i32 i = last * BLOCK_ROWS + lane; i <= seen.last; i += 32) top = max(top, of_z(pairs[i]));
    } else {
        for (i32 i = seen.first + lane; i <= seen.last; i += 32) top = max(top, of_z(pairs[i]));
    }
    top = warp_max_int(top);
    if (lane == 0) bounds[key] = top;
}

#define FUSED(C) GLOBAL void __cluster_dims__(C::CLUSTER, 1, 1) __launch_bounds__(Pipe<C>::THREADS, 1)
// Operands, [groups][T * R] and [groups][T], in planes; their exponents; the norms [groups][blocks] of
// those two that are rows.
#define OPERANDS                                                                                                                  \
    const i8 *q, const i8 *k, const i8 *v, const i8 *dout, const i32 *q_exponents, const i32 *k_exponents, const i32 *v_exponents, \
        const i32 *dout_exponents, const float *norms, const float *other_norms
#define SOFTMAX const float *maxima, const float *sums, const float *inner
#define QUERY_OPERANDS(TURNED, RECORDS)                                                                                             \
    Given {                                                                                                                         \
        {q, dout}, {k, v}, TURNED, (const i8*)RECORDS, {norms, other_norms},                     \
            {q_exponents, dout_exponents}, {k_exponents, v_exponents}                                                               \
    }
#define KEY_OPERANDS(TURNED, RECORDS)                                                                                        \
    Given {                                                                                                                  \
        {k, v}, {q, dout}, TURNED, (const i8*)RECORDS, {norms, other_norms},                      \
            {k_exponents, v_exponents}, {q_exponents, dout_exponents}                                                        \
    }

FUSED(SlopeScan)
attention_backward_scan(OPERANDS, const KeyRecord* records, SOFTMAX, i32* query_bounds, i32* key_bounds, u32* status, SIZES) {
    extern __shared__ __align__(1024) i8 memory[];
    SlopeScan cells{};
    cells.queries = QueryRows{q_exponents, dout_exponents, maxima, sums, inner, rows, scale, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    cells.k_exponents = k_exponents, cells.query_bounds = query_bounds, cells.key_bounds = key_bounds;
    cells.status = status, cells.tokens = tokens;
    attend<SlopeScan>(QUERY_OPERANDS(k, records), QUERY_CHUNK, cells, memory);
}

FUSED(QuerySum)
attention_backward_query(OPERANDS, const i8* k_turned, const KeyRecord* records, SOFTMAX, const i32* bounds, float* out, SIZES) {
    extern __shared__ __align__(1024) i8 memory[];
    QuerySum cells{};
    cells.queries = QueryRows{q_exponents, dout_exponents, maxima, sums, inner, rows, scale, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    cells.k_exponents = k_exponents, cells.bounds = bounds, cells.out = out, cells.tokens = tokens, cells.heads = heads;
    attend<QuerySum>(QUERY_OPERANDS(k_turned, records), QUERY_CHUNK, cells, memory);
}

FUSED(ShareSum)
attention_backward_share(OPERANDS, const i8* z_turned, const ShareRecord* records, const float* maxima, const i32* pairs,
                         const i32* bounds, float* out, SIZES) {
    extern __shared__ __align__(1024) i8 memory[];
    ShareSum cells{};
    cells.k_exponents = k_exponents, cells.pairs = pairs, cells.bounds = bounds, cells.maxima = maxima;
    cells.out = out, cells.tokens = tokens, cells.heads = heads, cells.scale = scale;
    attend<ShareSum>(KEY_OPERANDS(z_turned, records), KEY_CHUNK, cells, memory);
}

FUSED(SlopeSum)
attention_backward_slope(OPERANDS, const i8* q_turned, const SlopeRecord* records, SOFTMAX, const i32* bounds, float* out, SIZES) {
    extern __shared__ __align__(1024) i8 memory[];
    SlopeSum cells{};
    cells.k_exponents = k_exponents, cells.v_exponents = v_exponents, cells.q_exponents = q_exponents, cells.bounds = bounds;
    cells.maxima = maxima, cells.sums = sums, cells.inner = inner;
    cells.out = out, cells.tokens = tokens, cells.heads = heads, cells.scale = scale;
    attend<SlopeSum>(KEY_OPERANDS(q_turned, records), KEY_CHUNK, cells, memory);
}

#endif
