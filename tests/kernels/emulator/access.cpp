// Checks every load and store of a kernel: inside live memory, aligned, initialised by nobody's race.
//
// The kernels are compiled with the compiler's thread sanitizer and undefined-behaviour sanitizer, but without their libraries:
// the calls that those insert end up here. Two accesses to one word race when different threads make them, one of them writes,
// not both are atomic, and no __syncthreads (or __syncwarp, inside a warp) lies between. Between blocks nothing orders accesses.
#include "scheduler.hpp"

#include <algorithm>

struct emu_touch {  // one thread's access to four bytes
    uint32_t thread;  // 1 + block * threads + index; 0 is nobody
    uint32_t barrier, warp;  // epochs
    uint32_t clock;          // of its slot (clocks.cpp)
    uint16_t slot;
    uint8_t bytes, atomic;
};

struct emu_cell {  // the last write, and the last reads of two different threads: one of them is not the next writer's own
    emu_touch write, read, other_read;
};

extern "C" {
alignas(1024) unsigned char emu_dynamic_shared[MOST_BLOCKS * DYNAMIC];
}
// The kernels' static data is their shared memory; build.py links it between these two.
extern char shared_begin __asm__("emu_shared_begin");
extern char shared_end __asm__("emu_shared_end");
extern const char image_begin __asm__("__ehdr_start");
extern const char image_end __asm__("_end");

size_t emu_static_shared() { return (size_t)(&shared_end - &shared_begin); }

static size_t last_region[64];  // by address

void emu_regions_begin(int buffers, const uint64_t* begin, const uint64_t* end) {
    emu.regions.clear();
    for (int i = 0; i < buffers; i++) emu.regions.push_back({(uintptr_t)begin[i], (uintptr_t)end[i], 0, nullptr, -1});
    emu.regions.push_back({(uintptr_t)&shared_begin, (uintptr_t)&shared_end, 1, nullptr, -1});
    for (unsigned rank = 0; rank < emu.cluster; rank++) {
        uintptr_t dynamic = (uintptr_t)emu_dynamic_shared + rank * DYNAMIC;
        emu.regions.push_back({dynamic, dynamic + emu.dynamic_bytes, 1, nullptr, (int)rank});
    }
    memset(last_region, 0, sizeof last_region);
}

void emu_regions_end() {
    for (emu_region& region : emu.regions) free(region.shadow);
    emu.regions.clear();
}

void emu_poison_shared() {
    memset(&shared_begin, emu.poison, (size_t)(&shared_end - &shared_begin));
    for (unsigned rank = 0; rank < emu.cluster; rank++)
        memset(emu_dynamic_shared + rank * DYNAMIC, emu.poison, std::min(DYNAMIC, (size_t)emu.dynamic_bytes + 4096));
}

static emu_region* find(uintptr_t address) {
    emu_region* regions = emu.regions.data();
    size_t& last = last_region[address >> 8 & 63];
    if (address - regions[last].begin < regions[last].end - regions[last].begin) return &regions[last];
    for (size_t i = 0; i < emu.regions.size(); i++)
        if (address - regions[i].begin < regions[i].end - regions[i].begin) return &regions[last = i];
    return nullptr;
}

static const char* const DOES[] = {"reads", "writes", "updates"};

[[noreturn]] static void outside(uintptr_t address, size_t bytes, int kind, uintptr_t caller) {
    const emu_region* near = nullptr;
    for (const emu_region& region : emu.regions)
        if (region.begin <= address && (!near || region.begin > near->begin)) near = &region;
    static const char* const kinds[] = {"a buffer", "shared memory"};
    if (near && address - near->begin < (uintptr_t)1 << 40)
        emu_failf("%s %zu bytes out of bounds, at offset %llu of %s of %llu bytes @%llx", DOES[kind], bytes,
                  (unsigned long long)(address - near->begin), kinds[near->kind],
                  (unsigned long long)(near->end - near->begin), (unsigned long long)caller);
    emu_failf("%s %zu bytes out of bounds, at address %llx, before all buffers @%llx", DOES[kind], bytes,
              (unsigned long long)address, (unsigned long long)caller);
}

// `knows`: the clocks of who accesses now, null without clocks.
static inline bool ordered(const emu_touch& other, const emu_touch& self, bool shared, const uint32_t* knows) {
    if (other.thread == 0 || !(other.bytes & self.bytes)) return true;
    if (other.atomic && self.atomic) return true;
    unsigned all = emu.threads * emu.cluster;
    bool plain = !knows || (other.slot < all && self.slot < all);
    if (plain && other.thread == self.thread) return true;
    uint32_t first = 1 + emu.block[0].number * emu.threads, from = other.thread - first, own = self.thread - first;
    if (from >= all) return shared || emu.fenced;  // it ran before
    bool together = emu.cluster == 1 || from / emu.threads == own / emu.threads;
    if (plain && together) {
        if (other.barrier != self.barrier) return true;
        if (emu.cluster > 1) from %= emu.threads, own %= emu.threads;
        if (from / 32 == own / 32 && other.warp != self.warp) return true;
    }
    if (knows) return knows[other.slot] >= other.clock;
    return !together && emu.fenced;
}

[[noreturn]] static void race(const emu_region* region, uintptr_t address, int kind, const emu_touch& other,
                              const char* did, uintptr_t caller) {
    if (!caller)
        emu_failf("race: asynchronously %s the word at offset %llu of %s that thread %u of block %u %s", DOES[kind],
                  (unsigned long long)(address - region->begin) & ~3ull, region->kind ? "shared memory" : "a buffer",
                  (other.thread - 1) % emu.threads, (other.thread - 1) / emu.threads, did);
    emu_failf("race: %s the word at offset %llu of %s that thread %u of block %u %s @%llx", DOES[kind],
              (unsigned long long)(address - region->begin) & ~3ull, region->kind ? "shared memory" : "a buffer",
              (other.thread - 1) % emu.threads, (other.thread - 1) / emu.threads, did, (unsigned long long)caller);
}

static inline void note_read(emu_cell* cell, const emu_touch& self) {
    emu_touch& last = cell->read;
    if (last.thread != self.thread) {
        cell->other_read = last;
    } else if (last.barrier == self.barrier && last.warp == self.warp && last.atomic == self.atomic && last.slot == self.slot &&
               last.clock == self.clock) {
        last.bytes |= self.bytes;
        return;
    }
    last = self;
}

static inline emu_touch touch_of(const emu_thread* t, bool atomic) {
    const emu_block* block = t->block;
    uint32_t thread = block->number * emu.threads + t->index + 1;
    uint16_t slot = (uint16_t)emu_slot(t);
    return {thread, block->barrier_epoch, block->warp_epoch[t->warp], emu.clocked ? t->clock[slot] : 0, slot, 0, atomic};
}

// Inline, so that `self` stays in registers.
__attribute__((always_inline)) static inline void track(emu_region* region, uintptr_t address, size_t bytes, int kind, emu_touch self,
                                                        const uint32_t* knows, bool note, uintptr_t caller) {
    if (!region->shadow) region->shadow = calloc((region->end - region->begin) / 4 + 2, sizeof(emu_cell));
    emu_cell* cells = (emu_cell*)region->shadow;
    bool shared = region->kind == 1;
    uintptr_t offset = address - region->begin, end = offset + bytes;
    while (offset < end) {
        emu_cell* cell = &cells[offset / 4];
        uintptr_t stop = std::min(end, (offset / 4 + 1) * 4);
        self.bytes = (uint8_t)(((1u << (stop - offset)) - 1) << offset % 4);
        if (!ordered(cell->write, self, shared, knows))
            race(region, region->begin + offset, kind, cell->write, "wrote", caller);
        if (kind == EMU_READ) {
            if (note) note_read(cell, self);
        } else {
            for (const emu_touch* read : {&cell->read, &cell->other_read})
                if (!ordered(*read, self, shared, knows)) race(region, region->begin + offset, kind, *read, "read", caller);
            if (note) cell->write = self;
        }
        offset = stop;
    }
}

static emu_region* region_of(const void* pointer, size_t bytes, int kind, int rank, const char* what) {
    uintptr_t address = (uintptr_t)pointer;
    emu_region* region = find(address);
    if (!region || address + bytes > region->end || (rank < 0 ? region->kind != 0 : region->rank != rank))
        emu_failf("%s %s %zu bytes out of bounds", what, DOES[kind], bytes);
    if (!region->shadow) region->shadow = calloc((region->end - region->begin) / 4 + 2, sizeof(emu_cell));
    return region;
}

// Ordinary stores become visible to asynchronous readers by a fence.
static void check_fenced(const emu_touch& write, uintptr_t offset, const char* what) {
    uint32_t block = (write.thread - 1) / emu.threads;
    if (write.thread && block - emu.block[0].number < emu.cluster && write.slot < emu.threads * emu.cluster &&
        write.clock > emu.thread[write.slot].fenced)
        emu_failf("%s reads at offset %llu of shared memory what thread %u stored without a fence_async", what,
                  (unsigned long long)offset, (write.thread - 1) % emu.threads);
}

void emu_check_as(const void* pointer, size_t bytes, int kind, int rank, unsigned slot, uint32_t clock, const char* what) {
    const emu_thread* t = emu.current;
    emu_region* region = region_of(pointer, bytes, kind, rank, what);
    emu_touch self = touch_of(t, false);
    self.slot = (uint16_t)slot;
    self.clock = clock;
    track(region, (uintptr_t)pointer, bytes, kind, self, t->clock, clock != 0, 0);
}

void emu_check_pieces(const unsigned char* const* pieces, size_t count, size_t bytes, int rank, unsigned slot, const char* what) {
    const emu_thread* t = emu.current;
    emu_region* region = region_of(pieces[0], bytes, EMU_READ, rank, what);
    const emu_cell* cells = (const emu_cell*)region->shadow;
    emu_touch self = touch_of(t, false), last = {};
    self.slot = (uint16_t)slot;
    self.bytes = 15;
    for (size_t i = 0; i < count; i++) {
        uintptr_t begin = (uintptr_t)pieces[i] - region->begin;
        for (uintptr_t at = begin; at < begin + bytes; at += 4) {
            const emu_touch& write = cells[at / 4].write;
            if (write.clock == last.clock && write.slot == last.slot && write.thread == last.thread &&
                write.barrier == last.barrier && write.warp == last.warp)
                continue;  // as the one before
            check_fenced(write, at, what);
            if (!ordered(write, self, true, t->clock)) race(region, region->begin + at, EMU_READ, write, "wrote", 0);
            last = write;
        }
    }
}

void emu_note(const void* pointer, size_t bytes, int kind, unsigned slot, uint32_t clock) {
    uintptr_t address = (uintptr_t)pointer;
    emu_region* region = find(address);
    emu_cell* cells = (emu_cell*)region->shadow;
    emu_touch self = {1 + emu.block[0].number * emu.threads, 0, 0, clock, (uint16_t)slot, 15, 0};
    for (uintptr_t at = address - region->begin; at < address - region->begin + bytes; at += 4) {
        if (kind == EMU_READ) note_read(&cells[at / 4], self);
        else cells[at / 4].write = self;
    }
}

extern "C" void emu_check(const void* pointer, size_t bytes, int kind, const void* caller) {
    uintptr_t address = (uintptr_t)pointer;
    if (!emu.current || address - emu.stacks < emu.stacks_end - emu.stacks) return;
    uintptr_t at = (uintptr_t)caller - (uintptr_t)&image_begin;
    if (emu.accesses_left-- == 0) emu_failf("more loads and stores than one launch may make: an endless loop?");
    emu_region* region = find(address);
    if (region) {
        if (address + bytes > region->end) outside(address, bytes, kind, at);
        const emu_thread* t = emu.current;
        if (region->rank >= 0 && region->rank != (int)t->block->rank) emu_failf("%s another block's shared memory", DOES[kind]);
        if (emu.clocked && region->rank >= 0) {
            emu_async_check(region->rank, address, address + bytes, kind != EMU_READ, "an access");
            if (kind != EMU_READ) emu_products_check(region->rank, address, address + bytes, "a store");
        }
        return track(region, address, bytes, kind, touch_of(t, kind == EMU_ATOMIC), emu.clocked ? t->clock : nullptr, true, at);
    }
    bool constant = address - (uintptr_t)&image_begin < (uintptr_t)(&image_end - &image_begin);
    bool dynamic = address - (uintptr_t)emu_dynamic_shared < MOST_BLOCKS * DYNAMIC;
    if (constant && !dynamic && kind == EMU_READ) return;
    outside(address, bytes, kind, at);
}

extern "C" void emu_escape(const volatile void*) {}

#define HOOKS(n)                                                                                                       \
    void __tsan_read##n(void* p) { emu_check(p, n, EMU_READ, __builtin_return_address(0)); }                           \
    void __tsan_write##n(void* p) { emu_check(p, n, EMU_WRITE, __builtin_return_address(0)); }                         \
    void __tsan_unaligned_read##n(void* p) { emu_check(p, n, EMU_READ, __builtin_return_address(0)); }                 \
    void __tsan_unaligned_write##n(void* p) { emu_check(p, n, EMU_WRITE, __builtin_return_address(0)); }               \
    void __tsan_volatile_read##n(void* p) { emu_check(p, n, EMU_READ, __builtin_return_address(0)); }                  \
    void __tsan_volatile_write##n(void* p) { emu_check(p, n, EMU_WRITE, __builtin_return_address(0)); }

extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, size_t n) { emu_check(p, n, EMU_READ, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { emu_check(p, n, EMU_WRITE, __builtin_return_address(0)); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
    emu_check(from, n, EMU_READ, __builtin_return_address(0));
    emu_check(to, n, EMU_WRITE, __builtin_return_address(0));
    return memcpy(to, from, n);
}
void* __tsan_memset(void* to, int byte, size_t n) {
    emu_check(to, n, EMU_WRITE, __builtin_return_address(0));
    return memset(to, byte, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

// What the undefined-behaviour sanitizer passes first begins with the place in the source.
struct emu_place {
    const char* file;
    uint32_t line, column;
};
#define UNDEFINED(name, what)                                                            \
    void __ubsan_handle_##name(emu_place* place, ...) {                                  \
        emu_failf("%s (%s line %u)", what, place->file, place->line);                    \
    }
UNDEFINED(shift_out_of_bounds, "shift by a negative amount or by the width and more")
UNDEFINED(divrem_overflow, "integer division by zero or overflow")
UNDEFINED(out_of_bounds, "index outside an array")
UNDEFINED(float_cast_overflow, "float to integer out of range in a plain cast")
UNDEFINED(type_mismatch_v1, "access through a misaligned pointer")
UNDEFINED(builtin_unreachable, "reached the unreachable")
UNDEFINED(missing_return, "end of a function without its return")
}
