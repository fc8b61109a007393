// What all tiles of local attention share: the side of the window, and how a call is cut into
// tasks, each a band of rows x a strip of columns of one head.
#pragma once
#include "call.h"
#include "scratch.h"

namespace saccade {
namespace SACCADE_ISA {

// K = 2P + 1: a constant for the window that occurs most, which spares much address arithmetic.
template <int Known>
struct SasaWindow {
  static constexpr int K = Known, P = Known / 2;
  explicit SasaWindow(int) {}
};
template <>
struct SasaWindow<0> {
  int K, P;
  explicit SasaWindow(int window) : K(window), P(window / 2) {}
};
template <class F>
INLINE void known_window(int window, F&& f) {
  if (window == 7)
    f(Int<7>{});
  else
    f(Int<0>{});
}

struct SasaPlan {
  int strips, strip;  // columns of queries (forward) or keys (backward) a task owns
  int bands, band;    // rows, a multiple of the tile's
  int pitch;
  size_t scratch;  // in elements
  int tasks;
};

template <class Tile>
SasaPlan sasa_plan(const Sasa& c, bool backward) {
  constexpr int N = Tile::N, ROWS = Tile::ROWS;
  const int P = c.window / 2;
  SasaPlan plan;
  for (plan.strips = 1;; plan.strips++) {
    plan.strip = round_up((c.W + plan.strips - 1) / plan.strips, N);
    const int wide = min(c.W, plan.strip + (backward && plan.strips > 1 ? 2 * P : 0));
    plan.pitch = backward ? pitch_for(round_up(wide, N) + 2 * P + N)
                          : round_up(round_up(wide, N) + 2 * P, 16);
    plan.scratch = Tile(c, wide, plan.pitch).carve(nullptr, backward);
    if (plan.scratch * sizeof(typename Tile::Element) <= BUDGET || plan.strip <= N) break;
  }
  plan.strips = (c.W + plan.strip - 1) / plan.strip;
  // Bands only where images, heads and strips are few: the backward computes 2P rows twice for
  // each. The thread count has no say, so that the tables' gradient never depends on it.
  const int wanted = 32 / max(1, c.B * c.heads * plan.strips);
  const int least = round_up(backward ? 8 * P : 2 * P, ROWS);
  plan.bands = max(1, min(wanted, c.H / least));
  plan.band = round_up((c.H + plan.bands - 1) / plan.bands, ROWS);
  plan.bands = (c.H + plan.band - 1) / plan.band;
  plan.tasks = c.B * c.heads * plan.bands * plan.strips;
  return plan;
}

struct SasaPart {
  int b, head, y0, y1, x0, x1;
  SasaPart(const Sasa& c, const SasaPlan& plan, int task) {
    x0 = task % plan.strips * plan.strip;
    x1 = min(c.W, x0 + plan.strip);
    task /= plan.strips;
    y0 = task % plan.bands * plan.band;
    y1 = min(c.H, y0 + plan.band);
    task /= plan.bands;
    head = task % c.heads;
    b = task / c.heads;
  }
};

// What Work asks for: the share of drow and dcol that a task of the backward leaves.
template <class Tile>
size_t sasa_partial(const Sasa& c, bool backward) {
  return backward && c.row ? 2 * c.window * (c.d / 2) * sizeof(typename Tile::Element) : 0;
}

// Sums the tasks' shares of drow and dcol, in the order of the tasks and in double precision.
template <class Tile>
void sasa_reduce(const Sasa& c, const void* partials) {
  using S = typename Tile::Element;
  const int tasks = sasa_plan<Tile>(c, true).tasks, size = c.window * (c.d / 2);
  const int per_head = tasks / max(1, c.B * c.heads);
  for (int table = 0; table < c.tables; table++)
    for (int j = 0; j < 2 * size; j++) {
      double sum = 0;
      for (int task = 0; task < tasks; task++)
        if (c.tables == 1 || task / per_head % c.heads == table)
          sum += static_cast<const S*>(partials)[size_t(task) * 2 * size + j];
      S* to = static_cast<S*>(j < size ? c.drow : c.dcol);
      to[table * size + j % size] = S(sum);
    }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
