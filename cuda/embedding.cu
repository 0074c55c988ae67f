// Token embedding: a gather forward, an exact scatter-add backward (SPEC.md section 11).
//
//   tokens    u32 [n], below vocab; a larger one sets TOKEN_RANGE in status and moves nothing
//   table, x  float [vocab][width], [n][width]
//   dx        float [n][width]
//   grad      i64 [vocab][width], units 2^-56, holds the head's terms of a tied table on entry, else 0
//
// Backward adds integers, so neither the launch shape nor the order of atomics can change a bit. A block sorts its CHUNK
// positions by token, adds equal tokens in registers and gives each run of them one atomic: a batch of one token alone costs
// no more than any other.
//
// The head's term is in range, so neither it nor what small terms add to it can wrap: exact_sum.cuh holds for a tied table too.
//
// Test: pytest tests/kernels/test_embedding.py
#include "exact_sum.cuh"
#include "quad.cuh"

#define GRADIENT_UNIT 72057594037927936.0f  // 2^56
#define BLOCK 128                           // most threads of a block, backward
#define CHUNK 64                            // positions of a block: enough blocks to fill a card, few atomics for one token
#define SMALL_TERM 72057594037927936.0f     // 2^62 / CHUNK
#define COLUMNS 4                           // of a thread, backward
#define AHEAD 4                             // positions that it reads before it adds the first

// WIDTH elements of a row at a time; width is a multiple of it.
template <int WIDTH>
__device__ __forceinline__ void gather(const u32* tokens, const float* table, float* x, u32* status, i64 n, i64 vocab, i64 width) {
    for (i64 at = global_index() * WIDTH; at < n * width; at += global_size() * WIDTH) {
        Division place = divide(at, width);
        i64 token = tokens[place.quotient];
        bool known = token < vocab;
        if (!known) atomicOr(status, TOKEN_RANGE);
        i64 source = known ? token * width + place.rest : 0;
        if (WIDTH == 4)
            store_quad(x + at, load_quad(table + source));
        else
            x[at] = table[source];
    }
}

GLOBAL void embedding_forward_1(const u32* tokens, const float* table, float* x, u32* status, i64 n, i64 vocab, i64 width) {
    gather<1>(tokens, table, x, status, n, vocab, width);
}
GLOBAL void embedding_forward_4(const u32* tokens, const float* table, float* x, u32* status, i64 n, i64 vocab, i64 width) {
    gather<4>(tokens, table, x, status, n, vocab, width);
}

// The chunk's tokens and positions, sorted by token: each element counts those before it.
struct Sorted {
    u32 unsorted[CHUNK], token[CHUNK];
    i32 position[CHUNK];
};

__device__ __forceinline__ void sort_chunk(Sorted& s, const u32* tokens, int size) {
    for (int i = threadIdx.x; i < size; i += blockDim.x) s.unsorted[i] = tokens[i];
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        u32 mine = s.unsorted[i];
        int before = 0;
        for (int j = 0; j < size; j++) before += s.unsorted[j] < mine || (s.unsorted[j] == mine && j < i);
        s.token[before] = mine;
        s.position[before] = i;
    }
    __syncthreads();
}

__device__ __forceinline__ void flush(i64* grad, u32 token, i64 (&total)[COLUMNS], i64 first, i64 step, i64 vocab, i64 width,
                                      i64 small, u32* status) {
    if (token >= vocab) atomicOr(status, TOKEN_RANGE);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        i64 column = first + c * step;
        if (token < vocab && column < width) atomic_add_term(grad + token * width + column, total[c], small, status);
        total[c] = 0;
    }
}

// A block takes chunk blockIdx.x / tiles and `lanes` * COLUMNS columns; blockDim.x / lanes groups of threads share the sorted
// positions among them. `small` is 2^62 / n or less: what one atomic may add unchecked.
GLOBAL void __launch_bounds__(BLOCK) embedding_backward(const float* dx, const u32* tokens, i64* grad, u32* status, i64 n,
                                                        i64 vocab, i64 width, i64 tiles, i64 small, i32 lanes) {
    __shared__ Sorted s;
    i64 begin = blockIdx.x / tiles * CHUNK;
    int size = n - begin < CHUNK ? (int)(n - begin) : CHUNK;
    sort_chunk(s, tokens + begin, size);
    int groups = blockDim.x / lanes, group = threadIdx.x / lanes;
    int share = (size + groups - 1) / groups;
    int last = (group + 1) * share < size ? (group + 1) * share : size;
    i64 first = blockIdx.x % tiles * lanes * COLUMNS + threadIdx.x % lanes;
    i64 total[COLUMNS] = {};
    for (int i = group * share; i < last; i += AHEAD) {
        float value[AHEAD][COLUMNS];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int at = i + a < last ? i + a : last - 1;
            const float* from = dx + (begin + s.position[at]) * width + first;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) value[a][c] = first + (i64)c * lanes < width ? from[c * lanes] : 0.0f;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int at = i + a;
            if (at >= last) break;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) value[a][c] = value[a][c] * GRADIENT_UNIT;
            add_terms(total, value[a], SMALL_TERM, status);
            if (at + 1 == last || s.token[at + 1] != s.token[at])
                flush(grad, s.token[at], total, first, lanes, vocab, width, small, status);
        }
    }
}
