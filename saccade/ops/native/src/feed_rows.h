// What feed.h does to a row of the hidden map, a chunk of its channels at a time.
#pragma once
#include "call.h"
#include "gelu.h"

namespace saccade {
namespace SACCADE_ISA {

struct FeedRows {
  static constexpr int PX = 4;  // pixels at once: nine taps and their sums are to fit the registers
  const Feed& call;
  const int from, n;  // channels
  FeedRows(const Feed& c, int from_, int n_) : call(c), from(from_), n(n_) {}

  // f(channel, taps) for every vector of channels.
  template <class F>
  INLINE void channels(bool turned, F&& f) const {
    for (int v = 0; v < n; v += WIDE) {
      Wide taps[9];
      for (int j = 0; j < 9; j++)
        taps[j] = load_wide(call.taps + ptrdiff_t(turned ? 8 - j : j) * call.hidden + from + v);
      f(v, taps);
    }
  }
  // f(x, Int<whether the border is in sight>) for every PX pixels of a row.
  template <class F>
  INLINE void blocks_of_row(F&& f) const {
    for (int x = 0; x < call.W; x += PX)
      if (x && x + PX < call.W)
        f(x, Int<0>{});
      else
        f(x, Int<1>{});
  }
  // f(row of the window, column, cell) for the cells that PX pixels from x on look at. `at`: the rows
  // above, here and below, null outside; `step` numbers from one pixel to the next.
  template <bool EDGE, class F>
  INLINE void window(const float* const* at, ptrdiff_t step, int x, F&& f) const {
    repeat<3>([&](auto a) INLINED {
      if (!at[a]) return;
      repeat<PX + 2>([&](auto j) INLINED {
        const int column = x + j - 1;
        if (EDGE && (column < 0 || column >= call.W)) return;
        f(a, j, load_wide(at[a] + column * step));
      });
    });
  }
  template <bool EDGE>
  INLINE void convolve(const float* const* at, ptrdiff_t step, int x, const Wide* taps,
                       Wide (&sum)[PX]) const {
    window<EDGE>(at, step, x, [&](auto a, auto j, Wide cell) INLINED {
      repeat<3>([&](auto b) INLINED {
        constexpr int i = decltype(j)::value - decltype(b)::value;
        if constexpr (i >= 0 && i < PX) sum[i] += taps[a * 3 + b] * cell;
      });
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
  // f(pixel, channel, u) for a row of u = h * taps + shift; or with `TURNED` taps, and no shift.
  template <bool TURNED, class Cells, class F>
  INLINE void convolved(const Cells& cells, F&& f) const {
    channels(TURNED, [&](int v, const Wide* taps) INLINED {
      const Wide shift = TURNED ? Wide{} : load_wide(call.shift + from + v);
      const float* here[3];
      const ptrdiff_t step = cells(v, here);
      blocks_of_row([&](int x, auto edge) INLINED {
        constexpr bool EDGE = decltype(edge)::value;
        Wide sum[PX];
        for (int i = 0; i < PX; i++) sum[i] = shift;
        convolve<EDGE>(here, step, x, taps, sum);
        inside<EDGE>(x, [&](auto i) INLINED { f(x + i, v, sum[i]); });
      });
    });
  }
  // The same, or without taps f(pixel, channel, h).
  template <class Cells, class F>
  INLINE void each_u(const Cells& cells, F&& f) const {
    if (call.taps) return convolved<false>(cells, f);
    for (int v = 0; v < n; v += WIDE) {
      const float* here[3];
      const ptrdiff_t step = cells(v, here);
      for (int x = 0; x < call.W; x++) f(x, v, load_wide(here[1] + x * step));
    }
  }

  // to = gelu(u)
  template <bool TANH, class Cells>
  void activate(const Cells& cells, float* to) const {
    each_u(cells, [&](int x, int v, Wide u) INLINED {
      store_wide(to + x * n + v, gelu<TANH, false>(u));
    });
  }
  // active = gelu(u),  du = da gelu'(u), with u found again.
  template <bool TANH>
  void slopes(const float* const* at, const float* da, float* active, float* du,
              ptrdiff_t du_step) const {
    each_u(Dense{at, call.hidden}, [&](int x, int v, Wide u) INLINED {
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
      blocks_of_row([&](int x, auto edge) INLINED {
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
    convolved<true>(Dense{at, n}, [&](int x, int v, Wide sum) INLINED {
      store_wide(dh + ptrdiff_t(x) * call.hidden + v, sum);
    });
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
