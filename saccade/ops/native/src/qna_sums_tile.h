// QnA's aggregation by windowed sums on one tile of R rows: the steps that qna_sums.h strings
// together.
#pragma once
#include "products.h"
#include "qna_part.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_ = 0>
struct QnaSumsTile : Side<K_> {
  static constexpr int N = LANES<S>;
  using Side<K_>::K;
  using Side<K_>::KK;
  const Qna& call;
  int d, L, H, W, Ho, Wo, padding, heads, pitch, ring;
  ptrdiff_t row;  // of a ring, for one head: per query d planes, and one more
  ptrdiff_t inputs[R + 14], outputs[R + 14];  // where in a ring the rows are that a tile looks at

  QnaTables<S> tables;
  S *values, *scores;  // an input row, by channel
  S* powers;           // ring of input rows: per query e^s v, then e^s; from column -padding on
  S* outs;             // R rows
  // backward
  S* gouts;   // R rows
  S* shares;  // ring of output rows: per query g', then u'; from column 1 - K on
  S *share, *u;            // g' of one tile: R d N; u' of its rows: R pitch
  S *dvalues, *dscores;    // R rows
  S *t, *dbias, *dweight;  // lanes of sums over pixels: K K N; by channel of s
  S* late;                 // ring of input rows, by channel: gradients of windows on their own
  S (*at)(const Map&, int b, int channel, int y, int x);  // one number of a map, whatever its type
  bool dirty[32];          // whether a row of `late` holds anything
  S* partial;              // this task's share of dbias and dweight

  QnaSumsTile(const Qna& c, int heads_, int pitch_)
      : Side<K_>(c.window), call(c), d(c.d), L(c.queries), H(c.H), W(c.W), Ho(c.Ho), Wo(c.Wo),
        padding(c.padding), heads(heads_), pitch(pitch_), ring(R + c.window - 1),
        row(ptrdiff_t(c.queries) * (c.d + 1) * pitch_), dirty() {}

  // Returns what is needed all the time; `late`, which seldom is, comes behind, up to `all`.
  size_t carve(S* base, bool backward, size_t* all = nullptr) {
    Carver<S> from{base, 0, 0};
    const size_t channels = size_t(L) * heads, wide = size_t(heads) * d * pitch;
    tables.carve(from, channels, KK);
    values = from.take(wide);
    scores = from.take(channels * pitch);
    powers = from.take(heads * rows_of_head());
    if (!backward) {
      outs = from.take(R * wide);
      if (all) *all = from.used;
      return from.used;
    }
    gouts = from.take(R * wide);
    shares = from.take(heads * rows_of_head());
    share = from.take(size_t(R) * d * N);
    u = from.take(size_t(R) * pitch);
    dvalues = from.take(R * wide);
    dscores = from.take(R * channels * pitch);
    t = from.take(size_t(KK) * N);
    dbias = from.take(channels * KK * N);
    dweight = from.take(channels * KK * N);
    const size_t often = from.used;
    late = from.take(size_t(ring) * late_row());
    if (all) *all = from.used;
    return often;
  }
  size_t late_row() const { return size_t(heads) * (d + L) * pitch; }

  // A ring's rows of one head, and behind them a row of zeros for all that is outside the map.
  size_t rows_of_head() const { return size_t(ring + 1) * row; }
  S* plane(S* rows, int h, int l, int c) const {
    return rows + h * rows_of_head() + (ptrdiff_t(l) * (d + 1) + c) * pitch;
  }
  ptrdiff_t slot(int y) const { return y % ring * row; }
  void look(int top, int size, ptrdiff_t* at) const {
    for (int t = 0; t < R + K - 1; t++) {
      const int y = top + t;
      at[t] = y >= 0 && y < size ? slot(y) : ring * row;
    }
  }

  template <class E>
  void prepare(const QnaPart& part, int y0, int y1) {
    at = one<E>;
    tables.fill(call, part.head, heads);
    tables.template scan<E>(call, part, max(0, y0 - padding), min(H, y1 - 1 - padding + K), 0, W);
    zero(powers, heads * rows_of_head());
  }

  // Row y of the inputs enters the ring.
  template <class E>
  void enter(const QnaPart& part, int y) {
    dirty[y % ring] = false;
    pack<E>(call.v, part.b, part.head * d, heads * d, y, 0, W, pitch, R * call.v.row, S(1), values);
    const bool dense = heads == call.heads;  // then all queries are neighbours
    for (int l = 0; l < (dense ? 1 : L); l++)
      pack<E>(call.s, part.b, l * call.heads + part.head, dense ? L * heads : heads, y, 0, W, pitch,
              R * call.s.row, S(1), scores + ptrdiff_t(l) * heads * pitch);
    for (int h = 0; h < heads; h++)
      for (int l = 0; l < L; l++) {
        const int c = l * heads + h;
        const S *s = scores + ptrdiff_t(c) * pitch, *v = values + ptrdiff_t(h) * d * pitch;
        S* to = plane(powers, h, l, 0) + slot(y) + padding;
        const S m = tables.highest[c];
        // A channel without exact powers has none: all its windows are seen to on their own.
        const auto raise = [&](int x, I<S> in) INLINED {
          const V<S> e = keep<S>(in, exp_over(maximum<S>(splat(S(-1 << 20)), load(s + x)), m));
          store(to + ptrdiff_t(d) * pitch + x, e);
          for (int j = 0; j < d; j++)
            store(to + j * pitch + x, keep<S>(in, e * load(v + j * pitch + x)));
        };
        const bool wild = tables.wild(c);
        int x = 0;
        for (; !wild && x + N <= W; x += N) raise(x, ~I<S>{});
        for (; x < W; x += N) raise(x, lanes<S>(0, wild ? 0 : W - x));
      }
  }

  // f(t, Lo, Hi) for the rows t of a tile: they are row t - i of window i for i in [Lo, Hi]. A
  // window whose side is a constant is steered by no branch at all.
  template <int T = 0, class F>
  static INLINE void each_row_of(F&& f) {
    if constexpr (T < R + K_ - 1) {
      f(T, Int<(T < K_ ? 0 : T - K_ + 1)>{}, Int<(T < R ? T : R - 1)>{});
      each_row_of<T + 1>(f);
    }
  }
  template <class F>
  INLINE void each_row(F&& f) const {
    if constexpr (K_ > 0)
      each_row_of(f);
    else
      for (int t = 0; t < R + K - 1; t++)
        span<R>(max(0, t - K + 1), min(t, R - 1), [&](auto lo, auto hi) INLINED { f(t, lo, hi); });
  }

  // sum[i][c] = the window's sum for row i of the tile: weights w, planes from `from` on.
  template <int NC>
  INLINE void window_sum(const S* w, const S* from, const ptrdiff_t* at, V<S> (&sum)[R][NC]) const {
    clear(sum);
    each_row([&](int t, auto lo, auto hi) INLINED {
      mix<Pixels, decltype(lo)::value, decltype(hi)::value, Constant>(
          w + t * K, -K, 1, from + at[t], pitch, 1, K, sum);
    });
  }
  // The same of one plane. Even and odd columns apart: two short chains of additions, no long one.
  INLINE void window_sum_of_one(const S* w, const S* from, const ptrdiff_t* at, V<S>* sum) const {
    V<S> part[R][2];
    clear(part);
    each_row([&](int t, auto lo, auto hi) INLINED {
      const auto column = [&](int b, auto odd) INLINED {
        const V<S> v = load(from + at[t] + b);
        for (int i = decltype(lo)::value; i <= decltype(hi)::value; i++)
          part[i][decltype(odd)::value] += v * splat(w[(t - i) * K + b]);
      };
      int b = 0;
      for (; b + 1 < K; b += 2) column(b, Int<0>{}), column(b + 1, Int<1>{});
      if (b < K) column(b, Int<0>{});
    });
    for (int i = 0; i < R; i++) sum[i] = part[i][0] + part[i][1];
  }

  struct Norms {
    V<S> inverse[R];  // 1 / den
    I<S> fine[R];     // where that is exact
    bool all;
  };

  // Query l at R x N windows.
  INLINE Norms norms(int l, int h, int rows, int x) const {
    V<S> total[R];
    const S* power = tables.power + (l * heads + h) * KK;
    window_sum_of_one(power, plane(powers, h, l, d) + x, inputs, total);
    Norms n;
    n.all = true;
    for (int i = 0; i < R; i++) {
      n.inverse[i] = S(1) / total[i];
      n.fine[i] = (I<S>)(total[i] >= splat(LEAST<S>));
      if (x + N > Wo) n.fine[i] |= ~lanes<S>(0, Wo - x);  // nobody looks beyond the last
      if (i < rows && !all_set<S>(n.fine[i])) n.all = false;
    }
    return n;
  }

  // Windows that must be seen to on their own: f(row, lane) among the first n lanes.
  template <class F>
  void each_alone(const Norms& norms, int rows, int n, F&& f) const {
    for (int i = 0; !norms.all && i < rows; i++)
      for (int j = 0; j < min(n, N); j++)
        if (!norms.fine[i][j]) f(i, j);
  }
  // f(offset, image row, column) for the offsets of a window that are inside the map.
  template <class F>
  void places(int y, int x, F&& f) const {
    for (int a = 0; a < K; a++)
      for (int b = 0; b < K; b++) {
        const int r = y - padding + a, c = x - padding + b;
        if (r >= 0 && r < H && c >= 0 && c < W) f(a * K + b, r, c);
      }
  }
  template <class E>
  static S one(const Map& map, int b, int channel, int y, int x) {
    return widen_one(static_cast<const E*>(map.data)[b * map.batch + channel * map.channel +
                                                     y * map.row + x * map.column]);
  }
  void softmax(const QnaPart& part, int l, int h, int y, int x, S* p) const {
    const int channel = l * call.heads + part.head + h;
    const auto each = [&](auto f) {
      places(y, x, [&](int j, int r, int c) { f(j, at(call.s, part.b, channel, r, c)); });
    };
    softmax_alone(each, tables.bias + (l * heads + h) * KK, KK, p, 1);
  }

  void forward(const QnaPart& part, int h, int y, int rows, int x) {
    for (int l = 0; l < L; l++) {
      const Norms n = norms(l, h, rows, x);
      const S* w = tables.weighted + (l * heads + h) * KK;
      channel_blocks(0, d, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        V<S> sum[R][NC];
        window_sum(w, plane(powers, h, l, c) + x, inputs, sum);
        for (int i = 0; i < R; i++) {
          S* to = out(i, h, c) + x;
          for (int j = 0; j < NC; j++, to += pitch) {
            const V<S> z = keep<S>(n.fine[i], sum[i][j] * n.inverse[i]);
            store(to, l ? load(to) + z : z);
          }
        }
      });
      each_alone(n, rows, Wo - x, [&](int i, int lane) {
        S p[15 * 15];
        softmax(part, l, h, y + i, x + lane, p);
        places(y + i, x + lane, [&](int j, int r, int column) {
          p[j] *= tables.weight[(l * heads + h) * KK + j];
          for (int c = 0; c < d; c++)
            out(i, h, c)[x + lane] +=
                p[j] * at(call.v, part.b, (part.head + h) * d + c, r, column);
        });
      });
    }
  }
  S* out(int i, int h, int c) const { return outs + (ptrdiff_t(i * heads + h) * d + c) * pitch; }

  // Query l at R x N outputs: g', u', and t, summed over pixels.
  void backward_outputs(const QnaPart& part, int l, int h, int y, int rows, int x, bool own) {
    const Norms n = norms(l, h, rows, x);
    for (int i = 0; i < R; i++) {
      const S* g = gouts + ptrdiff_t(i * heads + h) * d * pitch + x;
      S* to = plane(shares, h, l, 0) + slot(y + i) + K - 1 + x;
      S* near = share + ptrdiff_t(i) * d * N;
      const I<S> in = n.fine[i] & lanes<S>(0, i < rows ? Wo - x : 0);
      for (int c = 0; c < d; c++) {
        const V<S> z = keep<S>(in, load(g + ptrdiff_t(c) * pitch) * n.inverse[i]);
        store(to + ptrdiff_t(c) * pitch, z);
        store(near + c * N, z);
      }
    }
    const S* w = tables.weighted + (l * heads + h) * KK;
    V<S> mean[R] = {};
    const S* powers_here = plane(powers, h, l, 0) + x;
    each_row([&](int t0, auto lo, auto hi) INLINED {
      constexpr int I0 = decltype(lo)::value, NI = decltype(hi)::value - I0 + 1;
      const S* ev = powers_here + inputs[t0];
      blocks(K, [&](int b0, auto nb) INLINED {
        constexpr int NB = decltype(nb)::value;
        V<S> sum[NI][NB];
        clear(sum);
        dot<Pixels>(share + I0 * d * N, ptrdiff_t(d) * N, N, ev + b0, pitch, d, sum);
        for (int i = 0; i < NI; i++) {
          const int j = (t0 - I0 - i) * K + b0;
          for (int b = 0; b < NB; b++) {
            mean[I0 + i] += sum[i][b] * splat(w[j + b]);
            store(t + (j + b) * N, load(t + (j + b) * N) + sum[i][b]);
          }
        }
      });
    });
    for (int i = 0; i < R; i++) {
      const I<S> in = n.fine[i] & lanes<S>(0, i < rows ? Wo - x : 0);
      const V<S> z = keep<S>(in, mean[i] * n.inverse[i]);
      store(plane(shares, h, l, d) + slot(y + i) + K - 1 + x, z);
      store(u + ptrdiff_t(i) * pitch + x, z);
    }
    each_alone(n, rows, Wo - x, [&](int i, int lane) {
      backward_alone(part, l, h, y + i, x + lane,
                        gouts + ptrdiff_t(i * heads + h) * d * pitch + x + lane, own);
    });
  }

  // One window of query l on its own; g points to its first channel.
  void backward_alone(const QnaPart& part, int l, int h, int y, int x, const S* g, bool own) {
    S p[15 * 15], ts[15 * 15], mean = 0;
    const S* m = tables.weight + (l * heads + h) * KK;
    softmax(part, l, h, y, x, p);
    places(y, x, [&](int j, int r, int column) {
      S* to = late_at(r);
      ts[j] = 0;
      for (int c = 0; c < d; c++) {
        const S gc = g[ptrdiff_t(c) * pitch];
        ts[j] += gc * at(call.v, part.b, (part.head + h) * d + c, r, column);
        to[ptrdiff_t(h * d + c) * pitch + column] += p[j] * m[j] * gc;
      }
      mean += p[j] * m[j] * ts[j];
    });
    places(y, x, [&](int j, int r, int column) {
      const S ds = p[j] * (m[j] * ts[j] - mean);
      late_at(r)[ptrdiff_t(heads * d + l * heads + h) * pitch + column] += ds;
      if (!own) return;
      S* sums = partial + size_t(j) * L * call.heads + l * call.heads + part.head + h;
      sums[0] += ds;
      sums[size_t(L) * call.heads * KK] += p[j] * ts[j];
    });
  }
  S* late_at(int r) {
    S* to = late + size_t(r % ring) * late_row();
    if (!dirty[r % ring]) zero(to, late_row());
    dirty[r % ring] = true;
    return to;
  }

  // The tile's t, and its sums of u e^s, join the sums of query l over all pixels. They nearly
  // cancel: that is why each tile's come together before they meet those of others.
  void sum_parameters(int l, int h, bool own) {
    const ptrdiff_t at = ptrdiff_t(l * heads + h) * KK;
    const S* m = tables.weight + at;
    S *db = dbias + at * N, *dm = dweight + at * N;
    for (int j = 0; j < KK; j++) {
      const V<S> tj = load(t + j * N);
      store(t + j * N, V<S>{});
      if (!own) continue;
      store(db + j * N, load(db + j * N) + tj * splat(m[j]));
      store(dm + j * N, load(dm + j * N) + tj);
    }
    if (!own) return;
    each_row([&](int t0, auto lo, auto hi) INLINED {
      constexpr int I0 = decltype(lo)::value, NI = decltype(hi)::value - I0 + 1;
      const S* e = plane(powers, h, l, d) + inputs[t0];
      blocks(K, [&](int b0, auto nb) INLINED {
        constexpr int NB = decltype(nb)::value;
        V<S> sum[NI][NB];
        clear(sum);
        dot<Pixels>(u + I0 * pitch, pitch, N, e + b0, N, (Wo + N - 1) / N, sum);
        for (int i = 0; i < NI; i++)
          for (int b = 0; b < NB; b++) {
            S* to = db + ptrdiff_t((t0 - I0 - i) * K + b0 + b) * N;
            store(to, load(to) - sum[i][b]);
          }
      });
    });
  }

  // Input rows from r on gather from all outputs that see them, at N columns from x.
  void backward_inputs(int h, int r, int x) {
    for (int l = 0; l < L; l++) {
      const ptrdiff_t at = ptrdiff_t(l * heads + h) * KK;
      const S* e[R];
      for (int k = 0; k < R; k++) e[k] = plane(powers, h, l, 0) + slot(r + k) + padding + x;
      V<S> ds[R] = {};
      channel_blocks(0, d, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        V<S> sum[R][NC];
        window_sum(tables.weighted_turned + at, plane(shares, h, l, c) + x + padding, outputs, sum);
        for (int k = 0; k < R; k++) {
          const V<S> power = load(e[k] + ptrdiff_t(d) * pitch);
          S* to = dvalues + (ptrdiff_t(k * heads + h) * d + c) * pitch + x;
          for (int j = 0; j < NC; j++, to += pitch) {
            ds[k] += sum[k][j] * load(e[k] + ptrdiff_t(c + j) * pitch);
            const V<S> z = sum[k][j] * power;
            store(to, l ? load(to) + z : z);
          }
        }
      });
      V<S> sum[R];
      window_sum_of_one(tables.power_turned + at, plane(shares, h, l, d) + x + padding, outputs,
                        sum);
      for (int k = 0; k < R; k++)
        store(dscores + ptrdiff_t((k * L + l) * heads + h) * pitch + x,
              ds[k] - sum[k] * load(e[k] + ptrdiff_t(d) * pitch));
    }
  }

  // What windows on their own have left for row r, row k of the tile, is added.
  void settle(int r, int k) {
    if (!dirty[r % ring]) return;
    dirty[r % ring] = false;
    const S* from = late + size_t(r % ring) * late_row();
    const size_t v = size_t(heads) * d * pitch, s = size_t(L) * heads * pitch;
    for (size_t i = 0; i < v; i++) dvalues[k * v + i] += from[i];
    for (size_t i = 0; i < s; i++) dscores[k * s + i] += from[v + i];
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
