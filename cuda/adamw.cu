// AdamW, one step on many tensors (SPEC.md section 14).
//
//   table   u64 as in tensor_table.cuh; fields: 0 param, 1 m, 2 v, 3 grad (float), 4 new param, 5 new m, 6 new v (float; each
//           may be the old one), 7 whether the tensor decays (0 or 1)
//   status  u32: NOT_FINITE where a new value is infinite or NaN
//
// Elements are treated alone, by any thread.
//
// Test: pytest tests/kernels/test_adamw.py
#include "quad.cuh"
#include "tensor_table.cuh"

struct Scalars {
    float clip, beta1, one_minus_beta1, beta2, one_minus_beta2, sqrt_correction2, rate, eps;
};

// p, m and v of one element, replaced by the new ones.
__device__ __forceinline__ void update(float& p, float& m, float& v, float grad, float decay, const Scalars& s) {
    float g = grad * s.clip;
    m = m * s.beta1 + s.one_minus_beta1 * g;
    v = v * s.beta2 + (g * g) * s.one_minus_beta2;
    float change = (m / (sqrtf(v) / s.sqrt_correction2 + s.eps)) * s.rate;
    p = p * decay - change;
}

GLOBAL void adamw(const u64* table, i64 count, i64 tiles, u32* status, float clip, float beta1, float one_minus_beta1, float beta2,
                  float one_minus_beta2, float sqrt_correction2, float rate, float decay, float eps) {
    Scalars s{clip, beta1, one_minus_beta1, beta2, one_minus_beta2, sqrt_correction2, rate, eps};
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Tile at = tile_of(table, count, tile);
        float tensor_decay = at.word(7) ? decay : 1.0f;
        bool finite = true;
        for (i64 i = at.first + threadIdx.x * 4; i < at.end; i += blockDim.x * 4) {
            Quad p = load_quad(at.field<const float>(0), i, at.end), m = load_quad(at.field<const float>(1), i, at.end);
            Quad v = load_quad(at.field<const float>(2), i, at.end), g = load_quad(at.field<const float>(3), i, at.end);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                update(p.v[c], m.v[c], v.v[c], g.v[c], tensor_decay, s);
                bool inside = i + c < at.end;
                finite = finite && (!inside || (is_finite(p.v[c]) && is_finite(m.v[c]) && is_finite(v.v[c])));
            }
            store_quad(at.field<float>(4), i, at.end, p);
            store_quad(at.field<float>(5), i, at.end, m);
            store_quad(at.field<float>(6), i, at.end, v);
        }
        if (!finite) atomicOr(status, NOT_FINITE);
    }
}
