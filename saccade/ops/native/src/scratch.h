// The scratch memory of a task.
#pragma once
#include "vec.h"

namespace saccade {
namespace SACCADE_ISA {

constexpr double LOG2E = 1.4426950408889634, LN2 = 0.6931471805599453;
constexpr size_t BUDGET = 400 << 10;  // bytes a task aims at: most of a small L2

// What a task needs of scratch; hands out its parts.
template <class S>
struct Carver {
  S* base;
  size_t used = 0;
  int skew;  // so that pixel P of each row is aligned
  S* take(size_t n) {
    S* p = base ? base + used + skew : nullptr;
    used += (n + 31) / 16 * 16;
    return p;
  }
};

template <class S>
INLINE void zero(S* p, size_t n) {
  for (size_t i = 0; i < n; i++) p[i] = 0;
}

// Pixels from one channel row to the next: room for `n`, and no power of two, which would crowd
// all channels into a few sets of the cache.
INLINE int pitch_for(int n) {
  const int pitch = round_up(n, 8);
  return pitch % 16 ? pitch : pitch + 8;
}

}  // namespace SACCADE_ISA
}  // namespace saccade
