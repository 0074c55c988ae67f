// Built-in functions of one thread: bit casts, conversions, integer and byte arithmetic, IEEE float operations.
#pragma once

template <class To, class From>
static inline To emu_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

static inline unsigned __float_as_uint(float x) { return emu_cast<unsigned>(x); }
static inline int __float_as_int(float x) { return emu_cast<int>(x); }
static inline float __uint_as_float(unsigned x) { return emu_cast<float>(x); }
static inline float __int_as_float(int x) { return emu_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return emu_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return emu_cast<double>(x); }
static inline int __double2hiint(double x) { return (int)(emu_cast<unsigned long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)emu_cast<unsigned long long>(x); }
static inline double __hiloint2double(int hi, int lo) {
    return emu_cast<double>((unsigned long long)(unsigned)hi << 32 | (unsigned)lo);
}

// Float to integer: saturates; a NaN gives 0, or the sign bit alone when either side has 64 bits (PTX ISA, cvt).
template <class I, class F>
static inline I emu_to_integer(F x) {  // x is integral or not finite
    constexpr I least = std::is_signed_v<I> ? (I)((I)1 << (8 * sizeof(I) - 1)) : 0;
    constexpr I most = (I)~least;
    if (x != x) return sizeof(I) == 8 || sizeof(F) == 8 ? (I)((I)1 << (8 * sizeof(I) - 1)) : 0;
    const F limit = std::ldexp((F)1, 8 * (int)sizeof(I) - std::is_signed_v<I>);
    if (x >= limit) return most;
    if (std::is_signed_v<I> ? x < -limit : x <= (F)-1) return least;
    return (I)x;
}

#define EMU_CONVERT(from, From, to, To)                                                     \
    static inline To __##from##2##to##_rn(From x) { return emu_to_integer<To>(std::nearbyint(x)); } \
    static inline To __##from##2##to##_rz(From x) { return emu_to_integer<To>(std::trunc(x)); }     \
    static inline To __##from##2##to##_rd(From x) { return emu_to_integer<To>(std::floor(x)); }     \
    static inline To __##from##2##to##_ru(From x) { return emu_to_integer<To>(std::ceil(x)); }
EMU_CONVERT(float, float, int, int)
EMU_CONVERT(float, float, uint, unsigned)
EMU_CONVERT(float, float, ll, long long)
EMU_CONVERT(float, float, ull, unsigned long long)
EMU_CONVERT(double, double, int, int)
EMU_CONVERT(double, double, uint, unsigned)
EMU_CONVERT(double, double, ll, long long)
EMU_CONVERT(double, double, ull, unsigned long long)

static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return (double)x; }
static inline double __uint2double_rn(unsigned x) { return (double)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}

static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// Funnel shifts: the plain ones take the amount modulo 32, the clamped ones up to 32.
static inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned n) {
    unsigned long long both = (unsigned long long)hi << 32 | lo;
    return n >= 32 ? lo : (unsigned)(both << n >> 32);
}
static inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned n) {
    unsigned long long both = (unsigned long long)hi << 32 | lo;
    return n >= 32 ? hi : (unsigned)(both >> n);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) { return __funnelshift_lc(lo, hi, n & 31); }
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) { return __funnelshift_rc(lo, hi, n & 31); }

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
template <class T, class U>
static inline int emu_dp4a(unsigned a, unsigned b) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (int)(T)(a >> 8 * i) * (int)(U)(b >> 8 * i);
    return sum;
}
static inline int __dp4a(int a, int b, int c) { return emu_dp4a<signed char, signed char>((unsigned)a, (unsigned)b) + c; }
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return (unsigned)emu_dp4a<unsigned char, unsigned char>(a, b) + c;
}

#define EMU_MIN_MAX(A, B, R)                                                     \
    static inline R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }          \
    static inline R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
EMU_MIN_MAX(int, int, int)
EMU_MIN_MAX(unsigned, unsigned, unsigned)
EMU_MIN_MAX(int, unsigned, unsigned)
EMU_MIN_MAX(unsigned, int, unsigned)
EMU_MIN_MAX(long long, long long, long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

template <class T>
static inline T __ldg(const T* p) { return *p; }
template <class T>
static inline T __ldcg(const T* p) { return *p; }
template <class T>
static inline T __ldcs(const T* p) { return *p; }
template <class T>
static inline void __stcs(T* p, T value) { *p = value; }
template <class T>
static inline void __stcg(T* p, T value) { *p = value; }
