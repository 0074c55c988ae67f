// SwiGLU, forward and backward (SPEC.md section 10).
//
//   gate, up, y, dy, dgate, dup  float [n], n = m * k
//   rows, columns                u32 [m], [k], 0 before: the largest magnitudes of a result as bits, for quantise.cu
//   exponents, planes            of the rows of y, as quantise.cu has them
//
// An element is treated alone, by any thread, and maxima are exact. Backward computes the sigmoid again: the same bits, and no array
// to keep. The kernels named _largest make the results a matrix at a time and look at them before they leave the registers, so that
// they need not be read once more; those named _rows round rows of y in registers, and never store y.
//
// Test: pytest tests/kernels/test_swiglu.py
#include "elementary.cuh"
#include "quad.cuh"
#include "quantise_rows.cuh"
#include "quantise_tile.cuh"

__device__ __forceinline__ float sigmoid_f32(float a) {
    float t = exp_f32(-fabsf(a));
    return (a >= 0.0f ? 1.0f : t) / (1.0f + t);
}

__device__ __forceinline__ Quad forward_of(const Quad& gate, const Quad& up) {
    Quad y;
#pragma unroll
    for (int c = 0; c < 4; c++) y.v[c] = (gate.v[c] * sigmoid_f32(gate.v[c])) * up.v[c];
    return y;
}

// gate and up become dgate and dup.
__device__ __forceinline__ void backward_of(const Quad& dy, Quad& gate, Quad& up) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float sigmoid = sigmoid_f32(gate.v[c]);
        float slope = ((1.0f - sigmoid) * gate.v[c] + 1.0f) * sigmoid;
        float through = dy.v[c] * up.v[c];
        up.v[c] = (gate.v[c] * sigmoid) * dy.v[c];
        gate.v[c] = through * slope;
    }
}

GLOBAL void swiglu_forward(const float* gate, const float* up, float* y, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) store_quad(y, at, n, forward_of(load_quad(gate, at, n), load_quad(up, at, n)));
}

GLOBAL void swiglu_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup, i64 n) {
    for (i64 at = first_quad(); at < n; at += next_quad()) {
        Quad a = load_quad(gate, at, n), b = load_quad(up, at, n);
        backward_of(load_quad(dy, at, n), a, b);
        store_quad(dgate, at, n, a);
        store_quad(dup, at, n, b);
    }
}

// Sources for find_largest (quantise_tile.cuh) that keep what they make.
struct Forward {
    const float *gate, *up;
    float* y;
    i64 k;

    static constexpr int INPUTS = 2, RESULTS = 1;
    __device__ __forceinline__ bool whole() const { return k % 4 == 0 && is_quad(gate) && is_quad(up) && is_quad(y); }
    __device__ __forceinline__ void load(Quad (&in)[2], i64 row, i32 column, bool whole) const {
        in[0] = get_quad(gate, row, column, k, whole);
        in[1] = get_quad(up, row, column, k, whole);
    }
    __device__ __forceinline__ void make(const Quad (&in)[2], Quad (&out)[1], i64 row, i32 column, bool whole) const {
        out[0] = forward_of(in[0], in[1]);
        put_quad(y, row, column, k, whole, out[0]);
    }
};

struct Backward {
    const float *dy, *gate, *up;
    float *dgate, *dup;
    i64 k;

    static constexpr int INPUTS = 3, RESULTS = 2;
    __device__ __forceinline__ bool whole() const {
        return k % 4 == 0 && is_quad(dy) && is_quad(gate) && is_quad(up) && is_quad(dgate) && is_quad(dup);
    }
    __device__ __forceinline__ void load(Quad (&in)[3], i64 row, i32 column, bool whole) const {
        in[0] = get_quad(gate, row, column, k, whole);
        in[1] = get_quad(up, row, column, k, whole);
        in[2] = get_quad(dy, row, column, k, whole);
    }
    __device__ __forceinline__ void make(const Quad (&in)[3], Quad (&out)[2], i64 row, i32 column, bool whole) const {
        out[0] = in[0], out[1] = in[1];
        backward_of(in[2], out[0], out[1]);
        put_quad(dgate, row, column, k, whole, out[0]);
        put_quad(dup, row, column, k, whole, out[1]);
    }
};

// y as a source for quantise_rows.
struct Made {
    const float *gate, *up;
    i64 k;

    __device__ __forceinline__ bool whole() const { return k % 4 == 0 && is_quad(gate) && is_quad(up); }
    __device__ __forceinline__ Quad at(i64 row, i32 column, bool whole) const {
        return forward_of(get_quad(gate, row, column, k, whole), get_quad(up, row, column, k, whole));
    }
};

// Two blocks share a multiprocessor; one of sm_75 has too few threads for that, and from sm_100 on they would have to keep something in
// local memory.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
#define ROWS_TOGETHER 1
#else
#define ROWS_TOGETHER 2
#endif

#define SWIGLU_ROWS(held)                                                                                                           \
    GLOBAL void __launch_bounds__(704, ROWS_TOGETHER) swiglu_rows_14_##held(const float* gate, const float* up, i32* exponents,     \
                                                                            i8* planes, u32* status, i64 batch, i64 m, i64 k,       \
                                                                            i64 padded, i32 warps) {                                \
        quantise_rows<14, held>(Made{gate, up, k}, exponents, planes, status, batch, m, k, padded, warps);                          \
    }
SWIGLU_ROWS(1)
SWIGLU_ROWS(2)
SWIGLU_ROWS(4)

// A block takes 128 columns and `height` rows.
GLOBAL void __launch_bounds__(256, 4) swiglu_forward_largest(const float* gate, const float* up, float* y, u32* rows, u32* columns, i64 m,
                                                             i64 k, u32 across, u32 down, i32 height) {
    Largest largest[1] = {{rows, columns}};
    find_largest<true, true, 1, 2>(Forward{gate, up, y, k}, largest, m, k, across, down, height);
}
GLOBAL void __launch_bounds__(256, 4)
    swiglu_backward_largest(const float* dy, const float* gate, const float* up, float* dgate, float* dup, u32* gate_rows, u32* gate_columns,
                            u32* up_rows, u32* up_columns, i64 m, i64 k, u32 across, u32 down, i32 height) {
    Largest largest[2] = {{gate_rows, gate_columns}, {up_rows, up_columns}};
    find_largest<true, true, 1, 2>(Backward{dy, gate, up, dgate, dup, k}, largest, m, k, across, down, height);
}
