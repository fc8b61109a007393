// Local attention (SASA) forward and backward, one head of one image at a time.
//
//     s(ab) = q . k(ab) + q . r(a-i, b-j)      p = softmax of s over the window      o = sum p v
//
// A task is a band of rows x a strip of columns of one head. It walks down its band R query rows at
// a time and keeps, as planar rows in a ring, just the R + 2P rows of keys and values they see. The
// logits of R x N queries, N lanes, live in L1 and are never written anywhere else.
//
// The backward recomputes them. For R query rows it leaves p and ds in a buffer *shifted to the
// place of the key*, from where keys gather their gradient; a scatter would read and write memory
// for every product. Key rows are summed in a ring too, and leave it once no query sees them.
//
// How a pixel's sums are ordered does not depend on bands, strips or tiles, so results are the same
// bit for bit however the work is cut.
#pragma once
#include "rows.h"
#include "sasa_tile.h"

namespace saccade {
namespace SACCADE_ISA {

template <class E, class T, int Known>
void sasa_forward(const Sasa& c, const SasaPlan& plan, int task, typename T::Number* scratch) {
  using S = typename T::Number;
  const SasaPart part(c, plan, task);
  SasaTile<T, Known> tile(c, plan.strip, plan.pitch);
  tile.q0 = part.x0, tile.q1 = part.x1, tile.left = part.x0 - tile.P;
  tile.carve(scratch, false);
  tile.prepare(part.head, false);
  const int P = tile.P, c0 = part.head * c.d, x0 = max(0, tile.left), x1 = min(c.W, part.x1 + P);
  const auto rows_in = [&](const Map& map, int y, int from, int to, S scale, S* dst) {
    pack<E>(map, part.b, c0, c.d, y, from, to, plan.pitch,
            soon(map, y, c.H, R + P, c.d), scale, dst + from - tile.left);
  };
  for (int y = part.y0, next = max(0, y - P); y < part.y1; y += R) {
    const int rows = min(R, part.y1 - y);
    tile.begin(y);
    for (; next < min(c.H, y + rows + P); next++) {
      if (tile.content) rows_in(c.k, next, x0, x1, 1, tile.in_ring(tile.keys, next));
      rows_in(c.v, next, x0, x1, 1, tile.in_ring(tile.values, next));
    }
    for (int i = 0; i < rows; i++)
      rows_in(c.q, y + i, part.x0, part.x1, S(LOG2E), tile.queries + i * tile.row);
    for (int x = 0; x < part.x1 - part.x0; x += tile.N) tile.forward(y, rows, x);
    for (int i = 0; i < rows; i++)
      unpack<E>(c.out, part.b, c0, c.d, y + i, part.x0, part.x1, plan.pitch, S(1),
                tile.outs + i * tile.row + P);
  }
}

// `tables` receives this task's share of drow and dcol: 2 x window x d/2.
template <class E, class T, int Known>
void sasa_backward(const Sasa& c, const SasaPlan& plan, int task, typename T::Number* scratch,
                   typename T::Number* tables) {
  using S = typename T::Number;
  constexpr int N = LANES_OF<T>;
  const SasaPart part(c, plan, task);
  const int K = c.window, P = K / 2, d = c.d, c0 = part.head * d, pitch = plan.pitch;
  const int q0 = max(0, part.x0 - (plan.strips > 1 ? P : 0));
  const int q1 = min(c.W, part.x1 + (plan.strips > 1 ? P : 0));
  SasaTile<T, Known> tile(c, min(c.W, plan.strip + (plan.strips > 1 ? 2 * P : 0)), pitch);
  tile.carve(scratch, true);
  tile.q0 = q0, tile.q1 = q1, tile.left = q0 - P;
  tile.prepare(part.head, true);
  zero(tile.shifted_p, size_t(R) * K * K * pitch);
  if (tile.content) zero(tile.shifted_ds, size_t(R) * K * K * pitch);
  zero(tile.drow_lanes, size_t(tile.half) * K * N);
  zero(tile.dcol_lanes, size_t(tile.half) * K * N);

  const int x0 = max(0, tile.left), x1 = min(c.W, q1 + P);
  const auto rows_in = [&](const Map& map, int y, int from, int to, S scale, S* dst) {
    pack<E>(map, part.b, c0, d, y, from, to, pitch, soon(map, y, c.H, R + P, d), scale,
            dst + from - tile.left);
  };
  const int first = max(0, part.y0 - P) / R * R, last = min(c.H, part.y1 + P);
  int next = max(0, first - P), done = part.y0;
  for (int y = first; y < last; y += R) {
    const int rows = min(R, c.H - y);
    tile.begin(y);
    for (; next < min(c.H, y + rows + P); next++) {
      rows_in(c.v, next, x0, x1, 1, tile.in_ring(tile.values, next));
      if (tile.content) rows_in(c.k, next, x0, x1, 1, tile.in_ring(tile.keys, next));
    }
    for (int i = 0; i < rows; i++) {
      rows_in(c.q, y + i, q0, q1, S(LOG2E), tile.queries + i * tile.row);
      rows_in(c.gout, y + i, q0, q1, 1, tile.gouts + i * tile.row);
    }
    const bool own = y >= part.y0 && y < part.y1;
    const int from = max(part.y0, y - P), to = min(part.y1, y + rows + P);
    const int fresh = y == first ? 0 : y + P;
    // Keys follow one vector behind the queries, while what those leave for them is near.
    for (int x = 0, j = part.x0 - tile.left; x < q1 - q0; x += N) {
      tile.backward_queries(y, rows, x, own, lanes_as<T>(part.x0 - q0 - x, part.x1 - q0 - x));
      for (; j < part.x1 - tile.left && (j <= x || x + N >= q1 - q0); j += N) {
        tile.backward_keys(tile.shifted_p, tile.gouts, tile.dvalues, y, rows, from, to, fresh,
                           j);
        if (tile.content)
          tile.backward_keys(tile.shifted_ds, tile.queries, tile.dkeys, y, rows, from, to, fresh,
                           j);
      }
    }
    if (own && tile.position) tile.backward_tables(rows);
    const int at = part.x0 - tile.left;
    for (int i = 0; own && i < rows; i++)
      unpack<E>(c.dq, part.b, c0, d, y + i, part.x0, part.x1, pitch, S(1),
                tile.dqueries + i * tile.row + at);
    const int complete = y + R >= last ? part.y1 : min(part.y1, y + rows - P);
    for (; done < complete; done++) {
      unpack<E>(c.dv, part.b, c0, d, done, part.x0, part.x1, pitch, S(1),
                tile.in_ring(tile.dvalues, done) + at);
      if (tile.content)  // queries carry log2 e
        unpack<E>(c.dk, part.b, c0, d, done, part.x0, part.x1, pitch, S(LN2),
                  tile.in_ring(tile.dkeys, done) + at);
    }
  }
  if (!tile.position) return;
  for (int a = 0; a < K; a++)
    for (int ch = 0; ch < tile.half; ch++) {
      const size_t at = (size_t(ch) * K + a) * N;
      tables[a * tile.half + ch] = S(LN2) * sum_as<T>(load_as<T>(tile.drow_lanes + at));
      tables[(K + a) * tile.half + ch] = S(LN2) * sum_as<T>(load_as<T>(tile.dcol_lanes + at));
    }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
