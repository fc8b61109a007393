// QnA's aggregation by windowed sums, lanes along channels: the steps that qna_channels.h strings
// together.
//
// Inputs of a head wait in rings, N channels of a pixel side by side ("cells"); whatever is one
// number per pixel (scores, powers, sums of them) is planar, as elsewhere, from column -padding on.
#pragma once
#include "qna_alone.h"
#include "qna_windows.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_ = 0, int STRIDE_ = 0>
struct QnaChannels : QnaWindows<S, K_, STRIDE_> {
  using Windows = QnaWindows<S, K_, STRIDE_>;
  using Windows::K, Windows::KK, Windows::stride, Windows::N, Windows::HALF, Windows::PX;
  using Windows::at, Windows::cells, Windows::cells_out, Windows::pitch;
  using Windows::window, Windows::window_back, Windows::planar, Windows::over_channels;
  static constexpr int FLUSH = 8;  // rows whose sums over pixels come together before the rest
  const Qna& call;
  int d, L, H, W, Ho, Wo, padding, heads, nv, ring, ring_out, reach;
  int last;                // columns of windows: the last one's, plus one
  int seen_rows, seen_columns;  // what lies beyond is in no window, and counts as zero

  QnaTables<S> tables;
  S *scores, *e, *ev;  // one row of s; rings of e^s and e^s v
  S* inverse;          // 1 / den of a row, by query; 0 where a window is on its own
  // backward
  S *shares, *u;        // rings of output rows: g' in cells; u', at the window's first column
  S *dots, *turned;     // cells to be summed over channels, by query; sums of u'
  S* dscores;           // one row of ds
  S *t, *ue;            // sums over pixels since the last flush, in lanes
  QnaAlone<S> alone;

  QnaChannels(const Qna& c, int heads_)
      : Windows(c), call(c), d(c.d), L(c.queries), H(c.H), W(c.W), Ho(c.Ho), Wo(c.Wo),
        padding(c.padding), heads(heads_), nv(c.d / N), ring(K), reach((K - 1) / c.stride),
        alone(c, tables, heads_, K) {
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
  void prepare(const QnaPart& part) {
    tables.fill(call, part.head, heads);
    tables.template scan<E>(call, part, 0, H, 0, W);
    zero(e, size_t(L) * heads * ring * pitch);
    zero(ev, size_t(L) * heads * nv * ring * row());
  }
  void prepare_backward() {
    const size_t channels = size_t(L) * heads;
    zero(shares, channels * nv * ring_out * row_out());
    zero(u, channels * ring_out * pitch);
    zero(t, channels * KK * N);
    zero(ue, channels * KK * N);
  }

  // n pixels of a row, soon to be read head by head: too far apart for a processor to foresee it.
  template <class E>
  static INLINE void fetch_row(const Map& map, int b, int channel, int channels, int y, int n) {
    const E* from = pixels<E>(map, b, channel, y);
    for (int x = 0; x < n; x++) fetch(from + x * map.column, channels * sizeof(E));
  }
  // Row y of the inputs enters the rings.
  template <class E>
  void enter(const QnaPart& part, int y) {
    const int slot = y % ring;
    alone.dirty[slot] = false;
    for (int l = 0; l < L; l++)
      pack<E>(call.s, part.b, l * call.heads + part.head, heads, y, 0, W, pitch, 2 * call.s.row,
              S(1), scores + ptrdiff_t(l) * heads * pitch);
    fetch_row<E>(call.v, part.b, part.head * d, heads * d, y + 2, W);
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
      for (int c = 0; c < nv; c++)
        pick<4>(L, [&](auto queries) INLINED {
          raise<E, decltype(queries)::value>(part, y, h, c);
        });
    }
  }
  // N channels of a row of values times e^s, for every query. What no window sees is zero, and not
  // zero times whatever it is.
  template <class E, int QUERIES>
  INLINE void raise(const QnaPart& part, int y, int h, int c) {
    const E* v = pixels<E>(call.v, part.b, (part.head + h) * d + c * N, y);
    const ptrdiff_t step = call.v.column, slot = y % ring;
    const S* power[QUERIES];
    S* to[QUERIES];
    for (int l = 0; l < QUERIES; l++) {
      power[l] = powers_of(l, h) + slot * pitch + padding;
      to[l] = cells_of(l, h, c) + slot * row() + ptrdiff_t(padding) * N;
    }
    const int seen = y < seen_rows ? seen_columns : 0;
    for (int x = 0; x < seen; x++, v += step) {
      const V<S> cell = widen(v);
      for (int l = 0; l < QUERIES; l++) store(to[l] + x * N, splat(power[l][x]) * cell);
    }
    for (int l = 0; l < QUERIES; l++) zero(to[l] + ptrdiff_t(seen) * N, size_t(W - seen) * N);
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
          const ptrdiff_t step = call.out.column;
          Windows::template blocks_of<PX>(0, Wo, [&](int x, auto cells) INLINED {
            constexpr int P = decltype(cells)::value;
            V<S> z[P];
            for (int i = 0; i < P; i++) z[i] = V<S>{};
            for (int l = g; l < g + together; l++) {
              V<S> sum[P];
              window(table(tables.weighted, l, h), cells_of(l, h, c), x, sum);
              const S* scale = inverse + ptrdiff_t(l) * pitch + x * stride;
              for (int i = 0; i < P; i++) z[i] += sum[i] * splat(scale[i * stride]);
            }
            E* to = out + x * step;
            Windows::template first<P>(Wo - x, [&](auto i) INLINED {
              narrow(to + i * step, z[i]);
            });
          });
        }
      for (int l = 0; l < L; l++)
        if (!fine[l]) each_alone(l, [&](int x) { alone.template forward<E>(part, l, h, y, x); });
    }
  }
  // Output row y: g', u', and sums over its pixels if it is this task's `own`.
  template <class E>
  void backward_outputs(const QnaPart& part, int y, bool own) {
    const int slot = y % ring_out;
    const bool known = call.out.data && L == 1 && call.out.channel == 1;  // out need not be found
    const int groups = call.fold ? 1 : L;
    for (int g = 0; g < groups; g++)
      fetch_row<E>(call.gout, part.b, alone.first_channel(part, g, 0), heads * d, y + 1, Wo);
    if (known) fetch_row<E>(call.out, part.b, part.head * d, heads * d, y + 1, Wo);
    for (int h = 0; h < heads; h++)
      for (int l = 0; l < L; l++) {
        const bool fine = norms(l, h);
        const S* scale = inverse + ptrdiff_t(l) * pitch;
        for (int c = 0; c < nv; c++) {
          const int channel = alone.first_channel(part, l, h) + c * N;
          const E* g = pixels<E>(call.gout, part.b, channel, y);
          const E* o = known ? pixels<E>(call.out, part.b, channel, y) : nullptr;
          S* share = shares_of(l, h, c) + slot * row_out();
          const ptrdiff_t step = call.gout.column, step_o = call.out.column;
          Windows::template blocks_of<PX>(0, Wo, [&](int x, auto cells) INLINED {
            constexpr int P = decltype(cells)::value;
            const E* from = g + x * step;
            const S* factor = scale + x * stride;
            S *to = share + ptrdiff_t(x) * N, *dot = dots + ptrdiff_t(x) * N;
            const auto each = [&](auto i, V<S> sum) INLINED {
              const V<S> z = widen(from + i * step) * splat(factor[i * stride]);
              store(to + i * N, z);
              store(dot + i * N, c ? load(dot + i * N) + z * sum : z * sum);
            };
            if (known) {
              const E* out = o + x * step_o;
              Windows::template first<P>(Wo - x, [&](auto i) INLINED {
                each(i, widen(out + i * step_o));
              });
            } else {
              V<S> sum[P];
              window(table(tables.weighted, l, h), cells_of(l, h, c), x, sum);
              Windows::template first<P>(Wo - x, [&](auto i) INLINED {
                each(i, sum[i] * splat(factor[i * stride]));
              });
            }
          });
        }
        S* to = u_of(l, h) + ptrdiff_t(slot) * pitch;
        over_channels(dots, Wo, [&](int x, V<S> z) INLINED {
          if (stride == 1)
            store(to + x, x + N <= Wo ? z : keep<S>(lanes<S>(0, Wo - x), z));
          else
            for (int i = 0; i < min(N, Wo - x); i++) to[(x + i) * stride] = z[i];
        });
        if (own) correlate_row(l, h, slot);
        if (!fine)
          each_alone(l, [&](int x) { alone.template backward<E>(part, l, h, y, x, own); });
      }
  }
  // t(ab) += sum over pixels of g' (e^s v)(ab),  ue(ab) += sum over pixels of u' (e^s)(ab)
  void correlate_row(int l, int h, int slot) {
    const size_t first = size_t(channel(l, h)) * KK * N;
    if constexpr (K_ > 0 && STRIDE_ == 1) {
      constexpr int MOST = min(K_, max(1, (REGISTERS - 4) / max(1, K_)));  // rows in registers
      int a = 0, end = K;  // a window's rows inside the image are neighbours
      while (a < K && at[a] < 0) a++;
      while (end > a && at[end - 1] < 0) end--;
      for (; a < end; a += min(MOST, end - a))
        pick<MOST>(min(MOST, end - a), [&](auto rows) INLINED {
          for (int c = 0; c < nv; c++) {
            const S* p[MOST];
            for (int r = 0; r < rows; r++) p[r] = cells_of(l, h, c) + at[a + r] * row();
            Windows::template correlate_rows<decltype(rows)::value>(
                shares_of(l, h, c) + slot * row_out(), p, Wo, t + first + a * K * N);
          }
        });
    }
    for (int a = 0; a < K; a++) {
      if (at[a] < 0) continue;
      for (int b = 0; b < K; b += 7)
        pick<7>(min(7, K - b), [&](auto nb) INLINED {
          constexpr int NB = decltype(nb)::value;
          const size_t to = first + (a * K + b) * N;
          for (int c = 0; c < nv && !(K_ > 0 && STRIDE_ == 1); c++)
            Windows::template correlate<NB>(shares_of(l, h, c) + slot * row_out(),
                          cells_of(l, h, c) + at[a] * row() + b * N, ptrdiff_t(stride) * N, N, Wo,
                          t + to);
          Windows::template correlate<NB>(u_of(l, h) + ptrdiff_t(slot) * pitch,
                        powers_of(l, h) + at[a] * pitch + b, N, 1, (last + N - 1) / N, ue + to);
        });
    }
  }
  // To the share of dbias and dweight that the rows since the last time belong to. The terms of
  // dbias nearly cancel: that is why those of a few rows come together before they meet others.
  void flush(const QnaPart& part) {
    const size_t all = size_t(L) * call.heads;
    for (int l = 0; l < L; l++)
      for (int h = 0; h < heads; h++)
        for (int j = 0; j < KK; j++) {
          const size_t from = size_t(channel(l, h)) * KK + j;
          S* to = alone.partial + j * all + l * call.heads + part.head + h;
          const S tj = sum<S>(load(t + from * N)), power = tables.power[from];
          to[0] += power * (tables.weight[from] * tj - sum<S>(load(ue + from * N)));
          to[all * KK] += power * tj;
          store(t + from * N, V<S>{});
          store(ue + from * N, V<S>{});
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
          const ptrdiff_t step = stride * call.dv.column;
          E* first_of = dv + (f - padding) * call.dv.column;
          const auto block = [&](int x, auto cells, auto queries) INLINED {
            constexpr int P = decltype(cells)::value;
            V<S> z[P];
            repeat<decltype(queries)::value>([&](auto l) INLINED {
              V<S> sum[P];
              window_back(table(tables.weighted, l, h), shares_of(l, h, c), x, f, sum);
              const int column = x * stride + f;  // of the ring
              const S* power = powers_of(l, h) + ptrdiff_t(slot) * pitch + column;
              const S* cell = cells_of(l, h, c) + slot * row() + ptrdiff_t(column) * N;
              S* dot = dots + l * dots_row() + ptrdiff_t(column - padding) * N;
              for (int i = 0; i < P; i++) {
                const V<S> share = sum[i] * splat(power[i * stride]);
                z[i] = l ? z[i] + share : share;
                const V<S> product = sum[i] * load(cell + i * stride * N);
                S* at = dot + i * stride * N;
                store(at, c ? load(at) + product : product);
              }
            });
            E* at = first_of + x * step;
            Windows::template first<P>(to - x, [&](auto i) INLINED {
              narrow(at + i * step, z[i]);
            });
          };
          if (L == 1)
            Windows::template blocks_of<PX>(from, to, [&](int x, auto n) INLINED {
              block(x, n, Int<1>{});
            });
          else  // two blocks of sums
            Windows::template blocks_of<HALF>(from, to, [&](int x, auto n) INLINED {
              block(x, n, Int<2>{});
            });
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
