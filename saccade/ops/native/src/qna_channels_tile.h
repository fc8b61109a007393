// QnA's aggregation by windowed sums, lanes along channels: the steps that qna_channels.h strings
// together.
//
// Inputs of a head wait in rings, N channels of a pixel side by side ("cells"); whatever is one
// number per pixel (scores, powers, sums of them) is planar, as elsewhere, from column -padding on.
#pragma once
#include "products.h"
#include "qna_alone.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_ = 0, int STRIDE_ = 0>
struct QnaChannels : Side<K_>, Step<STRIDE_> {
  static constexpr int N = LANES<S>;
  static constexpr int PX = 7;     // cells at once: two such blocks and a weight fit 16 registers
  static constexpr int FLUSH = 8;  // rows whose sums over pixels come together before the rest
  using Side<K_>::K;
  using Side<K_>::KK;
  using Step<STRIDE_>::stride;
  const Qna& call;
  int d, L, H, W, Ho, Wo, padding, heads, nv, ring, ring_out, reach;
  int last;                // columns of windows: the last one's, plus one
  int seen_rows, seen_columns;  // what lies beyond is in no window, and counts as zero
  int cells, cells_out;    // of a row of inputs; of outputs, from K before the first
  int pitch;               // of a planar row
  ptrdiff_t at[16];        // where in a ring the rows of a window are, or below 0: outside

  QnaTables<S> tables;
  S *scores, *e, *ev;  // one row of s; rings of e^s and e^s v
  S* inverse;          // 1 / den of a row, by query; 0 where a window is on its own
  // backward
  S *shares, *u;        // rings of output rows: g' in cells; u', at the window's first column
  S *dots, *turned;     // cells to be summed over channels, by query; sums of u'
  S* dscores;           // one row of ds
  S *t, *ue;            // sums over pixels since the last flush, in lanes
  S *dbias, *dweight;   // sums over pixels
  QnaAlone<S> alone;

  QnaChannels(const Qna& c, int heads_)
      : Side<K_>(c.window), Step<STRIDE_>(c.stride), call(c), d(c.d), L(c.queries), H(c.H), W(c.W),
        Ho(c.Ho), Wo(c.Wo), padding(c.padding), heads(heads_), nv(c.d / N), ring(K),
        reach((K - 1) / c.stride), alone(c, tables, heads_, K) {
    ring_out = reach + 1;
    last = (Wo - 1) * stride + 1;
    cells = max((Wo - 1 + PX) * stride + K, padding + W + PX * stride);
    cells_out = 2 * K + max(Wo, (W - 1 + padding) / stride + 1) + 2 * PX;
    pitch = pitch_for(max(round_up(max(last, W), 4 * N) + padding + 2 * K + N,
                          max(last, padding + W) + PX * stride));
    seen_rows = min(H, (Ho - 1) * stride + K - padding);
    seen_columns = min(W, last - 1 + K - padding);
  }

  // Returns what is needed all the time; `late`, which seldom is, comes behind, up to `all`.
  size_t carve(S* base, bool backward, size_t* all = nullptr) {
    Carver<S> from{base, 0, 0};
    const size_t channels = size_t(L) * heads;
    tables.carve(from, channels, KK);
    scores = from.take(channels * pitch);
    e = from.take(channels * ring * pitch);
    ev = from.take(channels * nv * ring * row());
    inverse = from.take(size_t(L) * pitch);
    if (backward) {
      shares = from.take(channels * nv * ring_out * row_out());
      u = from.take(channels * ring_out * pitch);
      dots = from.take(L * dots_row());
      turned = from.take(size_t(L) * pitch);
      dscores = from.take(channels * pitch);
      t = from.take(channels * KK * N);
      ue = from.take(channels * KK * N);
      dbias = from.take(channels * KK);
      dweight = from.take(channels * KK);
    }
    const size_t often = from.used;
    if (backward) alone.late = from.take(ring * alone.row());
    if (all) *all = from.used;
    return often;
  }
  size_t row() const { return size_t(cells) * N; }
  size_t row_out() const { return size_t(cells_out) * N; }
  size_t dots_row() const { return size_t(max(W, last) + 2 * PX * stride + N) * N; }

  int channel(int l, int h) const { return l * heads + h; }
  S* cells_of(int l, int h, int c) const {
    return ev + (size_t(channel(l, h)) * nv + c) * ring * row();
  }
  S* shares_of(int l, int h, int c) const {
    return shares + (size_t(channel(l, h)) * nv + c) * ring_out * row_out() + ptrdiff_t(K) * N;
  }
  S* powers_of(int l, int h) const { return e + size_t(channel(l, h)) * ring * pitch; }
  S* u_of(int l, int h) const { return u + size_t(channel(l, h)) * ring_out * pitch + K - 1; }
  const S* table(const S* of, int l, int h) const { return of + size_t(channel(l, h)) * KK; }
  int top(int y) const { return stride * y - padding; }

  template <class E>
  void prepare(const QnaPart& part, int y0, int y1) {
    tables.fill(call, part.head, heads);
    const int end = max(part.r1, min(H, top(y1 - 1) + K));
    tables.template scan<E>(call, part, max(0, top(y0)), end, 0, W);
    zero(e, size_t(L) * heads * ring * pitch);
    zero(ev, size_t(L) * heads * nv * ring * row());
  }
  void prepare_backward(S* partial) {
    const size_t channels = size_t(L) * heads;
    zero(shares, channels * nv * ring_out * row_out());
    zero(u, channels * ring_out * pitch);
    zero(t, channels * KK * N);
    zero(ue, channels * KK * N);
    zero(dbias, channels * KK);
    zero(dweight, channels * KK);
    alone.partial = partial;
    zero(partial, size_t(2) * L * call.heads * KK);
  }

  // Row y of the inputs enters the rings.
  template <class E>
  void enter(const QnaPart& part, int y) {
    const int slot = y % ring;
    alone.dirty[slot] = false;
    for (int l = 0; l < L; l++)
      pack<E>(call.s, part.b, l * call.heads + part.head, heads, y, 0, W, pitch, 2 * call.s.row,
              S(1), scores + ptrdiff_t(l) * heads * pitch);
    for (int h = 0; h < heads; h++) {
      for (int l = 0; l < L; l++) {
        const int c = channel(l, h);
        const S* s = scores + ptrdiff_t(c) * pitch;
        S* to = powers_of(l, h) + ptrdiff_t(slot) * pitch + padding;
        const S m = tables.highest[c];
        // A channel without exact powers has none: all its windows are seen to on their own.
        const int exact = y >= seen_rows || tables.wild(c) ? 0 : seen_columns;
        for (int x = 0; x < W; x += N) {
          const V<S> power = exp_over(maximum<S>(splat(S(-(1 << 20))), load(s + x)), m);
          store(to + x, x + N <= exact ? power : keep<S>(lanes<S>(0, exact - x), power));
        }
      }
      for (int c = 0; c < nv; c++) {
        const E* v = pixels<E>(call.v, part.b, (part.head + h) * d + c * N, y);
        const ptrdiff_t step = call.v.column;
        for (int l = 0; l < L; l++) {
          const S* power = powers_of(l, h) + ptrdiff_t(slot) * pitch + padding;
          S* to = cells_of(l, h, c) + ptrdiff_t(slot) * row() + ptrdiff_t(padding) * N;
          for (int x = 0; x < seen_columns; x++) {
            const V<S> cell = splat(power[x]) * widen(v + x * step);
            store(to + x * N, y < seen_rows ? cell : V<S>{});
          }
        }
      }
    }
  }

  // The rows that windows of output row y look at; or those of outputs that look at input row r.
  void look(int y) {
    for (int a = 0; a < K; a++) {
      const int r = top(y) + a;
      at[a] = r >= 0 && r < H ? r % ring : -1;
    }
  }
  void look_back(int r) {
    for (int a = 0; a < K; a++) {
      const int from = r + padding - a, y = from / stride;
      at[a] = from >= 0 && from % stride == 0 && y < Ho ? y % ring_out : -1;
    }
  }

  // f(b) for the columns of a window; three of them cost more to steer than to run.
  template <class F>
  INLINE void columns(F&& f) const {
    if constexpr (K_ == 3) {
      f(0), f(1), f(2);
    } else {
#pragma GCC unroll 1
      for (int b = 0; b < K; b++) f(b);
    }
  }
  // sum[i] = the windows' sums for outputs x + i, of cells.
  INLINE void window(const S* w, const S* from, int x, V<S> (&sum)[PX]) const {
    for (int i = 0; i < PX; i++) sum[i] = V<S>{};
    for (int a = 0; a < K; a++, w += K) {
      if (at[a] < 0) continue;
      const S* p = from + (at[a] * cells + ptrdiff_t(x) * stride) * N;
      columns([&](int b) INLINED {
        const V<S> wb = splat(w[b]);
        for (int i = 0; i < PX; i++) sum[i] += wb * load(p + (b + i * stride) * N);
      });
    }
  }
  // sum[i] = what outputs give to input column stride (x + i) + f, of cells.
  INLINE void window_back(const S* w, const S* from, int x, int f, V<S> (&sum)[PX]) const {
    for (int i = 0; i < PX; i++) sum[i] = V<S>{};
    for (int a = 0; a < K; a++, w += K) {
      if (at[a] < 0) continue;
      const S* p = from + (at[a] * cells_out + x) * N;
      const auto column = [&](int b, int j) INLINED {
        const V<S> wb = splat(w[b]);
        for (int i = 0; i < PX; i++) sum[i] += wb * load(p + (i - j) * N);
      };
      if constexpr (STRIDE_ == 1) {
        columns([&](int b) INLINED { column(b, b); });
      } else {
#pragma GCC unroll 1
        for (int b = f, j = 0; b < K; b += stride, j++) column(b, j);
      }
    }
  }
  // The same of planar rows: f(x, sum) for 4 vectors at a time, of columns [0, n). Column b of a
  // window is `way` b further on.
  template <class F>
  INLINE void planar(const S* w, const S* from, int way, int n, F&& f) const {
    for (int x = 0; x < n; x += 4 * N) {
      V<S> sum[4];
      for (int i = 0; i < 4; i++) sum[i] = V<S>{};
      const S* weights = w;
      for (int a = 0; a < K; a++, weights += K) {
        if (at[a] < 0) continue;
        const S* p = from + at[a] * pitch + x;
        columns([&](int b) INLINED {
          const V<S> wb = splat(weights[b]);
          for (int i = 0; i < 4; i++) sum[i] += wb * load(p + way * b + i * N);
        });
      }
      for (int i = 0; i < 4; i++) f(x + i * N, sum[i]);
    }
  }
  // f(x, sum over channels) for N of the n cells at a time.
  template <class F>
  static INLINE void over_channels(const S* cells, int n, F&& f) {
    for (int x = 0; x < n; x += N) {
      V<S> v[N];
      for (int i = 0; i < N; i++) v[i] = load(cells + (x + i) * N);
      transpose<S>(v);
      V<S> sum = v[0];
      for (int i = 1; i < N; i++) sum += v[i];
      f(x, sum);
    }
  }
  // sum[b] += over x of g[x] p[x + b]
  template <int NB>
  static INLINE void correlate(const S* g, const S* p, ptrdiff_t step, ptrdiff_t offset, int n,
                               S* to) {
    V<S> sum[NB];
    for (int b = 0; b < NB; b++) sum[b] = load(to + b * N);
#pragma GCC unroll 1
    for (int x = 0; x < n; x++, g += N, p += step) {
      const V<S> gx = load(g);
      for (int b = 0; b < NB; b++) sum[b] += gx * load(p + b * offset);
    }
    for (int b = 0; b < NB; b++) store(to + b * N, sum[b]);
  }

  // 1 / den of query l at all windows of a row. Whether all are exact.
  bool norms(int l, int h) {
    S* to = inverse + ptrdiff_t(l) * pitch;
    I<S> fine = ~I<S>{};
    planar(table(tables.power, l, h), powers_of(l, h), 1, last, [&](int x, V<S> total) INLINED {
      I<S> good = (I<S>)(total >= splat(LEAST<S>));
      store(to + x, keep<S>(good, S(1) / total));
      if (x + N > last) good |= ~lanes<S>(0, last - x);
      fine &= good;
    });
    return all_set<S>(fine);
  }
  // f(output) for those of query l whose window must be seen to on its own.
  template <class F>
  void each_alone(int l, F&& f) const {
    for (int x = 0; x < Wo; x++)
      if (inverse[ptrdiff_t(l) * pitch + x * stride] == 0) f(x);
  }
  // Output row y. `look` at it first.
  template <class E>
  void forward(const QnaPart& part, int y) {
    for (int h = 0; h < heads; h++) {
      bool fine[16];
      for (int l = 0; l < L; l++) fine[l] = norms(l, h);
      const int together = call.fold ? L : 1;
      for (int g = 0; g < L; g += together)
        for (int c = 0; c < nv; c++) {
          E* out = pixels<E>(call.out, part.b, alone.first_channel(part, g, h) + c * N, y);
          for (int x = 0; x < Wo; x += PX) {
            V<S> z[PX];
            for (int i = 0; i < PX; i++) z[i] = V<S>{};
            for (int l = g; l < g + together; l++) {
              V<S> sum[PX];
              window(table(tables.weighted, l, h), cells_of(l, h, c), x, sum);
              const S* scale = inverse + ptrdiff_t(l) * pitch + x * stride;
              for (int i = 0; i < PX; i++) z[i] += sum[i] * splat(scale[i * stride]);
            }
            const int n = min(PX, Wo - x);
            for (int i = 0; i < PX; i++)
              if (i < n) narrow(out + (x + i) * call.out.column, z[i]);
          }
        }
      for (int l = 0; l < L; l++)
        if (!fine[l]) each_alone(l, [&](int x) { alone.template forward<E>(part, l, h, y, x); });
    }
  }
  // Output row y: g', u', and sums over its pixels if it is this task's `own`.
  template <class E>
  void backward_outputs(const QnaPart& part, int y, bool own) {
    const int slot = y % ring_out;
    for (int h = 0; h < heads; h++)
      for (int l = 0; l < L; l++) {
        const bool fine = norms(l, h);
        const S* scale = inverse + ptrdiff_t(l) * pitch;
        for (int c = 0; c < nv; c++) {
          const E* g = pixels<E>(call.gout, part.b, alone.first_channel(part, l, h) + c * N, y);
          S* share = shares_of(l, h, c) + slot * row_out();
          for (int x = 0; x < Wo; x += PX) {
            V<S> sum[PX];
            window(table(tables.weighted, l, h), cells_of(l, h, c), x, sum);
            const int n = min(PX, Wo - x);
            for (int i = 0; i < n; i++) {
              const V<S> z =
                  widen(g + (x + i) * call.gout.column) * splat(scale[(x + i) * stride]);
              store(share + (x + i) * N, z);
              S* to = dots + (x + i) * N;
              store(to, c ? load(to) + z * sum[i] : z * sum[i]);
            }
          }
        }
        S* to = u_of(l, h) + ptrdiff_t(slot) * pitch;
        over_channels(dots, Wo, [&](int x, V<S> sum) INLINED {
          if (stride == 1) {
            const V<S> z = sum * load(scale + x);
            store(to + x, x + N <= Wo ? z : keep<S>(lanes<S>(0, Wo - x), z));
          } else {
            for (int i = 0; i < min(N, Wo - x); i++)
              to[(x + i) * stride] = sum[i] * scale[(x + i) * stride];
          }
        });
        if (own) correlate_row(l, h, slot);
        if (!fine)
          each_alone(l, [&](int x) { alone.template backward<E>(part, l, h, y, x, own); });
      }
  }
  // t(ab) += sum over pixels of g' (e^s v)(ab),  ue(ab) += sum over pixels of u' (e^s)(ab)
  void correlate_row(int l, int h, int slot) {
    for (int a = 0; a < K; a++) {
      if (at[a] < 0) continue;
      for (int b = 0; b < K; b += 7)
        pick<7>(min(7, K - b), [&](auto nb) INLINED {
          constexpr int NB = decltype(nb)::value;
          const size_t to = (size_t(channel(l, h)) * KK + a * K + b) * N;
          for (int c = 0; c < nv; c++)
            correlate<NB>(shares_of(l, h, c) + slot * row_out(),
                          cells_of(l, h, c) + at[a] * row() + b * N, ptrdiff_t(stride) * N, N, Wo,
                          t + to);
          correlate<NB>(u_of(l, h) + ptrdiff_t(slot) * pitch,
                        powers_of(l, h) + at[a] * pitch + b, N, 1, (last + N - 1) / N, ue + to);
        });
    }
  }
  // Both nearly cancel: that is why a few rows' come together before they meet those of others.
  void flush() {
    for (size_t j = 0; j < size_t(L) * heads * KK; j++) {
      const S tj = sum<S>(load(t + j * N));
      dbias[j] += tables.weight[j] * tj - sum<S>(load(ue + j * N));
      dweight[j] += tj;
      store(t + j * N, V<S>{});
      store(ue + j * N, V<S>{});
    }
  }
  void finish(const QnaPart& part) {
    flush();
    for (int l = 0; l < L; l++)
      for (int h = 0; h < heads; h++)
        for (int j = 0; j < KK; j++) {
          const size_t from = size_t(channel(l, h)) * KK + j;
          const size_t to = size_t(j) * L * call.heads + l * call.heads + part.head + h;
          alone.partial[to] += tables.power[from] * dbias[from];
          alone.partial[size_t(L) * call.heads * KK + to] += tables.power[from] * dweight[from];
        }
  }

  // Input row r, which all outputs that look at it have been through. `look_back` from it first.
  template <class E>
  void backward_inputs(const QnaPart& part, int r) {
    const int slot = r % ring;
    for (int h = 0; h < heads; h++) {
      for (int l = 0; l < L; l++) {
        S* to = turned + ptrdiff_t(l) * pitch;
        planar(table(tables.power, l, h), u_of(l, h) + padding, -1, W,
               [&](int x, V<S> sum) INLINED { store(to + x, sum); });
      }
      for (int c = 0; c < nv; c++) {
        E* dv = pixels<E>(call.dv, part.b, (part.head + h) * d + c * N, r);
        for (int f = 0; f < stride; f++) {
          const int from = max(0, padding - f + stride - 1) / stride;
          const int to = (padding + W - f + stride - 1) / stride;
          for (int x = from; x < to; x += PX) {
            V<S> z[PX];
            for (int i = 0; i < PX; i++) z[i] = V<S>{};
            for (int l = 0; l < L; l++) {
              V<S> sum[PX];
              window_back(table(tables.weighted, l, h), shares_of(l, h, c), x, f, sum);
              const int first = x * stride + f;  // column of the ring
              const S* power = powers_of(l, h) + ptrdiff_t(slot) * pitch + first;
              const S* cell = cells_of(l, h, c) + slot * row() + ptrdiff_t(first) * N;
              S* dot = dots + l * dots_row() + ptrdiff_t(first - padding) * N;
              for (int i = 0; i < PX; i++) {
                z[i] += sum[i] * splat(power[i * stride]);
                const V<S> product = sum[i] * load(cell + i * stride * N);
                S* at = dot + i * stride * N;
                store(at, c ? load(at) + product : product);
              }
            }
            const int n = min(PX, to - x);
            for (int i = 0; i < PX; i++)
              if (i < n) narrow(dv + ((x + i) * stride + f - padding) * call.dv.column, z[i]);
          }
        }
      }
      for (int l = 0; l < L; l++) {
        const S* power = powers_of(l, h) + ptrdiff_t(slot) * pitch + padding;
        const S* back = turned + ptrdiff_t(l) * pitch;
        S* to = dscores + ptrdiff_t(channel(l, h)) * pitch;
        over_channels(dots + l * dots_row(), W, [&](int x, V<S> sum) INLINED {
          store(to + x, sum - load(power + x) * load(back + x));
        });
      }
    }
    for (int l = 0; l < L; l++)
      unpack<E>(call.ds, part.b, l * call.heads + part.head, heads, r, 0, W, pitch, S(1),
                dscores + ptrdiff_t(l) * heads * pitch);
    alone.template settle<E>(part, r);
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
