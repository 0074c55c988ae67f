// The scheduler's own state: fibers, one block at a time, the pending collectives. Shared by the three .cpp files only.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime.hpp"

enum emu_state { READY, IN_WARP, IN_BARRIER, DONE };

struct emu_copy {
    void* to;
    const void* from;
    int bytes, from_bytes, group;
};

struct emu_thread {
    void* stack_pointer;
    emu_state state;
    unsigned index, warp, lane;
    // the collective this thread waits in
    emu_op op;
    unsigned mask;
    int arg, width;
    uint64_t value;
    unsigned a[4], b[2], r[4];
    // cp.async
    std::vector<emu_copy> copies;
    int group;
};

struct emu_region {  // memory that a kernel may touch
    uintptr_t begin, end;
    int kind;  // 0 buffer, 1 shared, 2 constant
    void* shadow;
};

struct emu_machine {
    uint3 grid, block, block_index, thread_index;
    unsigned threads, block_number, dynamic_bytes;
    emu_thread* thread;     // all of the block's
    emu_thread* current;
    unsigned waiting, done;  // in the block's barrier, finished
    unsigned barrier_epoch;
    unsigned warp_epoch[32];
    bool fenced;
    uint64_t random;
    const char* kernel;
    char* message;
    size_t message_size;
    bool failed;
    unsigned char poison;
    std::vector<unsigned> ready;
    std::vector<emu_region> regions;
    uintptr_t stacks, stacks_end;
    uint64_t accesses_left;
};

extern emu_machine emu;

void emu_resolve_warp(emu_thread* t);
void emu_wake(emu_thread* t);
void emu_yield();
void emu_regions_begin(int buffers, const uint64_t* begin, const uint64_t* end);
void emu_regions_end();
void emu_poison_shared();
size_t emu_static_shared();
void emu_failf(const char* format, ...) __attribute__((format(printf, 1, 2), noreturn));
