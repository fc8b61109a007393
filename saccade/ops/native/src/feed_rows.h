// What feed.h does to a row of the hidden map, a chunk of its channels at a time.
#pragma once
#include "call.h"
#include "gelu.h"
#include "linear.h"

namespace saccade {
namespace SACCADE_ISA {

struct FeedRows {
  // Pixels at once: nine taps, two sums for each and a cell are to fit the registers, or one sum.
  static constexpr bool SPLIT = REGISTERS == 32;
  static constexpr int PX = SPLIT ? 7 : 4;
  static constexpr int STRIP = 8 * PX;  // pixels whose u waits for its gelu
  const Feed& call;
  const int from, n;  // channels
  FeedRows(const Feed& c, int from_, int n_) : call(c), from(from_), n(n_) {}

  INLINE void load_taps(bool turned, int v, Wide* taps) const {
    for (int j = 0; j < 9; j++)
      taps[j] = load_wide(call.taps + ptrdiff_t(turned ? 8 - j : j) * call.hidden + from + v);
  }
  // f(x, Int<whether the border is in sight>) for every PX pixels of a part of a row.
  template <class F>
  INLINE void blocks_of_row(int first, int end, F&& f) const {
    for (int x = first; x < end; x += PX)
      if (x && x + PX < call.W)
        f(x, Int<0>{});
      else
        f(x, Int<1>{});
  }
  // f(column, cell) for the cells of one row that PX pixels from x on look at; `step` numbers from one
  // pixel to the next.
  template <bool EDGE, class F>
  INLINE void row_of_window(const float* row, ptrdiff_t step, int x, F&& f) const {
    repeat<PX + 2>([&](auto j) INLINED {
      const int column = x + j - 1;
      if (EDGE && (column < 0 || column >= call.W)) return;
      f(j, loaded(load_wide(row + column * step)));
    });
  }
  // f(row of the window, column, cell) for all three. `at`: the rows above, here and below, null
  // outside.
  template <bool EDGE, class F>
  INLINE void window(const float* const* at, ptrdiff_t step, int x, F&& f) const {
    repeat<3>([&](auto a) INLINED {
      if (at[a])
        row_of_window<EDGE>(at[a], step, x, [&](auto j, Wide cell) INLINED { f(a, j, cell); });
    });
  }
  // With SPLIT, every row of the window has sums of its own: nine steps, each of which waits for the
  // one before, take longer than the multiplications.
  template <bool EDGE>
  INLINE void convolve(const float* const* at, ptrdiff_t step, int x, const Wide* taps,
                       Wide (&sum)[PX]) const {
    repeat<3>([&](auto a) INLINED {
      if (!at[a]) return;
      Wide own[PX];
      for (int i = 0; i < PX; i++) own[i] = SPLIT ? Wide{} : sum[i];
      row_of_window<EDGE>(at[a], step, x, [&](auto j, Wide cell) INLINED {
        repeat<3>([&](auto b) INLINED {
          constexpr int i = decltype(j)::value - decltype(b)::value;
          if constexpr (i >= 0 && i < PX) own[i] += taps[a * 3 + b] * cell;
        });
      });
      for (int i = 0; i < PX; i++) sum[i] = SPLIT ? sum[i] + own[i] : own[i];
    });
  }
  // f(i) for those of PX pixels from x on that are inside.
  template <bool EDGE, class F>
  INLINE void inside(int x, F&& f) const {
    repeat<PX>([&](auto i) INLINED {
      if (!EDGE || x + i < call.W) f(i);
    });
  }

  // Where channel v of three rows lies: `here` is filled in, and the step between pixels returned.
  struct Dense {
    const float* const* at;
    ptrdiff_t step;
    INLINE ptrdiff_t operator()(int v, const float** here) const {
      for (int a = 0; a < 3; a++) here[a] = at[a] ? at[a] + v : nullptr;
      return step;
    }
  };
  // f(pixel, h * taps + shift) for some pixels of a row, of the channels that `here` points to.
  template <class F>
  INLINE void convolved(const float* const* here, ptrdiff_t step, const Wide* taps, Wide shift,
                        int first, int end, F&& f) const {
    blocks_of_row(first, end, [&](int x, auto edge) INLINED {
      constexpr bool EDGE = decltype(edge)::value;
      Wide sum[PX];
      for (int i = 0; i < PX; i++) sum[i] = shift;
      convolve<EDGE>(here, step, x, taps, sum);
      inside<EDGE>(x, [&](auto i) INLINED { f(x + i, sum[i]); });
    });
  }
  // f(pixel, channel, u) for a row and channels [first, last), where u = h * taps + shift, or h
  // without taps. All u of a strip come before its first f: both at once would fill the processor's
  // queue with steps that wait.
  template <class Cells, class F>
  INLINE void each_u(const Cells& cells, int first, int last, F&& f) const {
    for (int v = first; v < last; v += WIDE) {
      const float* here[3];
      const ptrdiff_t step = cells(v, here);
      if (!call.taps) {
        for (int x = 0; x < call.W; x++) f(x, v, load_wide(here[1] + x * step));
        continue;
      }
      Wide taps[9], u[STRIP];
      load_taps(false, v, taps);
      const Wide shift = load_wide(call.shift + from + v);
      for (int x = 0; x < call.W; x += STRIP) {
        const int end = min(call.W, x + STRIP);
        convolved(here, step, taps, shift, x, end, [&](int p, Wide one) INLINED { u[p - x] = one; });
        for (int p = x; p < end; p++) f(p, v, u[p - x]);
      }
    }
  }

  // Rows of gelu(u), of channels [first, last), as products read them.
  template <bool TANH, class Cells>
  void activate(const Cells& cells, int first, int last, float* to) const {
    each_u(cells, first, last, [&](int x, int v, Wide u) INLINED {
      store_ready(to + x * deep(n), v, gelu<TANH, false>(u));
    });
  }
  // active = gelu(u),  du = da gelu'(u), with u found again.
  template <bool TANH>
  void slopes(const float* const* at, const float* da, float* active, float* du,
              ptrdiff_t du_step) const {
    each_u(Dense{at, call.hidden}, 0, n, [&](int x, int v, Wide u) INLINED {
      Wide slope;
      store_wide(active + x * n + v, gelu<TANH, true>(u, &slope));
      store_wide(du + x * du_step + v, load_wide(da + x * n + v) * slope);
    });
  }
  // dtaps += over a row the sum of du h, and dshift.
  void add_taps(const float* const* at, const float* du) const {
    for (int v = 0; v < n; v += WIDE) {
      Wide sum[9], all{};
      for (int j = 0; j < 9; j++) sum[j] = Wide{};
      const float* here[3];
      for (int a = 0; a < 3; a++) here[a] = at[a] ? at[a] + v : nullptr;
      blocks_of_row(0, call.W, [&](int x, auto edge) INLINED {
        constexpr bool EDGE = decltype(edge)::value;
        Wide g[PX];
        for (int i = 0; i < PX; i++) g[i] = Wide{};
        inside<EDGE>(x, [&](auto i) INLINED { g[i] = load_wide(du + (x + i) * n + v); });
        for (int i = 0; i < PX; i++) all += g[i];
        window<EDGE>(here, call.hidden, x, [&](auto a, auto j, Wide cell) INLINED {
          repeat<3>([&](auto b) INLINED {
            constexpr int i = decltype(j)::value - decltype(b)::value;
            if constexpr (i >= 0 && i < PX) sum[a * 3 + b] += g[i] * cell;
          });
        });
      });
      const auto add = [&](float* to, Wide more) INLINED { store_wide(to, load_wide(to) + more); };
      for (int j = 0; j < 9; j++) add(call.dtaps + ptrdiff_t(j) * call.hidden + from + v, sum[j]);
      add(call.dshift + from + v, all);
    }
  }
  // dh = du * turned taps
  void turn_back(const float* const* at, float* dh) const {
    for (int v = 0; v < n; v += WIDE) {
      Wide taps[9];
      load_taps(true, v, taps);
      const float* here[3];
      const ptrdiff_t step = Dense{at, n}(v, here);
      convolved(here, step, taps, Wide{}, 0, call.W, [&](int x, Wide sum) INLINED {
        store_wide(dh + ptrdiff_t(x) * call.hidden + v, sum);
      });
    }
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
