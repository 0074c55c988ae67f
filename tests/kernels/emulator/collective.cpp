// Barriers and warp collectives: the last thread to arrive computes everybody's result.
#include <emmintrin.h>

#include "scheduler.hpp"

static unsigned shuffle_source(const emu_thread* t) {
    int width = t->width, lane = (int)t->lane, base = lane / width * width, within = lane % width, from = lane;
    switch (t->op) {
        case EMU_SHFL: from = base + (t->arg & (width - 1)); break;
        case EMU_SHFL_UP: from = within - t->arg >= 0 ? lane - t->arg : lane; break;
        case EMU_SHFL_DOWN: from = within + t->arg < width ? lane + t->arg : lane; break;
        // Lanes of earlier segments may be read, later ones not (the CUDA guide on __shfl_xor_sync).
        default: from = (lane ^ t->arg) < base + width ? lane ^ t->arg : lane;
    }
    return (unsigned)from;
}

static uint64_t reduced(emu_op op, const emu_thread* warp, unsigned mask) {
    bool first = true;
    unsigned sum = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        unsigned x = (unsigned)warp[lane].value;
        if (first) sum = x;
        else if (op == EMU_REDUCE_ADD) sum += x;
        else if (op == EMU_REDUCE_MIN_S) sum = (int)x < (int)sum ? x : sum;
        else if (op == EMU_REDUCE_MAX_S) sum = (int)x > (int)sum ? x : sum;
        else if (op == EMU_REDUCE_MIN_U) sum = x < sum ? x : sum;
        else if (op == EMU_REDUCE_MAX_U) sum = x > sum ? x : sum;
        else if (op == EMU_REDUCE_AND) sum &= x;
        else if (op == EMU_REDUCE_OR) sum |= x;
        else sum ^= x;
        first = false;
    }
    return sum;
}

static unsigned matching(const emu_thread* warp, unsigned mask, uint64_t value) {
    unsigned lanes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && warp[lane].value == value) lanes |= 1u << lane;
    return lanes;
}

// Four words of bytes as two vectors of 16 bits.
static void widen(const unsigned* words, bool is_signed, __m128i* wide) {
    __m128i bytes = _mm_loadu_si128((const __m128i*)words), zero = _mm_setzero_si128();
    __m128i sign = is_signed ? _mm_cmpgt_epi8(zero, bytes) : zero;
    wide[0] = _mm_unpacklo_epi8(bytes, sign);
    wide[1] = _mm_unpackhi_epi8(bytes, sign);
}

// The sums of the elements of four vectors.
static __m128i across(const __m128i* v) {
    __m128i low = _mm_add_epi32(_mm_unpacklo_epi32(v[0], v[1]), _mm_unpackhi_epi32(v[0], v[1]));
    __m128i high = _mm_add_epi32(_mm_unpacklo_epi32(v[2], v[3]), _mm_unpackhi_epi32(v[2], v[3]));
    return _mm_add_epi32(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
}

// Fragments of mma.m16n8k32 and .m8n8k16 (PTX ISA, matrix fragments): lane l holds row or column l/4 of A and B, four bytes of k
// at 4*(l%4) in each register; of D the columns 2*(l%4), +1. m16n8k32: a[1], a[3] are rows +8; a[2], a[3] and b[1] are k+16.
static void multiply(emu_thread* warp) {
    bool tall = warp->op == EMU_MMA_16832, a_signed = warp->arg & 1, b_signed = warp->arg >> 1 & 1;
    int rows = tall ? 16 : 8, halves = tall ? 2 : 1;  // halves: of K, 16 each
    __m128i a[16][4], b[8][4];
    unsigned words[4];
    for (int half = 0; half < halves; half++) {
        for (int row = 0; row < rows; row++) {
            for (int i = 0; i < 4; i++) words[i] = warp[row % 8 * 4 + i].a[row / 8 + 2 * half];
            widen(words, a_signed, &a[row][2 * half]);
        }
        for (int column = 0; column < 8; column++) {
            for (int i = 0; i < 4; i++) words[i] = warp[column * 4 + i].b[half];
            widen(words, b_signed, &b[column][2 * half]);
        }
    }
    for (int row = 0; row < rows; row++)
        for (int four = 0; four < 8; four += 4) {
            __m128i sums[4];
            for (int i = 0; i < 4; i++) {
                const __m128i *x = a[row], *y = b[four + i];
                sums[i] = _mm_add_epi32(_mm_madd_epi16(x[0], y[0]), _mm_madd_epi16(x[1], y[1]));
                if (tall) sums[i] = _mm_add_epi32(sums[i], _mm_add_epi32(_mm_madd_epi16(x[2], y[2]), _mm_madd_epi16(x[3], y[3])));
            }
            _mm_storeu_si128((__m128i*)words, across(sums));
            for (int i = 0; i < 4; i++) warp[row % 8 * 4 + (four + i) / 2].r[row / 8 * 2 + i % 2] += words[i];
        }
}

// ldmatrix.m8n8.b16: lanes 8i..8i+7 point at the rows of matrix i; lane l gets row l/4, elements 2*(l%4), +1, or with .trans the
// same of the transpose.
static void load_matrices(emu_thread* warp) {
    int count = warp->arg & 255;
    bool transposed = warp->arg >> 8;
    for (int i = 0; i < count; i++) {
        uint16_t m[8][8];
        for (int row = 0; row < 8; row++) memcpy(m[row], (void*)(uintptr_t)warp[8 * i + row].value, 16);
        for (int lane = 0; lane < 32; lane++) {
            int major = lane / 4, minor = lane % 4 * 2;
            uint16_t low = transposed ? m[minor][major] : m[major][minor];
            uint16_t high = transposed ? m[minor + 1][major] : m[major][minor + 1];
            warp[lane].r[i] = (unsigned)high << 16 | low;
        }
    }
}

static void resolve_warp(emu_thread* t) {
    emu_thread* warp = t->block->thread + t->warp * 32;
    uint64_t result[32] = {};
    if (t->op == EMU_MMA_16832 || t->op == EMU_MMA_8816) multiply(warp);
    if (t->op == EMU_LDMATRIX) load_matrices(warp);
    if (t->op >= EMU_PRODUCT && t->op <= EMU_PRODUCT_WAIT) emu_product_resolve(warp);
    if (t->op == EMU_SYNCWARP) {
        t->block->warp_epoch[t->warp]++;
        std::vector<emu_thread*> lanes;
        for (unsigned lane = 0; lane < 32; lane++)
            if (t->mask >> lane & 1) lanes.push_back(&warp[lane]);
        if (emu.clocked) emu_clocks_meet(lanes.data(), lanes.size());
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(t->mask >> lane & 1)) continue;
        const emu_thread* other = &warp[lane];
        if (t->op >= EMU_SHFL && t->op <= EMU_SHFL_XOR) {
            unsigned from = shuffle_source(other);
            if (!(t->mask >> from & 1)) emu_failf("a shuffle reads lane %u, which is not in mask %08x", from, t->mask);
            result[lane] = warp[from].value;
        } else if (t->op == EMU_BALLOT) {
            result[lane] = matching(warp, t->mask, 1);
        } else if (t->op == EMU_MATCH_ANY) {
            result[lane] = matching(warp, t->mask, other->value);
        } else if (t->op >= EMU_REDUCE_ADD && t->op <= EMU_REDUCE_XOR) {
            result[lane] = reduced(t->op, warp, t->mask);
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(t->mask >> lane & 1)) continue;
        warp[lane].value = result[lane];
        emu_wake(&warp[lane]);
    }
}

static void meet(emu_op op, unsigned mask, uint64_t value, int arg, int width) {
    emu_thread* t = emu.current;
    unsigned first = t->warp * 32;
    if (!(mask >> t->lane & 1)) emu_failf("lane %u takes part in a collective of mask %08x", t->lane, mask);
    if (width < 1 || width > 32 || (width & (width - 1))) emu_failf("a shuffle of width %d", width);
    if (first + 32 > emu.threads && mask >> (emu.threads - first))
        emu_failf("mask %08x names lane %u, which the block does not have", mask,
                  emu.threads - first + (unsigned)__builtin_ctz(mask >> (emu.threads - first)));
    t->op = op, t->mask = mask, t->value = value, t->arg = arg, t->width = width, t->state = IN_WARP;
    bool complete = true;
    for (unsigned left = mask; left && complete;) {  // the last lanes are the last to come, mostly
        unsigned lane = 31 - (unsigned)__builtin_clz(left);
        left &= ~(1u << lane);
        const emu_thread* other = &t->block->thread[first + lane];
        bool same_arg = op < EMU_MMA_16832 || other->arg == arg;
        complete = other->state == IN_WARP && other->op == op && other->mask == mask && same_arg;
    }
    if (complete) resolve_warp(t);
    emu_yield();
}

extern "C" uint64_t emu_warp(emu_op op, unsigned mask, uint64_t value, int arg, int width) {
    emu_thread* t = emu.current;
    meet(op, mask, value, arg, width);
    return t->value;
}

extern "C" void emu_warp_registers(emu_op op, int arg, unsigned* out, const unsigned* a, const unsigned* b) {
    emu_thread* t = emu.current;
    uint64_t value = 0;
    int outputs = op == EMU_LDMATRIX ? arg & 255 : op == EMU_MMA_8816 ? 2 : 4;
    if (op == EMU_LDMATRIX) {
        value = (uint64_t)a[1] << 32 | a[0];
        if ((int)t->lane < 8 * outputs) {  // the other lanes' addresses are not used
            if (value % 16) emu_failf("ldmatrix from an address that is not a multiple of 16");
            emu_check((void*)(uintptr_t)value, 16, EMU_READ, __builtin_return_address(0));
        }
    } else if (op == EMU_MMA_8816) {
        t->a[0] = a[0], t->b[0] = b[0];
        memcpy(t->r, out, 8);
    } else {
        memcpy(t->a, a, 16);
        memcpy(t->b, b, 8);
        memcpy(t->r, out, 16);
    }
    meet(op, 0xffffffffu, value, arg, 32);
    for (int i = 0; i < outputs; i++) out[i] = t->r[i];
}

extern "C" int emu_barrier(emu_op op, int predicate) {
    emu_thread* t = emu.current;
    emu_block* block = t->block;
    t->op = op, t->mask = 0, t->value = predicate != 0, t->state = IN_BARRIER;
    if (++block->waiting == emu.threads) {
        unsigned count = 0;
        std::vector<emu_thread*> all;
        for (unsigned i = 0; i < emu.threads; i++) {
            if (block->thread[i].op != op) emu_failf("different kinds of __syncthreads met");
            count += (unsigned)block->thread[i].value;
            all.push_back(&block->thread[i]);
        }
        unsigned every = count == emu.threads, any = count != 0;
        block->waiting = 0;
        block->barrier_epoch++;
        if (emu.clocked) emu_clocks_meet(all.data(), all.size());
        for (emu_thread* other : all) {
            other->value = op == EMU_BARRIER_COUNT ? count : op == EMU_BARRIER_AND ? every : any;
            emu_wake(other);
        }
    }
    emu_yield();
    return (int)t->value;
}

// All threads of `all` that are in this barrier, when they are as many as it wants.
static void open_barrier(emu_op op, int arg, emu_thread* first, unsigned count) {
    std::vector<emu_thread*> met;
    for (unsigned i = 0; i < count; i++)
        if (first[i].state == IN_BARRIER && first[i].op == op && first[i].arg == arg) met.push_back(&first[i]);
    emu_clocks_meet(met.data(), met.size());
    for (emu_thread* other : met) emu_wake(other);
}

extern "C" void emu_named_barrier(unsigned barrier, unsigned threads) {
    emu_thread* t = emu.current;
    if (barrier < 1 || barrier > 15 || threads % 32 || threads > emu.threads) emu_failf("barrier %u of %u threads", barrier, threads);
    emu_named& named = t->block->named[barrier];
    if (named.arrived && named.threads != threads)
        emu_failf("barrier %u for %u threads, but others wait there for %u", barrier, threads, named.threads);
    named.threads = threads;
    t->op = EMU_NAMED, t->mask = 0, t->arg = (int)barrier, t->state = IN_BARRIER;
    if (++named.arrived == threads) {
        named.arrived = 0;
        open_barrier(EMU_NAMED, (int)barrier, t->block->thread, emu.threads);
    }
    emu_yield();
}

extern "C" void emu_cluster_sync() {
    emu_thread* t = emu.current;
    t->op = EMU_CLUSTER, t->mask = 0, t->arg = 0, t->state = IN_BARRIER;
    if (++emu.in_cluster == emu.threads * emu.cluster) {
        emu.in_cluster = 0;
        open_barrier(EMU_CLUSTER, 0, emu.thread, emu.threads * emu.cluster);
    }
    emu_yield();
}

extern "C" unsigned emu_cluster_rank() { return emu.current->block->rank; }

extern "C" void emu_product(int* d, int columns, uint64_t a, uint64_t b, bool add, bool unsigned_a) {
    emu_thread* t = emu.current;
    t->sums = d;
    t->operand[0] = a, t->operand[1] = b;
    meet(EMU_PRODUCT, 0xffffffffu, 0, columns | add << 16 | unsigned_a << 17, 32);
}

extern "C" void emu_product_step(emu_op op, int arg) { meet(op, 0xffffffffu, 0, arg, 32); }

extern "C" void emu_fence() { emu.fenced = true; }

// cp.async: nothing is copied before the wait, so a kernel that reads too early reads the old bytes.
extern "C" void emu_copy_async(void* to, const void* from, int bytes, int from_bytes) {
    emu_thread* t = emu.current;
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) emu_failf("cp.async with an address that is not a multiple of 16");
    if (from_bytes < 0 || from_bytes > bytes) emu_failf("cp.async of %d bytes out of %d", from_bytes, bytes);
    if (from_bytes) emu_check(from, (size_t)from_bytes, EMU_READ, __builtin_return_address(0));
    emu_check(to, (size_t)bytes, EMU_WRITE, __builtin_return_address(0));  // it may land at once as well
    t->copies.push_back({to, from, bytes, from_bytes, t->group});
}

extern "C" void emu_copy_commit() { emu.current->group++; }

extern "C" void emu_copy_wait(int pending) {
    emu_thread* t = emu.current;
    size_t kept = 0;
    for (const emu_copy& copy : t->copies) {
        if (copy.group >= t->group - pending) {
            t->copies[kept++] = copy;
            continue;
        }
        emu_check(copy.to, (size_t)copy.bytes, EMU_WRITE, __builtin_return_address(0));
        memcpy(copy.to, copy.from, (size_t)copy.from_bytes);
        memset((char*)copy.to + copy.from_bytes, 0, (size_t)(copy.bytes - copy.from_bytes));
    }
    t->copies.resize(kept);
}
