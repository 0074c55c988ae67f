// sin and cos of binary32 angles (SPEC.md section 6.4): reduced in integers, evaluated in binary64, rounded once.
#pragma once
#include "common.cuh"

// floor(2/pi * 2^256) in words, the lowest first; a word of zeros lies above.
__constant__ u32 TWO_OVER_PI[9] = {0xdebbc561u, 0xfe5163abu, 0x3c439041u, 0xdb629599u, 0xf534ddc0u,
                                   0xfc2757d1u, 0x4e441529u, 0xa2f9836eu, 0u};

__device__ __forceinline__ double double_of(u64 b) { return __longlong_as_double((i64)b); }

struct Angle {
    i32 quadrant;  // modulo 4
    double rest;   // in [-pi/4, pi/4]
};

// The finite number with these bits, which lie above pi/4, in quarter turns.
__device__ __forceinline__ Angle reduce_angle(u32 magnitude) {
    u32 shift = 312 - (magnitude >> 23), first = shift >> 5, inside = shift & 31;
    u32 window[3];
#pragma unroll
    for (int i = 0; i < 3; i++)
        window[i] = __funnelshift_r(TWO_OVER_PI[first + i], TWO_OVER_PI[first + i + 1], inside);
    u64 m = (magnitude & 0x7fffffu) | 0x800000u;
    u64 p0 = m * window[0];
    u64 p1 = m * window[1] + (p0 >> 32);
    u64 p2 = m * window[2] + (p1 >> 32);
    u64 turns = (p2 << 32) | (p1 & 0xffffffffu);           // in units of 2^-62
    u64 quadrant = ((turns >> 61) + 1) >> 1;               // to nearest; 4 means 0
    i64 fraction = (i64)(turns - (quadrant << 62));        // in [-2^61, 2^61)
    double rest = (__ll2double_rn(fraction) * power_of_two64(-62)) * double_of(0x3ff921fb54442d18u);
    return Angle{(i32)(quadrant & 3), rest};
}

template <int N>
__device__ __forceinline__ double series(double z, const u64 (&coefficients)[N]) {
    double value = double_of(coefficients[N - 1]);
#pragma unroll
    for (int i = N - 2; i >= 0; i--) {
        value = value * z;
        value = value + double_of(coefficients[i]);
    }
    return value;
}

__device__ __forceinline__ double sin_kernel(double a) {
    const u64 s[8] = {0xbfc5555555555555u, 0x3f81111111111111u, 0xbf2a01a01a01a01au, 0x3ec71de3a556c734u,
                      0xbe5ae64567f544e4u, 0x3de6124613a86d09u, 0xbd6ae7f3e733b81fu, 0x3ce952c77030ad4au};
    double z = a * a;
    double u = (z * a) * series(z, s);
    return a + (u + 0.0 * (1.0 - 0.5 * z));
}

__device__ __forceinline__ double cos_kernel(double a) {
    const u64 s[8] = {0x3fa5555555555555u, 0xbf56c16c16c16c17u, 0x3efa01a01a01a01au, 0xbe927e4fb7789f5cu,
                      0x3e21eed8eff8d898u, 0xbda93974a8c07c9du, 0x3d2ae7f3e733b81fu, 0xbca6827863b97d97u};
    double z = a * a;
    double h = 0.5 * z;
    double w = 1.0 - h;
    return w + (((1.0 - w) - h) + ((z * z) * series(z, s) - a * 0.0));
}

// sin x into *sine and cos x into *cosine; NaN 7fc00000 for inf and NaN.
__device__ __forceinline__ void sin_cos_f32(float x, float* sine, float* cosine) {
    u32 magnitude = bits_of(x) & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        *sine = *cosine = float_of(0x7fc00000u);
        return;
    }
    Angle angle{0, (double)float_of(magnitude)};
    if (magnitude > 0x3f490fdau) angle = reduce_angle(magnitude);  // pi/4
    double s = sin_kernel(angle.rest), c = cos_kernel(angle.rest);
    bool odd = angle.quadrant & 1;
    double turned_s = odd ? c : s, turned_c = odd ? s : c;
    if (angle.quadrant & 2) turned_s = -turned_s;
    if ((angle.quadrant + 1) & 2) turned_c = -turned_c;
    *sine = (float)(bits_of(x) != magnitude ? -turned_s : turned_s);
    *cosine = (float)turned_c;
}
