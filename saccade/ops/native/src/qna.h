// QnA's aggregation forward and backward, a group of heads of one image at a time.
//
//     p(l, ab) = softmax over the window of s(l, ab) + bias(l, ab)
//     out      = sum over ab of  w(ab) v(ab),     w(ab) = sum over l of p(l, ab) weight(l, ab)
//
// The L queries are folded into one weight per offset before a value is read, so that the work on
// values does not grow with L. Every score is exponentiated once, relative to one integer m per
// task, head and query; since m only scales by a power of two, results do not depend on it. Where a
// window lies so far below m that it would vanish, its own maximum is used instead (`exact`).
//
// Rows are planar as in SASA; with stride S, column x is at place x / S of plane x % S, so that the
// outputs of a vector find their inputs side by side.
#pragma once
#include "qna_tile.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S>
QnaPlan qna_plan(const Qna& c, bool backward) {
  constexpr int N = LANES<S>;
  const int reach = (c.window - 1) / c.stride;
  QnaPlan plan;
  const auto fits = [&] {
    const int halo = backward && plan.strips > 1 ? reach : 0;
    const int wide = min(c.Wo, plan.strip) + halo;
    const int all = (c.W - 1 + c.padding) / c.stride + 1;  // places a last strip may answer for
    const int rest = all - (plan.strips - 1) * plan.strip + halo;
    plan.pitch = pitch_for(max(round_up(wide, N) + reach, rest) + 2 * N);
    plan.scratch = QnaTile<S>(c, plan.group, wide, plan.pitch).carve(nullptr, backward);
    return plan.scratch * sizeof(S) <= BUDGET;
  };
  // First fewer heads at a time, as long as they fill cache lines; then narrower strips.
  const int least = fewest_heads<S>(c);
  plan.group = c.heads, plan.strips = 1, plan.strip = round_up(c.Wo, N);
  while (!fits() && plan.group > least) plan.group = (plan.group + 1) / 2;
  while (!fits() && plan.strip > 2 * N) {
    plan.strip -= N;
    plan.strips = (c.Wo + plan.strip - 1) / plan.strip;
  }
  plan.groups = (c.heads + plan.group - 1) / plan.group;
  const int wanted = 32 / max(1, c.B * plan.groups * plan.strips);
  plan.bands = max(1, min(wanted, c.Ho / round_up(max(2 * R, (backward ? 4 : 1) * reach), R)));
  plan.band = round_up((c.Ho + plan.bands - 1) / plan.bands, R);
  plan.bands = (c.Ho + plan.band - 1) / plan.band;
  plan.tasks = c.B * plan.groups * plan.bands * plan.strips;
  plan.shares = 1;
  return plan;
}

template <class E, class S, int K, int STRIDE>
void qna_forward(const Qna& c, const QnaPlan& plan, int task, S* scratch) {
  const QnaPart part(c, plan, task);
  QnaTile<S, K, STRIDE> tile(c, part.heads, part.x1 - part.x0, plan.pitch);
  tile.carve(scratch, false);
  tile.q0 = part.x0, tile.q1 = part.x1;
  tile.template prepare<E>(part, part.y0, part.y1);
  const int channels = part.heads * c.d;
  for (int y = part.y0, next = max(0, tile.top(y)); y < part.y1; y += R) {
    const int rows = min(R, part.y1 - y);
    next = max(next, tile.top(y));
    for (; next < min(c.H, tile.top(y + rows - 1) + c.window); next++)
      tile.template enter<E>(part, next);
    for (int h = 0; h < part.heads; h++)
      for (int x = 0; x < part.x1 - part.x0; x += LANES<S>) tile.forward(h, y, rows, x);
    for (int i = 0; i < rows; i++)
      for (int g = 0; g < tile.groups; g++)
        unpack<E>(c.out, part.b, (g * c.heads + part.head) * c.d, channels, y + i, part.x0, part.x1,
                  plan.pitch, S(1),
                  tile.outs + (ptrdiff_t(i) * tile.groups + g) * channels * plan.pitch);
  }
}

// `partial` receives this task's share of dbias and dweight: 2 x queries * heads x window^2, of
// which it fills the channels of its heads.
template <class E, class S, int K, int STRIDE>
void qna_backward(const Qna& c, const QnaPlan& plan, int task, S* scratch, S* partial) {
  constexpr int N = LANES<S>;
  const QnaPart part(c, plan, task);
  const int reach = (c.window - 1) / c.stride, pitch = plan.pitch, channels = part.heads * c.d;
  const int q0 = max(0, part.x0 - (plan.strips > 1 ? reach : 0));
  QnaTile<S, K, STRIDE> tile(c, part.heads, part.x1 - q0, pitch);
  tile.carve(scratch, true);
  tile.q0 = q0, tile.q1 = part.x1;
  const int first = max(0, part.y0 - reach) / R * R;
  tile.template prepare<E>(part, first, part.y1);
  const size_t tables = size_t(tile.L) * part.heads * tile.KK;
  zero(tile.gouts, size_t(R) * tile.groups * channels * pitch);
  zero(tile.shifted_w, size_t(R) * tile.KK * pitch);
  zero(tile.shifted_ds, size_t(tile.L) * R * tile.KK * pitch);
  zero(tile.dbias_lanes, tables * N);
  zero(tile.dweight_lanes, tables * N);

  const auto clear = [&](int y) {
    zero(tile.in_ring(tile.dvalues, tile.row_v, y), tile.row_v);
    zero(tile.in_ring(tile.dscores, tile.row_s, y), tile.row_s);
  };
  const auto leave = [&](int y) {
    for (int f = 0; f < c.stride; f++) {
      int from, to;
      tile.places(f, part.c0, part.c1, from, to);
      if (to <= from) continue;
      unpack<E>(tile.template of_plane<E>(c.dv, f), part.b, part.head * c.d, channels, y, from, to,
                tile.plane, S(1), tile.in_ring(tile.dvalues, tile.row_v, y) + f * pitch + from);
      for (int l = 0; l < tile.L; l++)
        unpack<E>(tile.template of_plane<E>(c.ds, f), part.b, l * c.heads + part.head, part.heads,
                  y, from, to, tile.plane, S(1),
                  tile.in_ring(tile.dscores, tile.row_s, y) + l * part.heads * tile.plane +
                      f * pitch + from);
    }
  };
  int next = max(0, tile.top(first)), done = part.r0;
  for (int y = first; y < part.y1; y += R) {
    const int rows = min(R, c.Ho - y), bottom = tile.top(y + rows - 1) + c.window;
    for (; next < min(c.H, bottom); next++) {
      tile.template enter<E>(part, next);
      clear(next);
    }
    for (int i = 0; i < rows; i++)
      for (int g = 0; g < tile.groups; g++)
        pack<E>(c.gout, part.b, (g * c.heads + part.head) * c.d, channels, y + i, q0, part.x1,
                pitch, R * c.gout.row, S(1),
                tile.gouts + (ptrdiff_t(i) * tile.groups + g) * channels * pitch + reach);
    const bool own = y >= part.y0;
    const int r0 = max(part.r0, tile.top(y)), r1 = min(part.r1, bottom);
    for (int h = 0; h < part.heads; h++)
      for (int g = 0; g < tile.groups; g++) {
        for (int x = 0; x < part.x1 - q0; x += N)
          tile.backward_outputs(g, h, y, rows, x,
                                own ? lanes<S>(part.x0 - q0 - x, part.x1 - q0 - x) : I<S>{});
        for (int f = 0; f < min(c.stride, c.window); f++) {
          int from, to;
          tile.places(f, part.c0, part.c1, from, to);
          for (int x = from; x < min(to, part.x1 - q0 + reach); x += N)
            tile.backward_inputs(g, h, y, rows, r0, r1, f, x);
        }
      }
    for (; done < min(part.r1, tile.top(y + rows)); done++) {
      if (done >= next) clear(done), next = done + 1;
      leave(done);
    }
  }
  for (; done < part.r1; done++) {
    if (done >= next) clear(done);
    leave(done);
  }
  zero(partial, size_t(2) * c.queries * c.heads * tile.KK);
  for (int l = 0; l < tile.L; l++)
    for (int h = 0; h < part.heads; h++)
      for (int j = 0; j < tile.KK; j++) {
        const size_t at = (size_t(l * part.heads + h) * tile.KK + j) * N;
        const size_t to = size_t(j) * c.queries * c.heads + l * c.heads + part.head + h;
        partial[to] = sum<S>(load(tile.dbias_lanes + at));
        partial[size_t(c.queries) * c.heads * tile.KK + to] =
            sum<S>(load(tile.dweight_lanes + at));
      }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
