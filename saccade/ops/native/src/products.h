// The two inner loops of every window operator here, on planar rows (see rows.h).
//
// Lanes are neighbouring pixels, so no product is ever summed across a vector. Both loops hold a
// tile of R x BLOCK sums in registers and reload nothing but its two edges: R + BLOCK loads for
// R * BLOCK multiply-adds. R * BLOCK + R + 1 registers must exist.
//
//     dot   sum[i][b] += q[i][c] * k[c][x + b]      over channels c: pixels against their window
//     mix   sum[i][c] += p[i][b] * v[c][x + b]      over offsets b:  the window, weighted
#pragma once
#include "vec.h"

namespace saccade {
namespace SACCADE_ISA {

constexpr int R = 3;
constexpr int BLOCK = REGISTERS == 32 ? 8 : 4;
static_assert(R * BLOCK + R + 1 <= REGISTERS, "the tile of sums must stay in registers");

// Whether a load takes twice as long unless it is aligned: it is then not worth an operand of its own.
template <class T>
constexpr bool SLOW_LOADS = sizeof(typename T::V) == 64;

struct Pixels {  // one value per lane
  template <class T>
  static INLINE typename T::V at(const typename T::Number* p) {
    return load_as<T>(p);
  }
};
struct Constant {  // one value for all lanes
  template <class T>
  static INLINE typename T::V at(const typename T::Number* p) {
    return splat_as<T>(*p);
  }
};

template <class K, class T, int NI, int NB>
INLINE void dot_as(const typename T::Number* q, ptrdiff_t q_row, ptrdiff_t q_channel,
                   const typename T::Number* k, ptrdiff_t k_channel, int channels,
                   typename T::V (&sum)[NI][NB]) {
#pragma GCC unroll 1
  for (int c = 0; c < channels; c++, q += q_channel, k += k_channel) {
    typename T::V qs[NI];
    for (int i = 0; i < NI; i++) qs[i] = load_as<T>(q + i * q_row);
    for (int b = 0; b < NB; b++) {
      typename T::V kb = K::template at<T>(k + b);
      if constexpr (NI == 2 || (NI > 2 && SLOW_LOADS<T>)) kb = loaded(kb);
      for (int i = 0; i < NI; i++) sum[i][b] += qs[i] * kb;
    }
  }
}

template <class X, int LO, int HI, class T, int NC>
INLINE void mix_as(const typename T::Number* p, ptrdiff_t p_row, ptrdiff_t p_offset,
                   const typename T::Number* v, ptrdiff_t v_channel, ptrdiff_t v_offset, int offsets,
                   typename T::V (&sum)[R][NC]) {
  p += LO * p_row;
#pragma GCC unroll 1
  for (int b = 0; b < offsets; b++, p += p_offset, v += v_offset) {
    typename T::V ps[HI - LO + 1];
    for (int i = LO; i <= HI; i++) ps[i - LO] = load_as<T>(p + (i - LO) * p_row);
    for (int c = 0; c < NC; c++) {
      typename T::V vc = X::template at<T>(v + c * v_channel);
      if constexpr (HI - LO == 1 || (HI > LO && SLOW_LOADS<T>)) vc = loaded(vc);
      for (int i = LO; i <= HI; i++) sum[i][c] += ps[i - LO] * vc;
    }
  }
}

// The same in vectors of the usual width.
template <class K, int NI, int NB, class S>
INLINE void dot(const S* q, ptrdiff_t q_row, ptrdiff_t q_channel, const S* k, ptrdiff_t k_channel,
                int channels, V<S> (&sum)[NI][NB]) {
  dot_as<K, Vector<S>>(q, q_row, q_channel, k, k_channel, channels, sum);
}
template <class X, int LO, int HI, int NC, class S>
INLINE void mix(const S* p, ptrdiff_t p_row, ptrdiff_t p_offset, const S* v, ptrdiff_t v_channel,
                ptrdiff_t v_offset, int offsets, V<S> (&sum)[R][NC]) {
  mix_as<X, LO, HI, Vector<S>>(p, p_row, p_offset, v, v_channel, v_offset, offsets, sum);
}

// Zeros, one register at a time (an initialiser would go through memory). S is to be named: a deduced
// type of vectors would forget that they are aligned as numbers are.
template <class T, int NI, int NB>
INLINE void clear_as(typename T::V (&sum)[NI][NB]) {
  for (int i = 0; i < NI; i++)
    for (int b = 0; b < NB; b++) sum[i][b] = typename T::V{};
}
template <class S, int NI, int NB>
INLINE void clear(V<S> (&sum)[NI][NB]) {
  clear_as<Vector<S>>(sum);
}

// Cut [0, n) into equal blocks of at most BLOCK, and f(start, Int<size>) for each.
template <class F>
INLINE void blocks(int n, F&& f) {
  const int count = (n + BLOCK - 1) / BLOCK;
  for (int i = 0, start = 0; i < count; i++) {
    const int size = n / count + (i < n % count);
    pick<BLOCK>(size, [&](auto s) INLINED { f(start, s); });
    start += size;
  }
}
// Cut channels [from, to) into full blocks, then halves, quarters, ...
template <int Size = BLOCK, class F>
INLINE void channel_blocks(int from, int to, F&& f) {
  int c = from;
  for (; c + Size <= to; c += Size) f(c, Int<Size>{});
  if constexpr (Size > 1) channel_blocks<Size / 2>(c, to, f);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
