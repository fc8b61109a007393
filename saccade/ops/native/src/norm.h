// LayerNorm of a map's pixels.
//
//     y = (x - mean) / sqrt(var + eps) scale + offset       mean and var over a pixel's channels
#pragma once
#include <cmath>

#include "vec.h"

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

// to(row) = norm of x(row). The mean is taken first: sums of squares of what is far from zero would
// lose the variance.
inline void norm_rows(const float* x, int rows, int C, const float* scale, const float* offset,
                      float eps, float* to) {
  const int whole = C / WIDE * WIDE;
  const float share = 1.0f / float(C);
  for (; rows; rows--, x += C, to += C) {
    Wide sum{};
    for (int c = 0; c < whole; c += WIDE) sum += load_wide(x + c);
    float total = sum_wide(sum);
    for (int c = whole; c < C; c++) total += x[c];
    const float mean = total * share;
    Wide squares{};
    for (int c = 0; c < whole; c += WIDE) {
      const Wide d = load_wide(x + c) - mean;
      squares += d * d;
    }
    total = sum_wide(squares);
    for (int c = whole; c < C; c++) total += (x[c] - mean) * (x[c] - mean);
    const float inverse = 1.0f / std::sqrt(total * share + eps);
    for (int c = 0; c < whole; c += WIDE)
      store_wide(to + c, (load_wide(x + c) - mean) * inverse * load_wide(scale + c) +
                             load_wide(offset + c));
    for (int c = whole; c < C; c++) to[c] = (x[c] - mean) * inverse * scale[c] + offset[c];
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
