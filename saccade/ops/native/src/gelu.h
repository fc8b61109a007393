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

#ifdef __AVX512F__
// F of -a for a = |x|, in either form, as sixteen polynomials in r, a = (i + r) / TAIL_STEPS with
// |r| <= 1/2: row j holds the coefficients of r^j, interpolated at Chebyshev's points
// (benchmarks/gelu_table.py). One instruction picks sixteen of a row. Within 1.4e-7 of F, up to
// a = TAIL_END, where F is 2e-8 or less.
constexpr float TAIL_STEPS = 2.818181818f, TAIL_END = 5.49f;
alignas(64) constexpr float TAIL[2][5][16] = {
    {
        {0.5f, 0.361355215f, 0.2389521f, 0.143547475f, 0.0778977945f, 0.0380155705f, 0.0166257955f,
         0.00649814447f, 0.00226481748f, 0.000702678924f, 0.00019379906f, 4.74595363e-05f,
         1.0310222e-05f, 1.98541602e-06f, 3.38685112e-07f, 5.11527034e-08f},
        {-0.141559079f, -0.132922173f, -0.110046521f, -0.0803292617f, -0.0516997874f,
         -0.0293372739f, -0.0146779316f, -0.00647473102f, -0.00251818448f, -0.000863493478f,
         -0.000261055306f, -6.95830968e-05f, -1.63518907e-05f, -3.38781729e-06f, -6.18805188e-07f,
         -9.96468543e-08f},
        {0, 0.00836809911f, 0.0138559006f, 0.0151712848f, 0.0130189369f, 0.00923458766f,
         0.00554431137f, 0.00285337889f, 0.00126832817f, 0.000489303726f, 0.000164377852f,
         4.82008618e-05f, 1.23586815e-05f, 2.77441404e-06f, 5.45882813e-07f, 9.42129077e-08f},
        {0.00295318454f, 0.0024258194f, 0.00114519114f, -0.000216231114f, -0.00109001843f,
         -0.00131500722f, -0.00108592375f, -0.000703484169f, -0.000375036645f, -0.000168337734f,
         -6.4441323e-05f, -2.12085706e-05f, -6.0334055e-06f, -1.48926381e-06f, -3.19856468e-07f,
         -5.99012964e-08f},
        {0, -0.000250777317f, -0.000360990642f, -0.000296136772f, -0.000134803413f, 1.34859201e-05f,
         8.84220572e-05f, 9.45556021e-05f, 6.73031172e-05f, 3.70732741e-05f, 1.66503487e-05f,
         6.25135681e-06f, 1.99009742e-06f, 5.42014277e-07f, 1.27063217e-07f, 2.57504897e-08f},
    },
    {
        {0.5f, 0.361368686f, 0.23903358f, 0.143711746f, 0.078060627f, 0.0380631797f, 0.0165277496f,
         0.00632334547f, 0.00210323418f, 0.000598666549f, 0.000143305064f, 2.83216632e-05f,
         4.53479606e-06f, 5.7716818e-07f, 5.72865488e-08f, 4.35013403e-09f},
        {-0.141559049f, -0.132884189f, -0.109955765f, -0.0802737176f, -0.0517640449f,
         -0.0294874273f, -0.0148006286f, -0.00650243554f, -0.00247298344f, -0.000802182301f,
         -0.000218108311f, -4.87821817e-05f, -8.80336574e-06f, -1.25716588e-06f, -1.39333821e-07f,
         -1.17545254e-08f},
        {0, 0.00840019807f, 0.0138664637f, 0.0151256546f, 0.0129563063f, 0.00921879616f,
         0.005582802f, 0.00290144188f, 0.00129035814f, 0.000485750206f, 0.000152338995f,
         3.90756832e-05f, 8.04144383e-06f, 1.30228534e-06f, 1.62822815e-07f, 1.54215059e-08f},
        {0.00296749035f, 0.00242890418f, 0.00112907321f, -0.000231960745f, -0.00108377507f,
         -0.00129437447f, -0.00107417104f, -0.000707977044f, -0.000385221589f, -0.000174123605f,
         -6.48165587e-05f, -1.95670273e-05f, -4.70634632e-06f, -8.85700445e-07f, -1.280942e-07f,
         -1.39861411e-08f},
        {0, -0.000255766907f, -0.000364316133f, -0.000292492157f, -0.000128861488f, 1.40377661e-05f,
         8.42275476e-05f, 9.1423266e-05f, 6.75058182e-05f, 3.86502616e-05f, 1.76110952e-05f,
         6.36510595e-06f, 1.80168877e-06f, 3.93288218e-07f, 6.51519514e-08f, 8.05885669e-09f},
    },
};
// gelu(x) = max(x, 0) - |x| F(-|x|)
template <bool TANH>
INLINE Wide gelu_by_table(Wide x) {
  const __m512 a = _mm512_min_ps(_mm512_set1_ps(TAIL_END), _mm512_abs_ps(x));  // a NaN is kept
  const Wide magic = splat_wide(12582912.0f), z = a * TAIL_STEPS, near = z + magic;
  const Wide r = z - (near - magic);
  const __m512i i = (__m512i)near;  // its lowest bits are the nearest integer
  const auto row = [&](int j) INLINED {
    return (Wide)_mm512_permutexvar_ps(i, _mm512_load_ps(TAIL[TANH][j]));
  };
  // Not by Horner's rule: that waits for itself four times.
  const Wide square = r * r, high = row(4) * square + (row(3) * r + row(2));
  const Wide p = high * square + (row(1) * r + row(0));
  return (Wide)_mm512_max_ps(_mm512_setzero_ps(), x) - (Wide)a * p;
}
#endif

// The value and, where `slope` is asked for, the derivative.
template <bool TANH, bool SLOPE>
INLINE Wide gelu(Wide x, Wide* slope = nullptr) {
#ifdef __AVX512F__
  if constexpr (!SLOPE) return gelu_by_table<TANH>(x);
#endif
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
