// Vector clocks: what each thread knows of the others, for kernels whose threads meet by mbarriers, in part or across a cluster.
//
// Every access is noted with its slot's clock. A thread that meets others, or waits for a barrier at which they arrived, takes over
// what they know; an access is ordered before it when its clock is not above what the thread knows of that slot.
// A barrier has a slot too: copies that count at it are noted with the phase that they end, which only those know who waited.
#include "scheduler.hpp"

static std::vector<uint32_t> clocks;
static size_t width;

size_t emu_clock_size() { return width; }
unsigned emu_slot(const emu_thread* t) { return (unsigned)(t - emu.thread); }
unsigned emu_barrier_slot(unsigned number) { return emu.threads * emu.cluster + number; }
unsigned emu_bulk_slot(const emu_thread* t) { return emu.threads * emu.cluster + MOST_MBARRIERS + emu_slot(t); }

void emu_clocks_begin() {
    size_t all = emu.threads * emu.cluster;
    width = 2 * all + MOST_MBARRIERS;
    clocks.assign(all * width, 0);
    for (size_t i = 0; i < all; i++) {
        emu_thread* t = &emu.thread[i];
        t->clock = &clocks[i * width];
        t->clock[i] = 1;
        t->fenced = 0;
        t->bulk_group = 0;
    }
}

void emu_clock_join(uint32_t* __restrict to, const uint32_t* __restrict from) {
    for (size_t i = 0; i < width; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}

void emu_clocks_meet(emu_thread** threads, size_t count) {
    std::vector<uint32_t> all(width, 0);
    for (size_t i = 0; i < count; i++) emu_clock_join(all.data(), threads[i]->clock);
    for (size_t i = 0; i < count; i++) {
        memcpy(threads[i]->clock, all.data(), width * sizeof(uint32_t));
        threads[i]->clock[emu_slot(threads[i])]++;
    }
}
