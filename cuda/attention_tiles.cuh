// What a block of the fused attention of sm_90a works on, and where that lies in its shared memory (attention_sm90.cuh).
#pragma once
#include "attention_chunk.cuh"
#include "common.cuh"
#include "exact_dot_planes.cuh"
#include "hopper.cuh"

constexpr int DIM = 128;                         // elements of a row of q, k, v and dO
constexpr int PLANE = DIM * BLOCK_ROWS;          // bytes of a plane of 64 rows, or of DIM rows and 64 bytes of K
constexpr int OPERAND = 3 * PLANE;               // of all planes
constexpr int DIGITS = 3 * BLOCK_BYTES;          // of the weights of a tile
constexpr int HEADER = 16;                       // of the record of a tile of columns

// Where everything lies in shared memory, in bytes from its begin, and how many threads there are. C is what attention_sm90.cuh calls
// for weights, with its choices.
template <class C>
struct Pipe {
    static constexpr int ROW_BLOCKS = C::SUMS ? 1 : C::SCORERS, ROWS = ROW_BLOCKS * BLOCK_ROWS;
    static constexpr int ROW_BYTES = ROW_BLOCKS * C::PRODUCTS * OPERAND, COLUMN_BYTES = C::PRODUCTS * OPERAND;
    static constexpr int RECORD_BYTES = HEADER + C::VECTORS * 4 * BLOCK_ROWS;
    static constexpr int TOTALS = C::ROW_SUMS ? BLOCK_ROWS : 0;
    static constexpr int EVERY = C::SUMS ? C::SCORERS : 1;  // so many tiles from one of a scorer's to its next

    static constexpr int ROW = 0, COLUMN = ROW + C::ROW_STAGES * ROW_BYTES;
    static constexpr int TURNED = COLUMN + C::COLUMN_STAGES * COLUMN_BYTES, DIGIT = TURNED + C::SUM_STAGES * OPERAND;
    static constexpr int RECORD = DIGIT + C::SUM_STAGES * DIGITS;
    static constexpr int TOTAL = RECORD + 2 * C::SCORERS * RECORD_BYTES;  // i64 sums of rows, of all scorers: two records each
    static constexpr int BARRIERS = TOTAL + 8 * TOTALS;
    // Barriers of full places, then of empty ones.
    static constexpr int ROW_FULL = BARRIERS, ROW_EMPTY = ROW_FULL + 8 * C::ROW_STAGES;
    static constexpr int COLUMN_FULL = ROW_EMPTY + 8 * C::ROW_STAGES, COLUMN_EMPTY = COLUMN_FULL + 8 * C::COLUMN_STAGES;
    static constexpr int TURNED_FULL = COLUMN_EMPTY + 8 * C::COLUMN_STAGES, TURNED_EMPTY = TURNED_FULL + 8 * C::SUM_STAGES;
    static constexpr int DIGIT_FULL = TURNED_EMPTY + 8 * C::SUM_STAGES, DIGIT_EMPTY = DIGIT_FULL + 8 * C::SUM_STAGES;
    static constexpr int TOTAL_FULL = DIGIT_EMPTY + 8 * C::SUM_STAGES, TOTAL_EMPTY = TOTAL_FULL + 8;
    // Of the scorers' turns at the tensor cores: twice as many as scorers, so that none is ahead by a whole round.
    static constexpr int TURNS = 2 * C::SCORERS, TURN = TOTAL_EMPTY + 8;
    static constexpr int LIMIT = (TURN + 8 * TURNS + 15) / 16 * 16, BYTES = LIMIT + C::SCORERS * 4 * 32;  // Limits of each warp
    static_assert(BYTES + 1024 <= 227 * 1024, "more shared memory than a block may have");

    static constexpr int THREADS = WARPGROUP * (1 + C::SCORERS + (C::SUMS ? 1 : 0));
};

// By value: an array that is indexed would lie in memory.
template <class T>
__device__ __forceinline__ T pick(T first, T second, i32 half) {
    return half ? second : first;
}
#define PICK(OF, HALF) pick((OF)[0], (OF)[1], HALF)

// The place that is next in a ring, and the parity of its turn.
template <int STAGES>
struct Turn {
    u32 slot = 0, parity = 0;

    __device__ __forceinline__ void next() {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// The same after so many turns: one count serves all rings where registers are few.
template <int STAGES>
struct Place {
    u32 slot, parity;

    __device__ __forceinline__ explicit Place(u32 passed) : slot(passed % STAGES), parity(passed / STAGES & 1) {}
};

// What a warp compares with each tile, for its rows: kept in shared memory, for registers are few.
struct __align__(16) Limits {
    float norms[2];
    i32 of_class[2];   // what C::begin left
    i32 first, last;   // columns that all rows see
    i32 tame, unused;
};
static_assert(sizeof(Limits) == 32, "");

// The rows that a block takes next, from `row` on, and the tiles of columns that any row of its cluster sees.
struct Unit {
    i32 group, row, first, last;
    bool exists;
};

template <class C>
__device__ __forceinline__ Seen seen_by(const Chunk& c, i32 row) {
    return C::QUERIES ? keys_seen(c, row) : queries_seeing(c, row);
}

// Units with many tiles come first, and every other round goes backwards, so that all blocks have about as much to do.
template <class C>
__device__ __forceinline__ Unit unit_at(const Chunk& c, u32 round, u32 rank) {
    u32 clusters = gridDim.x / C::CLUSTER, mine = blockIdx.x / C::CLUSTER;
    u32 index = round * clusters + (round & 1 ? clusters - 1 - mine : mine);
    i32 height = Pipe<C>::ROWS * C::CLUSTER, blocks = (c.rows + height - 1) / height;
    if (index >= (u32)(blocks * c.batch)) return Unit{0, 0, 0, -1, false};
    i32 place = (i32)(index / (u32)c.batch), block = C::QUERIES ? blocks - 1 - place : place;
    i32 begin = block * height, end = min(begin + height, c.rows);
    return Unit{(i32)(index % (u32)c.batch), begin + (i32)rank * Pipe<C>::ROWS, seen_by<C>(c, begin).first / BLOCK_ROWS,
                seen_by<C>(c, end - 1).last / BLOCK_ROWS, true};
}

// What is known of a tile (attention_sm90.cuh).
enum Kind { WHOLE, EDGE, ANY_TILE };

// A thread's part of a tile: rows `row` and row + 8 of a group, of which some may be beyond the last; columns column + 8 i + b.
// Element 4 i + 2 half + b of a thread's 32.
struct Tile {
    i32 group, row, column;
    Seen seen[2];      // by each row, in tiles of which not all is seen or not all is tame
    const i8* record;  // of these 64 columns
    i8* digits;        // where the weights' go: 64 rows of 64 bytes, plane by plane

    __device__ __forceinline__ bool sees(int i) const {
        const Seen& of = seen[i / 2 % 2];
        return (u32)(column - of.first + (i / 4 * 8 + i % 2)) <= (u32)(of.last - of.first);
    }
    // The numbers of columns column + 8 i and the next one, each VECTORS of them: number n of both is at [2 n].
    __device__ __forceinline__ const float* numbers(int i, int vectors) const {
        return (const float*)(record + HEADER) + (4 * i + (threadIdx.x & 3)) * 2 * vectors;
    }
    // Sixteen digits of row + 8 half, of one plane; columns lie in the order of i, then b, those of a lane side by side.
    __device__ __forceinline__ void store(int half, int plane, const u32* words) const {
        i32 local = (i32)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) + 8 * half;
        *(uint4*)(digits + plane * BLOCK_BYTES + place_in_block(local, 16 * (i32)(threadIdx.x & 3))) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
};

// This warp is done with a place, or has filled it.
__device__ __forceinline__ void arrive(u32 barrier) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(barrier);
}
// The same of a place that the whole cluster fills.
template <int CLUSTER>
__device__ __forceinline__ void arrive_at_all(u32 barrier) {
    u32 lane = threadIdx.x & 31;
    if (CLUSTER == 1)
        arrive(barrier);
    else if (lane < CLUSTER)
        mbarrier_arrive_at(barrier, lane);
}
