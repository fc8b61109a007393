// QnA's aggregation by windowed sums with constant weights, at stride 1.
//
//     out(l) = sum over ab of  e^bias(ab) weight(ab) (e^s v)(ab)  /  den,
//     den    = sum over ab of  e^bias(ab) (e^s)(ab)
//
// and backward, with g' = g / den and u' = g' . out(l), as sums over the same windows turned round:
//
//     dv = e^s D,    ds = e^s (v . D - sum of e^bias u'),    D = sum of e^bias weight g'
//     dweight(ab) = e^bias sum over pixels of t(ab),         t(ab) = g' . (e^s v)(ab)
//     dbias(ab)   = e^bias sum over pixels of (weight t(ab) - u' (e^s)(ab))
//
// Nothing exists per pixel and offset but t, a register at a time: a softmax's weights never do.
// But the work on values grows with the number of queries (see `by_sums`).
#pragma once
#include "qna_sums_tile.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S>
QnaPlan qna_sums_plan(const Qna& c, bool backward) {
  constexpr int N = LANES<S>;
  QnaPlan plan;
  plan.strips = 1, plan.strip = round_up(c.Wo, N);
  plan.pitch = pitch_for(round_up(max(c.Wo, c.W), N) + c.padding + c.window + N);
  const auto fits = [&] {
    QnaSumsTile<S> tile(c, plan.group, plan.pitch);
    return tile.carve(nullptr, backward, &plan.scratch) * sizeof(S) <= BUDGET;
  };
  const int least = max(1, 64 / int(sizeof(S)) / c.d);  // heads that fill a cache line
  plan.group = c.heads;
  while (!fits() && plan.group > least) plan.group = (plan.group + 1) / 2;
  plan.groups = (c.heads + plan.group - 1) / plan.group;
  const int wanted = 32 / max(1, c.B * plan.groups);
  plan.bands = max(1, min(wanted, c.Ho / round_up(max(2 * R, 2 * (c.window - 1)), R)));
  plan.band = round_up((c.Ho + plan.bands - 1) / plan.bands, R);
  plan.bands = (c.Ho + plan.band - 1) / plan.band;
  plan.tasks = c.B * plan.groups * plan.bands;
  return plan;
}

// Whether sums cost less than a softmax: for one query of a large window, whose rows fit into the
// cache. (Each further query would be another e^s v to read, and small windows have few weights.)
template <class S>
bool by_sums(const Qna& c) {
  if (c.stride != 1 || c.queries != 1 || c.window < 5) return false;
  const int pitch = qna_sums_plan<S>(c, true).pitch, least = max(1, 64 / int(sizeof(S)) / c.d);
  return QnaSumsTile<S>(c, min(least, c.heads), pitch).carve(nullptr, true) * sizeof(S) <=
         2 * BUDGET;
}

template <class E, class S, int K>
void qna_sums_forward(const Qna& c, const QnaPlan& plan, int task, S* scratch) {
  const QnaPart part(c, plan, task);
  QnaSumsTile<S, K> tile(c, part.heads, plan.pitch);
  tile.carve(scratch, false);
  tile.template prepare<E>(part, part.y0, part.y1);
  const int channels = part.heads * c.d;
  for (int y = part.y0, next = max(0, y - c.padding); y < part.y1; y += R) {
    const int rows = min(R, part.y1 - y);
    for (; next < min(c.H, y + rows - 1 - c.padding + c.window); next++)
      tile.template enter<E>(part, next);
    tile.look(y - c.padding, c.H, tile.inputs);
    for (int h = 0; h < part.heads; h++)
      for (int x = 0; x < c.Wo; x += LANES<S>) tile.forward(part, h, y, rows, x);
    for (int i = 0; i < rows; i++)
      unpack<E>(c.out, part.b, part.head * c.d, channels, y + i, 0, c.Wo, plan.pitch, S(1),
                tile.out(i, 0, 0));
  }
}

// `partial` receives this task's share of dbias and dweight: 2 x queries * heads x window^2, of
// which it fills the channels of its heads.
template <class E, class S, int K>
void qna_sums_backward(const Qna& c, const QnaPlan& plan, int task, S* scratch, S* partial) {
  constexpr int N = LANES<S>;
  const QnaPart part(c, plan, task);
  const int pitch = plan.pitch, channels = part.heads * c.d;
  QnaSumsTile<S, K> tile(c, part.heads, pitch);
  tile.carve(scratch, true);
  const int first = max(0, part.y0 - (c.window - 1)) / R * R;  // rows before share the inputs
  tile.template prepare<E>(part, first, part.y1);
  const size_t tables = size_t(tile.L) * part.heads * tile.KK * N;
  zero(tile.shares, part.heads * tile.rows_of_head());
  zero(tile.gouts, size_t(R) * channels * pitch);
  zero(tile.u, size_t(R) * pitch);
  zero(tile.t, size_t(tile.KK) * N);
  zero(tile.dbias, tables);
  zero(tile.dweight, tables);
  zero(partial, size_t(2) * c.queries * c.heads * tile.KK);
  tile.partial = partial;

  const auto leave = [&](int r, int n) {
    tile.look(r + c.padding - c.window + 1, c.Ho, tile.outputs);
    for (int h = 0; h < part.heads; h++)
      for (int x = 0; x < c.W; x += N) tile.backward_inputs(h, r, x);
    for (int k = 0; k < n; k++) {
      tile.settle(r + k, k);
      unpack<E>(c.dv, part.b, part.head * c.d, channels, r + k, 0, c.W, pitch, S(1),
                tile.dvalues + ptrdiff_t(k) * channels * pitch);
      for (int l = 0; l < tile.L; l++)
        unpack<E>(c.ds, part.b, l * c.heads + part.head, part.heads, r + k, 0, c.W, pitch, S(1),
                  tile.dscores + ptrdiff_t(k * tile.L + l) * part.heads * pitch);
    }
  };
  int next = max(0, first - c.padding), done = part.r0;
  for (int y = first; y < part.y1; y += R) {
    const int rows = min(R, c.Ho - y);
    const bool own = y >= part.y0;
    for (; next < min(c.H, y + rows - 1 - c.padding + c.window); next++)
      tile.template enter<E>(part, next);
    tile.look(y - c.padding, c.H, tile.inputs);
    for (int i = 0; i < rows; i++)
      pack<E>(c.gout, part.b, part.head * c.d, channels, y + i, 0, c.Wo, pitch, R * c.gout.row,
              S(1), tile.gouts + ptrdiff_t(i) * channels * pitch);
    for (int h = 0; h < part.heads; h++)
      for (int l = 0; l < tile.L; l++) {
        for (int x = 0; x < c.Wo; x += N)
          tile.backward_outputs(part, l, h, y, rows, x, own);
        tile.sum_parameters(l, h, own);
      }
    const int ready = y + rows == c.Ho ? part.r1 : min(part.r1, y + rows - c.padding);
    for (; done < ready; done += min(R, ready - done)) leave(done, min(R, ready - done));
  }
  for (int l = 0; l < tile.L; l++)
    for (int h = 0; h < part.heads; h++)
      for (int j = 0; j < tile.KK; j++) {
        const size_t at = size_t(l * part.heads + h) * tile.KK + j;
        const size_t to = size_t(j) * c.queries * c.heads + l * c.heads + part.head + h;
        const S power = tile.tables.power[at];
        partial[to] += power * sum<S>(load(tile.dbias + at * N));
        partial[size_t(c.queries) * c.heads * tile.KK + to] +=
            power * sum<S>(load(tile.dweight + at * N));
      }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
