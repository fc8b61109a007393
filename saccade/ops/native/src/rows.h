// Moving image rows between tensors (any strides, any supported type) and planar scratch.
//
// The kernels compute on scratch rows only: channel c of a row starts at c * pitch, pixels are
// neighbours, and what lies outside the image is zero: a task clears its rows once, and from then
// on only the inside is written. Layout and type end here.
#pragma once
#include "call.h"
#include "vec.h"

namespace saccade {
namespace SACCADE_ISA {

struct bfloat16 {
  uint16_t bits;
};

// One vector from `p`, widened.
INLINE V<float> widen(const float* p) { return load(p); }
INLINE V<double> widen(const double* p) { return load(p); }
INLINE V<float> widen(const bfloat16* p) {
  typedef uint16_t H __attribute__((vector_size(BYTES / 2), aligned(2)));
  const H h = *reinterpret_cast<const H*>(p);
  return (V<float>)(__builtin_convertvector(h, I<float>) << 16);
}
INLINE float widen_one(float x) { return x; }
INLINE double widen_one(double x) { return x; }
INLINE float widen_one(bfloat16 x) {
  union {
    uint32_t u;
    float f;
  } b = {uint32_t(x.bits) << 16};
  return b.f;
}

INLINE void narrow(float* p, V<float> v) { store(p, v); }
INLINE void narrow(double* p, V<double> v) { store(p, v); }
INLINE void narrow(bfloat16* p, V<float> v) {  // to nearest, ties to even; NaN stays NaN
#ifdef __AVX512BF16__
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), (__m128i)_mm256_cvtneps_pbh(v));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_bf16(vcvt_bf16_f32(v)));
#else
  typedef uint16_t H __attribute__((vector_size(BYTES / 2), aligned(2)));
  typedef uint32_t U __attribute__((vector_size(BYTES)));
  const U u = (U)v;
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U nan = (U)(v != v);
  const U bits = (rounded & ~nan) | (0x7fc0u & nan);
  *reinterpret_cast<H*>(p) = __builtin_convertvector(bits, H);
#endif
}
INLINE void narrow_one(float* p, float x) { *p = x; }
INLINE void narrow_one(double* p, double x) { *p = x; }
INLINE void narrow_one(bfloat16* p, float x) {
  bfloat16 t[LANES<float>];
  narrow(t, splat(x));
  *p = t[0];
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SACCADE_SHUFFLE 1
#endif
#endif

// Rows become columns, in registers.
template <class S>
INLINE void transpose(V<S>* v) {
  constexpr int N = LANES<S>;
#ifdef SACCADE_SHUFFLE
  if constexpr (N == 8) {
    V<S> t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
      t[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
      for (int j = 0; j < 2; j++) {
        u[i + 2 * j] = __builtin_shufflevector(t[i + j], t[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
        u[i + 2 * j + 1] =
            __builtin_shufflevector(t[i + j], t[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
      }
    for (int i = 0; i < 4; i++) {
      v[i] = __builtin_shufflevector(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
      v[i + 4] = __builtin_shufflevector(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    return;
  } else if constexpr (N == 4) {
    V<S> a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    V<S> b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    V<S> c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    V<S> d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
    return;
  }
#endif
  V<S> t[N];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) t[i][j] = v[j][i];
  for (int i = 0; i < N; i++) v[i] = t[i];
}

// Lane j of the result: the sum of v[j]'s lanes.
template <class S>
INLINE V<S> sums(V<S>* v) {
  constexpr int N = LANES<S>;
#ifdef SACCADE_SHUFFLE
  if constexpr (N == 8) {  // half of a transposition, in between sums
    V<S> t[4], u[2];
    for (int i = 0; i < 4; i++)
      t[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
             __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    for (int i = 0; i < 2; i++)
      u[i] = __builtin_shufflevector(t[2 * i], t[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
             __builtin_shufflevector(t[2 * i], t[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(u[0], u[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(u[0], u[1], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#endif
  transpose<S>(v);
  V<S> sum = v[0];
  for (int i = 1; i < N; i++) sum += v[i];
  return sum;
}

// f(x) for vectors that cover [0, n): the last one overlaps its neighbour rather than the end.
// False, and nothing done, if there is not even one.
template <int N, class F>
INLINE bool overlapping(int n, F&& f) {
  if (n < N) return false;
  for (int x = 0; x < n - N; x += N) f(x);
  f(n - N);
  return true;
}

// Ask for `bytes` from p on, to be in the second cache when they are needed.
INLINE void fetch(const void* p, size_t bytes) {
  const char* c = static_cast<const char*>(p);
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(c + i, 0, 2);
  __builtin_prefetch(c + bytes - 1, 0, 2);
}

// How far ahead to fetch at row y of H: some rows down or, near the end, into the next d channels,
// which the next task is likely to begin with.
INLINE ptrdiff_t soon(const Map& map, int y, int H, int rows, int d) {
  return y + rows < H ? rows * map.row : (rows - H) * map.row + d * map.channel;
}

// Channels [c0, c0 + d) of pixels [from, to) of row y, times `scale`, to scratch: pixel `from` of
// channel c to dst[c * pitch]. What lies `ahead` elements on will be wanted soon.
template <class E, class S>
void pack(const Map map, int b, int c0, int d, int y, int from, int to, ptrdiff_t pitch,
          ptrdiff_t ahead, S scale, S* dst) {
  constexpr int N = LANES<S>;
  const E* src = static_cast<const E*>(map.data) + b * map.batch + c0 * map.channel + y * map.row +
                 from * map.column;
  const int n = to - from;
  if (map.column == 1) {
    for (int c = 0; c < d; c++, src += map.channel, dst += pitch) {
      fetch(src + ahead, n * sizeof(E));
      if (!overlapping<N>(n, [&](int x) INLINED { store(dst + x, widen(src + x) * scale); }))
        for (int x = 0; x < n; x++) dst[x] = widen_one(src[x]) * scale;
    }
    return;
  }
  int whole = 0;  // channels done N at a time
  if (map.channel == 1 && overlapping<N>(n, [&](int x) INLINED {
        for (int c = 0; c + N <= d; c += N) {
          V<S> v[N];
          for (int j = 0; j < N; j++) {
            const E* s = src + (x + j) * map.column + c;
            v[j] = widen(s) * scale;
            __builtin_prefetch(s + ahead, 0, 2);
          }
          transpose<S>(v);
          for (int j = 0; j < N; j++) store(dst + (c + j) * pitch + x, v[j]);
        }
      }))
    whole = d / N * N;
  for (int c = whole; c < d; c++)
    for (int x = 0; x < n; x++)
      dst[c * pitch + x] = widen_one(src[x * map.column + c * map.channel]) * scale;
}

// The way back: pixels [from, to) of row y are written from src, which begins at pixel `from`.
template <class E, class S>
void unpack(const Map map, int b, int c0, int d, int y, int from, int to, ptrdiff_t pitch,
            S scale, const S* src) {
  constexpr int N = LANES<S>;
  E* dst = static_cast<E*>(map.data) + b * map.batch + c0 * map.channel + y * map.row +
           from * map.column;
  const int n = to - from;
  if (map.column == 1) {
    for (int c = 0; c < d; c++) {
      const S* s = src + c * pitch;
      E* r = dst + c * map.channel;
      if (!overlapping<N>(n, [&](int x) INLINED { narrow(r + x, load(s + x) * scale); }))
        for (int x = 0; x < n; x++) narrow_one(r + x, s[x] * scale);
    }
    return;
  }
  int whole = 0;
  if (map.channel == 1 &&
      overlapping<N>(n, [&](int x) INLINED {
        for (int c = 0; c + N <= d; c += N) {
          V<S> v[N];
          for (int j = 0; j < N; j++) v[j] = load(src + (c + j) * pitch + x) * scale;
          transpose<S>(v);
          for (int j = 0; j < N; j++) narrow(dst + (x + j) * map.column + c, v[j]);
        }
      }))
    whole = d / N * N;
  for (int c = whole; c < d; c++)
    for (int x = 0; x < n; x++)
      narrow_one(dst + x * map.column + c * map.channel, src[c * pitch + x] * scale);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
