// The scheduler's own state: fibers, one block at a time, the pending collectives. Shared by the three .cpp files only.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime.hpp"

enum emu_state { READY, IN_WARP, IN_BARRIER, DONE };

static const unsigned MOST_BLOCKS = 4;          // of a cluster
static const size_t DYNAMIC = 227 * 1024;       // the most shared memory that any architecture gives a block
struct emu_block;

struct emu_copy {
    void* to;
    const void* from;
    int bytes, from_bytes, group;
};

struct emu_thread {
    void* stack_pointer;
    emu_state state;
    emu_block* block;
    unsigned index, warp, lane;
    // the collective this thread waits in
    emu_op op;
    unsigned mask;
    int arg, width;
    uint64_t value;
    unsigned a[4], b[2], r[4];
    int* sums;
    uint64_t operand[2];
    // cp.async
    std::vector<emu_copy> copies;
    int group;
    // what it knows of every other thread (clocks.cpp), its last fence for asynchronous readers, its groups of bulk stores
    uint32_t* clock;
    uint32_t fenced;
    int bulk_group;
};

struct emu_named {  // a barrier of some threads of a block
    unsigned threads, arrived;
};

struct emu_block {  // one of those that run together
    unsigned number, rank, waiting, done, barrier_epoch;
    uint3 index;
    unsigned warp_epoch[32];
    emu_thread* thread;  // its first
    unsigned char* dynamic;
    emu_named named[16];
};

struct emu_region {  // memory that a kernel may touch
    uintptr_t begin, end;
    int kind;  // 0 buffer, 1 shared, 2 constant
    void* shadow;
    int rank;  // of the only block of a cluster that may touch it, -1 all
};

struct emu_machine {
    uint3 grid, block_size;
    unsigned threads, dynamic_bytes;
    unsigned cluster;       // blocks that run together
    emu_block block[MOST_BLOCKS];
    emu_thread* thread;     // all of these blocks'
    emu_thread* current;
    unsigned in_cluster;    // threads that wait in the cluster's barrier
    bool clocked;           // threads know clocks
    bool fenced;
    uint64_t random;
    const char* kernel;
    char* message;
    size_t message_size;
    bool failed;
    unsigned char poison;
    std::vector<emu_thread*> ready;
    std::vector<emu_region> regions;
    uintptr_t stacks, stacks_end;
    uint64_t accesses_left;
};

extern emu_machine emu;
extern "C" unsigned char emu_dynamic_shared[];

void emu_resolve_warp(emu_thread* t);
void emu_wake(emu_thread* t);
void emu_yield();
uint64_t emu_random();

// clocks.cpp: which accesses are ordered, for threads that meet otherwise than all of a block. Slots: threads, then barriers, then
// the copy engine's reads for each thread.
static const unsigned MOST_MBARRIERS = 256;
void emu_clocks_begin();
void emu_clocks_meet(emu_thread** threads, size_t count);
unsigned emu_slot(const emu_thread* t);
unsigned emu_barrier_slot(unsigned number);
unsigned emu_bulk_slot(const emu_thread* t);
void emu_clock_join(uint32_t* to, const uint32_t* from);
size_t emu_clock_size();

// access.cpp: an asynchronous access, checked for the thread that begins it, and noted under a slot unless the clock is 0; rank is
// that of the block whose shared memory it is, -1 for a buffer. emu_check_pieces: reads of
// shared memory by the tensor cores or the copy engine. emu_note: noted when it ends.
void emu_check_as(const void* address, size_t bytes, int kind, int rank, unsigned slot, uint32_t clock, const char* what);
void emu_check_pieces(const unsigned char* const* pieces, size_t count, size_t bytes, int rank, unsigned slot, const char* what);
void emu_note(const void* address, size_t bytes, int kind, unsigned slot, uint32_t clock);

// asynchronous.cpp, product.cpp
void emu_async_begin();
bool emu_async_advance(bool force);  // complete some copies, with force one at least; false without one
void emu_async_block_end(const emu_block* block);
void emu_async_end();
void emu_async_check(int rank, uintptr_t begin, uintptr_t end, bool writes, const char* what);
bool emu_async_idle(const emu_thread* t);
void emu_products_begin();
void emu_product_resolve(emu_thread* warp);
void emu_products_check(int rank, uintptr_t begin, uintptr_t end, const char* what);
bool emu_products_idle(const emu_thread* t);
void emu_report_wait(const emu_thread* t, char* text, size_t size);
void emu_regions_begin(int buffers, const uint64_t* begin, const uint64_t* end);
void emu_regions_end();
void emu_poison_shared();
size_t emu_static_shared();
void emu_failf(const char* format, ...) __attribute__((format(printf, 1, 2), noreturn));
