// LayerNorm of a map's pixels.
//
//     y = (x - mean) / sqrt(var + eps) scale + offset       mean and var over a pixel's channels
#pragma once
#include <cmath>

#include "rows.h"

namespace saccade {
namespace SACCADE_ISA {

INLINE float sum_wide(Wide v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps(v);
#elif defined(__aarch64__)
  return vaddvq_f32(v);
#else
  float s = 0;
  for (int i = 0; i < WIDE; i++) s += v[i];
  return s;
#endif
}

// The halves of a wide vector, added until it is a plain one.
INLINE V<float> half_as_wide(Wide v) {
#ifdef __AVX512F__
  return (V<float>)_mm512_castps512_ps256(v) + (V<float>)_mm512_extractf32x8_ps(v, 1);
#else
  return (V<float>)v;
#endif
}
INLINE V<float> root(V<float> v) {
#ifdef __AVX2__
  return (V<float>)_mm256_sqrt_ps(v);
#elif defined(__aarch64__)
  return vsqrtq_f32(v);
#else
  for (int l = 0; l < LANES<float>; l++) v[l] = std::sqrt(v[l]);
  return v;
#endif
}
// Sums of some rows' numbers, one in each lane; of f(number), with f's own view of a row.
template <class F, class G>
INLINE V<float> sums_of_rows(int C, F&& wide, G&& one) {
  constexpr int N = LANES<float>;
  const int whole = C / WIDE * WIDE;
  V<float> all[N], rest{};
  for (int r = 0; r < N; r++) {
    Wide sum{};
    for (int c = 0; c < whole; c += WIDE) sum += wide(r, c);
    all[r] = half_as_wide(sum);
    for (int c = whole; c < C; c++) rest[r] += one(r, c);
  }
  return sums<float>(all) + rest;
}

// to(row) = norm of x(row). The mean is taken first: sums of squares of what is far from zero would
// lose the variance. Rows are taken some at a time, for a row's two sums wait for each other.
inline void norm_rows(const float* x, int rows, int C, const float* scale, const float* offset,
                      float eps, float* to) {
  constexpr int N = LANES<float>;
  const int whole = C / WIDE * WIDE;
  const float share = 1.0f / float(C);
  for (; rows > 0; rows -= N, x += ptrdiff_t(N) * C, to += ptrdiff_t(N) * C) {
    const int some = min(N, rows);
    const float* at[N];
    for (int r = 0; r < N; r++) at[r] = x + ptrdiff_t(r < some ? r : 0) * C;
    float mean[N], inverse[N];
    store(mean, sums_of_rows(
                    C, [&](int r, int c) INLINED { return load_wide(at[r] + c); },
                    [&](int r, int c) INLINED { return at[r][c]; }) * share);
    const V<float> square = sums_of_rows(
        C,
        [&](int r, int c) INLINED {
          const Wide d = load_wide(at[r] + c) - mean[r];
          return d * d;
        },
        [&](int r, int c) INLINED { return (at[r][c] - mean[r]) * (at[r][c] - mean[r]); });
    store(inverse, 1.0f / root(square * share + eps));
    for (int r = 0; r < some; r++) {
      float* row = to + ptrdiff_t(r) * C;
      for (int c = 0; c < whole; c += WIDE)
        store_wide(row + c, (load_wide(at[r] + c) - mean[r]) * inverse[r] * load_wide(scale + c) +
                                load_wide(offset + c));
      for (int c = whole; c < C; c++) row[c] = (at[r][c] - mean[r]) * inverse[r] * scale[c] + offset[c];
    }
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
