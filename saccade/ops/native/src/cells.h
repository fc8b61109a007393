// Cells: neighbouring channels of one pixel, in the widest vectors there are.
//
// Heads are whole vectors of LANES wide, so a cell of twice the lanes may hold two of them, one in
// each half. What a head has one number of is spread over the lanes of its half.
#pragma once
#include "rows.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S>
using Cell = typename Widest<S>::V;
template <class S>
constexpr int CELL = LANES_OF<Widest<S>>;
template <class S>
constexpr int HALVES = CELL<S> / LANES<S>;

template <class S>
INLINE Cell<S> load_cell(const S* p) {
  return *reinterpret_cast<const Cell<S>*>(p);
}
template <class S>
INLINE void store_cell(S* p, Cell<S> v) {
  *reinterpret_cast<Cell<S>*>(p) = v;
}
template <class S>
INLINE Cell<S> splat_cell(S x) {
  return x - Cell<S>{};
}
template <class S>
INLINE V<S> half(Cell<S> v, int i) {
#ifdef __AVX512F__
  return i ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v);
#else
  (void)i;
  return v;
#endif
}

// One number per pixel of the head in either half of a cell.
template <class S>
struct Spread {
  const S *low, *high;
  INLINE Spread operator+(ptrdiff_t x) const { return {low + x, high + x}; }
  INLINE Cell<S> operator[](ptrdiff_t x) const {
#ifdef __AVX512F__
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(low[x]), 0xff00, _mm_load_ss(high + x));
#else
    return splat(low[x]);
#endif
  }
};

// A cell of a map, widened; if it is not `whole`, the first half of one, and zeros.
template <class E>
INLINE auto widen_cell(const E* p, bool whole) {
#ifdef __AVX512F__
  if constexpr (std::is_same<E, float>::value) {
    return Wide(_mm512_maskz_loadu_ps(whole ? 0xffff : 0xff, p));
  } else {
    const __m256i bits = _mm256_maskz_loadu_epi16(whole ? 0xffff : 0xff, p);
    return Wide(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
  }
#else
  return widen(p);
#endif
}
template <class S, class E>
INLINE void narrow_cell(E* p, Cell<S> v, bool whole) {
  if constexpr (std::is_same<E, S>::value)
    if (whole) return store_cell(p, v);
  narrow(p, half<S>(v, 0));
  if (HALVES<S> == 2 && whole) narrow(p + LANES<S>, half<S>(v, 1));
}

// Lane j of sum[i]: the sum of the lanes of half i of v[j].
template <class S>
INLINE void sums_of_halves(Cell<S>* v, V<S> (&sum)[HALVES<S>]) {
#ifdef __AVX512F__
  __m512 t[4], u[2];
  for (int i = 0; i < 4; i++)
    t[i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) + _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 2; i++) {
    const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
    u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  }
  const __m512 both = _mm512_shuffle_f32x4(u[0], u[1], 0x88) +  // quarters 0 and 2, 1 and 3
                      _mm512_shuffle_f32x4(u[0], u[1], 0xdd);
  const __m512 sorted = _mm512_shuffle_f32x4(both, both, 0xd8);
  sum[0] = half<S>(sorted, 0), sum[1] = half<S>(sorted, 1);
#else
  sum[0] = sums<S>(v);
#endif
}

}  // namespace SACCADE_ISA
}  // namespace saccade
