// Rows of bfloat16 numbers in pairs, and the inner loops of products.h on pairs.
//
//     sum += low(p) * low(v) + high(p) * high(v)      one instruction: products exact, sums in fp32
//
// A lane holds two numbers that are summed over together, so a loop is half as long. There are two
// kinds of planar rows; neither repeats a number:
//
//     by channels   (u[2e][y][x], u[2e + 1][y][x])    to sum over channels; a zero makes them even
//     by rows       (u[c][y][x], u[c][y + 1][x])      to sum over the rows of a window
//
// The instruction takes denormals (below 1e-38) for zero. x86 has it for 8 lanes (AVX-512), ARM for 4
// (armv8.6, and some before).
#pragma once
#include "products.h"
#include "rows.h"

namespace saccade {
namespace SACCADE_ISA {

typedef uint32_t Pair;  // of bfloat16: the first in the low half
using Half = Widest<float>;
typedef Half::V Lanes;

#ifdef __AVX512BF16__
typedef __m512i Pairs;  // a lane each
typedef __mmask16 SomeLanes;

INLINE Pairs load_pairs(const Pair* p) { return _mm512_loadu_si512(p); }
INLINE void store_pairs(Pair* p, Pairs v) { _mm512_storeu_si512(p, v); }
INLINE Pairs splat_pair(Pair p) { return _mm512_set1_epi32(int(p)); }
INLINE Lanes multiply_add(Pairs a, Pairs b, Lanes sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// The first of a row of numbers, and zeros; (a[l], b[l]) in lane l.
typedef __m256i Numbers;
INLINE Numbers load_numbers(const uint16_t* p, SomeLanes some) {
  return _mm256_maskz_loadu_epi16(some, p);
}
INLINE Pairs interleave(Numbers a, Numbers b) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}
// The same, rounded to nearest.
INLINE Pairs interleave(Lanes a, Lanes b) {
  return interleave((__m256i)_mm512_cvtneps_pbh(a), (__m256i)_mm512_cvtneps_pbh(b));
}
// (low of a, low of b), and (high of a, high of b)
INLINE Pairs lows(Pairs a, Pairs b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16));
}
INLINE Pairs highs(Pairs a, Pairs b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
}

// Eight channels of n <= 16 pixels, `column` numbers apart, become pairs of channels, `pitch` apart.
template <bool WHOLE>
INLINE void pair_channels(const uint16_t* s, ptrdiff_t column, int n, ptrdiff_t ahead,
                          ptrdiff_t pitch, Pair* to) {
  __m512i u[4], v[4];  // pixels j, j + 4, ...; pairs of channels become rows
  const auto pixel = [&](int i) INLINED {
    const uint16_t* p = s + (WHOLE || i < n ? i : n - 1) * column;
    __builtin_prefetch(p + ahead, 0, 2);
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const auto give = [&](int e, __m512i row) INLINED {
    if (WHOLE)
      store_pairs(to + e * pitch, row);
    else
      _mm512_mask_storeu_epi32(to + e * pitch, SomeLanes((1u << n) - 1), row);
  };
  for (int j = 0; j < 4; j++) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(pixel(j)), pixel(j + 4), 1);
    const __m256i high =
        _mm256_inserti128_si256(_mm256_castsi128_si256(pixel(j + 8)), pixel(j + 12), 1);
    u[j] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  for (int j = 0; j < 2; j++) {
    v[j] = _mm512_unpacklo_epi32(u[2 * j], u[2 * j + 1]);
    v[j + 2] = _mm512_unpackhi_epi32(u[2 * j], u[2 * j + 1]);
  }
  for (int j = 0; j < 2; j++) {
    give(2 * j, _mm512_unpacklo_epi64(v[2 * j], v[2 * j + 1]));
    give(2 * j + 1, _mm512_unpackhi_epi64(v[2 * j], v[2 * j + 1]));
  }
}

// The first n lanes; a * b in some lanes, +0 in others, whatever a and b hold there.
INLINE SomeLanes first_lanes(int n) { return SomeLanes((1u << n) - 1); }
INLINE Lanes multiply_some(SomeLanes some, Lanes a, Lanes b) { return _mm512_maskz_mul_ps(some, a, b); }

// x - floor(x), and p 2^floor(x), or 0 where that is below the smallest number.
INLINE Lanes above_floor(Lanes x) {
  return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
INLINE Lanes times_power(Lanes p, Lanes x) { return _mm512_scalef_ps(p, x); }

INLINE bool any_above(Lanes v, float limit) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(limit), _CMP_GT_OQ);
}
#else
typedef uint32x4_t Pairs;
typedef Half::I SomeLanes;

INLINE Pairs load_pairs(const Pair* p) { return vld1q_u32(p); }
INLINE void store_pairs(Pair* p, Pairs v) { vst1q_u32(p, v); }
INLINE Pairs splat_pair(Pair p) { return vdupq_n_u32(p); }
INLINE Lanes multiply_add(Pairs a, Pairs b, Lanes sum) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
}

typedef uint16x4_t Numbers;
INLINE Numbers load_numbers(const uint16_t* p) { return vld1_u16(p); }
INLINE Pairs interleave(Numbers a, Numbers b) {
  return vreinterpretq_u32_u16(vcombine_u16(vzip1_u16(a, b), vzip2_u16(a, b)));
}
INLINE Pairs interleave(Lanes a, Lanes b) {
  return interleave(vreinterpret_u16_bf16(vcvt_bf16_f32(a)),
                    vreinterpret_u16_bf16(vcvt_bf16_f32(b)));
}
INLINE Pairs lows(Pairs a, Pairs b) { return vsliq_n_u32(a, b, 16); }
INLINE Pairs highs(Pairs a, Pairs b) { return vsriq_n_u32(b, a, 16); }

INLINE void pair_channels(const uint16_t* s, ptrdiff_t column, ptrdiff_t ahead, ptrdiff_t pitch,
                          Pair* to) {
  Lanes v[4];  // a pixel each; pairs of channels become rows
  for (int j = 0; j < 4; j++) {
    v[j] = vreinterpretq_f32_u16(vld1q_u16(s + j * column));
    __builtin_prefetch(s + j * column + ahead, 0, 2);
  }
  transpose<float>(v);
  for (int e = 0; e < 4; e++) store_pairs(to + e * pitch, vreinterpretq_u32_f32(v[e]));
}

INLINE SomeLanes first_lanes(int n) { return lanes_as<Half>(0, n); }
INLINE Lanes multiply_some(SomeLanes some, Lanes a, Lanes b) {
  return keep_as<Half>(some, a * b);
}

INLINE Lanes above_floor(Lanes x) { return x - vrndmq_f32(x); }
INLINE Lanes times_power(Lanes p, Lanes x) {
  const Lanes n = maximum_as<Half>(splat_as<Half>(-127.0f), vrndmq_f32(x)) + (12582912.0f + 127.0f);
  return p * (Lanes)((Half::I)n << 23);
}

INLINE bool any_above(Lanes v, float limit) { return vmaxvq_f32(vabsq_f32(v)) > limit; }
#endif

// Half a pair may be out of reach of a sum. A weight of zero is not enough: 0 * NaN would be NaN.
enum Part { BOTH, LOW, HIGH };
template <Part part>
INLINE Pairs only(Pairs v) {
  if constexpr (part == LOW) return v & splat_pair(0xffff);
  if constexpr (part == HIGH) return v & splat_pair(0xffff0000u);
  return v;
}

// -- rows ------------------------------------------------------------------------------------

// `pack_pairs` as far as it goes by vectors; how many channels that are.
#ifdef __AVX512BF16__
INLINE int pack_whole_pairs(const uint16_t* src, const Map& map, int d, int n, ptrdiff_t pitch,
                            ptrdiff_t ahead, Pair* dst) {
  const auto some = SomeLanes((1u << min(n, 16)) - 1);
  if (map.column == 1) {
    for (int c = 0; c < d; c += 2, src += 2 * map.channel, dst += pitch) {
      const bool even = c + 1 < d;
      fetch(src + ahead, n * sizeof(*src));
      if (even) fetch(src + map.channel + ahead, n * sizeof(*src));
      const auto at = [&](int x) INLINED {
        const Numbers second = even ? load_numbers(src + map.channel + x, some) : Numbers{};
        _mm512_mask_storeu_epi32(dst + x, some, interleave(load_numbers(src + x, some), second));
      };
      if (!overlapping<16>(n, at)) at(0);
    }
    return d;
  }
  if (map.channel != 1) return 0;
  const auto at = [&](int x, auto whole) INLINED {
    for (int c = 0; c + 8 <= d; c += 8)
      pair_channels<decltype(whole)::value>(src + x * map.column + c, map.column, n, ahead, pitch,
                                            dst + c / 2 * pitch + x);
  };
  if (!overlapping<16>(n, [&](int x) INLINED { at(x, std::true_type{}); })) at(0, std::false_type{});
  return d / 8 * 8;
}
#else
INLINE int pack_whole_pairs(const uint16_t* src, const Map& map, int d, int n, ptrdiff_t pitch,
                            ptrdiff_t ahead, Pair* dst) {
  constexpr int N = LANES_OF<Half>;
  if (map.column == 1 && n >= N) {
    for (int c = 0; c < d; c += 2) {
      const uint16_t* s = src + c * map.channel;
      const bool even = c + 1 < d;
      fetch(s + ahead, n * sizeof(*s));
      if (even) fetch(s + map.channel + ahead, n * sizeof(*s));
      Pair* to = dst + c / 2 * pitch;
      overlapping<N>(n, [&](int x) INLINED {
        const Numbers second = even ? load_numbers(s + map.channel + x) : Numbers{};
        store_pairs(to + x, interleave(load_numbers(s + x), second));
      });
    }
    return d;
  }
  const bool done = map.channel == 1 && overlapping<N>(n, [&](int x) INLINED {
    for (int c = 0; c + 8 <= d; c += 8)
      pair_channels(src + x * map.column + c, map.column, ahead, pitch, dst + c / 2 * pitch + x);
  });
  return done ? d / 8 * 8 : 0;
}
#endif

// Channels [c0, c0 + d) of pixels [from, to) of row y, by channels: pixel `from` of pair e to
// dst[e * pitch]. What lies `ahead` elements on will be wanted soon.
inline void pack_pairs(const Map map, int b, int c0, int d, int y, int from, int to,
                       ptrdiff_t pitch, ptrdiff_t ahead, Pair* dst) {
  const uint16_t* src = static_cast<const uint16_t*>(map.data) + b * map.batch + c0 * map.channel +
                        y * map.row + from * map.column;
  const int n = to - from;
  const int whole = pack_whole_pairs(src, map, d, n, pitch, ahead, dst);
  for (int c = whole; c < d; c += 2)
    for (int x = 0; x < n; x++) {
      const uint16_t* s = src + x * map.column + c * map.channel;
      dst[c / 2 * pitch + x] = Pair(s[0]) | Pair(c + 1 < d ? s[map.channel] : 0) << 16;
    }
}

// Two rows by channels become one by rows, from index `from` or some before it to at least `to`: whole
// vectors from the beginning of the row, so that none reaches into the next one.
inline void stack(const Pair* first, const Pair* second, int d, int from, int to, ptrdiff_t pitch,
                  Pair* dst) {
  from -= from % LANES_OF<Half>;
  for (int c = 0; c < d; c += 2, first += pitch, second += pitch, dst += 2 * pitch)
    for (int x = from; x < to; x += LANES_OF<Half>) {
      const Pairs a = load_pairs(first + x), b = load_pairs(second + x);
      store_pairs(dst + x, lows(a, b));
      if (c + 1 < d) store_pairs(dst + pitch + x, highs(a, b));
    }
}

// -- products ----------------------------------------------------------------------------------

struct PairPixels {
  static INLINE Pairs at(const Pair* p) { return load_pairs(p); }
};
struct PairConstant {
  static INLINE Pairs at(const Pair* p) { return splat_pair(*p); }
};

// sum[i][b] += q[i][e] * k[e][x + b], both by channels
template <class K, int NI, int NB>
INLINE void dot_pairs(const Pair* q, ptrdiff_t q_row, ptrdiff_t q_channel, const Pair* k,
                      ptrdiff_t k_channel, int pairs, Lanes (&sum)[NI][NB]) {
#pragma GCC unroll 1
  for (int e = 0; e < pairs; e++, q += q_channel, k += k_channel) {
    Pairs qs[NI];
    for (int i = 0; i < NI; i++) qs[i] = load_pairs(q + i * q_row);
    for (int b = 0; b < NB; b++) {
      Pairs kb = K::at(k + b);
      if constexpr (NI == 2) kb = loaded(kb);
      for (int i = 0; i < NI; i++) sum[i][b] = multiply_add(qs[i], kb, sum[i][b]);
    }
  }
}

// sum[i][c] += p[i][b] * v[c][x + b], both by rows; of v, sum[i] sees only its part
template <Part first, Part second, int NC>
INLINE void mix_pairs(const Pair* p, ptrdiff_t p_row, ptrdiff_t p_offset, const Pair* v,
                      ptrdiff_t v_channel, ptrdiff_t v_offset, int offsets,
                      Lanes (&sum)[2][NC]) {
#pragma GCC unroll 1
  for (int b = 0; b < offsets; b++, p += p_offset, v += v_offset) {
    const Pairs p0 = load_pairs(p), p1 = load_pairs(p + p_row);
    for (int c = 0; c < NC; c++) {
      Pairs vc = load_pairs(v + c * v_channel);
      vc = loaded(vc);
      sum[0][c] = multiply_add(p0, only<first>(vc), sum[0][c]);
      sum[1][c] = multiply_add(p1, only<second>(vc), sum[1][c]);
    }
  }
}

// 2^x for x <= 0, to 13 bits, of which a bfloat16 keeps 8; 2^0 is 1, so a weight alone has no
// gradient. NaN stays NaN.
INLINE Lanes exp2_coarse(Lanes x) {
  const Lanes r = above_floor(x);
  Lanes p = splat_as<Half>(7.811384678e-02f);
  p = p * r + splat_as<Half>(2.265493345e-01f);
  p = p * r + splat_as<Half>(6.953368187e-01f);
  p = p * r + splat_as<Half>(1.0f);
  return times_power(p, x);  // p 2^floor(x)
}

}  // namespace SACCADE_ISA
}  // namespace saccade
