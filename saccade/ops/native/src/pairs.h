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

#ifdef __AVX512BF16__
typedef __m256i Pairs;      // LANES of them
typedef __mmask8 SomeLanes;

INLINE Pairs load_pairs(const Pair* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
INLINE void store_pairs(Pair* p, Pairs v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
INLINE Pairs splat_pair(Pair p) { return _mm256_set1_epi32(int(p)); }
INLINE V<float> multiply_add(Pairs a, Pairs b, V<float> sum) {
  return _mm256_dpbf16_ps(sum, (__m256bh)a, (__m256bh)b);
}

// Rows of LANES numbers; (a[l], b[l]) in lane l.
typedef __m128i Numbers;
INLINE Numbers load_numbers(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
INLINE Pairs interleave(Numbers a, Numbers b) {
  const __m256i order = _mm256_setr_epi16(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm256_permutex2var_epi16(_mm256_castsi128_si256(a), order, _mm256_castsi128_si256(b));
}
// The same, rounded to nearest.
INLINE Pairs interleave(V<float> a, V<float> b) {
  const __m256i order = _mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  return _mm256_permutexvar_epi16(order, (__m256i)_mm256_cvtne2ps_pbh(b, a));
}
// (low of a, low of b), and (high of a, high of b)
INLINE Pairs lows(Pairs a, Pairs b) {
  return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}
INLINE Pairs highs(Pairs a, Pairs b) {
  return _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
}

// Eight channels of LANES pixels, `column` numbers apart, become pairs of channels, `pitch` apart.
INLINE void pair_channels(const uint16_t* s, ptrdiff_t column, ptrdiff_t ahead, ptrdiff_t pitch,
                          Pair* to) {
  __m256i u[4], v[4];  // pixels j and j + 4; pairs of channels become rows
  for (int j = 0; j < 4; j++) {
    const uint16_t *near = s + j * column, *far = near + 4 * column;
    u[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_numbers(near)), load_numbers(far),
                                   1);
    __builtin_prefetch(near + ahead, 0, 2);
    __builtin_prefetch(far + ahead, 0, 2);
  }
  for (int j = 0; j < 2; j++) {
    v[j] = _mm256_unpacklo_epi32(u[2 * j], u[2 * j + 1]);
    v[j + 2] = _mm256_unpackhi_epi32(u[2 * j], u[2 * j + 1]);
  }
  for (int j = 0; j < 2; j++) {
    store_pairs(to + 2 * j * pitch, _mm256_unpacklo_epi64(v[2 * j], v[2 * j + 1]));
    store_pairs(to + (2 * j + 1) * pitch, _mm256_unpackhi_epi64(v[2 * j], v[2 * j + 1]));
  }
}

// The first n lanes; a * b in some lanes, +0 in others, whatever a and b hold there.
INLINE SomeLanes first_lanes(int n) { return SomeLanes((1 << n) - 1); }
INLINE V<float> multiply_some(SomeLanes some, V<float> a, V<float> b) {
  return _mm256_maskz_mul_ps(some, a, b);
}

// x - floor(x), and p 2^floor(x), or 0 where that is below the smallest number.
INLINE V<float> above_floor(V<float> x) {
  return _mm256_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
INLINE V<float> times_power(V<float> p, V<float> x) { return _mm256_scalef_ps(p, x); }
#else
typedef uint32x4_t Pairs;
typedef I<float> SomeLanes;

INLINE Pairs load_pairs(const Pair* p) { return vld1q_u32(p); }
INLINE void store_pairs(Pair* p, Pairs v) { vst1q_u32(p, v); }
INLINE Pairs splat_pair(Pair p) { return vdupq_n_u32(p); }
INLINE V<float> multiply_add(Pairs a, Pairs b, V<float> sum) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_u32(a), vreinterpretq_bf16_u32(b));
}

typedef uint16x4_t Numbers;
INLINE Numbers load_numbers(const uint16_t* p) { return vld1_u16(p); }
INLINE Pairs interleave(Numbers a, Numbers b) {
  return vreinterpretq_u32_u16(vcombine_u16(vzip1_u16(a, b), vzip2_u16(a, b)));
}
INLINE Pairs interleave(V<float> a, V<float> b) {
  return interleave(vreinterpret_u16_bf16(vcvt_bf16_f32(a)),
                    vreinterpret_u16_bf16(vcvt_bf16_f32(b)));
}
INLINE Pairs lows(Pairs a, Pairs b) { return vsliq_n_u32(a, b, 16); }
INLINE Pairs highs(Pairs a, Pairs b) { return vsriq_n_u32(b, a, 16); }

INLINE void pair_channels(const uint16_t* s, ptrdiff_t column, ptrdiff_t ahead, ptrdiff_t pitch,
                          Pair* to) {
  V<float> v[4];  // a pixel each; pairs of channels become rows
  for (int j = 0; j < 4; j++) {
    v[j] = vreinterpretq_f32_u16(vld1q_u16(s + j * column));
    __builtin_prefetch(s + j * column + ahead, 0, 2);
  }
  transpose<float>(v);
  for (int e = 0; e < 4; e++) store_pairs(to + e * pitch, vreinterpretq_u32_f32(v[e]));
}

INLINE SomeLanes first_lanes(int n) { return lanes<float>(0, n); }
INLINE V<float> multiply_some(SomeLanes some, V<float> a, V<float> b) {
  return keep<float>(some, a * b);
}

INLINE V<float> above_floor(V<float> x) { return x - vrndmq_f32(x); }
INLINE V<float> times_power(V<float> p, V<float> x) {
  const V<float> n = maximum<float>(splat(-127.0f), vrndmq_f32(x)) + (12582912.0f + 127.0f);
  return p * (V<float>)((I<float>)n << 23);
}
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

// Channels [c0, c0 + d) of pixels [from, to) of row y, by channels: pixel `from` of pair e to
// dst[e * pitch]. What lies `ahead` elements on will be wanted soon.
inline void pack_pairs(const Map map, int b, int c0, int d, int y, int from, int to,
                       ptrdiff_t pitch, ptrdiff_t ahead, Pair* dst) {
  const uint16_t* src = static_cast<const uint16_t*>(map.data) + b * map.batch + c0 * map.channel +
                        y * map.row + from * map.column;
  constexpr int N = LANES<float>;
  const int n = to - from;
  int whole = 0;  // channels done
  if (map.column == 1 && n >= N) {
    for (; whole < d; whole += 2) {
      const uint16_t* s = src + whole * map.channel;
      const bool even = whole + 1 < d;
      fetch(s + ahead, n * sizeof(*s));
      if (even) fetch(s + map.channel + ahead, n * sizeof(*s));
      Pair* to = dst + whole / 2 * pitch;
      overlapping<N>(n, [&](int x) INLINED {
        const Numbers second = even ? load_numbers(s + map.channel + x) : Numbers{};
        store_pairs(to + x, interleave(load_numbers(s + x), second));
      });
    }
  } else if (map.channel == 1 && overlapping<N>(n, [&](int x) INLINED {
               for (int c = 0; c + 8 <= d; c += 8)
                 pair_channels(src + x * map.column + c, map.column, ahead, pitch,
                               dst + c / 2 * pitch + x);
             })) {
    whole = d / 8 * 8;
  }
  for (int c = whole; c < d; c += 2)
    for (int x = 0; x < n; x++) {
      const uint16_t* s = src + x * map.column + c * map.channel;
      dst[c / 2 * pitch + x] = s[0] | uint32_t(c + 1 < d ? s[map.channel] : 0) << 16;
    }
}

// Two rows by channels become one by rows, from index `from` to at least `to`.
inline void stack(const Pair* first, const Pair* second, int d, int from, int to, ptrdiff_t pitch,
                  Pair* dst) {
  for (int c = 0; c < d; c += 2, first += pitch, second += pitch, dst += 2 * pitch)
    for (int x = from; x < to; x += LANES<float>) {
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
                      ptrdiff_t k_channel, int pairs, V<float> (&sum)[NI][NB]) {
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
                      V<float> (&sum)[2][NC]) {
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

// 2^x for x <= 0, to 13 bits, of which a bfloat16 keeps 8. NaN stays NaN.
INLINE V<float> exp2_coarse(V<float> x) {
  const V<float> r = above_floor(x);
  V<float> p = splat(7.802452332e-02f);
  p = p * r + splat(2.260671590e-01f);
  p = p * r + splat(6.958335367e-01f);
  p = p * r + splat(9.999252192e-01f);
  return times_power(p, x);  // p 2^floor(x)
}

}  // namespace SACCADE_ISA
}  // namespace saccade
