// Normalised depth-wise 3x3 branches as the one 3x3 that they are for a map with given moments.
//
//     mean_i = k_i . s / N      var_i = k_i^T P k_i / N - mean_i^2      r_i = 1 / sqrt(var_i + eps)
//     taps = sum over i of gamma_i r_i k_i (+ 1 in the centre)
//     shift = sum over i of beta_i - gamma_i r_i mean_i
//
// with s and P the moments of the nine places, made of the sums of moments.h. In double precision:
// a variance is the small difference of two large numbers.
#pragma once
#include <cmath>

#include "moments.h"

namespace saccade {
namespace SACCADE_ISA {

using Double = V<double>;
constexpr int DOUBLES = LANES<double>;

INLINE Double widened(const float* p) {
  Double d;
  for (int l = 0; l < DOUBLES; l++) d[l] = p[l];
  return d;
}
INLINE void narrowed(float* p, Double d) {
  for (int l = 0; l < DOUBLES; l++) p[l] = float(d[l]);
}

// Which sums make up a moment: f(index, sign) for each of them.
struct MomentTerms {
  static constexpr int row(int a) { return a / 3 - 1; }
  static constexpr int column(int a) { return a % 3 - 1; }
  // A pixel p outside of the map sees border `edge` in the places of this row or column.
  static constexpr bool sees(int edge, int a) {
    return edge < 2 ? row(a) == (edge ? -1 : 1) : column(a) == (edge == 3 ? -1 : 1);
  }
  static constexpr int corner(int a) {  // or -1
    return row(a) && column(a) ? MomentSums::CORNERS + (row(a) < 0) * 2 + (column(a) < 0) : -1;
  }
  template <class F>
  INLINE static void first(int a, F&& f) {
    f(0, 1.0);
    for (int edge = 0; edge < 4; edge++)
      if (sees(edge, a)) f(MomentSums::sum(edge), -1.0);
    if (corner(a) >= 0) f(corner(a), 1.0);  // left out twice
  }
  // Of places a <= b.
  template <class F>
  INLINE static void second(int a, int b, F&& f) {
    const int dy = row(b) - row(a), dx = column(b) - column(a);
    f(MomentSums::product(dy, dx), 1.0);
    for (int edge = 0; edge < 4; edge++)
      if (sees(edge, a) && sees(edge, b))
        f(MomentSums::product_along(edge, edge < 2 ? dx : dy), -1.0);
    if (a == b && corner(a) >= 0) f(corner(a) + 4, 1.0);
  }
};

// Some channels of a call: their moments, and what follows from them for each branch.
struct BranchLanes {
  const Branches& c;
  const int from;  // channel
  Double s[9], P[9][9];
  BranchLanes(const Branches& c_, int from_) : c(c_), from(from_) {
    const double scale = 1.0 / c.pixels;
    const auto sum = [&](int i) { return load<double>(c.sums + ptrdiff_t(i) * c.C + from); };
    for (int a = 0; a < 9; a++) {
      s[a] = Double{};
      MomentTerms::first(a, [&](int i, double sign) { s[a] += sum(i) * (sign * scale); });
      for (int b = a; b < 9; b++) {
        P[a][b] = Double{};
        MomentTerms::second(a, b, [&](int i, double sign) { P[a][b] += sum(i) * (sign * scale); });
        P[b][a] = P[a][b];
      }
    }
  }
  ptrdiff_t at(int i) const { return ptrdiff_t(i) * c.C + from; }  // row i of a table

  struct Branch {
    Double k[9], Pk[9], gamma, mean, var, r;
  };
  Branch branch(int i) const {
    Branch one;
    one.gamma = widened(c.gamma + at(i));
    for (int a = 0; a < 9; a++) one.k[a] = widened(c.k + at(9 * i + a));
    Double mean{}, square{};
    for (int a = 0; a < 9; a++) {
      mean += one.k[a] * s[a];
      one.Pk[a] = Double{};
      for (int b = 0; b < 9; b++) one.Pk[a] += P[a][b] * one.k[b];
      square += one.k[a] * one.Pk[a];
    }
    one.mean = mean;
    one.var = maximum<double>(Double{}, square - mean * mean);
    for (int l = 0; l < DOUBLES; l++) one.r[l] = 1.0 / std::sqrt(one.var[l] + c.eps[0]);
    return one;
  }
};

inline void branches_forward(const Branches& c) {
  for (int from = 0; from < c.C; from += DOUBLES) {
    const BranchLanes lanes(c, from);
    Double taps[9], shift{};
    for (int a = 0; a < 9; a++) taps[a] = splat(c.skip && a == 4 ? 1.0 : 0.0);
    for (int i = 0; i < c.branches; i++) {
      const auto one = lanes.branch(i);
      for (int a = 0; a < 9; a++) taps[a] += one.gamma * one.r * one.k[a];
      shift += widened(c.beta + lanes.at(i)) - one.gamma * one.r * one.mean;
      narrowed(c.mean + lanes.at(i), one.mean);
      narrowed(c.var + lanes.at(i), one.var);
    }
    for (int a = 0; a < 9; a++) narrowed(c.taps + lanes.at(a), taps[a]);
    narrowed(c.shift + from, shift);
  }
}

inline void branches_backward(const Branches& c) {
  for (int from = 0; from < c.C; from += DOUBLES) {
    const BranchLanes lanes(c, from);
    Double dtaps[9], ds[9], dP[9][9];
    const Double dshift = widened(c.dshift + from);
    for (int a = 0; a < 9; a++) {
      dtaps[a] = widened(c.dtaps + lanes.at(a));
      ds[a] = Double{};
      for (int b = 0; b < 9; b++) dP[a][b] = Double{};
    }
    for (int i = 0; i < c.branches; i++) {
      const auto one = lanes.branch(i);
      const Double scale = one.gamma * one.r;
      Double dscale = -(dshift * one.mean);
      for (int a = 0; a < 9; a++) dscale += dtaps[a] * one.k[a];
      Double dvar = -0.5 * (dscale * scale * one.r * one.r);
      for (int l = 0; l < DOUBLES; l++)
        if (one.var[l] <= 0) dvar[l] = 0;
      const Double dmean = -(dshift * scale) - 2.0 * (one.mean * dvar);
      for (int a = 0; a < 9; a++) {
        const Double dk = scale * dtaps[a] + dmean * lanes.s[a] + 2.0 * (dvar * one.Pk[a]);
        narrowed(c.dk + lanes.at(9 * i + a), dk);
        ds[a] += dmean * one.k[a];
        for (int b = a; b < 9; b++) dP[a][b] += dvar * one.k[a] * one.k[b] * (a == b ? 1.0 : 2.0);
      }
      narrowed(c.dgamma + lanes.at(i), dscale * one.r);
      narrowed(c.dbeta + lanes.at(i), dshift);
    }
    const double scale = 1.0 / c.pixels;
    Double dsums[MOMENT_SUMS];
    for (int i = 0; i < MOMENT_SUMS; i++) dsums[i] = Double{};
    for (int a = 0; a < 9; a++) {
      MomentTerms::first(a, [&](int i, double sign) { dsums[i] += ds[a] * (sign * scale); });
      for (int b = a; b < 9; b++)
        MomentTerms::second(a, b, [&](int i, double sign) { dsums[i] += dP[a][b] * (sign * scale); });
    }
    for (int i = 0; i < MOMENT_SUMS; i++) narrowed(c.dsums + lanes.at(i), dsums[i]);
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
