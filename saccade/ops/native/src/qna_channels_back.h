// QnA's aggregation by windowed sums, lanes along channels, backward: the steps that qna_channels.h
// strings together, after those of the forward.
#pragma once
#include "qna_channels_tile.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_ = 0, int STRIDE_ = 0>
struct QnaChannelsBack : QnaChannels<S, K_, STRIDE_> {
  using Tile = QnaChannels<S, K_, STRIDE_>;
  using Windows = QnaWindows<S, K_, STRIDE_>;
  using Windows::K, Windows::KK, Windows::stride, Windows::N, Windows::M;
  using Windows::HALF, Windows::PX, Windows::at, Windows::cells_out, Windows::pitch;
  using Windows::window, Windows::window_back, Windows::planar, Windows::over_channels;
  using Tile::alone, Tile::call, Tile::tables, Tile::weighted;
  using Tile::d, Tile::L, Tile::W, Tile::Ho, Tile::Wo, Tile::padding, Tile::heads, Tile::ring;
  using Sums = V<S>[HALVES<S>];  // by its name: `auto&` would assume more alignment than V has
  using Tile::cells_of, Tile::channel, Tile::clear_margins, Tile::count, Tile::each_alone;
  using Tile::halves, Tile::inverse_in, Tile::kind, Tile::kinds, Tile::last, Tile::norms;
  using Tile::powers_in, Tile::powers_of, Tile::row, Tile::table, Tile::whole;
  static constexpr int FLUSH = 8;  // rows whose sums over pixels come together before the rest
  static constexpr int MOST_QUERIES = HALVES<S> + 1;  // that cost less than a softmax
  // Neighbouring cells are at hand together, so that sums over channels need not wait in memory.
  static constexpr bool DENSE = STRIDE_ == 1;
  int reach, ring_out;  // output rows
  S *shares, *u;     // rings of output rows: g' in cells; u', at the window's first column
  S *dots, *turned;  // cells to be summed over channels, by query; sums of u'
  S* dscores;        // one row of ds
  S *t, *ue;         // sums over pixels since the last flush: by kind, by head, in lanes
  S* sums;           // both, by head

  QnaChannelsBack(const Qna& c, int heads_)
      : Tile(c, heads_), reach((K - 1) / c.stride), ring_out(reach + 1) {
    cells_out = 2 * K + max(Wo, (W - 1 + padding) / stride + 1) + 2 * PX;
  }
  // Returns what is needed all the time; `late`, which seldom is, comes behind.
  size_t carve(Carver<S>& from) {
    const size_t channels = size_t(L) * heads;
    Tile::carve(from);
    shares = from.take(size_t(L) * count * ring_out * row_out());
    u = from.take(channels * ring_out * pitch);
    dots = from.take(L * dots_row());
    turned = from.take(channels * pitch);
    dscores = from.take(channels * pitch);
    t = from.take(size_t(L) * kinds * KK * M);
    ue = from.take(channels * KK * M);
    sums = from.take(size_t(2) * round_up(KK, N) * heads + N * M);  // ue is read N cells at once
    const size_t often = from.used;
    alone.late = from.take(ring * alone.row());
    return often;
  }
  size_t row_out() const { return size_t(cells_out) * M; }
  size_t dots_row() const { return size_t(max(W, last) + 2 * PX * stride + N) * M; }
  S* shares_of(int l, int c) const {
    return shares + (size_t(l) * count + c) * ring_out * row_out() + ptrdiff_t(K) * M;
  }
  S* u_of(int l, int h) const { return u + size_t(channel(l, h)) * ring_out * pitch + K - 1; }

  void prepare_backward() {
    for (size_t i = 0; i < size_t(L) * count * ring_out; i++)
      clear_margins(shares + i * row_out(), K, K + Wo, cells_out);
    zero(u, size_t(L) * heads * ring_out * pitch);
    zero(t, size_t(L) * kinds * KK * M);
    zero(ue, size_t(L) * heads * KK * M);
  }

  // The rows of outputs that look at input row r.
  void look_back(int r) {
    for (int a = 0; a < K; a++) {
      const int from = r + padding - a, y = from / stride;
      at[a] = from >= 0 && from % stride == 0 && y < Ho ? y % ring_out : -1;
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
    for (int l = 0; l < L; l++) {
      bool fine = true;
      for (int h = 0; h < heads; h++) fine &= norms(l, h);
      for (int c = 0; c < count; c++) {
        const int channel = alone.first_channel(part, l, 0) + c * M;
        const E* g = pixels<E>(call.gout, part.b, channel, y);
        const E* o = known ? pixels<E>(call.out, part.b, channel, y) : nullptr;
        S* share = shares_of(l, c) + slot * row_out();
        const ptrdiff_t step = call.gout.column, step_o = call.out.column;
        const Spread<S> scale = inverse_in(l, c);
        const bool all = whole(c);
        S* us[HALVES<S>];
        bool first[HALVES<S>];
        const int filled = halves(c, [&](int i, int h, bool first_of) INLINED {
          us[i] = u_of(l, h) + ptrdiff_t(slot) * pitch;
          first[i] = first_of;
        });
        const auto finish = [&](int x, Sums& sum) INLINED {  // u' from x on
          for (int i = 0; i < filled; i++) {
            S* to = us[i] + ptrdiff_t(x) * stride;
            const V<S> z = sum[i];
            if (stride == 1) {
              const V<S> sure = DENSE || x + N <= Wo ? z : keep<S>(lanes<S>(0, Wo - x), z);
              store(to, first[i] ? sure : load(to) + sure);
            } else {
              for (int j = 0; j < min(N, Wo - x); j++)
                to[j * stride] = first[i] ? z[j] : to[j * stride] + z[j];
            }
          }
        };
        Windows::template blocks_of<PX>(0, Wo, [&](int x, auto cells) INLINED {
          constexpr int P = decltype(cells)::value;
          const E* from = g + x * step;
          const Spread<S> factor = scale + x * stride;
          S* to = share + ptrdiff_t(x) * M;
          Cell<S> product[P];
          const auto each = [&](auto i, Cell<S> sum) INLINED {
            const Cell<S> z = widen_cell(from + i * step, all) * factor[i * stride];
            store_cell(to + i * M, z);
            product[i] = z * sum;
            if (!DENSE) store_cell(dots + ptrdiff_t(x + i) * M, product[i]);
          };
          if (DENSE && x + P > Wo)
            for (int i = 0; i < P; i++) product[i] = Cell<S>{};
          if (known) {
            const E* out = o + x * step_o;
            Windows::template first<P>(Wo - x, [&](auto i) INLINED {
              each(i, widen_cell(out + i * step_o, all));
            });
          } else {
            Cell<S> sum[P];
            window(weighted + kind(l, c), cells_of(l, c), x, sum);
            Windows::template first<P>(Wo - x, [&](auto i) INLINED {
              each(i, sum[i] * factor[i * stride]);
            });
          }
          if (DENSE)
            over_channels(product, [&](int i, Sums& sum) INLINED { finish(x + i, sum); });
        });
        if (!DENSE) over_channels(dots, Wo, finish);
        if (own) correlate_cells(l, c, slot);
      }
      for (int h = 0; own && h < heads; h++) correlate_powers(l, h, slot);
      if (!fine)
        each_alone(l, [&](int h, int x) { alone.template backward<E>(part, l, h, y, x, own); });
    }
  }
  // t(ab) += sum over pixels of g' (e^s v)(ab)
  void correlate_cells(int l, int c, int slot) {
    const S *g = shares_of(l, c) + slot * row_out(), *from = cells_of(l, c);
    S* to = t + kind(l, c);
    if constexpr (K_ > 0 && STRIDE_ == 1)
      each_few([&](int a, auto rows) INLINED {
        const S* p[decltype(rows)::value];
        for (int r = 0; r < rows; r++) p[r] = from + at[a + r] * row();
        Windows::template correlate_rows<decltype(rows)::value>(g, p, Wo, to + a * K * M);
      });
    else
      each_seven([&](int a, int b, auto nb) INLINED {
        Windows::template correlate<decltype(nb)::value>(
            g, from + at[a] * row() + b * M, ptrdiff_t(stride) * M, Wo, to + (a * K + b) * M);
      });
  }
  // ue(ab) += sum over pixels of u' (e^s)(ab)
  void correlate_powers(int l, int h, int slot) {
    const S *g = u_of(l, h) + ptrdiff_t(slot) * pitch, *from = powers_of(l, h);
    S* to = ue + size_t(channel(l, h)) * KK * M;
    if constexpr (K_ > 0)
      each_few([&](int a, auto rows) INLINED {
        const S* p[decltype(rows)::value];
        for (int r = 0; r < rows; r++) p[r] = from + at[a + r] * pitch;
        Windows::template correlate_planar<decltype(rows)::value, K_>(g, p, last,
                                                                      to + a * K * M, K);
      });
    else
      each_seven([&](int a, int b, auto nb) INLINED {
        const S* p = from + at[a] * pitch + b;
        Windows::template correlate_planar<1, decltype(nb)::value>(g, &p, last,
                                                                   to + (a * K + b) * M, K);
      });
  }
  // f(a, Int<rows>) for a few rows of a window from a on: as many as have their sums in registers.
  template <class F>
  INLINE void each_few(F&& f) const {
    constexpr int MOST = min(K_, max(1, (REGISTERS - 4) / max(1, K_)));
    int a = 0, end = K;  // a window's rows inside the image are neighbours
    while (a < K && at[a] < 0) a++;
    while (end > a && at[end - 1] < 0) end--;
    for (; a < end; a += min(MOST, end - a))
      pick<MOST>(min(MOST, end - a), [&](auto rows) INLINED { f(a, rows); });
  }
  // f(a, b, Int<n>) for n <= 7 columns from b on of each row a of a window.
  template <class F>
  INLINE void each_seven(F&& f) const {
    for (int a = 0; a < K; a++)
      for (int b = 0; at[a] >= 0 && b < K; b += 7)
        pick<7>(min(7, K - b), [&](auto nb) INLINED { f(a, b, nb); });
  }
  // To the share of dbias and dweight that the rows since the last time belong to. The terms of
  // dbias nearly cancel: that is why those of a few rows come together before they meet others.
  void flush(const QnaPart& part) {
    const size_t all = size_t(L) * call.heads, apart = round_up(KK, N);
    for (int l = 0; l < L; l++) {
      for (int c = 0; c < kinds; c++)
        over_channels(t + (size_t(l) * kinds + c) * KK * M, KK, [&](int j, Sums& sum) INLINED {
          if (d % M)
            halves(c, [&](int i, int h, bool first) INLINED {
              S* to = sums + 2 * h * apart + j;
              store(to, first ? sum[i] : load(to) + sum[i]);
            });
          else
            store(sums + 2 * c * apart + j, whole_sum(sum));
        });
      for (int h = 0; h < heads; h++) {
        const S *tj = sums + 2 * h * apart, *uej = tj + apart;
        const S *power = table(tables.power, l, h), *weight = table(tables.weight, l, h);
        over_channels(ue + size_t(channel(l, h)) * KK * M, KK, [&](int j, Sums& sum) INLINED {
          store(sums + (2 * h + 1) * apart + j, whole_sum(sum));
        });
        S* to = alone.partial + l * call.heads + part.head + h;
        for (int j = 0; j < KK; j++, to += all) {
          to[0] += power[j] * (weight[j] * tj[j] - uej[j]);
          to[all * KK] += power[j] * tj[j];
        }
      }
    }
    zero(t, size_t(L) * kinds * KK * M);
    zero(ue, size_t(L) * heads * KK * M);
  }
  static INLINE V<S> whole_sum(const V<S> (&sum)[HALVES<S>]) {
    return HALVES<S> == 1 ? sum[0] : sum[0] + sum[HALVES<S> - 1];
  }

  // Input row r, which all outputs that look at it have been through. `look_back` from it first.
  template <class E>
  void backward_inputs(const QnaPart& part, int r) {
    const int slot = r % ring;
    for (int l = 0; l < L; l++)
      for (int h = 0; h < heads; h++) {
        S* to = turned + size_t(channel(l, h)) * pitch;
        planar(table(tables.power, l, h), u_of(l, h) + padding, -1, W,
               [&](int x, V<S> sum) INLINED { store(to + x, sum); });
      }
    for (int c = 0; c < count; c++) {
      E* dv = pixels<E>(call.dv, part.b, part.head * d + c * M, r);
      const bool all = whole(c);
      bool first[HALVES<S>];
      int head[HALVES<S>];
      const int filled = halves(c, [&](int i, int h, bool first_of) INLINED {
        head[i] = h;
        first[i] = first_of;
      });
      // ds of N columns from x on, of the sums of v . D over the lanes of either half.
      const auto finish = [&](int l, int x, Sums& sum) INLINED {
        for (int i = 0; i < filled; i++) {
          const ptrdiff_t at = ptrdiff_t(channel(l, head[i])) * pitch + x;
          const S* power = powers_of(l, head[i]) + ptrdiff_t(slot) * pitch + padding + x;
          store(dscores + at, first[i] ? sum[i] - load(power) * load(turned + at)
                                       : load(dscores + at) + sum[i]);
        }
      };
      for (int f = 0; f < stride; f++) {
        const int from = max(0, padding - f + stride - 1) / stride;
        const int to = (padding + W - f + stride - 1) / stride;
        const ptrdiff_t step = stride * call.dv.column;
        E* first_of = dv + (f - padding) * call.dv.column;
        const auto block = [&](int x, auto cells, auto queries) INLINED {
          constexpr int P = decltype(cells)::value;
          Cell<S> z[P];
          repeat<decltype(queries)::value>([&](auto l) INLINED {
            Cell<S> sum[P];
            window_back(weighted + kind(l, c), shares_of(l, c), x, f, sum);
            const int column = x * stride + f;  // of the ring
            const Spread<S> power = powers_in(l, c) + (ptrdiff_t(slot) * pitch + column);
            const S* cell = cells_of(l, c) + slot * row() + ptrdiff_t(column) * M;
            S* dot = dots + l * dots_row() + ptrdiff_t(column - padding) * M;
            for (int i = 0; i < P; i++) {
              const Cell<S> share = sum[i] * power[i * stride];
              z[i] = l ? z[i] + share : share;
              sum[i] *= load_cell(cell + i * stride * M);
              if (!DENSE) store_cell(dot + i * stride * M, sum[i]);
            }
            if (DENSE)
              over_channels(sum, [&](int i, Sums& sums) INLINED {
                finish(l, x - padding + i, sums);
              });
          });
          E* at = first_of + x * step;
          Windows::template first<P>(to - x, [&](auto i) INLINED {
            narrow_cell<S>(at + i * step, z[i], all);
          });
        };
        pick<MOST_QUERIES>(L, [&](auto queries) INLINED {
          constexpr int MOST = decltype(queries)::value == 1 ? PX : HALF;  // two blocks of sums
          Windows::template blocks_of<MOST>(from, to, [&](int x, auto n) INLINED {
            block(x, n, queries);
          });
        });
      }
      for (int l = 0; l < L && !DENSE; l++)
        over_channels(dots + l * dots_row(), W, [&](int x, Sums& sums) INLINED {
          finish(l, x, sums);
        });
    }
    for (int l = 0; l < L; l++)
      unpack<E>(call.ds, part.b, l * call.heads + part.head, heads, r, 0, W, pitch, S(1),
                dscores + ptrdiff_t(l) * heads * pitch);
    alone.template settle<E>(part, r);
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
