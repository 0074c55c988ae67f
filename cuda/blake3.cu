// BLAKE3 of many buffers of device memory at once, plain or keyed. Specification: the BLAKE3 paper, sections 2.1 to 2.5.
//
// A buffer is cut into chunks of 1024 bytes, and its tree joins neighbours level by level; a last node without a neighbour rises
// as it is. `chunks` hashes one chunk a thread and joins the 128 of a block to one node; `parents` joins up to 512 nodes of one
// buffer to one, and is launched until every buffer is down to one. Whoever holds the last node of a buffer sets the flag ROOT
// and writes the digest. A launch cuts buffers at fixed places, so its shape cannot change the result.
//
// `chunks_keyed` and `parents_keyed` do the same in keyed mode: every chunk and parent begins from the key's words in place of the IV,
// with the flag KEYED_HASH. They are kernels of their own so that plain mode, which hashes whole states, pays nothing for them.
//
// The kernel `add_hashed` of exact_sum.cu takes the place of `chunks` where what is hashed are terms that it adds up.
//
// `gather` brings digests and nodes together that lie in many places, for one copy to the host.
//
// Buffers are found by bisection: `first` (n+1) holds the number of the first block of each buffer, and then the number of
// blocks of the launch. A buffer that is finished has no block.
// Tests: tests/kernels/test_blake3.py.
#include "blake3.cuh"

#define PARENTS 256  // threads of a block of `parents`; twice as many nodes go in

// Up to four bytes as a little-endian word; nothing beyond `bytes` is read.
__device__ __forceinline__ u32 partial_word(const u8* p, i32 bytes) {
    u32 word = 0;
#pragma unroll
    for (i32 i = 0; i < 4; i++)
        if (i < bytes) word |= (u32)__ldg(p + i) << 8 * i;
    return word;
}

// m (16) <- 64 bytes at p, or `bytes` of them and zeros.
__device__ __forceinline__ void load_block(u32* m, const u8* p, i32 bytes) {
    if (bytes == BLOCK_BYTES && (u64)p % 16 == 0) {
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            uint4 words = __ldg((const uint4*)p + i);
            m[4 * i] = words.x;
            m[4 * i + 1] = words.y;
            m[4 * i + 2] = words.z;
            m[4 * i + 3] = words.w;
        }
    } else {
#pragma unroll
        for (i32 i = 0; i < 16; i++) m[i] = partial_word(p + 4 * i, bytes - 4 * i);
    }
}

// The body of `chunks`; nodes is a shared array (8 * CHUNKS).
template <class Mode>
__device__ __forceinline__ void chunks_in(const Mode& mode, u32* nodes, const u64* __restrict__ pointers,
                                          const u64* __restrict__ lengths, const u64* __restrict__ first, i64 n,
                                          u32* __restrict__ out, u32* __restrict__ digests) {
    u32 t = threadIdx.x;
    i64 buffer = buffer_of(first, n, blockIdx.x);
    u64 length = lengths[buffer], begin = (blockIdx.x - first[buffer]) * CHUNKS;  // in chunks
    u64 total = length ? (length - 1) / CHUNK_BYTES + 1 : 1;
    u32 count = (u32)(total - begin < CHUNKS ? total - begin : CHUNKS);
    bool is_last = total <= CHUNKS;
    if (t < count) {
        u64 chunk = begin + t, left = length - chunk * CHUNK_BYTES;
        const u8* p = (const u8*)pointers[buffer] + chunk * CHUNK_BYTES;
        i32 bytes = left < CHUNK_BYTES ? (i32)left : CHUNK_BYTES;
        u32 cv[8], flags = Mode::flag | CHUNK_START;
        mode.first_value(cv);
#pragma unroll 1
        do {
            i32 some = bytes < BLOCK_BYTES ? bytes : BLOCK_BYTES;
            if (bytes <= BLOCK_BYTES) flags |= CHUNK_END | (total == 1 ? ROOT : 0);
            u32 m[16];
            load_block(m, p, some);
            compress(cv, m, chunk, (u32)some, flags);
            p += BLOCK_BYTES;
            bytes -= BLOCK_BYTES;
            flags = Mode::flag;
        } while (bytes > 0);
#pragma unroll
        for (i32 w = 0; w < 8; w++) nodes[w * CHUNKS + t] = cv[w];
    }
    __syncthreads();
    join(mode, nodes, CHUNKS, count, is_last);
    if (t < 8) (is_last ? digests + 8 * buffer : out + 8 * (i64)blockIdx.x)[t] = nodes[t * CHUNKS];
}

// The body of `parents`; nodes is a shared array (8 * 2 * PARENTS).
template <class Mode>
__device__ __forceinline__ void parents_in(const Mode& mode, u32* nodes, const u32* __restrict__ in,
                                           const u64* __restrict__ first_in, const u64* __restrict__ first, i64 n,
                                           u32* __restrict__ out, u32* __restrict__ digests) {
    i64 buffer = buffer_of(first, n, blockIdx.x);
    u64 total = first_in[buffer + 1] - first_in[buffer], begin = (blockIdx.x - first[buffer]) * (2 * PARENTS);
    u32 count = (u32)(total - begin < 2 * PARENTS ? total - begin : 2 * PARENTS);
    bool is_last = total <= 2 * PARENTS;
    const u32* p = in + 8 * (first_in[buffer] + begin);
    for (u32 i = threadIdx.x; i < 8 * count; i += PARENTS) nodes[i % 8 * (2 * PARENTS) + i / 8] = p[i];
    __syncthreads();
    join(mode, nodes, 2 * PARENTS, count, is_last);
    u32 t = threadIdx.x;
    if (t < 8) (is_last ? digests + 8 * buffer : out + 8 * (i64)blockIdx.x)[t] = nodes[t * 2 * PARENTS];
}

// pointers, lengths (n): address and bytes of each buffer. first (n+1). out (blocks, 8): a node a block; or, for a buffer of one
// block, digests (n, 8).
GLOBAL void __launch_bounds__(CHUNKS) chunks(const u64* __restrict__ pointers, const u64* __restrict__ lengths,
                                             const u64* __restrict__ first, i64 n, u32* __restrict__ out,
                                             u32* __restrict__ digests) {
    __shared__ u32 nodes[8 * CHUNKS];
    chunks_in(Plain{}, nodes, pointers, lengths, first, n, out, digests);
}

// nodes (.., 8) of the launch before and its first_in (n+1); first (n+1) of this one; out and digests as above.
GLOBAL void __launch_bounds__(PARENTS) parents(const u32* __restrict__ in, const u64* __restrict__ first_in,
                                               const u64* __restrict__ first, i64 n, u32* __restrict__ out,
                                               u32* __restrict__ digests) {
    __shared__ u32 nodes[8 * 2 * PARENTS];
    parents_in(Plain{}, nodes, in, first_in, first, n, out, digests);
}

// As `chunks`; key (8).
GLOBAL void __launch_bounds__(CHUNKS) chunks_keyed(const u64* __restrict__ pointers, const u64* __restrict__ lengths,
                                                   const u64* __restrict__ first, i64 n, u32* __restrict__ out,
                                                   u32* __restrict__ digests, const u32* __restrict__ key) {
    __shared__ u32 nodes[8 * CHUNKS];
    chunks_in(Keyed{key}, nodes, pointers, lengths, first, n, out, digests);
}

// As `parents`; key (8).
GLOBAL void __launch_bounds__(PARENTS) parents_keyed(const u32* __restrict__ in, const u64* __restrict__ first_in,
                                                     const u64* __restrict__ first, i64 n, u32* __restrict__ out,
                                                     u32* __restrict__ digests, const u32* __restrict__ key) {
    __shared__ u32 nodes[8 * 2 * PARENTS];
    parents_in(Keyed{key}, nodes, in, first_in, first, n, out, digests);
}

// Rows of eight words, first[b + 1] - first[b] of them at pointers[b] (n, and first n + 1), to rows targets[b] (n) and on of out.
GLOBAL void __launch_bounds__(256) gather(const u64* __restrict__ pointers, const u64* __restrict__ first,
                                          const u64* __restrict__ targets, i64 n, u32* __restrict__ out) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, row = at / 8, word = at % 8;
    if (row >= first[n]) return;
    i64 part = buffer_of(first, n, row);
    u64 in = row - first[part];
    out[8 * (targets[part] + in) + word] = ((const u32*)pointers[part])[8 * in + word];
}
