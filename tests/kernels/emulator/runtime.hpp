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
    EMU_BARRIER,  // the block's, from here on
    EMU_BARRIER_AND,
    EMU_BARRIER_OR,
    EMU_BARRIER_COUNT,
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
extern unsigned char emu_dynamic_shared[] __asm__("emu_dynamic_shared");
}

// One kernel: its parameters' kinds ('p' pointer, 'f' 'd' float, 'b' 'h' 'i' 'l' signed 1..8 bytes, 'B' 'H' 'I' 'L' unsigned).
struct emu_kernel {
    const char* name;
    const char* kinds;
    void (*call)(void** args);
    int bound;  // of __launch_bounds__, 0 without
};
