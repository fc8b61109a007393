// Sums over windows of cells: N channels of a pixel side by side (see qna_channels_tile.h).
//
//     window       sum(x) = over ab of  w(ab) cell(stride x + ab)
//     window_back  sum(x) = over ab of  w(ab) cell of the output that sees x as its ab
//     planar       the same of one number per pixel
//     correlate    sum(ab) += over x of  g(x) cell(stride x + ab)
//
// Lanes are channels, so a weight is one number for a whole vector. Where the window's side is a
// constant, a cell is loaded once for all columns that see it.
#pragma once
#include "products.h"
#include "qna_part.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_, int STRIDE_>
struct QnaWindows : Side<K_>, Step<STRIDE_> {
  static constexpr int N = LANES<S>;
  // Cells at once: two such blocks and a weight are to fit the registers. Half of it for the few.
  static constexpr int HALF = 7, PX = REGISTERS == 32 ? 14 : HALF;
  using Side<K_>::K;
  using Step<STRIDE_>::stride;
  int cells, cells_out;  // of a row of inputs; of outputs, from K before the first
  int pitch;             // of a planar row
  ptrdiff_t at[16];      // where in a ring the rows of a window are, or below 0: outside

  explicit QnaWindows(const Qna& c) : Side<K_>(c.window), Step<STRIDE_>(c.stride) {}

  // f(x, Int<cells>) for blocks of at most MOST cells that cover [from, to).
  template <int MOST, class F>
  static INLINE void blocks_of(int from, int to, F&& f) {
    int x = from;
    for (; to - x > (MOST > HALF ? HALF : 0); x += MOST) f(x, Int<MOST>{});
    if (MOST > HALF && x < to) f(x, Int<HALF>{});
  }
  // f(i) for the first n of P, with i a constant: sums stay in registers.
  template <int P, class F>
  static INLINE void first(int n, F&& f) {
    if (n >= P) return repeat<P>(f);
    repeat<P>([&](auto i) INLINED {
      if (i < n) f(i);
    });
  }
  // sum[i] += the window's row of weights w for outputs x + i; p: the cell of the first one.
  template <int P>
  INLINE void window_row(const S* w, const S* p, V<S> (&sum)[P]) const {
    if constexpr (K_ > 0 && STRIDE_ > 0) {
      V<S> ws[K_ ? K_ : 1];
      repeat<K_>([&](auto b) INLINED { ws[b] = splat(w[b]); });
      repeat<(P - 1) * STRIDE_ + K_>([&](auto j) INLINED {
        const V<S> cell = load(p + j * N);
        repeat<K_>([&](auto b) INLINED {
          constexpr int from = decltype(j)::value - decltype(b)::value;
          if constexpr (from >= 0 && from % STRIDE_ == 0 && from / STRIDE_ < P)
            sum[from / STRIDE_] += ws[b] * cell;
        });
      });
    } else {
#pragma GCC unroll 1
      for (int b = 0; b < K; b++) {
        const V<S> wb = splat(w[b]);
        for (int i = 0; i < P; i++) sum[i] += wb * load(p + (b + i * stride) * N);
      }
    }
  }
  // sum[i] = the windows' sums for outputs x + i, of cells.
  template <int P>
  INLINE void window(const S* w, const S* from, int x, V<S> (&sum)[P]) const {
    for (int i = 0; i < P; i++) sum[i] = V<S>{};
    for (int a = 0; a < K; a++, w += K)
      if (at[a] >= 0) window_row(w, from + (at[a] * cells + ptrdiff_t(x) * stride) * N, sum);
  }
  // sum[i] = what outputs give to input column stride (x + i) + f, of cells.
  template <int P>
  INLINE void window_back(const S* w, const S* from, int x, int f, V<S> (&sum)[P]) const {
    for (int i = 0; i < P; i++) sum[i] = V<S>{};
    for (int a = 0; a < K; a++, w += K) {
      if (at[a] < 0) continue;
      const S* p = from + (at[a] * cells_out + x) * N;
      if constexpr (K_ > 0 && STRIDE_ == 1) {
        V<S> ws[K_ ? K_ : 1];
        repeat<K_>([&](auto b) INLINED { ws[b] = splat(w[b]); });
        repeat<P + K_ - 1>([&](auto j) INLINED {  // the cell j - (K - 1) further on
          const V<S> cell = load(p + (j - (K_ - 1)) * N);
          repeat<K_>([&](auto b) INLINED {
            constexpr int i = decltype(j)::value - (K_ - 1) + decltype(b)::value;
            if constexpr (i >= 0 && i < P) sum[i] += ws[b] * cell;
          });
        });
      } else {
#pragma GCC unroll 1
        for (int b = f, j = 0; b < K; b += stride, j++) {
          const V<S> wb = splat(w[b]);
          for (int i = 0; i < P; i++) sum[i] += wb * load(p + (i - j) * N);
        }
      }
    }
  }
  // The same of planar rows: f(x, sum) for 4 vectors at a time, of columns [0, n). Column b of a
  // window is `way` b further on.
  template <class F>
  INLINE void planar(const S* w, const S* from, int way, int n, F&& f) const {
    for (int x = 0; x < n; x += 4 * N) {
      V<S> even[4], odd[4];  // columns: more sums that need not wait for each other
      for (int i = 0; i < 4; i++) even[i] = odd[i] = V<S>{};
      const S* weights = w;
      for (int a = 0; a < K; a++, weights += K) {
        if (at[a] < 0) continue;
        const S* p = from + at[a] * pitch + x;
        const auto column = [&](int b, V<S>(&sum)[4]) INLINED {
          const V<S> wb = splat(weights[b]);
          for (int i = 0; i < 4; i++) sum[i] += wb * load(p + way * b + i * N);
        };
        if constexpr (K_ > 0) {
          repeat<K_>([&](auto b) INLINED { column(b, b % 2 ? odd : even); });
        } else {
#pragma GCC unroll 1
          for (int b = 0; b < K; b++) column(b, even);
        }
      }
      repeat<4>([&](auto i) INLINED { f(x + i * N, even[i] + odd[i]); });
    }
  }
  // f(x, sum over channels) for N of the n cells at a time.
  template <class F>
  static INLINE void over_channels(const S* cells, int n, F&& f) {
    for (int x = 0; x < n; x += N) {
      V<S> v[N];
      for (int i = 0; i < N; i++) v[i] = load(cells + (x + i) * N);
      f(x, sums<S>(v));
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
  // The same of cells at NR rows of a window of K_ columns, two of them at a time: sums enough that
  // none waits for the last, and a cell is loaded once for both.
  template <int NR>
  static INLINE void correlate_rows(const S* g, const S* const* rows, int n, S* to) {
    V<S> sum[NR][K_ ? K_ : 1];
    repeat<NR * K_>([&](auto j) INLINED { sum[j / K_][j % K_] = load(to + j * N); });
    const S* p[NR];
    for (int r = 0; r < NR; r++) p[r] = rows[r];
    int x = 0;
#pragma GCC unroll 1
    for (; x + 1 < n; x += 2) {
      const V<S> g0 = load(g + x * N), g1 = load(g + (x + 1) * N);
      repeat<NR>([&](auto r) INLINED {
        repeat<K_ + 1>([&](auto j) INLINED {
          const V<S> cell = load(p[r] + (x + j) * N);
          if constexpr (decltype(j)::value < K_) sum[r][j] += g0 * cell;
          if constexpr (decltype(j)::value > 0) sum[r][j - 1] += g1 * cell;
        });
      });
    }
    if (x < n) {
      const V<S> g0 = load(g + x * N);
      repeat<NR * K_>([&](auto j) INLINED {
        sum[j / K_][j % K_] += g0 * load(p[j / K_] + (x + j % K_) * N);
      });
    }
    repeat<NR * K_>([&](auto j) INLINED { store(to + j * N, sum[j / K_][j % K_]); });
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
