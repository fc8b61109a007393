// Sums over windows of cells (cells.h): M channels of a pixel side by side.
//
//     window       sum(x) = over ab of  w(ab) cell(stride x + ab)
//     window_back  sum(x) = over ab of  w(ab) cell of the output that sees x as its ab
//     planar       the same of one number per pixel
//     correlate    sum(ab) += over x of  g(x) cell(stride x + ab)
//
// A cell may hold two heads, so the weights that it meets are cells too. Where the window's side is
// a constant, a cell is loaded once for all columns that see it.
#pragma once
#include "cells.h"
#include "products.h"
#include "qna_part.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_, int STRIDE_>
struct QnaWindows : Side<K_>, Step<STRIDE_> {
  static constexpr int N = LANES<S>, M = CELL<S>;
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
  INLINE void window_row(const S* w, const S* p, Cell<S> (&sum)[P]) const {
    if constexpr (K_ > 0 && STRIDE_ > 0) {
      Cell<S> ws[K_ ? K_ : 1];
      repeat<K_>([&](auto b) INLINED { ws[b] = load_cell(w + b * M); });
      repeat<(P - 1) * STRIDE_ + K_>([&](auto j) INLINED {
        Cell<S> cell = load_cell(p + j * M);
        cell = loaded(cell);
        repeat<K_>([&](auto b) INLINED {
          constexpr int from = decltype(j)::value - decltype(b)::value;
          if constexpr (from >= 0 && from % STRIDE_ == 0 && from / STRIDE_ < P)
            sum[from / STRIDE_] += ws[b] * cell;
        });
      });
    } else {
#pragma GCC unroll 1
      for (int b = 0; b < K; b++) {
        const Cell<S> wb = load_cell(w + b * M);
        for (int i = 0; i < P; i++) sum[i] += wb * load_cell(p + (b + i * stride) * M);
      }
    }
  }
  // sum[i] = the windows' sums for outputs x + i, of cells.
  template <int P>
  INLINE void window(const S* w, const S* from, int x, Cell<S> (&sum)[P]) const {
    for (int i = 0; i < P; i++) sum[i] = Cell<S>{};
    for (int a = 0; a < K; a++, w += K * M)
      if (at[a] >= 0) window_row(w, from + (at[a] * cells + ptrdiff_t(x) * stride) * M, sum);
  }
  // sum[i] = what outputs give to input column stride (x + i) + f, of cells.
  template <int P>
  INLINE void window_back(const S* w, const S* from, int x, int f, Cell<S> (&sum)[P]) const {
    for (int i = 0; i < P; i++) sum[i] = Cell<S>{};
    for (int a = 0; a < K; a++, w += K * M) {
      if (at[a] < 0) continue;
      const S* p = from + (at[a] * cells_out + x) * M;
      if constexpr (K_ > 0 && STRIDE_ == 1) {
        Cell<S> ws[K_ ? K_ : 1];
        repeat<K_>([&](auto b) INLINED { ws[b] = load_cell(w + b * M); });
        repeat<P + K_ - 1>([&](auto j) INLINED {  // the cell j - (K - 1) further on
          Cell<S> cell = load_cell(p + (j - (K_ - 1)) * M);
          cell = loaded(cell);
          repeat<K_>([&](auto b) INLINED {
            constexpr int i = decltype(j)::value - (K_ - 1) + decltype(b)::value;
            if constexpr (i >= 0 && i < P) sum[i] += ws[b] * cell;
          });
        });
      } else {
#pragma GCC unroll 1
        for (int b = f, j = 0; b < K; b += stride, j++) {
          const Cell<S> wb = load_cell(w + b * M);
          for (int i = 0; i < P; i++) sum[i] += wb * load_cell(p + (i - j) * M);
        }
      }
    }
  }
  // The same of planar rows: f(x, sum) for N of the columns [0, n) at a time, and some beyond.
  // Column b of a window is `way` b further on.
  template <class F>
  INLINE void planar(const S* w, const S* from, int way, int n, F&& f) const {
    constexpr int ABREAST = 4 * N / M, CHAINS = 8 / ABREAST;  // sums that need not wait for each other
    for (int x = 0; x < n; x += ABREAST * M) {
      Cell<S> sum[CHAINS][ABREAST];
      for (int chain = 0; chain < CHAINS; chain++)  // no reference: it would assume more alignment
        for (int i = 0; i < ABREAST; i++) sum[chain][i] = Cell<S>{};
      const S* weights = w;
      for (int a = 0; a < K; a++, weights += K) {
        if (at[a] < 0) continue;
        const S* p = from + at[a] * pitch + x;
        const auto column = [&](int b, int chain) INLINED {
          const Cell<S> wb = splat_cell(weights[b]);
          for (int i = 0; i < ABREAST; i++) sum[chain][i] += wb * load_cell(p + way * b + i * M);
        };
        if constexpr (K_ > 0) {
          repeat<K_>([&](auto b) INLINED { column(b, b % CHAINS); });
        } else {
          int b = 0;
#pragma GCC unroll 1
          for (; b + 1 < K; b += 2) column(b, 0), column(b + 1, 1);
          if (b < K) column(b, 0);
        }
      }
      repeat<ABREAST>([&](auto i) INLINED {
        for (int chain = 1; chain < CHAINS; chain++) sum[0][i] += sum[chain][i];
        for (int j = 0; j < HALVES<S>; j++) f(x + i * M + j * N, half<S>(sum[0][i], j));
      });
    }
  }
  // f(x, sums over the lanes of either half) for N of the n cells at a time.
  template <class F>
  static INLINE void over_channels(const S* cells, int n, F&& f) {
    for (int x = 0; x < n; x += N) {
      Cell<S> v[N];
      for (int i = 0; i < N; i++) v[i] = load_cell(cells + (x + i) * M);
      V<S> sum[HALVES<S>];
      sums_of_halves<S>(v, sum);
      f(x, sum);
    }
  }
  // The same of P cells in registers, with zeros behind the last.
  template <int P, class F>
  static INLINE void over_channels(const Cell<S> (&cells)[P], F&& f) {
    repeat<(P + N - 1) / N>([&](auto block) INLINED {
      constexpr int x = decltype(block)::value * N;
      Cell<S> v[N];
      for (int i = 0; i < N; i++) v[i] = x + i < P ? cells[x + i] : Cell<S>{};
      V<S> sum[HALVES<S>];
      sums_of_halves<S>(v, sum);
      f(x, sum);
    });
  }
  // sum[b] += over x of g[x] p[x + b], of cells
  template <int NB>
  static INLINE void correlate(const S* g, const S* p, ptrdiff_t step, int n, S* to) {
    Cell<S> sum[NB];
    for (int b = 0; b < NB; b++) sum[b] = load_cell(to + b * M);
#pragma GCC unroll 1
    for (int x = 0; x < n; x++, g += M, p += step) {
      const Cell<S> gx = load_cell(g);
      for (int b = 0; b < NB; b++) sum[b] += gx * load_cell(p + b * M);
    }
    for (int b = 0; b < NB; b++) store_cell(to + b * M, sum[b]);
  }
  // The same of planar rows: NR of them, NB columns each, `apart` sums from one to the next.
  template <int NR, int NB>
  static INLINE void correlate_planar(const S* g, const S* const* rows, int n, S* to, int apart) {
    Cell<S> sum[NR][NB];
    const S* p[NR];
    for (int r = 0; r < NR; r++) p[r] = rows[r];
    repeat<NR * NB>([&](auto j) INLINED {
      sum[j / NB][j % NB] = load_cell(to + (j / NB * apart + j % NB) * M);
    });
#pragma GCC unroll 1
    for (int x = 0; x < n; x += M) {
      const Cell<S> gx = load_cell(g + x);
      repeat<NR * NB>([&](auto j) INLINED {
        sum[j / NB][j % NB] += gx * load_cell(p[j / NB] + x + j % NB);
      });
    }
    repeat<NR * NB>([&](auto j) INLINED {
      store_cell(to + (j / NB * apart + j % NB) * M, sum[j / NB][j % NB]);
    });
  }
  // The same of cells at NR rows of a window of K_ columns, two of them at a time: sums enough that
  // none waits for the last, and a cell is loaded once for both.
  template <int NR>
  static INLINE void correlate_rows(const S* g, const S* const* rows, int n, S* to) {
    Cell<S> sum[NR][K_ ? K_ : 1];
    repeat<NR * K_>([&](auto j) INLINED { sum[j / K_][j % K_] = load_cell(to + j * M); });
    const S* p[NR];
    for (int r = 0; r < NR; r++) p[r] = rows[r];
    int x = 0;
#pragma GCC unroll 1
    for (; x + 1 < n; x += 2) {
      const Cell<S> g0 = load_cell(g + x * M), g1 = load_cell(g + (x + 1) * M);
      repeat<NR>([&](auto r) INLINED {
        repeat<K_ + 1>([&](auto j) INLINED {
          Cell<S> cell = load_cell(p[r] + (x + j) * M);
          cell = loaded(cell);
          if constexpr (decltype(j)::value < K_) sum[r][j] += g0 * cell;
          if constexpr (decltype(j)::value > 0) sum[r][j - 1] += g1 * cell;
        });
      });
    }
    if (x < n) {
      const Cell<S> g0 = load_cell(g + x * M);
      repeat<NR * K_>([&](auto j) INLINED {
        sum[j / K_][j % K_] += g0 * load_cell(p[j / K_] + (x + j % K_) * M);
      });
    }
    repeat<NR * K_>([&](auto j) INLINED { store_cell(to + j * M, sum[j / K_][j % K_]); });
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
