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
    uint8_t bytes, atomic;
};

struct emu_cell {  // the last write, and the last reads of two different threads: one of them is not the next writer's own
    emu_touch write, read, other_read;
};

static const size_t DYNAMIC = 227 * 1024;  // the most that any architecture gives a block

extern "C" {
alignas(1024) unsigned char emu_dynamic_shared[DYNAMIC];
}
// The kernels' static data is their shared memory; build.py links it between these two.
extern char shared_begin __asm__("emu_shared_begin");
extern char shared_end __asm__("emu_shared_end");
extern const char image_begin __asm__("__ehdr_start");
extern const char image_end __asm__("_end");

size_t emu_static_shared() { return (size_t)(&shared_end - &shared_begin); }

static size_t last_region;

void emu_regions_begin(int buffers, const uint64_t* begin, const uint64_t* end) {
    emu.regions.clear();
    for (int i = 0; i < buffers; i++) emu.regions.push_back({(uintptr_t)begin[i], (uintptr_t)end[i], 0, nullptr});
    uintptr_t dynamic = (uintptr_t)emu_dynamic_shared;
    emu.regions.push_back({(uintptr_t)&shared_begin, (uintptr_t)&shared_end, 1, nullptr});
    emu.regions.push_back({dynamic, dynamic + emu.dynamic_bytes, 1, nullptr});
    last_region = 0;
}

void emu_regions_end() {
    for (emu_region& region : emu.regions) free(region.shadow);
    emu.regions.clear();
}

void emu_poison_shared() {
    memset(&shared_begin, emu.poison, (size_t)(&shared_end - &shared_begin));
    memset(emu_dynamic_shared, emu.poison, std::min(DYNAMIC, (size_t)emu.dynamic_bytes + 4096));
}

static emu_region* find(uintptr_t address) {
    emu_region* regions = emu.regions.data();
    if (address - regions[last_region].begin < regions[last_region].end - regions[last_region].begin)
        return &regions[last_region];
    for (size_t i = 0; i < emu.regions.size(); i++)
        if (address - regions[i].begin < regions[i].end - regions[i].begin) return &regions[last_region = i];
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

static bool ordered(const emu_touch& other, const emu_touch& self, bool shared) {
    if (other.thread == 0 || other.thread == self.thread || !(other.bytes & self.bytes)) return true;
    if (other.atomic && self.atomic) return true;
    uint32_t block = (other.thread - 1) / emu.threads, index = (other.thread - 1) % emu.threads;
    if (block != emu.block_number) return shared || emu.fenced;
    if (other.barrier != self.barrier) return true;
    return index / 32 == emu.current->warp && other.warp != self.warp;
}

[[noreturn]] static void race(const emu_region* region, uintptr_t address, int kind, const emu_touch& other,
                              const char* did, uintptr_t caller) {
    emu_failf("race: %s the word at offset %llu of %s that thread %u of block %u %s @%llx", DOES[kind],
              (unsigned long long)(address - region->begin) & ~3ull, region->kind ? "shared memory" : "a buffer",
              (other.thread - 1) % emu.threads, (other.thread - 1) / emu.threads, did, (unsigned long long)caller);
}

static void note_read(emu_cell* cell, emu_touch self) {
    if (cell->read.thread != self.thread)
        cell->other_read = cell->read;
    else if (cell->read.barrier == self.barrier && cell->read.warp == self.warp && cell->read.atomic == self.atomic)
        self.bytes |= cell->read.bytes;
    cell->read = self;
}

static void track(emu_region* region, uintptr_t address, size_t bytes, int kind, uintptr_t caller) {
    if (!region->shadow) region->shadow = calloc((region->end - region->begin) / 4 + 2, sizeof(emu_cell));
    emu_cell* cells = (emu_cell*)region->shadow;
    uint32_t thread = emu.block_number * emu.threads + emu.current->index + 1;
    emu_touch self = {thread, emu.barrier_epoch, emu.warp_epoch[emu.current->warp], 0, kind == EMU_ATOMIC};
    bool shared = region->kind == 1;
    uintptr_t offset = address - region->begin, end = offset + bytes;
    while (offset < end) {
        emu_cell* cell = &cells[offset / 4];
        uintptr_t stop = std::min(end, (offset / 4 + 1) * 4);
        self.bytes = (uint8_t)(((1u << (stop - offset)) - 1) << offset % 4);
        if (!ordered(cell->write, self, shared)) race(region, region->begin + offset, kind, cell->write, "wrote", caller);
        if (kind == EMU_READ) {
            note_read(cell, self);
        } else {
            for (const emu_touch& read : {cell->read, cell->other_read})
                if (!ordered(read, self, shared)) race(region, region->begin + offset, kind, read, "read", caller);
            cell->write = self;
        }
        offset = stop;
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
        return track(region, address, bytes, kind, at);
    }
    bool constant = address - (uintptr_t)&image_begin < (uintptr_t)(&image_end - &image_begin);
    bool dynamic = address - (uintptr_t)emu_dynamic_shared < DYNAMIC;
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
