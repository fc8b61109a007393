// QnA's aggregation by windowed sums, lanes along channels: the steps that qna_channels.h strings
// together.
//
// Inputs wait in rings, M channels of a pixel side by side (cells.h), whosever they are: a cell is
// filled by a part of a head, or by two heads. Whatever a head has one number of per pixel (scores,
// powers, sums of them) is planar, as elsewhere, from column -padding on.
#pragma once
#include "qna_alone.h"
#include "qna_windows.h"

namespace saccade {
namespace SACCADE_ISA {

// n pixels of a row, soon to be read cell by cell: too far apart for a processor to foresee it.
template <class E>
INLINE void fetch_row(const Map& map, int b, int channel, int channels, int y, int n) {
  const E* from = pixels<E>(map, b, channel, y);
  for (int x = 0; x < n; x++) fetch(from + x * map.column, channels * sizeof(E));
}

template <class S, int K_ = 0, int STRIDE_ = 0>
struct QnaChannels : QnaWindows<S, K_, STRIDE_> {
  using Windows = QnaWindows<S, K_, STRIDE_>;
  using Windows::K, Windows::KK, Windows::stride, Windows::N, Windows::M, Windows::PX;
  using Windows::at, Windows::cells, Windows::pitch, Windows::window, Windows::planar;
  const Qna& call;
  int d, L, H, W, Ho, Wo, padding, heads, ring;
  int count;                    // cells of a pixel; the last may be half empty
  int kinds;                    // of cells: those of one head share weights
  int last;                     // columns of windows: the last one's, plus one
  int seen_rows, seen_columns;  // what lies beyond is in no window, and counts as zero

  QnaTables<S> tables;
  S* weighted;         // e^bias weight, by query and kind, as cells
  S *scores, *e, *ev;  // one row of s; rings of e^s and e^s v
  S* inverse;          // 1 / den of a row; 0 where a window is on its own
  QnaAlone<S> alone;

  QnaChannels(const Qna& c, int heads_)
      : Windows(c), call(c), d(c.d), L(c.queries), H(c.H), W(c.W), Ho(c.Ho), Wo(c.Wo),
        padding(c.padding), heads(heads_), ring(K), count((heads_ * d + M - 1) / M),
        kinds(d % M ? count : heads_), alone(c, tables, heads_, K) {
    last = (Wo - 1) * stride + 1;
    cells = max((Wo - 1 + PX) * stride + K, padding + W + PX * stride);
    pitch = pitch_for(max(round_up(max(last, W), 4 * N) + padding + 2 * K + N,
                          max(last, padding + W) + PX * stride));
    seen_rows = min(H, (Ho - 1) * stride + K - padding);
    seen_columns = min(W, last - 1 + K - padding);
  }

  void carve(Carver<S>& from) {
    const size_t channels = size_t(L) * heads;
    tables.carve(from, channels, KK);
    weighted = from.take(size_t(L) * kinds * KK * M);
    scores = from.take(channels * pitch);
    e = from.take(channels * ring * pitch);
    ev = from.take(size_t(L) * count * ring * row());
    inverse = from.take(channels * pitch);
  }
  size_t row() const { return size_t(cells) * M; }

  int channel(int l, int h) const { return l * heads + h; }
  int head_of(int c, int i) const { return min(heads - 1, (c * M + i * N) / d); }  // in half i
  bool whole(int c) const { return HALVES<S> == 1 || (c + 1) * M <= heads * d; }
  // f(half, head, whether it is the head's first) for the halves of cell c. Returns how many.
  template <class F>
  INLINE int halves(int c, F&& f) const {
    const int filled = whole(c) ? HALVES<S> : 1;
    for (int i = 0; i < filled; i++) f(i, head_of(c, i), (c * M + i * N) % d == 0);
    return filled;
  }
  S* cells_of(int l, int c) const { return ev + (size_t(l) * count + c) * ring * row(); }
  size_t kind(int l, int c) const {
    return (size_t(l) * kinds + (d % M ? c : c * M / d)) * KK * M;
  }
  S* powers_of(int l, int h) const { return e + size_t(channel(l, h)) * ring * pitch; }
  S* inverse_of(int l, int h) const { return inverse + size_t(channel(l, h)) * pitch; }
  const S* table(const S* of, int l, int h) const { return of + size_t(channel(l, h)) * KK; }
  Spread<S> powers_in(int l, int c) const {
    return {powers_of(l, head_of(c, 0)), powers_of(l, head_of(c, HALVES<S> - 1))};
  }
  Spread<S> inverse_in(int l, int c) const {
    return {inverse_of(l, head_of(c, 0)), inverse_of(l, head_of(c, HALVES<S> - 1))};
  }
  int top(int y) const { return stride * y - padding; }

  template <class E>
  void prepare(const QnaPart& part) {
    tables.fill(call, part.head, heads);
    tables.template scan<E>(call, part, 0, H, 0, W);
    for (int l = 0; l < L; l++)
      for (int c = 0; c < count; c++)
        for (int i = 0; i < HALVES<S>; i++)
          for (int j = 0; j < KK; j++)
            store(weighted + kind(l, c) + j * M + i * N,
                  splat(table(tables.weighted, l, head_of(c, i))[j]));
    zero(e, size_t(L) * heads * ring * pitch);
    for (size_t i = 0; i < size_t(L) * count * ring; i++)
      clear_margins(ev + i * row(), padding, padding + W, cells);
  }
  // What no row will ever fill of n cells: those outside [from, to).
  static INLINE void clear_margins(S* p, int from, int to, int n) {
    zero(p, size_t(from) * M);
    zero(p + ptrdiff_t(to) * M, size_t(n - to) * M);
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
    }
    for (int c = 0; c < count; c++)
      pick<4>(L, [&](auto queries) INLINED {
        raise<E, decltype(queries)::value>(part, y, c);
      });
  }
  // A cell of each value of a row times e^s, for every query. What no window sees is zero, and not
  // zero times whatever it is.
  template <class E, int QUERIES>
  INLINE void raise(const QnaPart& part, int y, int c) {
    const E* v = pixels<E>(call.v, part.b, part.head * d + c * M, y);
    const ptrdiff_t step = call.v.column, slot = y % ring;
    const bool all = whole(c);
    Spread<S> power[QUERIES];
    S* to[QUERIES];
    for (int l = 0; l < QUERIES; l++) {
      power[l] = powers_in(l, c) + (slot * pitch + padding);
      to[l] = cells_of(l, c) + slot * row() + ptrdiff_t(padding) * M;
    }
    const int seen = y < seen_rows ? seen_columns : 0;
    for (int x = 0; x < seen; x++, v += step) {
      const Cell<S> cell = widen_cell(v, all);
      for (int l = 0; l < QUERIES; l++) store_cell(to[l] + x * M, power[l][x] * cell);
    }
    for (int l = 0; l < QUERIES; l++) zero(to[l] + ptrdiff_t(seen) * M, size_t(W - seen) * M);
  }

  // The rows that windows of output row y look at.
  void look(int y) {
    for (int a = 0; a < K; a++) {
      const int r = top(y) + a;
      at[a] = r >= 0 && r < H ? r % ring : -1;
    }
  }

  // 1 / den of query l at all windows of a row. Whether all are exact.
  bool norms(int l, int h) {
    S* to = inverse_of(l, h);
    I<S> fine = ~I<S>{};
    planar(table(tables.power, l, h), powers_of(l, h), 1, last, [&](int x, V<S> total) INLINED {
      I<S> good = (I<S>)(total >= splat(LEAST<S>));
      store(to + x, keep<S>(good, S(1) / total));
      if (x + N > last) good |= ~lanes<S>(0, last - x);
      fine &= good;
    });
    return all_set<S>(fine);
  }
  // f(head, output) for those of query l whose window must be seen to on its own.
  template <class F>
  void each_alone(int l, F&& f) const {
    for (int h = 0; h < heads; h++)
      for (int x = 0; x < Wo; x++)
        if (inverse_of(l, h)[x * stride] == 0) f(h, x);
  }
  // Output row y. `look` at it first.
  template <class E>
  void forward(const QnaPart& part, int y) {
    bool fine[16];
    for (int l = 0; l < L; l++) {
      fine[l] = true;
      for (int h = 0; h < heads; h++) fine[l] &= norms(l, h);
    }
    const int together = call.fold ? L : 1;
    for (int g = 0; g < L; g += together)
      for (int c = 0; c < count; c++) {
        E* out = pixels<E>(call.out, part.b, alone.first_channel(part, g, 0) + c * M, y);
        const ptrdiff_t step = call.out.column;
        const bool all = whole(c);
        Windows::template blocks_of<PX>(0, Wo, [&](int x, auto cells) INLINED {
          constexpr int P = decltype(cells)::value;
          Cell<S> z[P];
          for (int i = 0; i < P; i++) z[i] = Cell<S>{};
          for (int l = g; l < g + together; l++) {
            Cell<S> sum[P];
            window(weighted + kind(l, c), cells_of(l, c), x, sum);
            const Spread<S> scale = inverse_in(l, c) + x * stride;
            for (int i = 0; i < P; i++) z[i] += sum[i] * scale[i * stride];
          }
          E* to = out + x * step;
          Windows::template first<P>(Wo - x, [&](auto i) INLINED {
            narrow_cell<S>(to + i * step, z[i], all);
          });
        });
      }
    for (int l = 0; l < L; l++)
      if (!fine[l])
        each_alone(l, [&](int h, int x) { alone.template forward<E>(part, l, h, y, x); });
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
