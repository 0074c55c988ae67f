// Products of a warpgroup, a warp at a time: m64nNk32 of bytes in shared memory, signed or those of a not, as its descriptors say (PTX ISA, wgmma).
//
// The sums are taken away from the registers at the product and come back with the wait; in between they hold nothing. Operands
// are read as late as possible, in the wait, and must not have been written over since the product was begun.
#include <emmintrin.h>

#include <algorithm>
#include <deque>
#include <list>

#include "scheduler.hpp"

static const int TAKEN = 0x7ead7ead;  // what registers hold meanwhile

struct emu_sums {  // 16 rows of the sums of a warp
    int* place[32];
    int columns, flying;
    std::vector<int> kept;
};

struct emu_operation {
    uint64_t a, b;
    int columns, group;
    bool add, unsigned_a;
    emu_sums* sums;
};

struct emu_tensor {  // the state of a warp
    std::deque<emu_operation> operations;
    std::list<emu_sums> sums;
    std::vector<std::pair<uint64_t, uint64_t>> begun;
    int group;
    bool fenced;
};

struct emu_reading {  // what a warp reads or has read
    uintptr_t begin, end;
    emu_thread* warp;
    int flying;
    uint32_t clock[32];  // of the lanes, when it was over
};

static emu_tensor tensors[MOST_BLOCKS * 32];
static std::vector<emu_reading> readings[MOST_BLOCKS];

static emu_tensor& tensor_of(const emu_thread* t) { return tensors[t->block->rank * 32 + t->warp]; }

void emu_products_begin() {
    for (emu_tensor& tensor : tensors) tensor = emu_tensor();
    for (auto& list : readings) list.clear();
}

bool emu_products_idle(const emu_thread* t) { return tensor_of(t).operations.empty(); }

void emu_products_check(int rank, uintptr_t begin, uintptr_t end, const char* what) {
    const emu_thread* t = emu.current;
    for (const emu_reading& reading : readings[rank]) {
        if (reading.begin >= end || begin >= reading.end) continue;
        unsigned long long at = begin - (uintptr_t)emu.block[rank].dynamic;
        if (reading.flying)
            emu_failf("race: %s to shared memory at %llu, which a product of warp %u still reads", what, at, reading.warp->warp);
        bool known = false;
        for (unsigned lane = 0; lane < 32 && !known; lane++)
            known = t->clock[emu_slot(reading.warp + lane)] >= reading.clock[lane];
        if (!known)
            emu_failf("race: %s to shared memory at %llu, which a product of warp %u read, without having waited for it", what, at,
                      reading.warp->warp);
    }
}

static emu_reading& reading_of(const emu_thread* t, uintptr_t begin, uintptr_t end, emu_thread* warp) {
    std::vector<emu_reading>& list = readings[t->block->rank];
    for (emu_reading& reading : list)
        if (reading.begin == begin && reading.end == end && reading.warp == warp) return reading;
    list.push_back({begin, end, warp, 0, {}});
    return list.back();
}

// Where 16 bytes of row `row` lie; piece 0 or 1 of 32 bytes of K.
static unsigned address_of(uint64_t operand, int row, int piece) {
    static const unsigned spans[] = {0, 128, 64, 32};
    unsigned begin = (unsigned)(operand & 0x3fff) << 4, leading = (unsigned)(operand >> 16 & 0x3fff) << 4;
    unsigned stride = (unsigned)(operand >> 32 & 0x3fff) << 4, span = spans[operand >> 62];
    if (!span) return begin + piece * leading + row / 8 * stride + row % 8 * 16;
    unsigned address = begin + row / 8 * stride + row % 8 * span + piece * 16;
    return address ^ ((address >> 7 & (span / 16 - 1)) << 4);
}

static void check_operand(uint64_t operand, const char* name) {
    static const unsigned spans[] = {0, 128, 64, 32};
    unsigned begin = (unsigned)(operand & 0x3fff) << 4, stride = (unsigned)(operand >> 32 & 0x3fff) << 4, span = spans[operand >> 62];
    if (operand >> 14 & 3 || operand >> 30 & 3 || operand >> 46 & 0xffff & ~(3u << 14))
        emu_failf("operand %s: bits of the descriptor %016llx are set that must be 0", name, (unsigned long long)operand);
    if (span && (begin / span % 8 || stride % (8 * span)))
        emu_failf("operand %s: begins at %u with a stride of %u, but the pattern of its swizzle repeats every %u bytes", name, begin,
                  stride, 8 * span);
}

struct emu_chunks {
    std::vector<const unsigned char*> at;  // two a row
    uintptr_t begin, end;
};

static emu_chunks chunks_of(const emu_thread* t, uint64_t operand, int first, int rows) {
    emu_chunks chunks;
    uintptr_t base = (uintptr_t)t->block->dynamic;
    chunks.begin = ~(uintptr_t)0, chunks.end = 0;
    for (int row = first; row < first + rows; row++)
        for (int piece = 0; piece < 2; piece++) {
            unsigned address = address_of(operand, row, piece);
            if (address + 16 > emu.dynamic_bytes) emu_failf("an operand of a product is read at %u, beyond shared memory", address);
            chunks.at.push_back((const unsigned char*)base + address);
            chunks.begin = std::min(chunks.begin, base + address);
            chunks.end = std::max(chunks.end, base + address + 16);
        }
    return chunks;
}

static void widen(const emu_chunks& chunks, bool is_unsigned, std::vector<__m128i>& wide) {
    const __m128i zero = _mm_setzero_si128();
    for (const unsigned char* at : chunks.at) {
        __m128i bytes = _mm_loadu_si128((const __m128i*)at), sign = is_unsigned ? zero : _mm_cmpgt_epi8(zero, bytes);
        wide.push_back(_mm_unpacklo_epi8(bytes, sign));
        wide.push_back(_mm_unpackhi_epi8(bytes, sign));
    }
}

static int dot(const __m128i* x, const __m128i* y) {
    __m128i sum = _mm_add_epi32(_mm_add_epi32(_mm_madd_epi16(x[0], y[0]), _mm_madd_epi16(x[1], y[1])),
                                _mm_add_epi32(_mm_madd_epi16(x[2], y[2]), _mm_madd_epi16(x[3], y[3])));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(sum);
}

static void finish(emu_thread* warp, const emu_operation& operation) {
    emu_chunks a = chunks_of(warp, operation.a, 16 * (warp->warp % 4), 16), b = chunks_of(warp, operation.b, 0, operation.columns);
    std::vector<__m128i> x, y;
    widen(a, operation.unsigned_a, x);
    widen(b, false, y);
    emu_sums* sums = operation.sums;
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < operation.columns; column++) {
            int lane = row % 8 * 4 + column % 8 / 2, i = column / 8 * 4 + row / 8 * 2 + column % 2;
            unsigned* sum = (unsigned*)&sums->kept[lane * operation.columns / 2 + i];
            *sum = (operation.add ? *sum : 0) + (unsigned)dot(&x[row * 4], &y[column * 4]);
        }
    sums->flying--;
    for (const emu_chunks* chunks : {&a, &b}) {
        emu_reading& reading = reading_of(warp, chunks->begin, chunks->end, warp);
        reading.flying--;
        for (int lane = 0; lane < 32; lane++) reading.clock[lane] = warp[lane].clock[emu_slot(&warp[lane])];
    }
}

static bool is_taken(const emu_sums& sums) {
    for (int* place : sums.place)
        for (int i = 0; i < sums.columns / 2; i++)
            if (place[i] != TAKEN) return false;
    return true;
}

// The sums of the lanes' registers, taken away from them.
static emu_sums* take(emu_tensor& tensor, const emu_thread* warp, int columns) {
    for (emu_sums& sums : tensor.sums) {
        if (sums.place[0] != warp[0].sums) continue;
        if (sums.columns != columns || !is_taken(sums)) emu_failf("touches the sums of a product before it was waited for");
        return &sums;
    }
    tensor.sums.emplace_back();
    emu_sums& sums = tensor.sums.back();
    sums.columns = columns;
    sums.flying = 0;
    for (int lane = 0; lane < 32; lane++) {
        sums.place[lane] = warp[lane].sums;
        sums.kept.insert(sums.kept.end(), warp[lane].sums, warp[lane].sums + columns / 2);
        std::fill_n(warp[lane].sums, columns / 2, TAKEN);
    }
    return &sums;
}

static void begin(emu_tensor& tensor, emu_thread* warp) {
    int columns = warp->arg & 0xffff;
    uint64_t a = warp->operand[0], b = warp->operand[1];
    for (int lane = 1; lane < 32; lane++)
        if (warp[lane].operand[0] != a || warp[lane].operand[1] != b) emu_failf("lanes of a warp multiply different operands");
    if (!emu.clocked) emu_failf("a product in a kernel without __cluster_dims__");
    if (!tensor.fenced) emu_failf("a product without a product_fence since its sums may have been touched");
    if (warp->warp / 4 * 4 + 4 > emu.threads / 32) emu_failf("a product of less than four warps");
    check_operand(a, "a");
    check_operand(b, "b");
    tensor.begun.push_back({a, b});
    for (unsigned other = warp->warp / 4 * 4; other < warp->warp / 4 * 4 + 4; other++) {
        const auto& begun = tensors[warp->block->rank * 32 + other].begun;
        if (begun.size() >= tensor.begun.size() && begun[tensor.begun.size() - 1] != tensor.begun.back())
            emu_failf("warps %u and %u of a warpgroup multiply different operands", warp->warp, other);
    }
    emu_chunks read[] = {chunks_of(warp, a, 16 * (warp->warp % 4), 16), chunks_of(warp, b, 0, columns)};
    for (const emu_chunks& chunks : read) {
        emu_async_check((int)warp->block->rank, chunks.begin, chunks.end, false, "a product");
        emu_check_pieces(chunks.at.data(), chunks.at.size(), 16, (int)warp->block->rank, emu_bulk_slot(warp), "a product");
        reading_of(warp, chunks.begin, chunks.end, warp).flying++;
    }
    emu_sums* sums = take(tensor, warp, columns);
    sums->flying++;
    tensor.operations.push_back({a, b, columns, tensor.group, (warp->arg >> 16 & 1) != 0, (warp->arg >> 17) != 0, sums});
}

static void wait(emu_tensor& tensor, emu_thread* warp) {
    while (!tensor.operations.empty() && tensor.operations.front().group < tensor.group - warp->arg) {
        finish(warp, tensor.operations.front());
        tensor.operations.pop_front();
    }
    tensor.fenced = false;
    for (auto sums = tensor.sums.begin(); sums != tensor.sums.end();) {
        if (sums->flying) {
            ++sums;
            continue;
        }
        if (!is_taken(*sums)) emu_failf("touches the sums of a product before it was waited for");
        for (int lane = 0; lane < 32; lane++)
            std::copy_n(&sums->kept[lane * sums->columns / 2], sums->columns / 2, sums->place[lane]);
        sums = tensor.sums.erase(sums);
    }
}

void emu_product_resolve(emu_thread* warp) {
    emu_tensor& tensor = tensor_of(warp);
    if (warp->op == EMU_PRODUCT) begin(tensor, warp);
    if (warp->op == EMU_PRODUCT_FENCE) tensor.fenced = true;
    if (warp->op == EMU_PRODUCT_COMMIT) tensor.group++;
    if (warp->op == EMU_PRODUCT_WAIT) wait(tensor, warp);
}
