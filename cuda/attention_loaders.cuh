// The warps that bring what a block of the fused attention works on to its shared memory (attention_sm90.cuh).
#pragma once
#include "attention_tiles.cuh"

// What is multiplied: planes of rows of DIM elements, and turned ones (attention_cells.cuh); all of c.batch matrices.
struct Given {
    const i8 *rows[2], *columns[2], *turned, *records;
    const float* norms[2];                        // of each 64 rows, as in the records
    const i32 *row_exponents[2], *column_exponents[2];
};

// One warp: the rows of all units and the columns of all tiles.
template <class C>
__device__ __forceinline__ void load_columns(const Given& g, const Chunk& c, u32 ring, u32 rank) {
    using P = Pipe<C>;
    constexpr u32 PIECE = PLANE / C::CLUSTER;  // of a plane of columns, which this block copies
    i32 lane = threadIdx.x & 31, product = lane / 3, plane = lane % 3;
    i32 row_blocks = (c.rows + BLOCK_ROWS - 1) / BLOCK_ROWS, tiles = (c.columns + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (product >= C::PRODUCTS) return;  // a lane with nothing to do that is late would miss phases
    u32 round = 0, passed = 0;
#pragma unroll 1
    for (Unit u = unit_at<C>(c, 0, rank); u.exists; u = unit_at<C>(c, ++round, rank)) {
        Place<C::ROW_STAGES> row(round);
        i32 matrix = plane * c.batch + u.group;
        u32 full = ring + P::ROW_FULL + 8 * row.slot, place = ring + P::ROW + row.slot * P::ROW_BYTES + lane * PLANE;
        mbarrier_wait(full + (P::ROW_EMPTY - P::ROW_FULL), row.parity ^ 1);
        if (lane == 0) mbarrier_expect(full, P::ROW_BYTES);
#pragma unroll 1
        for (i32 block = 0; block < P::ROW_BLOCKS; block++)
            bulk_load(place + block * P::COLUMN_BYTES,
                      PICK(g.rows, product) + (i64)(matrix * row_blocks + min(u.row / BLOCK_ROWS + block, row_blocks - 1)) * PLANE,
                      PLANE, full);
        const i8* from = PICK(g.columns, product) + (i64)(matrix * tiles + u.first) * PLANE + rank * PIECE;
#pragma unroll 1
        for (i32 left = u.last - u.first; left >= 0; left--, from += PLANE, passed++) {
            Place<C::COLUMN_STAGES> column(passed);
            full = ring + P::COLUMN_FULL + 8 * column.slot;
            mbarrier_wait(full + (P::COLUMN_EMPTY - P::COLUMN_FULL), column.parity ^ 1);
            if (lane == 0) mbarrier_expect(full, P::COLUMN_BYTES);
            place = ring + P::COLUMN + column.slot * P::COLUMN_BYTES + lane * PLANE + rank * PIECE;
            if (C::CLUSTER == 1)
                bulk_load(place, from, PIECE, full);
            else
                bulk_load_to(place, from, PIECE, full, (1u << C::CLUSTER) - 1);
        }
    }
}

// One warp: the turned rows of all tiles, 64 of DIM elements at a time.
template <class C>
__device__ __forceinline__ void load_turned(const Given& g, const Chunk& c, u32 ring, u32 rank) {
    using P = Pipe<C>;
    i32 lane = threadIdx.x & 31, plane = lane % 3, half = C::CLUSTER == 1 ? lane / 3 : (i32)rank;
    if (lane >= 6 / C::CLUSTER) return;
    Layout layout = layout_of(c.batch, DIM, c.padded);
    const i8* all = g.turned + plane * layout.plane + half * layout.block;
    Turn<C::SUM_STAGES> turn;
    u32 round = 0;
#pragma unroll 1
    for (Unit u = unit_at<C>(c, 0, rank); u.exists; u = unit_at<C>(c, ++round, rank)) {
        const i8* from = all + u.group * layout.matrix + (i64)u.first * BLOCK_BYTES;
#pragma unroll 1
        for (i32 left = u.last - u.first; left >= 0; left--, from += BLOCK_BYTES, turn.next()) {
            u32 full = ring + P::TURNED_FULL + 8 * turn.slot;
            u32 place = ring + P::TURNED + turn.slot * OPERAND + plane * PLANE + half * BLOCK_BYTES;
            mbarrier_wait(full + (P::TURNED_EMPTY - P::TURNED_FULL), turn.parity ^ 1);
            if (lane == 0) mbarrier_expect(full, OPERAND);
            if (C::CLUSTER == 1)
                bulk_load(place, from, BLOCK_BYTES, full);
            else
                bulk_load_to(place, from, BLOCK_BYTES, full, (1u << C::CLUSTER) - 1);
        }
    }
}

// One warp for each scorer: the records of its tiles, to two places in turn. It has waited for a copy when it meets the scorer, which is
// done with the record before then: an order that racecheck of compute-sanitizer knows, unlike that of bulk copies and mbarriers.
template <class C>
__device__ __forceinline__ void load_records(const Given& g, const Chunk& c, i8* shared, u32 rank, i32 scorer) {
    using P = Pipe<C>;
    i32 lane = threadIdx.x & 31, tiles = (c.columns + BLOCK_ROWS - 1) / BLOCK_ROWS;
    i8* to = shared + P::RECORD + scorer * 2 * P::RECORD_BYTES;
    u32 round = 0, passed = 0;
#pragma unroll 1
    for (Unit u = unit_at<C>(c, 0, rank); u.exists; u = unit_at<C>(c, ++round, rank)) {
#pragma unroll 1
        for (i32 tile = u.first; tile <= u.last; tile++, passed++) {
            if (passed % P::EVERY != scorer % P::EVERY) continue;
            const i8* from = g.records + (i64)(u.group * tiles + tile) * P::RECORD_BYTES;
            i8* place = to + passed / P::EVERY % 2 * P::RECORD_BYTES;
            for (i32 at = 16 * lane; at < P::RECORD_BYTES; at += 16 * 32) cp_async_16(place + at, from + at);
            cp_async_commit();
            cp_async_wait<0>();
            block_meet(1 + scorer, WARPGROUP + 32);
        }
    }
}
