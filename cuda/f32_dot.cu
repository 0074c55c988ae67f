// f32 dot (SPEC.md section 16): c = A . B^T in binary32, k ascending, every product and every sum rounded.
//
//   a  float [batch][M][K], or [batch][K][M] if turned_a      b  float [batch][N][K], or [batch][K][N] if turned_b
//   c  float [batch][M][N]
//
// Each element of c has one accumulator in one thread, which takes k = 0, 1, .., K-1 in this order; tiles and blocks only decide
// which thread that is. Places beyond K hold +0 in both operands: +0 * +0 changes no accumulator, for none is ever -0. The
// compiler must not fuse a product with its sum (--fmad=false).
//
// Test: pytest tests/kernels/test_f32_dot.py
#include "quad.cuh"

struct Shape {
    i64 batch, m, n, k;
};

// A block's place. Tiles run down M in groups of 16 before they move along N, so that blocks that run together share their
// operands in the L2 cache.
struct Place {
    i64 batch, m0, n0;
};

template <int TILE>
__device__ __forceinline__ Place place_of(const Shape& s) {
    i64 tiles_m = (s.m + TILE - 1) / TILE, tiles_n = (s.n + TILE - 1) / TILE;
    i64 rest = blockIdx.x % (tiles_m * tiles_n), first = rest / (16 * tiles_n) * 16;
    i64 height = tiles_m - first < 16 ? tiles_m - first : 16, inside = rest - first * tiles_n;
    return Place{blockIdx.x / (tiles_m * tiles_n), (first + inside % height) * TILE, inside / height * TILE};
}

// How a thread carries one operand to shared memory: two quads of every TILE x DEPTH piece, by way of registers. In shared
// memory a piece lies as [DEPTH][TILE].
template <int TILE>
struct Carrier {
    static constexpr int DEPTH = TILE / 8;
    const float* next;  // this thread's first quad of the next piece
    i64 stride;         // turned: from k to k
    i32 width;          // elements of this thread's quads that lie in the matrix; of rows: 0 or 4
    bool turned;
    Quad held[2];

    // Of rows: quads 2i and 2i + 1 of row threadIdx.x % TILE, so that a warp stores to 32 neighbouring words.
    static __device__ __forceinline__ i32 row() { return threadIdx.x % TILE; }
    static __device__ __forceinline__ i32 part(int i) { return threadIdx.x / TILE * 8 + i * 4; }
    // Turned: one quad each of two k, so that a warp reads neighbouring quads.
    static __device__ __forceinline__ i32 column() { return threadIdx.x % (TILE / 4) * 4; }
    static __device__ __forceinline__ i32 depth(int i) { return threadIdx.x / (TILE / 4) + i * (DEPTH / 2); }

    // For rows `first` and on of matrix `batch` of x, each of k elements.
    __device__ __forceinline__ Carrier(const float* x, i64 batch, i64 rows, i64 first, i64 k, bool is_turned) : turned(is_turned) {
        i64 at = first + (turned ? column() : row()), left = rows - at;
        stride = rows;
        next = x + batch * rows * k + (turned ? depth(0) * rows + at : at * k + part(0));
        width = left >= 4 ? 4 : left <= 0 ? 0 : turned ? (i32)left : 4;
    }

    // Load the next piece, of which `depth_left` k are within the rows.
    __device__ __forceinline__ void fetch(i32 depth_left) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float* from = next + (turned ? i * (DEPTH / 2) * stride : i * 4);
            i32 of_row = width > 0 ? depth_left - part(i) : 0;
            held[i] = load_quad(from, 0, turned ? (depth(i) < depth_left ? width : 0) : of_row);
        }
        next += turned ? DEPTH * stride : DEPTH;
    }

    __device__ __forceinline__ void store(float (*piece)[TILE]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (turned) {
                store_quad(&piece[depth(i)][column()], held[i]);
            } else {
#pragma unroll
                for (int c = 0; c < 4; c++) piece[part(i) + c][row()] = held[i].v[c];
            }
        }
    }
};

// A thread's eight rows (or columns): two runs of four, half a tile apart, so that the threads of a warp read shared memory
// without conflicts. A warp is 4 x 8 threads.
template <int TILE>
struct Corner {
    int row, column;

    __device__ __forceinline__ Corner() {
        int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        row = (warp / (TILE / 64) * 4 + (lane >> 3)) * 4;
        column = (warp % (TILE / 64) * 8 + (lane & 7)) * 4;
    }
};

// v[0..7] = elements first .. first + 3 of a line of a piece, and those half a tile on.
template <int TILE>
__device__ __forceinline__ void read_eight(float (&v)[8], const float* line, int first) {
    Quad low = load_quad(line + first), high = load_quad(line + first + TILE / 2);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        v[c] = low.v[c];
        v[c + 4] = high.v[c];
    }
}

template <int TILE>
__device__ __forceinline__ void multiply(float (&acc)[8][8], const float (*a)[TILE], const float (*b)[TILE], const Corner<TILE>& at) {
#pragma unroll
    for (int k = 0; k < TILE / 8; k++) {
        float x[8], y[8];
        read_eight<TILE>(x, a[k], at.row);
        read_eight<TILE>(y, b[k], at.column);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) acc[i][j] = acc[i][j] + x[i] * y[j];
    }
}

template <int TILE>
__device__ __forceinline__ void write_tile(float* c, const float (&acc)[8][8], const Shape& s, const Place& p, const Corner<TILE>& at) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        i64 row = p.m0 + at.row + (i & 3) + (i >> 2) * (TILE / 2);
        if (row >= s.m) continue;
        float* line = c + (p.batch * s.m + row) * s.n;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float* v = acc[i] + half * 4;
            store_quad(line, p.n0 + at.column + half * (TILE / 2), s.n, Quad{{v[0], v[1], v[2], v[3]}});
        }
    }
}

template <int TILE>
__device__ __forceinline__ void dot_tile(const float* a, const float* b, float* c, const Shape& s, bool turned_a, bool turned_b) {
    constexpr int DEPTH = Carrier<TILE>::DEPTH;
    __shared__ float4 pieces[2][2][DEPTH][TILE / 4];  // two buffers of a piece of each operand
    Place p = place_of<TILE>(s);
    Carrier<TILE> left(a, p.batch, s.m, p.m0, s.k, turned_a), right(b, p.batch, s.n, p.n0, s.k, turned_b);
    Corner<TILE> at;
    float acc[8][8] = {};
    i32 depth = s.k < DEPTH ? (i32)s.k : DEPTH;
    left.fetch(depth);
    right.fetch(depth);
    int buffer = 0;
#pragma unroll 1
    for (i64 todo = s.k; todo > 0; todo -= DEPTH) {
        float (*x)[TILE] = (float (*)[TILE])pieces[buffer][0], (*y)[TILE] = (float (*)[TILE])pieces[buffer][1];
        left.store(x);
        right.store(y);
        __syncthreads();  // the buffer is full, and nobody reads the other one any more
        depth = todo - DEPTH < DEPTH ? (i32)(todo - DEPTH) : DEPTH;
        if (depth > 0) {
            left.fetch(depth);
            right.fetch(depth);
        }
        multiply<TILE>(acc, x, y, at);
        buffer ^= 1;
    }
    write_tile<TILE>(c, acc, s, p, at);
}

GLOBAL void __launch_bounds__(256, 1)
f32_dot_large(const float* a, const float* b, float* c, i64 batch, i64 m, i64 n, i64 k, i32 turned_a, i32 turned_b) {
    dot_tile<128>(a, b, c, Shape{batch, m, n, k}, turned_a, turned_b);
}

GLOBAL void __launch_bounds__(64, 6)
f32_dot_small(const float* a, const float* b, float* c, i64 batch, i64 m, i64 n, i64 k, i32 turned_a, i32 turned_b) {
    dot_tile<64>(a, b, c, Shape{batch, m, n, k}, turned_a, turned_b);
}

// One thread an element, straight from memory. The second opinion of the tests, and the fastest for a few elements.
GLOBAL void f32_dot_plain(const float* a, const float* b, float* c, i64 batch, i64 m, i64 n, i64 k, i32 turned_a, i32 turned_b) {
    for (i64 at = global_index(); at < batch * m * n; at += global_size()) {
        i64 matrix = at / (m * n), row = at / n % m, column = at % n;
        const float* x = a + matrix * m * k + (turned_a ? row : row * k);
        const float* y = b + matrix * n * k + (turned_b ? column : column * k);
        float acc = 0.0f;
        for (i64 i = 0; i < k; i++) acc = acc + x[turned_a ? i * m : i] * y[turned_b ? i * n : i];
        c[at] = acc;
    }
}

// NOT_FINITE if an element of x, float [n], is infinite or NaN.
GLOBAL void f32_dot_operand(const float* x, u32* status, i64 n) {
    bool finite = true;
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad q = load_quad(x, at, n);
#pragma unroll
        for (int c = 0; c < 4; c++) finite = finite && is_finite(q.v[c]);
    }
    if (!finite) atomicOr(status, NOT_FINITE);
}
