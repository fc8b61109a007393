// Local attention (SASA) forward and backward, one head of one image at a time.
//
//     s(ab) = q . k(ab) + q . r(a-i, b-j)      p = softmax of s over the window      o = sum p v
//
// A task is a band of rows x a strip of columns of one head. It walks down its band R query rows at
// a time and keeps, as planar rows in a ring, just the R + 2P rows of keys and values they see. The
// logits of R x LANES queries live in L1 and are never written anywhere else.
//
// The backward recomputes them. For R query rows it leaves p and ds in a buffer *shifted to the
// place of the key*, from where keys gather their gradient; a scatter would read and write memory
// for every product. Key rows are summed in a ring too, and leave it once no query sees them.
//
// How a pixel's sums are ordered does not depend on bands, strips or tiles, so results are the same
// bit for bit however the work is cut.
#pragma once
#include "call.h"
#include "products.h"
#include "rows.h"
#include "scratch.h"

namespace saccade {
namespace SACCADE_ISA {

struct SasaPlan {
  int strips, strip;  // columns of queries (forward) or keys (backward) a task owns
  int bands, band;    // rows, a multiple of R
  int pitch;
  size_t scratch;  // in elements
  int tasks;
};

// The buffers of a task and the steps on one tile of R x LANES queries.
template <class S>
struct SasaTile {
  static constexpr int N = LANES<S>;
  const Sasa& call;
  int d, H, W, K, P, half, pitch;
  bool content, position;
  int q0, q1, left;  // columns of the queries; the column at index 0 of every row buffer
  ptrdiff_t row;     // elements in one row of all channels

  S *keys, *values, *queries, *outs;           // rings of R + 2P rows; R rows
  S *logits, *along_row, *along_col, *border;  // R K K N; R K N twice; per vector of columns K N
  S *row_table, *col_table;                    // half x K: channel by channel
  // backward
  S *gouts, *dqueries, *dkeys, *dvalues;  // R rows; R rows; rings
  S *dweights;                            // as logits
  S *shifted_p, *shifted_ds;              // R K K pitch, at the place of the key
  S *drow_lanes, *dcol_lanes;             // half K N

  SasaTile(const Sasa& c, int queries_wide, int pitch_)
      : call(c), d(c.d), H(c.H), W(c.W), K(c.window), P(c.window / 2), half(c.d / 2),
        pitch(pitch_), content(c.k.data), position(c.row), q0(0), q1(queries_wide), left(0),
        row(ptrdiff_t(c.d) * pitch_) {}

  size_t carve(S* base, bool backward) {
    Carver<S> from{base, 0, (16 - P % 16) % 16};
    const size_t ring = (R + 2 * P) * row, tile = size_t(R) * K * K * N;
    keys = from.take(content ? ring : 0);
    values = from.take(ring);
    queries = from.take(R * row);
    from.skew = 0;
    logits = from.take(tile);
    along_row = from.take(size_t(R) * K * N);
    along_col = from.take(size_t(R) * K * N);
    border = from.take(size_t(round_up(q1 - q0, N)) * K);
    row_table = from.take(size_t(half) * K);
    col_table = from.take(size_t(half) * K);
    if (backward) {
      dweights = from.take(tile);
      drow_lanes = from.take(size_t(half) * K * N);
      dcol_lanes = from.take(size_t(half) * K * N);
      from.skew = (16 - P % 16) % 16;
      gouts = from.take(R * row);
      dqueries = from.take(R * row);
      dkeys = from.take(content ? ring : 0);
      dvalues = from.take(ring);
      shifted_p = from.take(size_t(R) * K * K * pitch);
      shifted_ds = from.take(content ? size_t(R) * K * K * pitch : 0);
    } else {
      from.skew = (16 - P % 16) % 16;
      outs = from.take(R * row);
    }
    return from.used;
  }

  S* in_ring(S* ring, int y) const { return ring + (y % (R + 2 * P)) * row; }
  bool inside(int y) const { return y >= 0 && y < H; }

  // What does not change within a task: tables by channel, and the columns outside the image.
  void prepare(int head, bool backward) {
    if (content) zero(keys, (R + 2 * P) * row);
    zero(values, (R + 2 * P) * row);
    zero(queries, R * row);
    if (backward) zero(gouts, R * row);
    if (position) {
      const size_t table = size_t(call.tables == 1 ? 0 : head) * K * half;
      const S* by_row = static_cast<const S*>(call.row) + table;
      const S* by_col = static_cast<const S*>(call.col) + table;
      for (int c = 0; c < half; c++)
        for (int a = 0; a < K; a++) {
          row_table[c * K + a] = by_row[a * half + c];
          col_table[c * K + a] = by_col[a * half + c];
        }
    }
    S* m = border;
    for (int x0 = q0; x0 < q1; x0 += N, m += K * N)
      for (int b = 0; b < K; b++)
        for (int l = 0; l < N; l++) {
          const int x = x0 + l, key = x + b - P;
          m[b * N + l] = call.mask && x < q1 && (key < 0 || key >= W) ? S(-1e30) : S(0);
        }
  }

  // q . r splits into a part for the row and one for the column of the window. The column part
  // also carries the border.
  void position_logits(const S* q, int rows, const S* outside) {
    blocks(K, [&](int b0, auto nb) INLINED {
      constexpr int NB = decltype(nb)::value;
      pick<R>(rows, [&](auto ni) INLINED {
        constexpr int NI = decltype(ni)::value;
        V<S> r[NI][NB], c[NI][NB];
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) r[i][b] = V<S>{};
        const int channels = position ? half : 0;
        dot<Constant>(q, row, pitch, row_table + b0, K, channels, r);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) store(along_row + (i * K + b0 + b) * N, r[i][b]);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) c[i][b] = load(outside + (b0 + b) * N);
        dot<Constant>(q + ptrdiff_t(half) * pitch, row, pitch, col_table + b0, K, channels, c);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) store(along_col + (i * K + b0 + b) * N, c[i][b]);
      });
    });
  }

  // Window row t of the tile is image row y + t - P; query row i sees it as its row a = t - i.
  template <class F>
  INLINE void window_rows(int y, int rows, F&& f) const {
    for (int t = 0; t < rows + 2 * P; t++) f(t, y + t - P, max(0, t - 2 * P), min(t, rows - 1));
  }

  // to[i][a][b] = sum over channels of q[i] * keys(row a, column + b), plus q . r if Biased.
  template <bool Biased>
  void products(const S* q, S* ring, int channels, int y, int rows, int x0, S* to) {
    window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
      const bool in = inside(r);
      if (!in && call.mask) return;  // never looked at
      const int n = in ? channels : 0;
      const S* k = n ? in_ring(ring, r) + x0 : q;
      blocks(K, [&](int b0, auto nb) INLINED {
        constexpr int NB = decltype(nb)::value;
        pick<R>(hi - lo + 1, [&](auto ni) INLINED {
          constexpr int NI = decltype(ni)::value;
          V<S> s[NI][NB];
          for (int i = 0; i < NI; i++)
            for (int b = 0; b < NB; b++)
              s[i][b] = Biased ? load(along_row + ((lo + i) * K + t - lo - i) * N) +
                                     load(along_col + ((lo + i) * K + b0 + b) * N)
                               : V<S>{};
          dot<Pixels>(q + lo * row, row, pitch, k + b0, pitch, n, s);
          for (int i = 0; i < NI; i++)
            for (int b = 0; b < NB; b++)
              store(to + (((lo + i) * K + t - lo - i) * K + b0 + b) * N, s[i][b]);
        });
      });
    });
  }

  // Which entries of the window of a query in row y take part: [from, to) of its K * K.
  void taking_part(int y, int& from, int& to) const {
    from = call.mask ? max(0, P - y) * K : 0;
    to = call.mask ? min(K, H - y + P) * K : K * K;
  }
  V<S> highest(const S* s, int from, int to) const {
    V<S> m0 = load(s + from * N), m1 = m0;
    int j = from;
    for (; j + 1 < to; j += 2) {
      m0 = maximum<S>(m0, load(s + j * N));
      m1 = maximum<S>(m1, load(s + (j + 1) * N));
    }
    if (j < to) m0 = maximum<S>(m0, load(s + j * N));
    return maximum<S>(m0, m1);
  }

  // The values of a window, weighted: sum[i][c] over all (a, b) of p[i][a][b] * ring(row, column).
  template <int NC>
  INLINE void gather(const S* p, S* ring, int c, int y, int rows, int x0, V<S> (&sum)[R][NC]) {
    window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
      if (!inside(r)) return;  // zeros
      const S* v = in_ring(ring, r) + ptrdiff_t(c) * pitch + x0;
      span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
        mix<Pixels, decltype(Lo)::value, decltype(Hi)::value>(p + t * K * N, (K * K - K) * N, N, v,
                                                              pitch, 1, K, sum);
      });
    });
  }

  void forward(int y, int rows, int x0) {
    const S* q = queries + P + x0;
    position_logits(q, rows, border + x0 * K);
    products<true>(q, keys, content ? d : 0, y, rows, x0, logits);
    V<S> scale[R] = {};
    for (int i = 0; i < rows; i++) {
      int from, to;
      taking_part(y + i, from, to);
      S* s = logits + size_t(i) * K * K * N;
      const V<S> m = highest(s, from, to);
      V<S> l0{}, l1{};
      int j = from;
      for (; j + 1 < to; j += 2) {
        const V<S> e0 = exp2(load(s + j * N) - m), e1 = exp2(load(s + (j + 1) * N) - m);
        store(s + j * N, e0);
        store(s + (j + 1) * N, e1);
        l0 += e0;
        l1 += e1;
      }
      if (j < to) {
        const V<S> e = exp2(load(s + j * N) - m);
        store(s + j * N, e);
        l0 += e;
      }
      scale[i] = S(1) / (l0 + l1);
    }
    channel_blocks(0, d, [&](int c, auto nc) INLINED {
      constexpr int NC = decltype(nc)::value;
      V<S> sum[R][NC];
        clear(sum);
      gather(logits, values, c, y, rows, x0, sum);
      for (int i = 0; i < R; i++)
        for (int j = 0; j < NC; j++)
          store(outs + i * row + ptrdiff_t(c + j) * pitch + P + x0, sum[i][j] * scale[i]);
    });
  }

  // p and ds of a tile, dq, and the tables' gradient. `own`: the task answers for these queries
  // (others belong to a neighbour and are here only because keys of this task are in their window).
  void backward_queries(int y, int rows, int x0, bool own, I<S> own_lanes) {
    const S *q = queries + P + x0, *g = gouts + P + x0;
    position_logits(q, rows, border + x0 * K);
    products<true>(q, keys, content ? d : 0, y, rows, x0, logits);
    products<false>(g, values, d, y, rows, x0, dweights);
    const I<S> alive = lanes<S>(0, q1 - q0 - x0);
    for (int i = 0; i < rows; i++) {
      int from, to;
      taking_part(y + i, from, to);
      S* s = logits + size_t(i) * K * K * N;
      const S* dp = dweights + size_t(i) * K * K * N;
      const V<S> m = highest(s, from, to);
      V<S> l{}, mean{};  // of dp under p
      for (int j = from; j < to; j++) {
        const V<S> e = exp2(load(s + j * N) - m);
        store(s + j * N, e);
        l += e;
        mean += e * load(dp + j * N);
      }
      const V<S> scale = S(1) / l;
      mean *= scale;
      S *rows_of = along_row + i * K * N, *cols_of = along_col + i * K * N;
      for (int a = 0; a < K; a++) store(rows_of + a * N, V<S>{});
      for (int b = 0; b < K; b++) store(cols_of + b * N, V<S>{});
      for (int a = from / K; a < to / K; a++) {
        V<S> in_row{};
        for (int b = 0; b < K; b++) {
          const int j = a * K + b;
          const ptrdiff_t at = (ptrdiff_t(i) * K * K + j) * pitch + x0 + b;
          const V<S> p = keep<S>(alive, load(s + j * N) * scale);
          const V<S> ds = keep<S>(alive, p * (load(dp + j * N) - mean));
          store(shifted_p + at, p);
          if (content) store(shifted_ds + at, ds);
          store(s + j * N, ds);
          in_row += ds;
          store(cols_of + b * N, load(cols_of + b * N) + ds);
        }
        store(rows_of + a * N, in_row);
      }
    }
    if (!own) return;
    const auto dq = [&](int from, int to, const S* ds, const S* table) INLINED {
      channel_blocks(from, to, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        V<S> sum[R][NC];
        clear(sum);
        if (position)
          mix<Constant, 0, R - 1>(ds, K * N, N, table + (c - from) * K, K, 1, K, sum);
        if (content) gather(logits, keys, c, y, rows, x0, sum);
        for (int i = 0; i < R; i++)
          for (int j = 0; j < NC; j++)
            store(dqueries + i * row + ptrdiff_t(c + j) * pitch + P + x0, sum[i][j]);
      });
    };
    if (!position) return dq(0, d, nullptr, nullptr);
    dq(0, half, along_row, row_table);
    dq(half, d, along_col, col_table);
    const auto dtable = [&](const S* qs, const S* ds, S* sums) {
      for (int c = 0; c < half; c++) {
        V<S> qc[R] = {};
        for (int i = 0; i < rows; i++)
          qc[i] = keep<S>(own_lanes, load(qs + i * row + ptrdiff_t(c) * pitch));
        for (int a = 0; a < K; a++) {
          V<S> sum = load(sums + (c * K + a) * N);
          for (int i = 0; i < rows; i++) sum += qc[i] * load(ds + (i * K + a) * N);
          store(sums + (c * K + a) * N, sum);
        }
      }
    };
    dtable(q, along_row, drow_lanes);
    dtable(q + ptrdiff_t(half) * pitch, along_col, dcol_lanes);
  }

  // Key rows [from, to) gather from the query rows of this tile; j: index of the first key.
  void backward_keys(const S* shifted, const S* u, S* ring, int y, int rows, int from, int to,
                     int j) {
    for (int r = from; r < to; r += R) {
      const int n = min(R, to - r), t = r - y + P;
      channel_blocks(0, d, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        V<S> sum[R][NC];
        clear(sum);
        for (int i = 0; i < rows; i++) {
          const int lo = max(0, i - t), hi = min(n - 1, K - 1 + i - t);
          if (lo > hi) continue;
          const S* p = shifted + (ptrdiff_t(i) * K * K + (t - i) * K) * pitch + j;
          const S* v = u + i * row + ptrdiff_t(c) * pitch + j + P;
          span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
            mix<Pixels, decltype(Lo)::value, decltype(Hi)::value>(p, K * pitch, pitch, v, pitch, -1,
                                                                  K, sum);
          });
        }
        for (int g = 0; g < n; g++) {
          S* at = in_ring(ring, r + g) + ptrdiff_t(c) * pitch + j;
          for (int k = 0; k < NC; k++) store(at + k * pitch, load(at + k * pitch) + sum[g][k]);
        }
      });
    }
  }
};

template <class S>
SasaPlan sasa_plan(const Sasa& c, bool backward) {
  constexpr int N = LANES<S>;
  const int P = c.window / 2;
  SasaPlan plan;
  for (plan.strips = 1;; plan.strips++) {
    plan.strip = round_up((c.W + plan.strips - 1) / plan.strips, N);
    const int wide = min(c.W, plan.strip + (backward && plan.strips > 1 ? 2 * P : 0));
    plan.pitch = pitch_for(round_up(wide, N) + 2 * P + N);
    plan.scratch = SasaTile<S>(c, wide, plan.pitch).carve(nullptr, backward);
    if (plan.scratch * sizeof(S) <= BUDGET || plan.strip <= N) break;
  }
  plan.strips = (c.W + plan.strip - 1) / plan.strip;
  // Bands only where images, heads and strips are few: the backward computes 2P rows twice for
  // each. The thread count has no say, so that the tables' gradient never depends on it.
  const int wanted = 32 / max(1, c.B * c.heads * plan.strips);
  const int least = round_up(backward ? 8 * P : 2 * P, R);
  plan.bands = max(1, min(wanted, c.H / least));
  plan.band = round_up((c.H + plan.bands - 1) / plan.bands, R);
  plan.bands = (c.H + plan.band - 1) / plan.band;
  plan.tasks = c.B * c.heads * plan.bands * plan.strips;
  return plan;
}

struct SasaPart {
  int b, head, y0, y1, x0, x1;
  SasaPart(const Sasa& c, const SasaPlan& plan, int task) {
    x0 = task % plan.strips * plan.strip;
    x1 = min(c.W, x0 + plan.strip);
    task /= plan.strips;
    y0 = task % plan.bands * plan.band;
    y1 = min(c.H, y0 + plan.band);
    task /= plan.bands;
    head = task % c.heads;
    b = task / c.heads;
  }
};

template <class E, class S>
void sasa_forward(const Sasa& c, const SasaPlan& plan, int task, S* scratch) {
  const SasaPart part(c, plan, task);
  SasaTile<S> tile(c, plan.strip, plan.pitch);
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
    for (; next < min(c.H, y + rows + P); next++) {
      if (tile.content) rows_in(c.k, next, x0, x1, 1, tile.in_ring(tile.keys, next));
      rows_in(c.v, next, x0, x1, 1, tile.in_ring(tile.values, next));
    }
    for (int i = 0; i < rows; i++)
      rows_in(c.q, y + i, part.x0, part.x1, S(LOG2E), tile.queries + i * tile.row);
    for (int x = 0; x < part.x1 - part.x0; x += LANES<S>) tile.forward(y, rows, x);
    for (int i = 0; i < rows; i++)
      unpack<E>(c.out, part.b, c0, c.d, y + i, part.x0, part.x1, plan.pitch, S(1),
                tile.outs + i * tile.row + P);
  }
}

// `tables` receives this task's share of drow and dcol: 2 x window x d/2.
template <class E, class S>
void sasa_backward(const Sasa& c, const SasaPlan& plan, int task, S* scratch, S* tables) {
  constexpr int N = LANES<S>;
  const SasaPart part(c, plan, task);
  const int K = c.window, P = K / 2, d = c.d, c0 = part.head * d, pitch = plan.pitch;
  const int q0 = max(0, part.x0 - (plan.strips > 1 ? P : 0));
  const int q1 = min(c.W, part.x1 + (plan.strips > 1 ? P : 0));
  SasaTile<S> tile(c, min(c.W, plan.strip + (plan.strips > 1 ? 2 * P : 0)), pitch);
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
    for (; next < min(c.H, y + rows + P); next++) {
      rows_in(c.v, next, x0, x1, 1, tile.in_ring(tile.values, next));
      zero(tile.in_ring(tile.dvalues, next), tile.row);
      if (!tile.content) continue;
      rows_in(c.k, next, x0, x1, 1, tile.in_ring(tile.keys, next));
      zero(tile.in_ring(tile.dkeys, next), tile.row);
    }
    for (int i = 0; i < rows; i++) {
      rows_in(c.q, y + i, q0, q1, S(LOG2E), tile.queries + i * tile.row);
      rows_in(c.gout, y + i, q0, q1, 1, tile.gouts + i * tile.row);
    }
    const bool own = y >= part.y0 && y < part.y1;
    for (int x = 0; x < q1 - q0; x += N)
      tile.backward_queries(y, rows, x, own, lanes<S>(part.x0 - q0 - x, part.x1 - q0 - x));
    const int from = max(part.y0, y - P), to = min(part.y1, y + rows + P);
    for (int j = part.x0 - tile.left; j < part.x1 - tile.left; j += N) {
      tile.backward_keys(tile.shifted_p, tile.gouts, tile.dvalues, y, rows, from, to, j);
      if (tile.content)
        tile.backward_keys(tile.shifted_ds, tile.queries, tile.dkeys, y, rows, from, to, j);
    }
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
      tables[a * tile.half + ch] = S(LN2) * sum<S>(load(tile.drow_lanes + at));
      tables[(K + a) * tile.half + ch] = S(LN2) * sum<S>(load(tile.dcol_lanes + at));
    }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
