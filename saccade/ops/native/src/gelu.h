// GELU and its slope, in the widest vectors.
//
//     gelu(x) = x F(x),  F the normal distribution's; or F(x) = 1 / (1 + e^-2u) with
//     u = sqrt(2 / pi) (x + 0.044715 x^3), which is its "tanh" form
//
// NaN stays NaN.
#pragma once
#include "vec.h"

namespace saccade {
namespace SACCADE_ISA {

// The value and, where `slope` is asked for, the derivative.
template <bool TANH, bool SLOPE>
INLINE Wide gelu(Wide x, Wide* slope = nullptr) {
  if constexpr (TANH) {
    const Wide far = splat_wide(32.0f);  // beyond, F is 0 or 1, and x^3 might be too large
    const Wide low = maximum_wide(-far, x), near = low > far ? far : low, square = near * near;
    const Wide u = near * (square * 0.0713548163f + 1.5957691216f);  // 2 u
    const Wide e = exp_wide(u > 0 ? -u : u), inverse = 1.0f / (e + 1.0f);
    const Wide share = u > 0 ? inverse : e * inverse;
    if constexpr (SLOPE)
      *slope = share + near * (e * inverse * inverse) * (square * 0.2140644488f + 1.5957691216f);
    return x * share;
  } else {
    // F of -|x| by Abramowitz and Stegun, 7.1.26: t = 1 / (1 + p |x| / sqrt(2)).
    const Wide e = exp_wide(x * x * -0.5f), t = 1.0f / ((x > 0 ? x : -x) * 0.231641888f + 1.0f);
    Wide p = splat_wide(0.5307027145f);
    p = p * t - 0.7265760135f;
    p = p * t + 0.7107068705f;
    p = p * t - 0.142248368f;
    p = p * t + 0.127414796f;
    const Wide tail = p * t * e, share = x > 0 ? 1.0f - tail : tail;
    if constexpr (SLOPE) *slope = share + x * e * 0.39894228f;
    return x * share;
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
