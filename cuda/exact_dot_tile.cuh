// The tile of an exact dot: its copies to shared memory in a pipeline, its products on the int8 tensor cores.
#pragma once
#include "common.cuh"
#include "exact_dot_operand.cuh"
#include "exact_dot_planes.cuh"
#include "tensor.cuh"

// Each warp multiplies WM x WN, the DOWN x ACROSS warps of a block BM x BN. A stage of shared memory holds KB blocks of K of each
// of the tile's row blocks, STAGES of these are in flight, RESIDENT blocks share a multiprocessor.
template <int WM_, int WN_, int DOWN, int ACROSS_, int KB_, int STAGES_, int RESIDENT_>
struct Tile {
    static constexpr int WM = WM_, WN = WN_, ACROSS = ACROSS_, KB = KB_, STAGES = STAGES_, RESIDENT = RESIDENT_;
    static constexpr int BM = WM * DOWN, BN = WN * ACROSS, THREADS = 32 * DOWN * ACROSS;
    static constexpr int BLOCKS_A = BM / BLOCK_ROWS, BLOCKS = (BM + BN) / BLOCK_ROWS;
    static constexpr int SPAN = KB * BLOCK_BYTES;   // of a row block in a stage
    static constexpr int BYTES = BLOCKS * SPAN;     // of a stage
    static constexpr int SLICES = 2 * KB;           // of 32 bytes of K
    static constexpr int PIECES = SPAN / 16 / THREADS;  // of a row block in a stage that one thread copies
};

using Small = Tile<32, 32, 2, 2, 1, 4, 3>;     // 32 KiB
using Large64 = Tile<64, 64, 2, 2, 1, 4, 2>;   // 64 KiB: every card from sm_75 on
using Large128 = Tile<64, 64, 2, 2, 2, 3, 2>;  // 96 KiB

// The sizes of a product; k is padded. `exact`: the result is the sums of products, i64, before any rounding.
struct Shape {
    i64 m, n, k;
    i64 batch;
    bool exact;
};

// Which matrix of the batch and which tile of it.
struct Place {
    i32 batch, m0, n0;
};

template <typename T>
__device__ __forceinline__ u32 tiles_of(const Shape& s) {
    return (u32)(s.batch * ((s.m + T::BM - 1) / T::BM) * ((s.n + T::BN - 1) / T::BN));
}

// Tiles run down M in groups of 16 before they move along N, so that blocks that run together share their operands in the L2
// cache.
template <typename T>
__device__ __forceinline__ Place place_of(const Shape& s, u32 index) {
    u32 tiles_m = (u32)((s.m + T::BM - 1) / T::BM), tiles_n = (u32)((s.n + T::BN - 1) / T::BN);
    u32 matrix = index / (tiles_m * tiles_n), rest = index % (tiles_m * tiles_n);
    u32 first = rest / (16 * tiles_n) * 16;
    u32 height = tiles_m - first < 16 ? tiles_m - first : 16;
    u32 inside = rest - first * tiles_n;
    return Place{(i32)matrix, (i32)(first + inside % height) * T::BM, (i32)(inside / height) * T::BN};
}

// The copies of one block to its ring of stages. A pass is all of K of one plane; one pass follows the other without a pause.
template <typename T>
struct Pipeline {
    // This thread's first piece of each row block of the next stage; of a, then of b. Its other pieces are 512 bytes apart, so
    // that all distances fit the instruction (12 bits in cp.async's machine code) and one register serves them.
    const i8* from[T::BLOCKS];
    i64 turn_a, turn_b;         // from the end of a pass to the beginning of the next
    u32 ring;                   // begin of the ring, for this thread's pieces
    u32 writing, reading;       // stages, as offsets
    i32 steps, left, passes;    // stages of a pass; left to fetch in this pass; passes left to fetch

    __device__ __forceinline__ static u32 next(u32 stage) { return stage == (T::STAGES - 1) * T::BYTES ? 0 : stage + T::BYTES; }

    // Of a row block of a stage: a warp copies a part without gaps.
    __device__ __forceinline__ static u32 first_piece() {
        return (threadIdx.x >> 5) * (u32)(T::PIECES * 512) + (threadIdx.x & 31) * 16;
    }

    // Begin with `planes` planes of the tile at p, K from k0 to k1, both whole stages.
    __device__ __forceinline__ void start(const Operand& a, const Operand& b, const Place& p, i64 k0, i64 k1, int planes) {
        const i8* first_a = a.block_at(p.batch, p.m0, k0) + first_piece();
        const i8* first_b = b.block_at(p.batch, p.n0, k0) + first_piece();
#pragma unroll
        for (int r = 0; r < T::BLOCKS; r++)
            from[r] = r < T::BLOCKS_A ? first_a + r * a.layout.block : first_b + (r - T::BLOCKS_A) * b.layout.block;
        turn_a = a.layout.plane - (k1 - k0) * BLOCK_ROWS;
        turn_b = b.layout.plane - (k1 - k0) * BLOCK_ROWS;
        steps = left = (i32)((k1 - k0) / (T::KB * 64));
        passes = planes;
        writing = reading = 0;
#pragma unroll 1
        for (int i = 0; i < T::STAGES - 1; i++) {
            fetch<0, T::BLOCKS>();
            step();
        }
    }

    // Copy some row blocks of the next stage.
    template <int FIRST, int LAST>
    __device__ __forceinline__ void fetch() {
        if (passes > 0) copy<FIRST, LAST, 0>();
    }

    template <int ROW_BLOCK, int LAST, int PIECE>
    __device__ __forceinline__ void copy() {
        constexpr int WAY = PIECE * 512;
        cp_async_16_at<ROW_BLOCK * T::SPAN + WAY, WAY>(ring + writing, from[ROW_BLOCK]);
        if constexpr (PIECE + 1 < T::PIECES)
            copy<ROW_BLOCK, LAST, PIECE + 1>();
        else if constexpr (ROW_BLOCK + 1 < LAST)
            copy<ROW_BLOCK + 1, LAST, 0>();
    }

    // After all row blocks of a stage.
    __device__ __forceinline__ void step() {
        cp_async_commit();
        writing = next(writing);
        bool turn = --left == 0;
#pragma unroll
        for (int r = 0; r < T::BLOCKS; r++) from[r] += T::SPAN;
        if (turn) {
            left = steps;
            passes--;
#pragma unroll
            for (int r = 0; r < T::BLOCKS; r++) from[r] += r < T::BLOCKS_A ? turn_a : turn_b;
        }
    }

    // Make the oldest stage that is not yet readable readable by all; then the stage before it may be overwritten.
    __device__ __forceinline__ void advance() {
        cp_async_wait<T::STAGES - 2>();
        __syncthreads();
    }
};

// Operands of a warp for 32 bytes of K.
template <typename T>
struct Fragments {
    u32 a[T::WM / 16][4], b[T::WN / 16][4];
};

// Where a lane finds its rows of both operands in the first stage, slice 0. Slice 1 of a block is at ^ 32 (place_in_block).
template <typename T>
struct Reader {
    u32 a, b;

    __device__ __forceinline__ explicit Reader(u32 ring) {
        i32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        a = ring + at(warp / T::ACROSS * T::WM + (lane & 15), lane >> 4);
        b = ring + T::BLOCKS_A * T::SPAN + at(warp % T::ACROSS * T::WN + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
    }

    __device__ __forceinline__ static u32 at(i32 row, i32 part) {
        return (u32)(row / BLOCK_ROWS * T::SPAN + place_in_block(row % BLOCK_ROWS, part * 16));
    }

    __device__ __forceinline__ void load(Fragments<T>& f, u32 stage, int slice) const {
        u32 from_a = ((a + stage) ^ (slice % 2 * 32)) + slice / 2 * BLOCK_BYTES;
        u32 from_b = ((b + stage) ^ (slice % 2 * 32)) + slice / 2 * BLOCK_BYTES;
#pragma unroll
        for (int i = 0; i < T::WM / 16; i++) ldmatrix_x4(f.a[i], from_a + i * 16 * 64);
#pragma unroll
        for (int j = 0; j < T::WN / 16; j++) ldmatrix_x4(f.b[j], from_b + j * 16 * 64);
    }
};

// The sums of a warp's part of a tile: [i][j][r] is row 16 i + lane / 4 + 8 (r / 2), column 8 j + 2 (lane % 4) + r % 2.
template <typename T>
struct Sums {
    i32 of[T::WM / 16][T::WN / 8][4];

    __device__ __forceinline__ void clear() { scale(0); }

    __device__ __forceinline__ void scale(i32 by) {
#pragma unroll
        for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < T::WN / 8; j++)
#pragma unroll
                for (int r = 0; r < 4; r++) of[i][j][r] = by ? of[i][j][r] * by : 0;
    }

    __device__ __forceinline__ void add(const Fragments<T>& f) {
#pragma unroll
        for (int i = 0; i < T::WM / 16; i++)
#pragma unroll
            for (int j = 0; j < T::WN / 8; j++) mma_m16n8k32_s8(of[i][j], f.a[i], f.b[j >> 1] + (j & 1) * 2);
    }
};

// Where registers suffice, operands are loaded one slice ahead. On Turing and Blackwell, large tiles would spill.
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1000
constexpr int AHEAD = 1;
#else
constexpr int AHEAD = 0;
#endif

// Multiply one stage, slice by slice. With AHEAD, the operands of a slice are loaded while the one before is multiplied; `f` holds
// those of the first slice, and those of the next stage afterwards. (Behind the last stage that is whatever the ring holds.)
template <typename T>
__device__ __forceinline__ void multiply_stage(Sums<T>& sums, Fragments<T> (&f)[1 + AHEAD], Pipeline<T>& pipe,
                                               const Reader<T>& reader) {
#pragma unroll
    for (int slice = 0; slice < T::SLICES; slice++) {
        if (!AHEAD) reader.load(f[0], pipe.reading, slice);
        if (slice + 1 == T::SLICES) {
            pipe.advance();
            pipe.reading = pipe.next(pipe.reading);
        }
        if (AHEAD) reader.load(f[(slice + 1) % (1 + AHEAD)], pipe.reading, (slice + 1) % T::SLICES);
        if (slice == 0) {
            pipe.template fetch<0, T::BLOCKS>();
            pipe.step();
        }
        sums.add(f[slice % (1 + AHEAD)]);
    }
}
