// One launch over many tensors: a table of their sizes and addresses in device memory, cut into tiles.
//
//   table  u64 [2 + fields][count]: row 0 the number of tiles before each tensor, row 1 its elements, row 2 + f
//          its address (or a number) for field f
//
// Made by auditkit/kernels/tensor_table.py.
#pragma once
#include "common.cuh"

#define TILE 4096  // elements of a tile; the last tile of a tensor may be short

struct Tile {
    const u64* table;
    i64 count, tensor;
    i64 first, end;  // elements of the tensor

    __device__ __forceinline__ u64 word(int f) const { return table[(2 + f) * count + tensor]; }
    template <class T>
    __device__ __forceinline__ T* field(int f) const { return (T*)word(f); }
};

// Which tensor tile `index` belongs to. All threads of the block call it together: each looks at some tensors, one finds it.
__device__ __forceinline__ Tile tile_of(const u64* table, i64 count, i64 index) {
    __shared__ i64 owner;
    __syncthreads();  // the owner of the tile before has been read
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        i64 before = (i64)table[i], tiles = ((i64)table[count + i] + TILE - 1) / TILE;
        if (index >= before && index - before < tiles) owner = i;
    }
    __syncthreads();
    i64 tensor = owner, size = (i64)table[count + tensor], first = (index - (i64)table[tensor]) * TILE;
    return Tile{table, count, tensor, first, first + TILE < size ? first + TILE : size};
}
