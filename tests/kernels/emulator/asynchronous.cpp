// Barriers that count bytes, and bulk copies: each ends at a moment drawn from the seed, in the natural order when all wait for it.
//
// Until its end a copy may neither be read nor written where it goes, and a copy from shared memory not be written over; afterwards
// only by threads that waited for it.
#include <list>

#include "scheduler.hpp"

struct emu_mbarrier {
    unsigned rank, address, count, pending;
    int64_t bytes;  // announced and not yet come
    uint32_t phase;
    unsigned slot;
    bool fenced;
    const emu_thread* owner;  // who initialised it
    uint32_t since;
    std::vector<uint32_t> gathered, known;  // what those who arrived in this phase know, in earlier ones
};

struct emu_bulk {
    unsigned rank;  // whose shared memory
    unsigned char *to;
    const unsigned char* from;
    unsigned bytes;
    emu_mbarrier* barrier;  // of a load
    emu_thread* owner;      // of a store
    int group;
};

static std::list<emu_mbarrier> barriers;
static std::vector<emu_bulk> copies;

void emu_async_begin() {
    barriers.clear();
    copies.clear();
}

static unsigned char* shared_at(unsigned rank, unsigned address, unsigned bytes) {
    if ((uint64_t)address + bytes > emu.dynamic_bytes)
        emu_failf("%u bytes at %u are beyond the %u bytes of shared memory", bytes, address, emu.dynamic_bytes);
    return emu.block[rank].dynamic + address;
}

static emu_mbarrier* look_up(unsigned rank, unsigned address) {
    for (emu_mbarrier& barrier : barriers)
        if (barrier.rank == rank && barrier.address == address) return &barrier;
    return nullptr;
}

static emu_mbarrier* find(int rank, unsigned address, bool fenced) {
    const emu_thread* t = emu.current;
    unsigned of = rank < 0 ? t->block->rank : (unsigned)rank;
    if (of >= emu.cluster) emu_failf("block %u of a cluster of %u", of, emu.cluster);
    if (emu.block[of].done == emu.threads) emu_failf("block %u of the cluster has ended", of);
    emu_mbarrier* found = look_up(of, address);
    if (!found) emu_failf("no mbarrier was initialised at %u in block %u of the cluster", address, of);
    if (found->owner != t && t->clock[emu_slot(found->owner)] < found->since)
        emu_failf("race: uses the mbarrier at %u, which thread %u initialises", address, found->owner->index);
    if ((fenced || of != t->block->rank) && !found->fenced)
        emu_failf("the mbarrier at %u was initialised without a mbarrier_init_fence", address);
    return found;
}

extern "C" void emu_mbarrier_init(unsigned address, unsigned count) {
    emu_thread* t = emu.current;
    if (!emu.clocked) emu_failf("an mbarrier in a kernel without __cluster_dims__");
    if (address % 8 || count < 1 || count >= 1u << 20) emu_failf("an mbarrier at %u for %u arrivals", address, count);
    if (look_up(t->block->rank, address)) emu_failf("initialises the mbarrier at %u again", address);
    if (barriers.size() == MOST_MBARRIERS) emu_failf("more than %u mbarriers", MOST_MBARRIERS);
    emu_check(shared_at(t->block->rank, address, 8), 8, EMU_WRITE, __builtin_return_address(0));
    unsigned slot = emu_barrier_slot((unsigned)barriers.size());
    std::vector<uint32_t> nothing(emu_clock_size(), 0);
    barriers.push_back({t->block->rank, address, count, count, 0, 0, slot, false, t, t->clock[emu_slot(t)], nothing, nothing});
}

extern "C" void emu_mbarrier_init_fence() {
    for (emu_mbarrier& barrier : barriers)
        if (barrier.owner == emu.current) barrier.fenced = true;
}

static bool has_ended(const emu_mbarrier* barrier, unsigned parity) { return (barrier->phase & 1) != parity; }

static void end_phase(emu_mbarrier* barrier) {
    if (barrier->pending || barrier->bytes) return;
    barrier->phase++;
    barrier->pending = barrier->count;
    emu_clock_join(barrier->known.data(), barrier->gathered.data());
    barrier->known[barrier->slot] = barrier->phase;
    emu_block* block = &emu.block[barrier->rank];
    for (unsigned i = 0; i < emu.threads; i++) {
        emu_thread* t = &block->thread[i];
        if (t->state != IN_BARRIER || t->op != EMU_MBARRIER || t->value != barrier->address) continue;
        if (!has_ended(barrier, (unsigned)t->arg)) continue;
        emu_clock_join(t->clock, barrier->known.data());
        emu_wake(t);
    }
}

extern "C" void emu_mbarrier_arrive(unsigned address, int rank, unsigned bytes) {
    emu_thread* t = emu.current;
    emu_mbarrier* barrier = find(rank, address, false);
    if (!barrier->pending) emu_failf("more arrivals at the mbarrier at %u than its count of %u", address, barrier->count);
    emu_clock_join(barrier->gathered.data(), t->clock);
    t->clock[emu_slot(t)]++;
    barrier->bytes += bytes;
    barrier->pending--;
    end_phase(barrier);
}

extern "C" void emu_mbarrier_wait(unsigned address, unsigned parity) {
    emu_thread* t = emu.current;
    emu_mbarrier* barrier = find(-1, address, false);
    if (parity > 1) emu_failf("a parity of %u", parity);
    if (has_ended(barrier, parity)) return emu_clock_join(t->clock, barrier->known.data());
    t->op = EMU_MBARRIER, t->mask = 0, t->value = address, t->arg = (int)parity, t->state = IN_BARRIER;
    emu_yield();
}

void emu_report_wait(const emu_thread* t, char* text, size_t size) {
    const emu_mbarrier* barrier = look_up(t->block->rank, (unsigned)t->value);
    snprintf(text, size, "of block %u waits for parity %d at the mbarrier at %u (phase %u, %u arrivals and %lld bytes missing)",
             t->block->rank, t->arg, barrier->address, barrier->phase, barrier->pending, (long long)barrier->bytes);
}

static bool overlap(const unsigned char* begin, unsigned bytes, uintptr_t other, uintptr_t end) {
    return (uintptr_t)begin < end && other < (uintptr_t)begin + bytes;
}

void emu_async_check(int rank, uintptr_t begin, uintptr_t end, bool writes, const char* what) {
    for (const emu_bulk& copy : copies) {
        if ((int)copy.rank != rank) continue;
        if (copy.barrier ? overlap(copy.to, copy.bytes, begin, end) : writes && overlap(copy.from, copy.bytes, begin, end))
            emu_failf("race: %s of shared memory at %llu, where a bulk copy is under way", what,
                      (unsigned long long)(begin - (uintptr_t)emu.block[rank].dynamic));
    }
}

static void check_copy(const void* global, unsigned shared, unsigned bytes) {
    if (!emu.clocked) emu_failf("a bulk copy in a kernel without __cluster_dims__");
    if ((uintptr_t)global % 16 || shared % 16 || bytes % 16 || !bytes)
        emu_failf("a bulk copy of %u bytes, or with an address, that is not a multiple of 16", bytes);
}

extern "C" void emu_bulk_load(unsigned to, const void* from, unsigned bytes, unsigned address, int blocks) {
    emu_thread* t = emu.current;
    check_copy(from, to, bytes);
    unsigned mask = blocks < 0 ? 1u << t->block->rank : (unsigned)blocks;
    if (!mask || mask >> emu.cluster) emu_failf("a copy to the blocks %x of a cluster of %u", mask, emu.cluster);
    emu_check_as(from, bytes, EMU_READ, -1, emu_slot(t), t->clock[emu_slot(t)], "a bulk copy");
    for (unsigned rank = 0; rank < emu.cluster; rank++) {
        if (!(mask >> rank & 1)) continue;
        emu_mbarrier* barrier = find((int)rank, address, true);
        unsigned char* place = shared_at(rank, to, bytes);
        emu_async_check((int)rank, (uintptr_t)place, (uintptr_t)place + bytes, true, "a bulk copy");
        emu_products_check((int)rank, (uintptr_t)place, (uintptr_t)place + bytes, "a bulk copy");
        emu_check_as(place, bytes, EMU_WRITE, (int)rank, barrier->slot, 0, "a bulk copy");
        copies.push_back({rank, place, (const unsigned char*)from, bytes, barrier, nullptr, 0});
    }
}

extern "C" void emu_bulk_store(void* to, unsigned from, unsigned bytes) {
    emu_thread* t = emu.current;
    check_copy(to, from, bytes);
    unsigned rank = t->block->rank;
    unsigned char* place = shared_at(rank, from, bytes);
    emu_async_check((int)rank, (uintptr_t)place, (uintptr_t)place + bytes, false, "a bulk copy");
    emu_check_pieces(&place, 1, bytes, (int)rank, emu_bulk_slot(t), "a bulk copy");
    emu_check_as(to, bytes, EMU_WRITE, -1, emu_slot(t), t->clock[emu_slot(t)], "a bulk copy");
    copies.push_back({rank, (unsigned char*)to, place, bytes, nullptr, t, t->bulk_group});
}

static void complete(size_t index) {
    emu_bulk copy = copies[index];
    copies.erase(copies.begin() + (long)index);
    memcpy(copy.to, copy.from, copy.bytes);
    if (copy.barrier) {
        emu_note(copy.to, copy.bytes, EMU_WRITE, copy.barrier->slot, copy.barrier->phase + 1);
        copy.barrier->bytes -= copy.bytes;
        end_phase(copy.barrier);
    } else {
        emu_note(copy.from, copy.bytes, EMU_READ, emu_bulk_slot(copy.owner), (uint32_t)copy.group + 1);
    }
}

extern "C" void emu_bulk_commit() { emu.current->bulk_group++; }

extern "C" void emu_bulk_wait(int pending) {
    emu_thread* t = emu.current;
    int until = t->bulk_group - pending;
    for (size_t i = copies.size(); i-- > 0;)
        if (copies[i].owner == t && copies[i].group < until) complete(i);
    uint32_t* known = &t->clock[emu_bulk_slot(t)];
    if (until > (int)*known) *known = (uint32_t)until;
}

extern "C" void emu_fence_async() {
    emu_thread* t = emu.current;
    t->fenced = t->clock[emu_slot(t)]++;
}

bool emu_async_advance(bool force) {
    size_t before = copies.size();
    if (emu.random)
        for (size_t i = copies.size(); i-- > 0;)
            if (emu_random() >> 62 == 0) complete(i);
    if (force && before && copies.size() == before) complete(emu.random ? (emu_random() >> 32) * before >> 32 : 0);
    return before != 0;
}

bool emu_async_idle(const emu_thread* t) {
    for (const emu_bulk& copy : copies)
        if (copy.owner == t) return false;
    return true;
}

// The last thread of a block returns: others may still have been using its shared memory, were it not for a meeting.
void emu_async_block_end(const emu_block* block) {
    std::vector<uint32_t> known(emu_clock_size(), 0);
    for (unsigned i = 0; i < emu.threads; i++) emu_clock_join(known.data(), block->thread[i].clock);
    for (const emu_mbarrier& barrier : barriers)
        for (unsigned i = 0; barrier.rank == block->rank && i < emu.threads * emu.cluster; i++)
            if (emu.thread[i].block != block && (barrier.gathered[i] > known[i] || barrier.known[i] > known[i]))
                emu_failf("block %u of the cluster ends without knowing that thread %u of block %u has arrived at its mbarrier at %u",
                          block->rank, emu.thread[i].index, emu.thread[i].block->rank, barrier.address);
}

void emu_async_end() {
    if (!copies.empty()) emu_failf("ends while a bulk copy is under way");
}
