// Runs a grid: block after block, the threads of a block as fibers that change over only where CUDA lets them wait.
//
// Between two such points a thread runs alone, so the result depends on the order of the threads exactly when the kernel has a
// race; the order of threads and blocks is drawn from the seed.
#include "scheduler.hpp"

#include <sys/mman.h>

emu_machine emu;

static const size_t STACK = 128 * 1024;
static void* scheduler_stack;

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

extern "C" uint3 emu_thread_index() { return emu.thread_index; }
extern "C" uint3 emu_block_index() { return emu.block_index; }
extern "C" uint3 emu_block_dim() { return emu.block; }
extern "C" uint3 emu_grid_dim() { return emu.grid; }

void emu_failf(const char* format, ...) {
    if (!emu.failed) {
        emu.failed = true;
        int n = snprintf(emu.message, emu.message_size, "%s: ", emu.kernel);
        if (emu.current)
            n += snprintf(emu.message + n, emu.message_size - n, "block (%u, %u, %u) thread %u: ", emu.block_index.x,
                          emu.block_index.y, emu.block_index.z, emu.current->index);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(emu.message + n, emu.message_size - n, format, arguments);
        va_end(arguments);
    }
    void* abandoned;
    for (;;) emu_switch(&abandoned, scheduler_stack);  // this fiber never runs again
}

extern "C" void emu_fail(const char* what) { emu_failf("%s", what); }

void emu_yield() { emu_switch(&emu.current->stack_pointer, scheduler_stack); }

void emu_wake(emu_thread* t) {
    t->state = READY;
    emu.ready.push_back(t->index);
}

static uint64_t next_random() {  // splitmix64
    uint64_t z = emu.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void shuffle(std::vector<unsigned>& order) {
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[(next_random() >> 32) * i >> 32]);
}

static const char* const OPS[] = {
    "__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__reduce_add_sync",
    "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
    "__reduce_or_sync", "__reduce_xor_sync", "__match_any_sync", "mma_m16n8k32", "mma_m8n8k16", "ldmatrix", "__syncthreads",
    "__syncthreads_and", "__syncthreads_or", "__syncthreads_count"};

static void report_divergence() {
    const emu_thread *in = nullptr, *out = nullptr;
    for (unsigned i = 0; i < emu.threads; i++) {
        const emu_thread* t = &emu.thread[i];
        if (t->state == IN_WARP || t->state == IN_BARRIER) in = in ? in : t;
    }
    for (unsigned i = 0; i < emu.threads && !out; i++) {
        const emu_thread* t = &emu.thread[i];
        bool expected = in->op >= EMU_BARRIER || (t->warp == in->warp && (in->mask >> t->lane & 1));
        if (expected && (t->state == DONE || t->op != in->op || t->mask != in->mask)) out = t;
    }
    emu.failed = true;
    snprintf(emu.message, emu.message_size,
             "%s: block (%u, %u, %u): divergence: thread %u waits in %s (mask %08x), but thread %u %s%s (mask %08x)",
             emu.kernel, emu.block_index.x, emu.block_index.y, emu.block_index.z, in->index, OPS[in->op], in->mask,
             out ? out->index : 0, out ? out->state == DONE ? "has returned" : "waits in " : "is not in the block",
             out && out->state != DONE ? OPS[out->op] : "", out && out->state != DONE ? out->mask : 0);
}

static const emu_kernel* running_kernel;
static void** running_args;

static void thread_main() {
    running_kernel->call(running_args);
    emu_thread* t = emu.current;
    if (!t->copies.empty()) emu_failf("returned with a cp.async that was never waited for");
    t->state = DONE;
    emu.done++;
    emu_yield();
    abort();
}

static void prepare(emu_thread* t, unsigned index) {
    uintptr_t top = emu.stacks + (index + 1) * STACK - 64;
    top &= ~(uintptr_t)15;
    void** frame = (void**)top - FRAME;
    memset(frame, 0, FRAME * sizeof(void*));
    frame[RETURN] = (void*)&thread_main;
    t->stack_pointer = frame;
    t->index = index;
    t->warp = index / 32;
    t->lane = index % 32;
    t->state = READY;
    t->group = 0;
    t->copies.clear();
}

static void resume(emu_thread* t) {
    emu.current = t;
    unsigned i = t->index;
    emu.thread_index = {i % emu.block.x, i / emu.block.x % emu.block.y, i / (emu.block.x * emu.block.y)};
    emu_switch(&scheduler_stack, t->stack_pointer);
    emu.current = nullptr;
}

static void run_block(unsigned number) {
    emu.block_number = number;
    emu.block_index = {number % emu.grid.x, number / emu.grid.x % emu.grid.y, number / emu.grid.x / emu.grid.y};
    emu.waiting = emu.done = emu.barrier_epoch = 0;
    memset(emu.warp_epoch, 0, sizeof emu.warp_epoch);
    emu.ready.clear();
    for (unsigned i = 0; i < emu.threads; i++) {
        prepare(&emu.thread[i], i);
        emu.ready.push_back(i);
    }
    emu_poison_shared();
    std::vector<unsigned> round;
    while (emu.done < emu.threads && !emu.failed) {
        if (emu.ready.empty()) return report_divergence();
        round.swap(emu.ready);
        emu.ready.clear();
        if (emu.random) shuffle(round);
        for (unsigned i : round) {
            resume(&emu.thread[i]);
            if (emu.failed) return;
        }
    }
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
        threads = new emu_thread[1024]();
        void* memory = mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (memory == MAP_FAILED) abort();
        emu.stacks = (uintptr_t)memory;
        emu.stacks_end = emu.stacks + 1024 * STACK;
    }
    emu.thread = threads;
    emu.kernel = kernel->name;
    emu.grid = options->grid;
    emu.block = options->block;
    emu.threads = emu.block.x * emu.block.y * emu.block.z;
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
    std::vector<unsigned> order(emu.grid.x * emu.grid.y * emu.grid.z);
    for (unsigned i = 0; i < order.size(); i++) order[i] = i;
    if (emu.random) shuffle(order);
    for (unsigned number : order) {
        run_block(number);
        if (emu.failed) break;
    }
    if (!emu.failed) check_guards(buffers, begin, end, options->guard, options->guard_pattern);
    emu_regions_end();
    return emu.failed;
}

extern "C" __attribute__((visibility("default"))) size_t emu_static_bytes() { return emu_static_shared(); }
