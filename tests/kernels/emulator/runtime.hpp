// What the emulator's parts promise each other: the kernels (cuda_host.hpp) on one side, the scheduler on the other.
#pragma once

#include <cstddef>
#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};

// Warp collectives. All lanes of a mask must meet in the same one with the same mask.
enum emu_op : unsigned {
    EMU_SYNCWARP,
    EMU_SHFL,
    EMU_SHFL_UP,
    EMU_SHFL_DOWN,
    EMU_SHFL_XOR,
    EMU_BALLOT,
    EMU_REDUCE_ADD,
    EMU_REDUCE_MIN_S,
    EMU_REDUCE_MAX_S,
    EMU_REDUCE_MIN_U,
    EMU_REDUCE_MAX_U,
    EMU_REDUCE_AND,
    EMU_REDUCE_OR,
    EMU_REDUCE_XOR,
    EMU_MATCH_ANY,
    EMU_MMA_16832,  // arg: bit 0 A is signed, bit 1 B is signed
    EMU_MMA_8816,
    EMU_LDMATRIX,  // arg: number of matrices, bit 8 transposed
    EMU_PRODUCT,   // of a warpgroup: arg columns, bit 16 added to the sums
    EMU_PRODUCT_FENCE,
    EMU_PRODUCT_COMMIT,
    EMU_PRODUCT_WAIT,  // arg: groups that may be under way
    EMU_BARRIER,  // the block's, from here on
    EMU_BARRIER_AND,
    EMU_BARRIER_OR,
    EMU_BARRIER_COUNT,
    EMU_NAMED,  // of some threads of the block; arg its number
    EMU_CLUSTER,
    EMU_MBARRIER,  // waits for a phase; value the address
};

enum emu_access_kind { EMU_READ, EMU_WRITE, EMU_ATOMIC };

extern "C" {
// Constant within a thread, hence within a frame, although not within the process.
uint3 emu_thread_index() __attribute__((const));
uint3 emu_block_index() __attribute__((const));
uint3 emu_block_dim() __attribute__((const));
uint3 emu_grid_dim() __attribute__((const));

// Meet the lanes of `mask` in a collective; in and out are this lane's operands, `value` its scalar one.
uint64_t emu_warp(emu_op op, unsigned mask, uint64_t value, int arg, int width);
void emu_warp_registers(emu_op op, int arg, unsigned* out, const unsigned* a, const unsigned* b);
int emu_barrier(emu_op op, int predicate);
void emu_copy_async(void* to, const void* from, int bytes, int from_bytes);
void emu_copy_commit();
void emu_copy_wait(int pending);
void emu_fence();
void emu_escape(const volatile void* shared);
[[noreturn]] void emu_fail(const char* what);
void emu_check(const void* address, size_t bytes, int kind, const void* caller);
void* emu_dynamic_base() __attribute__((const));  // of this block

// What cuda/hopper.cuh has, for kernels with __cluster_dims__.
void emu_mbarrier_init(unsigned barrier, unsigned count);
void emu_mbarrier_init_fence();
void emu_mbarrier_arrive(unsigned barrier, int rank, unsigned bytes);  // rank -1: of this block
void emu_mbarrier_wait(unsigned barrier, unsigned parity);
void emu_bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier, int blocks);  // blocks -1: this one
void emu_bulk_store(void* to, unsigned from, unsigned bytes);
void emu_bulk_commit();
void emu_bulk_wait(int pending);
void emu_fence_async();
unsigned emu_cluster_rank();
void emu_cluster_sync();
void emu_named_barrier(unsigned barrier, unsigned threads);
void emu_product(int* d, int columns, uint64_t a, uint64_t b, bool add, bool unsigned_a);
void emu_product_step(emu_op op, int arg);
}

// One kernel: its parameters' kinds ('p' pointer, 'f' 'd' float, 'b' 'h' 'i' 'l' signed 1..8 bytes, 'B' 'H' 'I' 'L' unsigned).
struct emu_kernel {
    const char* name;
    const char* kinds;
    void (*call)(void** args);
    int bound;    // of __launch_bounds__, 0 without
    int cluster;  // of __cluster_dims__, 0 without
};
