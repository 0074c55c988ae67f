// Fused attention by the asynchronous tensor cores of sm_90a: exact dots of rows with columns, a tile of 64 by 64 at a time, weights
// made of them in registers, and weighted sums over the columns (SPEC.md section 8). No score is ever in memory.
//
// A block keeps 64 rows and walks over the tiles of columns that they see. Its first warps copy; "scorers", warpgroups that take turns,
// multiply a tile, make weights of it and leave their digits in shared memory; the "summer", the last warpgroup, multiplies
// these by the columns' turned rows and keeps all sums of the 64 rows in its registers until they are rounded once. Without
// sums, every scorer has 64 rows of its own, and all go through the same tiles. Blocks go on to other rows until none
// are left (unit_at). Two blocks of a cluster, with neighbouring rows, each copy half of the columns to both.
//
// A kernel gives `attend` a class C:
//   QUERIES        rows are queries (token by token, the heads of a token side by side) and columns keys; or the other way round
//   PRODUCTS       1: rows[0] with columns[0]; 2: rows[1] with columns[1] too
//   SUMS           whether weights are summed; UNSIGNED: whether no weight is negative
//   ROW_SUMS       whether results are divided by sums of the scorers, C::sum(half), in units of 2^-30
//   SCORERS, TOGETHER (how many of them multiply at a time), TWO_SETS, *_STAGES, CLUSTER, *_REGISTERS   choices that change no bit
//   VECTORS        numbers of a column in its tile's record: HEADER bytes, the first PRODUCTS of whose floats are norms of the
//                  tile's columns (attention_norms.cuh), then of each pair of columns [VECTORS][2] floats
//   begin(group, row, l)   new rows, row and row + 8 of this thread (the last, where there are fewer); whether they are tame. i32
//                          l[2] are kept for fast; where it looks at them they are the same in a warp
//   fast(head, l)          whether all columns of a tile are tame, by the header of its record as i32[4]; static
//   tile<KIND>(t, v)       weights of a tile from its dots i32 v[PRODUCTS][32], written by t.store if SUMS. WHOLE: all of the tile
//                          is seen, rows and columns are tame and v are exact integers; EDGE: the same, but t.sees(i) says
//                          what is seen; ANY_TILE: v are bits of the rounded dots, and t.sees(i) says what is seen
//   end(group, row)        after the last tile of these rows; row as in Tile
//   result(group, row)     of a row's weighted sum: where its DIM floats go, and the bound of its weights
//   total(group, row, l)   takes the sum of a row, rounded, of all scorers
//
// The integers q q' = 128 R - 127 L with R = 127 HH + SS of digits (exact_dot_planes.cuh) are made in one set of sums, modulo 2^32:
// R after two planes, then S R + L with S = -128 / 127, then times -127. They fit int32 where the norms say so (Cauchy and
// Schwarz); where not, four bits of R tell which of the numbers with these 32 bits it is, and a double holds it.
#pragma once
#include "attention_loaders.cuh"
#include "attention_sums.cuh"
#include "attention_tiles.cuh"
#include "exact_dot_sums.cuh"

// d += one plane of rows . the same of columns, all DIM of K; a group of products.
__device__ __forceinline__ void multiply_plane(i32 (&d)[32], u32 rows, u32 columns, int plane, bool add) {
    product_fence(d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 inside = plane * PLANE + i / 2 * BLOCK_BYTES + i % 2 * 32;
        product_s8(d, advanced(operand_of(rows), inside), advanced(operand_of(columns), inside), add || i > 0);
    }
    product_commit();
}

__device__ __forceinline__ void scale_by(i32 (&d)[32], u32 by) {
#pragma unroll
    for (int i = 0; i < 32; i++) d[i] = times(d[i], by);
}

// R / 2^SHIFT, rounded down, in four bits each.
template <int SHIFT>
__device__ __forceinline__ void keep_upper(u32 (&upper)[4], const i32 (&r)[32]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        upper[i] = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) upper[i] |= ((u32)(r[8 * i + k] >> SHIFT) & 15u) << (4 * k);
    }
}

// The dots of a tile: exact as int32, or modulo 2^32 with `upper` of R, if `keep`. The barrier `turn` ends when the last group of
// products is under way. In one set of sums each: R, then S R + L with S = -128 / 127, then times -127.
template <int PRODUCTS>
__device__ __forceinline__ void multiply_in_one_set(i32 (&v)[PRODUCTS][32], u32 (&upper)[PRODUCTS][4], u32 rows, u32 columns, bool keep,
                                                    u32 turn) {
#pragma unroll 1
    for (int plane = 0; plane < 3; plane++) {
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++) multiply_plane(v[p], rows + p * OPERAND, columns + p * OPERAND, plane, plane > 0);
        if (plane == 2) arrive(turn);
#pragma unroll
        for (int p = 0; p < PRODUCTS; p++) {
            if (p + 1 < PRODUCTS)
                product_wait_before<1>(v[p]);
            else
                product_wait<0>(v[p]);
            if (keep && plane == 1) keep_upper<24>(upper[p], v[p]);
            scale_by(v[p], plane == 0 ? 127u : plane == 1 ? BEFORE_LAST : MINUS_127);
        }
    }
}
// The same of two pairs of operands whose dots fit int32: a group of one is always under way while the sums of the other are worked on.
__device__ __forceinline__ void multiply_two(i32 (&v)[2][32], u32 rows, u32 columns, u32 turn) {
    rows = made_anew(rows), columns = made_anew(columns);
#pragma unroll
    for (int p = 0; p < 2; p++) multiply_plane(v[p], rows + p * OPERAND, columns + p * OPERAND, 0, false);
#pragma unroll
    for (int plane = 0; plane < 2; plane++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            product_wait_before<1>(v[p]);
            scale_by(v[p], plane == 0 ? 127u : BEFORE_LAST);
            multiply_plane(v[p], rows + p * OPERAND, columns + p * OPERAND, plane + 1, true);
        }
    arrive(turn);
    product_wait_before<1>(v[0]);
    scale_by(v[0], MINUS_127);
    product_wait<0>(v[1]);
    scale_by(v[1], MINUS_127);
}
// The same, where registers allow, in two sets for R and L: a group is under way while the sums of the one before are worked on.
__device__ __forceinline__ void multiply_in_two_sets(i32 (&v)[32], u32 (&upper)[4], u32 rows, u32 columns, bool keep, u32 turn) {
    i32 low[32] = {};
    multiply_plane(v, rows, columns, 0, false);
    multiply_plane(low, rows, columns, 2, false);
    product_wait_before<1>(v);
    scale_by(v, 127);
    multiply_plane(v, rows, columns, 1, true);
    arrive(turn);
    product_wait_before<1>(low);
    scale_by(low, MINUS_127);
    product_wait<0>(v);
    if (keep) keep_upper<24>(upper, v);
#pragma unroll
    for (int i = 0; i < 32; i++) v[i] = (i32)((u32)v[i] * 128u + (u32)low[i]);
}

// As the class chooses. fits: dots are int32.
template <class C>
__device__ __forceinline__ void multiply(i32 (&v)[C::PRODUCTS][32], u32 (&upper)[C::PRODUCTS][4], u32 rows, u32 columns, bool fits,
                                         u32 turn) {
    if constexpr (C::PRODUCTS == 2) {
        if (fits)
            multiply_two(v, rows, columns, turn);
        else
            multiply_in_one_set<C::PRODUCTS>(v, upper, rows, columns, true, turn);
    } else if constexpr (C::TWO_SETS) {
        multiply_in_two_sets(v[0], upper[0], rows, columns, !fits, turn);
    } else {
        multiply_in_one_set<C::PRODUCTS>(v, upper, rows, columns, !fits, turn);
    }
}

// Dots modulo 2^32 to rounded dots, as bits: two cells of a row at a time, in a loop that turns the arrays round, for it is rarely
// needed. |R| <= 2^26 and |127 L| < 2^26: the dot is in a range of less than 2^32 that R / 2^24 tells, or the sign of an int32.
__device__ __forceinline__ void round_tile(i32 (&v)[32], u32 (&upper)[4], const Tile& t, const i32* rows, const i32* columns,
                                           const Chunk& c) {
    i32 of_row = rows[min(t.row, c.rows - 1)] - 26, of_next = rows[min(t.row + 8, c.rows - 1)] - 26;
#pragma unroll 1
    for (i32 pair = 0; pair < 16; pair++) {
        i32 made[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            i32 column = min(t.column + (pair >> 1) * 8 + b, c.columns - 1);
            i64 least = ((i32)(upper[0] << (28 - 4 * b)) >> 28) * (1ll << 31) - (1ll << 26);
            i64 n = least + ((u32)v[b] - (u32)least);
            made[b] = (i32)bits_of(round_scaled(n, (pair & 1 ? of_next : of_row) + columns[column]));
        }
#pragma unroll
        for (int i = 0; i < 30; i++) v[i] = v[i + 2];
#pragma unroll
        for (int i = 0; i < 4; i++) upper[i] = upper[i] >> 8 | (i < 3 ? upper[(i + 1) % 4] << 24 : 0);
        v[30] = made[0], v[31] = made[1];
    }
    __syncwarp();
}

// Where this thread is in the unit of a round: made anew where it is needed, for the tiles need the registers.
template <class C>
__device__ __forceinline__ void locate(Tile& t, const Chunk& c, u32 round, u32 rank, i32 block) {
    Unit u = unit_at<C>(c, made_anew(round), rank);
    i32 thread = (i32)made_anew(threadIdx.x);
    t.group = u.group, t.row = u.row + block * BLOCK_ROWS + thread / 32 % 4 * 16 + thread % 32 / 4;
}

// A warpgroup: weights of its tiles.
template <class C>
__device__ __forceinline__ void score(const Given& g, const Chunk& c, C& cells, i8* shared, u32 ring, u32 rank, i32 scorer) {
    using P = Pipe<C>;
    i32 warp = (i32)(threadIdx.x / 32 % 4), lane = (i32)(threadIdx.x & 31), block = C::SUMS ? 0 : scorer;
    u32 round = 0, passed = 0;  // units and tiles: where all rings stand
    Limits* limits = (Limits*)(shared + P::LIMIT) + scorer * 4 + warp;
    i32 v[C::PRODUCTS][32] = {};
    // Tiles are multiplied in order, so many at a time: else all would multiply, and then all wait for their own instructions.
    if (scorer == 0)
        for (int i = 0; i < C::TOGETHER; i++) arrive(ring + P::TURN + 8 * i);
#pragma unroll 1
    for (Unit u = unit_at<C>(c, 0, rank); u.exists; u = unit_at<C>(c, ++round, rank)) {
        Place<C::ROW_STAGES> row(round);
        i32 begin = min(u.row + block * BLOCK_ROWS, c.rows - 1), end = min(begin + BLOCK_ROWS, c.rows);
        Tile t;
        t.group = u.group, t.row = u.row + block * BLOCK_ROWS + warp * 16 + lane / 4;
        Limits own{};
        own.tame = __all_sync(0xffffffffu, cells.begin(u.group, t.row, own.of_class));
        own.first = seen_by<C>(c, end - 1).first;
        own.last = seen_by<C>(c, begin).last;
#pragma unroll
        for (int p = 0; p < C::PRODUCTS; p++)
            own.norms[p] = g.norms[p][u.group * ((c.rows + BLOCK_ROWS - 1) / BLOCK_ROWS) + begin / BLOCK_ROWS];
        if (lane == 0) *limits = own;
        __syncwarp();
        u32 from_rows = ring + P::ROW + row.slot * P::ROW_BYTES + block * P::COLUMN_BYTES;
        mbarrier_wait(ring + P::ROW_FULL + 8 * row.slot, row.parity);
#pragma unroll 1
        for (i32 tile = u.first, last = u.last; tile <= last; tile++, passed++) {
            if (passed % P::EVERY != scorer % P::EVERY) continue;
            Place<C::COLUMN_STAGES> column(passed);
            Place<(C::SUMS ? C::SUM_STAGES : 1)> digit(passed);
            i32 at = tile * BLOCK_ROWS;
            t.column = at + lane % 4 * 2;
            t.record = shared + P::RECORD + (scorer * 2 + passed / P::EVERY % 2) * P::RECORD_BYTES;
            t.digits = shared + P::DIGIT + digit.slot * DIGITS;
            u32 from_columns = ring + P::COLUMN + column.slot * P::COLUMN_BYTES;
            block_meet(1 + scorer, WARPGROUP + 32);
            mbarrier_wait(ring + P::COLUMN_FULL + 8 * column.slot, column.parity);
            // All at once and without a branch: each would wait for its own word of shared memory.
            const Limits of_rows = *limits;
            const int4 head = *(const int4*)t.record;
            const i32 of_columns[4] = {head.x, head.y, head.z, head.w};
            bool whole = (at >= of_rows.first) & (at + BLOCK_ROWS - 1 <= of_rows.last);
            bool fits = true;  // the same in all warps, which multiply together
#pragma unroll
            for (int p = 0; p < C::PRODUCTS; p++) fits = fits & (of_rows.norms[p] * float_of((u32)of_columns[p]) < 2147480000.0f);
            bool fast = fits & (of_rows.tame != 0) & C::fast(of_columns, of_rows.of_class);
            u32 order = C::SUMS ? passed : passed * C::SCORERS + scorer;
            u32 next = ring + P::TURN + 8 * ((order + C::TOGETHER) % P::TURNS);
            Place<P::TURNS> turn(order);
            mbarrier_wait(ring + P::TURN + 8 * turn.slot, turn.parity);
            u32 upper[C::PRODUCTS][4] = {};
            multiply<C>(v, upper, from_rows, from_columns, fits, next);
            if (!(fast && whole)) locate<C>(t, c, round, rank, block);
            if (!fast)
#pragma unroll
                for (int p = 0; p < C::PRODUCTS; p++) {
                    if (fits) keep_upper<31>(upper[p], v[p]);  // the sign is enough
                    round_tile(v[p], upper[p], t, g.row_exponents[p] + t.group * c.rows,
                               g.column_exponents[p] + t.group * c.columns, c);
                }
            arrive_at_all<C::CLUSTER>(ring + P::COLUMN_EMPTY + 8 * column.slot);
            if (C::SUMS) mbarrier_wait(ring + P::DIGIT_EMPTY + 8 * digit.slot, digit.parity ^ 1);
            if (!(fast && whole))
#pragma unroll
                for (int half = 0; half < 2; half++) t.seen[half] = seen_by<C>(c, min(t.row + 8 * half, c.rows - 1));
            if (fast && whole) {
                cells.template tile<WHOLE>(t, v);
            } else if (fast) {
                cells.template tile<EDGE>(t, v);
            } else {
                cells.template tile<ANY_TILE>(t, v);
            }
            if (C::SUMS) {
                fence_async();
                arrive(ring + P::DIGIT_FULL + 8 * digit.slot);
            } else {
                __syncwarp();  // threads may have parted, and products want them together
            }
        }
        arrive(ring + P::ROW_EMPTY + 8 * Place<C::ROW_STAGES>(round).slot);
        locate<C>(t, c, round, rank, block);
        cells.end(t.group, t.row);
        if constexpr (C::ROW_SUMS) {
            mbarrier_wait(ring + P::TOTAL_EMPTY, ~round & 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                i64 sum = cells.sum(half);
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                if (lane % 4 == 0) atomicAdd((u64*)(shared + P::TOTAL) + warp * 16 + lane / 4 + 8 * half, (u64)sum);
            }
            arrive(ring + P::TOTAL_FULL);
        }
    }
}

// Barriers of full places, then of empty ones, with their numbers of arrivals.
template <int STAGES>
__device__ __forceinline__ void init_ring(u32 barriers, u32 full, u32 empty) {
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(barriers + 8 * i, full);
        mbarrier_init(barriers + 8 * (STAGES + i), empty);
    }
}

// So many registers per thread of this warpgroup from here on, of those that the block begins with.
template <class C, int N>
__device__ __forceinline__ void take_registers() {
    constexpr int BEGIN = 65536 / Pipe<C>::THREADS / 8 * 8;
    if constexpr (N > BEGIN)
        registers_up<N>();
    else if constexpr (N < BEGIN)
        registers_down<N>();
}

// A kernel of blocks of Pipe<C>::THREADS threads, with Pipe<C>::BYTES + 1024 bytes of shared memory.
template <class C>
__device__ __forceinline__ void attend(const Given& g, const Chunk& c, C cells, i8* memory) {
    using P = Pipe<C>;
    u32 address = shared_address(memory), ring = (address + 1023) & ~1023u;
    i8* shared = memory + (ring - address);
    u32 rank = blockIdx.x % C::CLUSTER;
    constexpr u32 READERS = 4 * C::CLUSTER * (C::SUMS ? 1 : C::SCORERS);
    if (threadIdx.x == 0) {
        init_ring<C::ROW_STAGES>(ring + P::ROW_FULL, 1, 4 * C::SCORERS);
        init_ring<C::COLUMN_STAGES>(ring + P::COLUMN_FULL, 1, READERS);
        if constexpr (C::SUMS) {
            init_ring<C::SUM_STAGES>(ring + P::TURNED_FULL, 1, 4 * C::CLUSTER);
            init_ring<C::SUM_STAGES>(ring + P::DIGIT_FULL, 4, 4);
            init_ring<1>(ring + P::TOTAL_FULL, 4 * C::SCORERS, 4);
            for (int i = 0; i < P::TOTALS; i++) ((u64*)(shared + P::TOTAL))[i] = 0;
        }
        for (int i = 0; i < P::TURNS; i++) mbarrier_init(ring + P::TURN + 8 * i, 4);
        mbarrier_init_fence();
    }
    if (C::CLUSTER == 1)
        __syncthreads();
    else
        cluster_sync();
    i32 group = __shfl_sync(0xffffffffu, (i32)threadIdx.x / WARPGROUP, 0);  // the same for a warp, as the compiler now knows
    if (group == 0) {
        take_registers<C, C::SUMS ? 32 : 40>();
        i32 warp = __shfl_sync(0xffffffffu, (i32)threadIdx.x / 32, 0);
        static_assert((C::SUMS ? 2 : 1) + C::SCORERS <= 4, "a warp each");
        if (warp == 0) load_columns<C>(g, c, ring, rank);
        if (warp >= 4 - C::SCORERS) load_records<C>(g, c, shared, rank, warp - (4 - C::SCORERS));
        if constexpr (C::SUMS)
            if (warp == 1) load_turned<C>(g, c, ring, rank);
    } else if (group <= C::SCORERS) {
        take_registers<C, C::SCORER_REGISTERS>();
        score<C>(g, c, cells, shared, ring, rank, group - 1);
    } else {
        if constexpr (C::SUMS) {
            take_registers<C, C::SUMMER_REGISTERS>();
            sum_up<C>(c, cells, shared, ring, rank);
        }
    }
    if (C::CLUSTER != 1) {
        __syncwarp();
        cluster_sync();  // the other block may still arrive at this one's barriers
    }
}
