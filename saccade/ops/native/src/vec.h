// Vectors of one instruction set, through the compiler's own vector type.
//
// This header and everything that includes it is compiled once per instruction set, each time into
// a namespace of that name, so that no function built for AVX-512 can stand in for a plain one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef SACCADE_ISA
#error "compile kernels.cpp with -DSACCADE_ISA=<generic | avx2 | avx512 | neon>"
#endif

#ifdef SACCADE_SANITIZED  // checks multiply what is inlined; there nobody waits for results
#define INLINE inline
#define INLINED
#else
#define INLINE __attribute__((always_inline)) inline
#define INLINED __attribute__((always_inline))  // for lambdas: registers do not survive a call
#endif

namespace saccade {
namespace SACCADE_ISA {

// Bytes in a vector, and how many vectors the register file holds. AVX-512 brings twice the
// registers, which always pays; its wider vectors do only where maps fill them (`WIDEST`).
#if defined(__AVX512VL__)
constexpr int BYTES = 32, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int BYTES = 16, REGISTERS = 32;
#else
constexpr int BYTES = 16, REGISTERS = 16;
#endif

template <class S>
struct Vector;
template <>
struct Vector<float> {
  typedef float Number;
  typedef float V __attribute__((vector_size(BYTES), aligned(4)));
  typedef int32_t I __attribute__((vector_size(BYTES), aligned(4)));
};
template <>
struct Vector<double> {
  typedef double Number;
  typedef double V __attribute__((vector_size(BYTES), aligned(8)));
  typedef int64_t I __attribute__((vector_size(BYTES), aligned(8)));
};
template <class S>
using V = typename Vector<S>::V;
template <class S>
using I = typename Vector<S>::I;
template <class S>
constexpr int LANES = BYTES / int(sizeof(S));

// The widest vectors there are, for sums along channels, which fill them, and for wide maps.
#ifdef __AVX512F__
constexpr int WIDEST = 64;
#else
constexpr int WIDEST = BYTES;
#endif
typedef float Wide __attribute__((vector_size(WIDEST), aligned(4)));
constexpr int WIDE = WIDEST / int(sizeof(float));
INLINE Wide load_wide(const float* p) { return *reinterpret_cast<const Wide*>(p); }
INLINE void store_wide(float* p, Wide v) { *reinterpret_cast<Wide*>(p) = v; }
INLINE Wide splat_wide(float x) { return x - Wide{}; }
INLINE Wide maximum_wide(Wide a, Wide b) {  // a NaN in b is kept
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__aarch64__)
  return vmaxq_f32(a, b);
#else
  return a > b ? a : b;
#endif
}

template <class S>
INLINE V<S> load(const S* p) {
  return *reinterpret_cast<const V<S>*>(p);
}
template <class S>
INLINE void store(S* p, V<S> v) {
  *reinterpret_cast<V<S>*>(p) = v;
}
template <class S>
INLINE V<S> splat(S x) {
  return x - V<S>{};  // exact for -0 too, so that it costs no addition
}
// A NaN in `b` is kept; in `a` it may be lost. (Left to itself, GCC compares and blends.)
template <class S>
INLINE V<S> maximum(V<S> a, V<S> b) {
#ifdef __AVX2__
  if constexpr (std::is_same<S, float>::value)
    return _mm256_max_ps(a, b);
  else
    return _mm256_max_pd(a, b);
#elif defined(__aarch64__)
  if constexpr (std::is_same<S, float>::value)
    return vmaxq_f32(a, b);
  else
    return vmaxq_f64(a, b);
#else
  return a > b ? a : b;
#endif
}
template <class S>
INLINE S sum(V<S> v) {
#ifdef __aarch64__
  if constexpr (std::is_same<S, float>::value) return vaddvq_f32(v);
#endif
  S s = 0;
  for (int i = 0; i < LANES<S>; i++) s += v[i];
  return s;
}
// What computes with vectors of either width takes `Vector` or `Widest` by name: a deduced type of
// vectors would forget that they are aligned as numbers are.
template <class S>
struct Widest : Vector<S> {};  // double precision has no wider set than the plain one
template <>
struct Widest<float> {
  typedef float Number;
  typedef Wide V;
  typedef int32_t I __attribute__((vector_size(WIDEST), aligned(4)));
};
template <class T>
constexpr int LANES_OF = int(sizeof(typename T::V) / sizeof(typename T::Number));

template <class T>
INLINE typename T::V load_as(const typename T::Number* p) {
  return *reinterpret_cast<const typename T::V*>(p);
}
template <class T>
INLINE void store_as(typename T::Number* p, typename T::V v) {
  *reinterpret_cast<typename T::V*>(p) = v;
}
template <class T>
INLINE typename T::V splat_as(typename T::Number x) {
  return x - typename T::V{};
}
template <class T>
INLINE typename T::V maximum_as(typename T::V a, typename T::V b) {  // a NaN in b is kept
  if constexpr (LANES_OF<T> > LANES<typename T::Number>)
    return maximum_wide(a, b);
  else
    return maximum<typename T::Number>(a, b);
}
template <class T>
INLINE typename T::Number sum_as(typename T::V v) {
  typename T::Number s = 0;
  for (int i = 0; i < LANES_OF<T>; i++) s += v[i];
  return s;
}

// Lane l of the result is all ones where from <= l < to.
template <class T>
INLINE typename T::I lanes_as(int from, int to) {
  typename T::I lane;
  for (int l = 0; l < LANES_OF<T>; l++) lane[l] = l;
  using One = typename std::remove_reference<decltype(lane[0])>::type;
  return (typename T::I)(lane >= One(from)) & (typename T::I)(lane < One(to));
}
template <class S>
INLINE I<S> lanes(int from, int to) {
  return lanes_as<Vector<S>>(from, to);
}
// Whether every lane of a mask is set.
template <class S>
INLINE bool all_set(I<S> mask) {
#ifdef __AVX2__
  return _mm256_movemask_epi8((__m256i)mask) == -1;
#elif defined(__aarch64__)
  return vminvq_u32((uint32x4_t)mask) == 0xffffffffu;
#else
  for (int l = 0; l < LANES<S>; l++)
    if (!mask[l]) return false;
  return true;
#endif
}
// v where the mask is set, +0 elsewhere, whatever v holds there (0 * NaN would be NaN).
template <class T>
INLINE typename T::V keep_as(typename T::I mask, typename T::V v) {
  return (typename T::V)((typename T::I)v & mask);
}
template <class S>
INLINE V<S> keep(I<S> mask, V<S> v) {
  return keep_as<Vector<S>>(mask, v);
}

// Holds v in a register from here on. GCC reads what is used twice from memory twice, as operand of
// two instructions, though it is loads that are scarce.
template <class T>
INLINE T loaded(T v) {
#if defined(__AVX512VL__)
  asm("" : "+v"(v));
#elif defined(__AVX2__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

// The same address, of which the compiler does not know what else it is.
template <class T>
INLINE T* apart(T* p) {
  asm("" : "+r"(p));
  return p;
}

// 2^r for |r| <= 1/2, in float vectors of any width.
template <class Floats>
INLINE Floats exp2_fraction_of(Floats r) {
  Floats p = r * 1.326472731e-3f + 9.671512991e-3f;
  p = p * r + 5.5507335812e-2f;
  p = p * r + 2.40222424269e-1f;
  p = p * r + 6.9314700365e-1f;
  return p * r + 1.0f;
}
INLINE V<float> exp2_fraction(V<float> r) { return exp2_fraction_of(r); }
INLINE V<double> exp2_fraction(V<double> r) {
  r *= 0.693147180559945309417;
  V<double> p = splat(1.0 / 6227020800.0);  // Taylor: |r| < 0.35, so 13 terms reach 1e-17
  const double inverse_factorials[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                       1.0 / 362880,    1.0 / 40320,    1.0 / 5040,
                                       1.0 / 720,       1.0 / 120,      1.0 / 24,
                                       1.0 / 6,         1.0 / 2,        1.0,
                                       1.0};
  for (double f : inverse_factorials) p = p * r + splat(f);
  return p;
}

// 2^x for x <= 0. Below the smallest normal number the result is exactly 0; NaN stays NaN.
//
// x = n + r with n the nearest integer: adding a large constant leaves n + bias in the low bits of
// the sum, and a shift makes those bits the exponent of 2^n.
template <class T>
INLINE typename T::V exp2_floats(typename T::V x) {
  x = maximum_as<T>(splat_as<T>(-127.0f), x);
  const typename T::V magic = splat_as<T>(12582912.0f + 127.0f);  // 1.5 * 2^23 + exponent bias
  const typename T::V t = x + magic;
  return exp2_fraction_of(x - (t - magic)) * (typename T::V)((typename T::I)t << 23);
}
INLINE V<float> exp2(V<float> x) { return exp2_floats<Vector<float>>(x); }
INLINE V<double> exp2(V<double> x) {
  x = maximum<double>(splat(-1023.0), x);
  const V<double> magic = splat(6755399441055744.0 + 1023.0);  // 1.5 * 2^52 + exponent bias
  const V<double> t = x + magic;
  return exp2_fraction(x - (t - magic)) * (V<double>)((I<double>)t << 52);
}

// The same in vectors of either width.
template <class T>
INLINE typename T::V exp2_as(typename T::V x) {
  if constexpr (std::is_same<typename T::Number, float>::value)
    return exp2_floats<T>(x);
  else
    return exp2(x);
}

// e^x / 2^m for an integer m. The reduction x = n ln 2 + r does not involve m, so that another m
// changes no bit of the mantissa; it is exact to the last bits for |x| < 2^14. NaN stays NaN; what
// is below the smallest normal number is 0. x must not be above m ln 2 by more than 88 (709).
INLINE V<float> exp_over(V<float> x, float m) {
  const V<float> magic = splat(12582912.0f);
  const V<float> n = (x * float(1.4426950408889634) + magic) - magic;
  const V<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  const V<float> e = maximum<float>(splat(-127.0f), n - m) + (12582912.0f + 127.0f);
  return exp2_fraction(r * float(1.4426950408889634)) * (V<float>)((I<float>)e << 23);
}
INLINE V<double> exp_over(V<double> x, double m) {
  const V<double> magic = splat(6755399441055744.0);
  const V<double> n = (x * 1.4426950408889634 + magic) - magic;
  const V<double> r = (x - n * 0.693145751953125) + n * -1.42860682030941723212e-6;
  const V<double> e = maximum<double>(splat(-1023.0), n - m) + (6755399441055744.0 + 1023.0);
  return exp2_fraction(r * 1.4426950408889634) * (V<double>)((I<double>)e << 52);
}

// e^x for x <= 0, but never below 1e-38.
INLINE Wide exp_wide(Wide x) {
  typedef int32_t Bits __attribute__((vector_size(WIDEST), aligned(4)));
  const Wide magic = splat_wide(12582912.0f + 127.0f);
  const Wide t = maximum_wide(splat_wide(-87.0f), x) * 1.44269504f;
  const Wide n = t + magic, r = t - (n - magic);  // as in exp2
  return exp2_fraction_of(r) * (Wide)((Bits)n << 23);
}

// -- choosing code at compile time by a number known at run time ------------------------------

template <int n>
using Int = std::integral_constant<int, n>;

// f(Int<0>), f(Int<1>), ... f(Int<n - 1>): a loop without a counter.
template <int... i, class F>
INLINE void each_of(std::integer_sequence<int, i...>, F&& f) {
  (f(Int<i>{}), ...);
}
template <int n, class F>
INLINE void repeat(F&& f) {
  each_of(std::make_integer_sequence<int, n>{}, f);
}
// f(Int<n>) for 1 <= n <= Max.
template <int Max, class F>
INLINE void pick(int n, F&& f) {
  if constexpr (Max > 1) {
    if (n == Max)
      f(Int<Max>{});
    else
      pick<Max - 1>(n, f);
  } else {
    f(Int<1>{});
  }
}
// f(Int<lo>, Int<hi>) for 0 <= lo <= hi < Max; the full span is tried first.
template <int Max, int Lo = 0, class F>
INLINE void span(int lo, int hi, F&& f) {
  if (lo == Lo) {
    pick<Max - Lo>(hi - lo + 1, [&](auto n) INLINED {
      f(Int<Lo>{}, Int<Lo + decltype(n)::value - 1>{});
    });
  } else if constexpr (Lo + 1 < Max) {
    span<Max, Lo + 1>(lo, hi, f);
  }
}

constexpr INLINE int min(int a, int b) { return a < b ? a : b; }
constexpr INLINE int max(int a, int b) { return a > b ? a : b; }
constexpr INLINE int round_up(int a, int b) { return (a + b - 1) / b * b; }

}  // namespace SACCADE_ISA
}  // namespace saccade
