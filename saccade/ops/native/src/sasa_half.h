// Local attention (SASA) in bfloat16 where the processor multiplies pairs of them: sasa.h's walk
// down a band, two query rows at a time, on the rows of pairs.h.
//
// Rows 2s - P and 2s - P + 1 of keys and values form pair s. Query rows come in twos from the top
// of the image, however it is cut, so pairs are the same in every task and so are the results.
#pragma once
#include "sasa_half_gradient.h"

namespace saccade {
namespace SACCADE_ISA {

template <int Known>
void sasa_half_forward(const Sasa& c, const SasaPlan& plan, int task, float* scratch) {
  const SasaPart part(c, plan, task);
  SasaHalfTile<Known> tile(c, plan.strip, plan.pitch);
  tile.q0 = part.x0, tile.q1 = part.x1, tile.left = part.x0 - tile.P;
  tile.carve(scratch, false);
  tile.prepare(part.head, false);
  const int P = tile.P, c0 = part.head * c.d, x0 = max(0, tile.left), x1 = min(c.W, part.x1 + P);
  const auto row_in = [&](const Map& map, int y, int from, int to, Pair* dst) {
    if (!tile.inside(y)) return zero(dst, tile.duo);
    pack_pairs(map, part.b, c0, c.d, y, from, to, plan.pitch, soon(map, y, c.H, 2 + P, c.d),
               dst + from - tile.left);
  };
  for (int y = part.y0, next = y; y < part.y1; y += 2) {
    tile.begin(y);
    for (; next <= y + 2 * P; next += 2) {  // next: index in the rings
      for (int i = 0; i < 2; i++) {
        if (tile.content)
          row_in(c.k, next + i - P, x0, x1, tile.in_ring(tile.keys, next + i, tile.duo));
        row_in(c.v, next + i - P, x0, x1, tile.values + i * tile.duo);
      }
      stack(tile.values, tile.values + tile.duo, c.d, x0 - tile.left, x1 - tile.left, plan.pitch,
            tile.pair_in_ring(tile.value_rows, next));
    }
    for (int i = 0; i < 2; i++)
      row_in(c.q, y + i, part.x0, part.x1, tile.queries + i * tile.duo);
    for (int x = 0; x < part.x1 - part.x0; x += tile.N) tile.forward(y, x);
    for (int i = 0; i < min(2, part.y1 - y); i++)
      unpack<bfloat16>(c.out, part.b, c0, c.d, y + i, part.x0, part.x1, plan.pitch, 1.0f,
                       tile.outs + i * tile.row + P);
  }
}

// `tables` receives this task's share of drow and dcol: 2 x window x d/2.
template <int Known>
void sasa_half_backward(const Sasa& c, const SasaPlan& plan, int task, float* scratch,
                        float* tables) {
  constexpr int N = SasaHalfTile<Known>::N;
  const SasaPart part(c, plan, task);
  const int K = c.window, P = K / 2, d = c.d, c0 = part.head * d, pitch = plan.pitch;
  const int q0 = max(0, part.x0 - (plan.strips > 1 ? P : 0));
  const int q1 = min(c.W, part.x1 + (plan.strips > 1 ? P : 0));
  SasaHalfTile<Known> tile(c, min(c.W, plan.strip + (plan.strips > 1 ? 2 * P : 0)), pitch);
  tile.carve(scratch, true);
  tile.q0 = q0, tile.q1 = q1, tile.left = q0 - P;
  tile.prepare(part.head, true);

  const int x0 = max(0, tile.left), x1 = min(c.W, q1 + P);
  const auto row_in = [&](const Map& map, int y, int from, int to, Pair* dst) {
    if (!tile.inside(y)) return zero(dst, tile.duo);
    pack_pairs(map, part.b, c0, d, y, from, to, pitch, soon(map, y, c.H, 2 + P, d),
               dst + from - tile.left);
  };
  const int first = max(0, part.y0 - P) / 2 * 2, last = min(c.H, part.y1 + P);
  int done = part.y0;
  for (int y = first, next = y; y < last; y += 2) {
    const int rows = min(2, c.H - y);
    tile.begin(y);
    for (; next <= y + 2 * P; next += 2) {  // next: index in the rings
      for (int i = 0; i < 2; i++) {
        row_in(c.v, next + i - P, x0, x1, tile.in_ring(tile.values, next + i, tile.duo));
        if (tile.content)
          row_in(c.k, next + i - P, x0, x1, tile.in_ring(tile.keys, next + i, tile.duo));
      }
      if (!tile.content) continue;
      const Pair* pair = tile.in_ring(tile.keys, next, tile.duo);
      stack(pair, pair + tile.duo, d, x0 - tile.left, x1 - tile.left, pitch,
            tile.pair_in_ring(tile.key_rows, next));
    }
    for (int i = 0; i < 2; i++) {
      row_in(c.q, y + i, q0, q1, tile.queries + i * tile.duo);
      row_in(c.gout, y + i, q0, q1, tile.gouts + i * tile.duo);
    }
    stack(tile.queries, tile.queries + tile.duo, d, P, P + q1 - q0, pitch, tile.query_rows);
    stack(tile.gouts, tile.gouts + tile.duo, d, P, P + q1 - q0, pitch, tile.gout_rows);
    const bool own = y >= part.y0 && y < part.y1;
    const int from = max(part.y0, y - P), to = min(part.y1, y + rows + P);
    const int fresh = y == first ? 0 : y + P;
    // Keys follow one vector behind the queries, while what those leave for them is in L1.
    for (int x = 0, j = part.x0 - tile.left; x < q1 - q0; x += N) {
      tile.backward_queries(y, rows, x, own, lanes_as<Half>(part.x0 - q0 - x, part.x1 - q0 - x));
      for (; j < part.x1 - tile.left && (j <= x || x + N >= q1 - q0); j += N) {
        tile.backward_keys(tile.shifted_p, tile.gout_rows, tile.dvalues, y, from, to, fresh, j);
        if (tile.content)
          tile.backward_keys(tile.shifted_ds, tile.query_rows, tile.dkeys, y, from, to, fresh, j);
      }
    }
    if (own && tile.position) tile.backward_tables();
    const int at = part.x0 - tile.left;
    for (int i = 0; own && i < rows; i++)
      unpack<bfloat16>(c.dq, part.b, c0, d, y + i, part.x0, part.x1, pitch, 1.0f,
                       tile.dqueries + i * tile.row + at);
    const int complete = y + 2 >= last ? part.y1 : min(part.y1, y + rows - P);
    for (; done < complete; done++) {
      unpack<bfloat16>(c.dv, part.b, c0, d, done, part.x0, part.x1, pitch, 1.0f,
                       tile.in_ring(tile.dvalues, done + P, tile.row) + at);
      if (tile.content)
        unpack<bfloat16>(c.dk, part.b, c0, d, done, part.x0, part.x1, pitch, 1.0f,
                         tile.in_ring(tile.dkeys, done + P, tile.row) + at);
    }
  }
  if (!tile.position) return;
  for (int a = 0; a < K; a++)
    for (int ch = 0; ch < tile.half; ch++) {
      const size_t at = (size_t(ch) * K + a) * N;
      tables[a * tile.half + ch] = sum_as<Half>(load_as<Half>(tile.drow_lanes + at));
      tables[(K + a) * tile.half + ch] = sum_as<Half>(load_as<Half>(tile.dcol_lanes + at));
    }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
