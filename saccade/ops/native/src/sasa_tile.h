// Local attention on one tile of R x N queries, N lanes: the steps that sasa.h strings together.
#pragma once
#include "call.h"
#include "products.h"
#include "sasa_plan.h"

namespace saccade {
namespace SACCADE_ISA {

// The buffers of a task and the steps on one tile of R x N queries; T: `Vector` or `Widest`.
template <class T, int Known = 0>
struct SasaTile : SasaWindow<Known> {
  using SasaWindow<Known>::K;
  using SasaWindow<Known>::P;
  using S = typename T::Number;
  using Lanes = typename T::V;
  using Mask = typename T::I;
  using Element = S;
  static constexpr int ROWS = R, N = LANES_OF<T>;
  static constexpr S LOWEST = S(-3e38);  // any logit is above
  const Sasa& call;
  int d, H, W, half, pitch;
  bool content, position;
  int q0, q1, left;  // columns of the queries; the column at index 0 of every row buffer
  int turn = 0;      // the row at slot 0 of the rings
  ptrdiff_t row;     // elements in one row of all channels

  S *keys, *values, *queries, *outs;           // rings of R + 2P rows; R rows
  S *logits, *along_row, *along_col, *border;  // R K K N; R K N twice; per vector of columns K N
  S* shares;                                   // R N: 1 / the sum of e^s
  S *row_table, *col_table;                    // half x K: channel by channel
  // backward
  S *gouts, *dqueries, *dkeys, *dvalues;  // R rows; R rows; rings
  S *dweights;                            // as logits
  S *shifted_p, *shifted_ds;              // R K K pitch, at the place of the key
  S *row_sums, *col_sums;                 // R K pitch: of ds, for the tables' gradient
  S *drow_lanes, *dcol_lanes;             // half K N

  SasaTile(const Sasa& c, int queries_wide, int pitch_)
      : SasaWindow<Known>(c.window), call(c), d(c.d), H(c.H), W(c.W), half(c.d / 2),
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
    shares = from.take(size_t(R) * N);
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
      row_sums = from.take(position ? size_t(R) * K * pitch : 0);
      col_sums = from.take(position ? size_t(R) * K * pitch : 0);
    } else {
      from.skew = (16 - P % 16) % 16;
      outs = from.take(R * row);
    }
    return from.used;
  }

  // Row y of the image is at y modulo R + 2P, near enough to the tile to do without a division.
  S* in_ring(S* ring, int y) const {
    const int from_turn = y - turn, n = R + 2 * P;
    const int slot = from_turn < 0 ? from_turn + n : from_turn < n ? from_turn : from_turn - n;
    return ring + slot * row;
  }
  void begin(int y) { turn = y / (R + 2 * P) * (R + 2 * P); }
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
        Lanes r[NI][NB], c[NI][NB];
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) r[i][b] = Lanes{};
        const int channels = position ? half : 0;
        dot_as<Constant, T>(q, row, pitch, row_table + b0, K, channels, r);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) store_as<T>(along_row + (i * K + b0 + b) * N, r[i][b]);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) c[i][b] = load_as<T>(outside + (b0 + b) * N);
        dot_as<Constant, T>(q + ptrdiff_t(half) * pitch, row, pitch, col_table + b0, K, channels, c);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) store_as<T>(along_col + (i * K + b0 + b) * N, c[i][b]);
      });
    });
  }

  // Window row t of the tile is image row y + t - P; query row i sees it as its row a = t - i.
  template <class F>
  INLINE void window_rows(int y, int rows, F&& f) const {
    for (int t = 0; t < rows + 2 * P; t++) f(t, y + t - P, max(0, t - 2 * P), min(t, rows - 1));
  }

  // to[i][a][b] = sum over channels of q[i] * keys(row a, column + b); if Biased, plus q . r, and
  // `top` is the largest.
  template <bool Biased>
  void products(const S* q, S* ring, int channels, int y, int rows, int x0, S* to, Lanes (&top)[R]) {
    window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
      const bool in = inside(r);
      if (!in && call.mask) return;  // never looked at
      const int n = in ? channels : 0;
      const S* k = n ? in_ring(ring, r) + x0 : q;
      blocks(K, [&](int b0, auto nb) INLINED {
        constexpr int NB = decltype(nb)::value;
        pick<R>(hi - lo + 1, [&](auto ni) INLINED {
          constexpr int NI = decltype(ni)::value;
          Lanes s[NI][NB];
          for (int i = 0; i < NI; i++)
            for (int b = 0; b < NB; b++)
              s[i][b] = Biased ? load_as<T>(along_row + ((lo + i) * K + t - lo - i) * N) +
                                     load_as<T>(along_col + ((lo + i) * K + b0 + b) * N)
                               : Lanes{};
          dot_as<Pixels, T>(q + lo * row, row, pitch, k + b0, pitch, n, s);
          for (int i = 0; i < NI; i++) {
            Lanes most = s[i][0];
            for (int b = 0; b < NB; b++) {
              store_as<T>(to + (((lo + i) * K + t - lo - i) * K + b0 + b) * N, s[i][b]);
              if constexpr (Biased) most = maximum_as<T>(most, s[i][b]);
            }
            if constexpr (Biased) top[lo + i] = maximum_as<T>(top[lo + i], most);
          }
        });
      });
    });
  }

  // Which entries of the window of a query in row y take part: [from, to) of its K * K.
  void taking_part(int y, int& from, int& to) const {
    from = call.mask ? max(0, P - y) * K : 0;
    to = call.mask ? min(K, H - y + P) * K : K * K;
  }

  // The values of a window, weighted: sum[i][c] over all (a, b) of p[i][a][b] * ring(row, column).
  template <int NC>
  INLINE void gather(const S* p, S* ring, int c, int y, int rows, int x0, Lanes (&sum)[R][NC]) {
    window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
      if (!inside(r)) return;  // zeros
      const S* v = in_ring(ring, r) + ptrdiff_t(c) * pitch + x0;
      span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
        mix_as<Pixels, decltype(Lo)::value, decltype(Hi)::value, T>(
            p + t * K * N, (K * K - K) * N, N, v, pitch, 1, K, sum);
      });
    });
  }

  void forward(int y, int rows, int x0) {
    const S* q = queries + P + x0;
    position_logits(q, rows, border + x0 * K);
    Lanes top[R];
    for (int i = 0; i < R; i++) top[i] = splat_as<T>(LOWEST);
    products<true>(q, keys, content ? d : 0, y, rows, x0, logits, top);
    powers(y, rows, top);
    collect(y, rows, x0);
  }
  // Logits become e^(s - top), up to the share of one of them.
  void powers(int y, int rows, const Lanes (&top)[R]) {
    for (int i = 0; i < rows; i++) {
      int from, to;
      taking_part(y + i, from, to);
      S* s = logits + size_t(i) * K * K * N;
      const Lanes m = top[i];
      Lanes l0{}, l1{};
      int j = from;
      for (; j + 1 < to; j += 2) {
        const Lanes e0 = exp2_as<T>(load_as<T>(s + j * N) - m);
        const Lanes e1 = exp2_as<T>(load_as<T>(s + (j + 1) * N) - m);
        store_as<T>(s + j * N, e0);
        store_as<T>(s + (j + 1) * N, e1);
        l0 += e0;
        l1 += e1;
      }
      if (j < to) {
        const Lanes e = exp2_as<T>(load_as<T>(s + j * N) - m);
        store_as<T>(s + j * N, e);
        l0 += e;
      }
      store_as<T>(shares + i * N, S(1) / (l0 + l1));  // registers are for the sums below
    }
  }
  void collect(int y, int rows, int x0) {
    channel_blocks(0, d, [&](int c, auto nc) INLINED {
      constexpr int NC = decltype(nc)::value;
      Lanes sum[R][NC];
      clear_as<T>(sum);
      gather(logits, values, c, y, rows, x0, sum);
      for (int i = 0; i < R; i++)
        for (int j = 0; j < NC; j++)
          store_as<T>(outs + i * row + ptrdiff_t(c + j) * pitch + P + x0,
                      sum[i][j] * load_as<T>(shares + i * N));
    });
  }

  // p and ds of a tile, dq, and the sums of ds that the tables' gradient needs. `own`: the task
  // answers for these queries (others are here because keys of this task are in their window).
  void backward_queries(int y, int rows, int x0, bool own, Mask own_lanes) {
    const S *q = queries + P + x0, *g = gouts + P + x0;
    position_logits(q, rows, border + x0 * K);
    Lanes top[R];
    for (int i = 0; i < R; i++) top[i] = splat_as<T>(LOWEST);
    products<true>(q, keys, content ? d : 0, y, rows, x0, logits, top);
    products<false>(g, values, d, y, rows, x0, dweights, top);
    const Mask alive = lanes_as<T>(0, q1 - q0 - x0);
    for (int i = 0; i < rows; i++) {
      int from, to;
      taking_part(y + i, from, to);
      S* s = logits + size_t(i) * K * K * N;
      const S* dp = dweights + size_t(i) * K * K * N;
      const Lanes m = top[i];
      Lanes total[2] = {}, weighted[2] = {};
      const auto entry = [&](int j, int n) INLINED {
        const Lanes e = exp2_as<T>(load_as<T>(s + j * N) - m);
        store_as<T>(s + j * N, e);
        total[n] += e;
        weighted[n] += e * load_as<T>(dp + j * N);
      };
      int j = from;
      for (; j + 1 < to; j += 2) entry(j, 0), entry(j + 1, 1);
      if (j < to) entry(j, 0);
      const Lanes scale = S(1) / (total[0] + total[1]);
      const Lanes mean = (weighted[0] + weighted[1]) * scale;  // of dp under p
      S *rows_of = along_row + i * K * N, *cols_of = along_col + i * K * N;
      for (int a = 0; a < K; a++) store_as<T>(rows_of + a * N, Lanes{});
      blocks(K, [&](int b0, auto nb) INLINED {
        constexpr int NB = decltype(nb)::value;
        Lanes in_col[1][NB];
        clear_as<T>(in_col);
        for (int a = from / K; a < to / K; a++) {
          const ptrdiff_t j = (a * K + b0) * N;
          const ptrdiff_t at = (ptrdiff_t(i) * K * K + a * K + b0) * pitch + x0 + b0;
          Lanes in_row = load_as<T>(rows_of + a * N);
          for (int b = 0; b < NB; b++) {
            const Lanes p = keep_as<T>(alive, load_as<T>(s + j + b * N) * scale);
            const Lanes ds = keep_as<T>(alive, p * (load_as<T>(dp + j + b * N) - mean));
            store_as<T>(shifted_p + at + b * (pitch + 1), p);
            if (content) store_as<T>(shifted_ds + at + b * (pitch + 1), ds);
            store_as<T>(s + j + b * N, ds);
            in_row += ds;
            in_col[0][b] += ds;
          }
          store_as<T>(rows_of + a * N, in_row);
        }
        for (int b = 0; b < NB; b++) store_as<T>(cols_of + (b0 + b) * N, in_col[0][b]);
      });
    }
    if (!own) return;
    const auto dq = [&](int from, int to, const S* ds, const S* table) INLINED {
      channel_blocks(from, to, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        Lanes sum[R][NC];
        clear_as<T>(sum);
        if (position)
          mix_as<Constant, 0, R - 1, T>(ds, K * N, N, table + (c - from) * K, K, 1, K, sum);
        if (content) gather(logits, keys, c, y, rows, x0, sum);
        for (int i = 0; i < R; i++)
          for (int j = 0; j < NC; j++)
            store_as<T>(dqueries + i * row + ptrdiff_t(c + j) * pitch + P + x0, sum[i][j]);
      });
    };
    if (!position) return dq(0, d, nullptr, nullptr);
    dq(0, half, along_row, row_table);
    dq(half, d, along_col, col_table);
    for (int j = 0; j < rows * K; j++) {
      store_as<T>(row_sums + j * pitch + P + x0, keep_as<T>(own_lanes, load_as<T>(along_row + j * N)));
      store_as<T>(col_sums + j * pitch + P + x0, keep_as<T>(own_lanes, load_as<T>(along_col + j * N)));
    }
  }

  // The tables' gradient: sum over the queries of the tile's rows of q times ds.
  void backward_tables(int rows) {
    const auto dtable = [&](const S* q, const S* ds, S* sums) INLINED {
      channel_blocks<2>(0, half, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        blocks(K, [&](int a0, auto na) INLINED {
          constexpr int NA = decltype(na)::value;
          Lanes sum[NC][NA];
          clear_as<T>(sum);
          for (int i = 0; i < rows; i++)
            for (int x = P; x < P + q1 - q0; x += N) {
              Lanes qs[NC];
              for (int j = 0; j < NC; j++)
                qs[j] = load_as<T>(q + i * row + ptrdiff_t(c + j) * pitch + x);
              for (int a = 0; a < NA; a++) {
                const Lanes dsa = load_as<T>(ds + ptrdiff_t(i * K + a0 + a) * pitch + x);
                for (int j = 0; j < NC; j++) sum[j][a] += qs[j] * dsa;
              }
            }
          for (int j = 0; j < NC; j++)
            for (int a = 0; a < NA; a++) {
              S* at = sums + ((c + j) * K + a0 + a) * N;
              store_as<T>(at, load_as<T>(at) + sum[j][a]);
            }
        });
      });
    };
    dtable(queries, row_sums, drow_lanes);
    dtable(queries + ptrdiff_t(half) * pitch, col_sums, dcol_lanes);
  }

  // Key rows [from, to) gather from the query rows of this tile, those from `fresh` on for the
  // first time; j: index of the first key.
  void backward_keys(const S* shifted, const S* u, S* ring, int y, int rows, int from, int to,
                     int fresh, int j) {
    for (int r = from; r < to; r += R) {
      const int n = min(R, to - r), t = r - y + P;
      channel_blocks(0, d, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        Lanes sum[R][NC];
        clear_as<T>(sum);
        for (int i = 0; i < rows; i++) {
          const int lo = max(0, i - t), hi = min(n - 1, K - 1 + i - t);
          if (lo > hi) continue;
          const S* p = shifted + (ptrdiff_t(i) * K * K + (t - i) * K) * pitch + j;
          const S* v = u + i * row + ptrdiff_t(c) * pitch + j + P;
          span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
            mix_as<Pixels, decltype(Lo)::value, decltype(Hi)::value, T>(
                p, K * pitch, pitch, v, pitch, -1, K, sum);
          });
        }
        for (int g = 0; g < R; g++) {
          if (g >= n) break;
          S* at = in_ring(ring, r + g) + ptrdiff_t(c) * pitch + j;
          if (r + g < fresh)
            for (int k = 0; k < NC; k++) sum[g][k] += load_as<T>(at + k * pitch);
          for (int k = 0; k < NC; k++) store_as<T>(at + k * pitch, sum[g][k]);
        }
      });
    }
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
