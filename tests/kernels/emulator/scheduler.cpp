// Runs a grid: block after block, the threads of a block as fibers that change over only where CUDA lets them wait.
//
// Between two such points a thread runs alone, so the result depends on the order of the threads exactly when the kernel has a
// race; the order of threads and blocks is drawn from the seed.
#include "scheduler.hpp"

#include <setjmp.h>
#include <sys/mman.h>

#include <string>

emu_machine emu;

static const size_t STACK = 128 * 1024, THREADS = 2048;
static void* scheduler_stack;
static jmp_buf in_scheduler;

// Save the callee-saved registers on this stack, leave its pointer in *save, continue on the stack `load`.
extern "C" void emu_switch(void** save, void* load) __asm__("emu_switch");
#if defined(__x86_64__)
__asm__(
    ".text\n.p2align 4\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
static const int RETURN = 6, FRAME = 8;  // words: place of the return address; all, so that the stack is as after a call
#else
#error "the emulator knows the stacks of x86-64 only"
#endif

extern "C" uint3 emu_thread_index() {
    unsigned i = emu.current->index;
    return {i % emu.block_size.x, i / emu.block_size.x % emu.block_size.y, i / (emu.block_size.x * emu.block_size.y)};
}
extern "C" uint3 emu_block_index() { return emu.current->block->index; }
extern "C" void* emu_dynamic_base() { return emu.current->block->dynamic; }
extern "C" uint3 emu_block_dim() { return emu.block_size; }
extern "C" uint3 emu_grid_dim() { return emu.grid; }

void emu_failf(const char* format, ...) {
    if (!emu.failed) {
        emu.failed = true;
        int n = snprintf(emu.message, emu.message_size, "%s: ", emu.kernel);
        if (emu.current) {
            uint3 at = emu.current->block->index;
            n += snprintf(emu.message + n, emu.message_size - n, "block (%u, %u, %u) thread %u: ", at.x, at.y, at.z,
                          emu.current->index);
        }
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(emu.message + n, emu.message_size - n, format, arguments);
        va_end(arguments);
    }
    if (!emu.current) longjmp(in_scheduler, 1);  // the copy engine
    void* abandoned;
    for (;;) emu_switch(&abandoned, scheduler_stack);  // this fiber never runs again
}

extern "C" void emu_fail(const char* what) { emu_failf("%s", what); }

void emu_yield() { emu_switch(&emu.current->stack_pointer, scheduler_stack); }

void emu_wake(emu_thread* t) {
    t->state = READY;
    emu.ready.push_back(t);
}

uint64_t emu_random() {  // splitmix64
    uint64_t z = emu.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

template <class T>
static void shuffle(std::vector<T>& order) {
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[(emu_random() >> 32) * i >> 32]);
}

static const char* const OPS[] = {
    "__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__reduce_add_sync",
    "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
    "__reduce_or_sync", "__reduce_xor_sync", "__match_any_sync", "mma_m16n8k32", "mma_m8n8k16", "ldmatrix", "product_s8",
    "product_fence", "product_commit", "product_wait", "__syncthreads", "__syncthreads_and", "__syncthreads_or",
    "__syncthreads_count", "block_meet", "cluster_sync", "mbarrier_wait"};

static void describe(const emu_thread* t, char* text, size_t size) {
    if (t->state == DONE)
        snprintf(text, size, "has returned");
    else if (t->op == EMU_MBARRIER)
        emu_report_wait(t, text, size);
    else
        snprintf(text, size, "waits in %s (mask %08x)", OPS[t->op], t->mask);
}

// Where all threads are, like ones together.
static void report_all() {
    std::vector<std::pair<std::string, std::vector<const emu_thread*>>> places;
    for (unsigned i = 0; i < emu.threads * emu.cluster; i++) {
        char text[160];
        describe(&emu.thread[i], text, sizeof text);
        size_t at = 0;
        while (at < places.size() && places[at].first != text) at++;
        if (at == places.size()) places.push_back({text, {}});
        places[at].second.push_back(&emu.thread[i]);
    }
    for (const auto& place : places) {
        size_t used = strlen(emu.message);
        const emu_thread* t = place.second[0];
        snprintf(emu.message + used, emu.message_size - used, "; %zu threads from thread %u of block %u on: %s",
                 place.second.size(), t->index, t->block->rank, place.first.c_str());
    }
}

// Nobody can go on: one that waits, and one that it may wait for.
static void report_divergence() {
    const emu_thread *in = nullptr, *out = nullptr;
    unsigned all = emu.threads * emu.cluster;
    for (unsigned i = 0; i < all && !in; i++)
        if (emu.thread[i].state != DONE) in = &emu.thread[i];
    for (unsigned i = 0; i < all && !out; i++) {
        const emu_thread* t = &emu.thread[i];
        bool of_block = in->op >= EMU_BARRIER && t->block == in->block;
        bool of_warp = in->op < EMU_BARRIER && t->block == in->block && t->warp == in->warp && (in->mask >> t->lane & 1);
        bool of_any = in->op >= EMU_CLUSTER;
        if ((of_block || of_warp || of_any) && (t->state == DONE || t->op != in->op || t->mask != in->mask)) out = t;
    }
    char waits[160], other[160] = "is not in the block";
    describe(in, waits, sizeof waits);
    if (out) describe(out, other, sizeof other);
    emu.failed = true;
    snprintf(emu.message, emu.message_size, "%s: block (%u, %u, %u): divergence: thread %u %s, but thread %u %s", emu.kernel,
             in->block->index.x, in->block->index.y, in->block->index.z, in->index, waits, out ? out->index : 0, other);
    if (emu.clocked) report_all();
}

static const emu_kernel* running_kernel;
static void** running_args;

static void thread_main() {
    running_kernel->call(running_args);
    emu_thread* t = emu.current;
    if (!t->copies.empty()) emu_failf("returned with a cp.async that was never waited for");
    if (emu.clocked && !(emu_async_idle(t) && emu_products_idle(t)))
        emu_failf("returned with a bulk store or a product that was never waited for");
    if (emu.clocked && t->block->done + 1 == emu.threads) emu_async_block_end(t->block);
    t->state = DONE;
    t->block->done++;
    emu_yield();
    abort();
}

static void prepare(emu_thread* t, emu_block* block, unsigned index) {
    uintptr_t top = emu.stacks + (t - emu.thread + 1) * STACK - 64;
    top -= (t - emu.thread) % 61 * 192;  // else the tops of all stacks fall onto the same places of the cache
    top &= ~(uintptr_t)15;
    void** frame = (void**)top - FRAME;
    memset(frame, 0, FRAME * sizeof(void*));
    frame[RETURN] = (void*)&thread_main;
    t->stack_pointer = frame;
    t->block = block;
    t->index = index;
    t->warp = index / 32;
    t->lane = index % 32;
    t->state = READY;
    t->group = 0;
    t->copies.clear();
    emu.ready.push_back(t);
}

static void resume(emu_thread* t) {
    emu.current = t;
    emu_switch(&scheduler_stack, t->stack_pointer);
    emu.current = nullptr;
}

static void begin_block(unsigned rank, unsigned number) {
    emu_block* block = &emu.block[rank];
    block->number = number;
    block->rank = rank;
    block->index = {number % emu.grid.x, number / emu.grid.x % emu.grid.y, number / emu.grid.x / emu.grid.y};
    block->waiting = block->done = block->barrier_epoch = 0;
    memset(block->warp_epoch, 0, sizeof block->warp_epoch);
    memset(block->named, 0, sizeof block->named);
    block->thread = emu.thread + rank * emu.threads;
    block->dynamic = emu_dynamic_shared + rank * DYNAMIC;
    for (unsigned i = 0; i < emu.threads; i++) prepare(&block->thread[i], block, i);
}

static bool finished() {
    for (unsigned rank = 0; rank < emu.cluster; rank++)
        if (emu.block[rank].done < emu.threads) return false;
    return true;
}

// The blocks of a cluster, or one block.
static void run_blocks(unsigned first) {
    emu.ready.clear();
    emu.in_cluster = 0;
    for (unsigned rank = 0; rank < emu.cluster; rank++) begin_block(rank, first + rank);
    emu_poison_shared();
    if (emu.clocked) {
        emu_clocks_begin();
        emu_async_begin();
        emu_products_begin();
    }
    if (setjmp(in_scheduler)) return;
    std::vector<emu_thread*> round;
    while (!finished() && !emu.failed) {
        if (emu.clocked) emu_async_advance(false);
        while (emu.clocked && emu.ready.empty() && emu_async_advance(true)) {}
        if (emu.ready.empty()) return report_divergence();
        round.swap(emu.ready);
        emu.ready.clear();
        if (emu.random) shuffle(round);
        for (emu_thread* t : round) {
            resume(t);
            if (emu.failed) return;
        }
    }
    if (emu.clocked) emu_async_end();
}

static void check_guards(int buffers, const uint64_t* begin, const uint64_t* end, unsigned guard, unsigned char pattern) {
    for (int i = 0; i < buffers; i++) {
        const unsigned char *low = (const unsigned char*)begin[i], *high = (const unsigned char*)end[i];
        for (unsigned j = 1; j <= guard; j++) {
            if (low[-(int)j] == pattern && high[j - 1] == pattern) continue;
            emu.failed = true;
            snprintf(emu.message, emu.message_size, "%s: wrote %u bytes %s a buffer of %llu bytes", emu.kernel, j,
                     low[-(int)j] == pattern ? "past the end of" : "before the begin of",
                     (unsigned long long)(end[i] - begin[i]));
            return;
        }
    }
}

struct emu_launch_options {
    uint3 grid, block;
    unsigned dynamic_bytes, guard;
    uint64_t seed, most_accesses;
    unsigned char poison, guard_pattern;
};

// 0 when all threads returned, 1 with a message. begin, end: the live buffers, sorted by address.
extern "C" __attribute__((visibility("default"))) int emu_launch(const emu_kernel* kernel, const emu_launch_options* options,
                                                                void** args, int buffers, const uint64_t* begin,
                                                                const uint64_t* end, char* message, size_t message_size) {
    static emu_thread* threads = nullptr;
    if (!threads) {
        threads = new emu_thread[THREADS]();
        void* memory = mmap(nullptr, THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (memory == MAP_FAILED) abort();
        emu.stacks = (uintptr_t)memory;
        emu.stacks_end = emu.stacks + THREADS * STACK;
    }
    emu.thread = threads;
    emu.kernel = kernel->name;
    emu.grid = options->grid;
    emu.block_size = options->block;
    emu.threads = emu.block_size.x * emu.block_size.y * emu.block_size.z;
    emu.cluster = kernel->cluster ? (unsigned)kernel->cluster : 1;
    emu.clocked = kernel->cluster != 0;
    emu.dynamic_bytes = options->dynamic_bytes;
    emu.poison = options->poison;
    emu.random = options->seed * 0x2545f4914f6cdd1du;
    emu.message = message;
    emu.message_size = message_size;
    emu.failed = emu.fenced = false;
    emu.accesses_left = options->most_accesses;
    emu.current = nullptr;
    running_kernel = kernel;
    running_args = args;
    emu_regions_begin(buffers, begin, end);
    std::vector<unsigned> order(emu.grid.x * emu.grid.y * emu.grid.z / emu.cluster);
    for (unsigned i = 0; i < order.size(); i++) order[i] = i * emu.cluster;
    if (emu.random) shuffle(order);
    for (unsigned number : order) {
        run_blocks(number);
        if (emu.failed) break;
    }
    if (!emu.failed) check_guards(buffers, begin, end, options->guard, options->guard_pattern);
    emu_regions_end();
    return emu.failed;
}

extern "C" __attribute__((visibility("default"))) size_t emu_static_bytes() { return emu_static_shared(); }
