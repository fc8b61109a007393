// First and second moments of a map's 3x3 windows, zeros around it, channel by channel.
//
//     M = mean over pixels p of w w^T,     w = (h(p + o) for the nine o, 1)
//
// The product of places a and b is a sum over pixels q = p + a of h(q) h(q + b - a): it depends on
// the difference of the places alone, of which there are thirteen, but for what p itself leaves out
// at the border of the map. So one pass sums thirteen products, and beside them the same along the
// four borders; Python makes M of these sums. Backward, each pixel has a 5x5 of its neighbours:
//
//     dh(q) = dsum + sum over differences d of dproduct_d (h(q + d) + h(q - d)), and the borders'
#pragma once
#include "call.h"
#include "vec.h"

namespace saccade {
namespace SACCADE_ISA {

// The sums of a channel, in this order.
struct MomentSums {
  static constexpr int INNER = 14;  // of h, and of 13 products
  static constexpr int LINE = 4;    // of a border: h, and the products with 0, 1, 2 pixels on
  static constexpr int EDGES = INNER, CORNERS = EDGES + 4 * LINE;
  static_assert(CORNERS + 8 == MOMENT_SUMS, "of four corners: h, and its square");
  // Where the product of a pixel with the one dy rows below and dx columns on has its place.
  static constexpr int product(int dy, int dx) { return dy ? 5 * dy + dx + 1 : 1 + dx; }
};

struct MomentMap {
  const Moments& c;
  const ptrdiff_t column, row;  // numbers from one to the next
  explicit MomentMap(const Moments& c_) : c(c_), column(c_.C), row(ptrdiff_t(c_.W) * c_.C) {}
  ptrdiff_t at(int b, int y) const { return (ptrdiff_t(b) * c.H + y) * row; }
  // Where border i begins in an image: top, bottom, left, right; its pixels are `step` apart.
  ptrdiff_t edge(int i) const { return i == 1 ? (c.H - 1) * row : i == 3 ? (c.W - 1) * column : 0; }
  ptrdiff_t step(int i) const { return i < 2 ? column : row; }
  int length(int i) const { return i < 2 ? c.W : c.H; }
  ptrdiff_t corner(int i) const {
    return (i & 2 ? (c.H - 1) * row : 0) + (i & 1 ? (c.W - 1) * column : 0);
  }
  // Asks for a row of n channels before the columns of it are read one by one.
  void fetch(const float* p, int n) const {
    for (int x = 0; x < c.W; x++, p += column)
      for (int v = 0; v < n; v += 16) __builtin_prefetch(p + v);
  }
};

struct MomentPlan {
  static constexpr int CHUNK = 128, PIXELS = 64, ROWS = 8;
  int chunk, chunks;  // channels of a forward task, which owns their sums
  int group;          // rows whose sums meet in single precision
  int bands;          // of ROWS rows, a backward task
  explicit MomentPlan(const Moments& c)
      : chunk(min(CHUNK, round_up((c.C + c.threads - 1) / c.threads, FEED_HIDDEN_STEP))),
        chunks((c.C + chunk - 1) / chunk),
        group((PIXELS + c.W - 1) / c.W),
        bands((c.H + ROWS - 1) / ROWS) {}
};

inline void add_wide(double* to, Wide more) {
  float each[WIDE];
  store_wide(each, more);
  for (int l = 0; l < WIDE; l++) to[l] += each[l];
}

// Adds the products of pixel x with itself and those after it; BELOW rows are there below.
template <int BELOW, bool EDGE>
INLINE void add_moments(const MomentMap& m, const float* row, int x, Wide (&sum)[MomentSums::INNER]) {
  const float* at = row + x * m.column;
  const Wide h = loaded(load_wide(at));
  sum[0] += h;
  sum[1] += h * h;
  repeat<BELOW + 1>([&](auto i) INLINED {
    constexpr int dy = decltype(i)::value;
    repeat<5>([&](auto j) INLINED {
      constexpr int dx = decltype(j)::value - 2;
      if constexpr (dy || dx > 0) {
        if (EDGE && (x + dx < 0 || x + dx >= m.c.W)) return;
        sum[MomentSums::product(dy, dx)] += h * load_wide(at + dy * m.row + dx * m.column);
      }
    });
  });
}
template <int BELOW>
INLINE void add_moments_of_row(const MomentMap& m, const float* row,
                               Wide (&sum)[MomentSums::INNER]) {
  const int first = min(2, m.c.W), last = max(first, m.c.W - 2);
  for (int x = 0; x < first; x++) add_moments<BELOW, true>(m, row, x, sum);
  for (int x = first; x < last; x++) add_moments<BELOW, false>(m, row, x, sum);
  for (int x = last; x < m.c.W; x++) add_moments<BELOW, true>(m, row, x, sum);
}

inline void moments_forward(const Moments& c, int task) {
  const MomentPlan plan(c);
  const MomentMap m(c);
  const int from = task * plan.chunk, n = min(plan.chunk, c.C - from);
  const auto total = [&](int i, int v) { return c.sums + ptrdiff_t(i) * c.C + from + v; };
  for (int b = 0; b < c.B; b++) {
    const float* image = c.h + m.at(b, 0) + from;
    for (int y0 = 0; y0 < c.H; y0 += plan.group) {
      const int y1 = min(c.H, y0 + plan.group);
      for (int y = y0 ? y0 + 2 : 0; y < min(c.H, y1 + 2); y++) m.fetch(image + y * m.row, n);
      for (int v = 0; v < n; v += WIDE) {
        Wide sum[MomentSums::INNER];
        for (Wide& s : sum) s = Wide{};
        for (int y = y0; y < y1; y++) {
          const float* row = image + y * m.row + v;
          const int below = c.H - 1 - y;
          if (below >= 2)
            add_moments_of_row<2>(m, row, sum);
          else if (below)
            add_moments_of_row<1>(m, row, sum);
          else
            add_moments_of_row<0>(m, row, sum);
        }
        for (int i = 0; i < MomentSums::INNER; i++) add_wide(total(i, v), sum[i]);
      }
    }
    for (int v = 0; v < n; v += WIDE) {
      for (int i = 0; i < 4; i++) {
        const float* line = image + m.edge(i) + v;
        Wide sum[MomentSums::LINE];
        for (Wide& s : sum) s = Wide{};
        for (int j = 0; j < m.length(i); j++) {
          const Wide h = load_wide(line + j * m.step(i));
          sum[0] += h;
          for (int k = 0; k < 3 && j + k < m.length(i); k++)
            sum[1 + k] += h * load_wide(line + (j + k) * m.step(i));
        }
        for (int k = 0; k < MomentSums::LINE; k++)
          add_wide(total(MomentSums::EDGES + i * MomentSums::LINE + k, v), sum[k]);
      }
      for (int i = 0; i < 4; i++) {
        const Wide h = load_wide(image + m.corner(i) + v);
        add_wide(total(MomentSums::CORNERS + i, v), h);
        add_wide(total(MomentSums::CORNERS + 4 + i, v), h * h);
      }
    }
  }
}

// One row of dh for one vector of channels, without what the borders add. `at`: the five rows that
// it sees, null outside.
struct MomentRow {
  static constexpr int PX = 4;  // pixels at once
  const MomentMap& m;
  Wide slope[MomentSums::INNER];  // twice the square's

  template <bool EDGE>
  INLINE void pixels(const float* const* at, int x, float* to) const {
    Wide sum[PX];
    for (Wide& s : sum) s = slope[0];
    repeat<5>([&](auto a) INLINED {
      constexpr int dy = decltype(a)::value - 2;
      if (!at[a]) return;
      repeat<PX + 4>([&](auto j) INLINED {
        const int column = x + j - 2;
        if (EDGE && (column < 0 || column >= m.c.W)) return;
        const Wide h = load_wide(at[a] + column * m.column);
        repeat<5>([&](auto b) INLINED {
          constexpr int i = decltype(j)::value - decltype(b)::value;
          constexpr int dx = decltype(b)::value - 2;
          constexpr bool turned = dy < 0 || (dy == 0 && dx < 0);  // the sum has the difference -d
          if constexpr (i >= 0 && i < PX)
            sum[i] += slope[MomentSums::product(turned ? -dy : dy, turned ? -dx : dx)] * h;
        });
      });
    });
    repeat<PX>([&](auto i) INLINED {
      if (!EDGE || x + i < m.c.W) store_wide(to + (x + i) * m.column, sum[i]);
    });
  }
  void run(const float* const* at, float* to) const {
    for (int x = 0; x < m.c.W; x += PX)
      if (x >= 2 && x + PX + 2 <= m.c.W)
        pixels<false>(at, x, to);
      else
        pixels<true>(at, x, to);
  }
};

inline void moments_backward(const Moments& c, int task) {
  const MomentPlan plan(c);
  const MomentMap m(c);
  const int b = task / plan.bands, y0 = task % plan.bands * MomentPlan::ROWS;
  const int y1 = min(c.H, y0 + MomentPlan::ROWS);
  const float* image = c.h + m.at(b, 0);
  float* to = c.dh + m.at(b, 0);
  const auto slope = [&](int i, int v) { return load_wide(c.dsums + ptrdiff_t(i) * c.C + v); };
  for (int y = y0; y < y1; y++) {
    for (int r = y > y0 ? y + 2 : max(0, y - 2); r <= min(y + 2, c.H - 1); r++)
      m.fetch(image + r * m.row, c.C);
    for (int v = 0; v < c.C; v += WIDE) {
      MomentRow row{m, {}};
      for (int i = 0; i < MomentSums::INNER; i++) row.slope[i] = slope(i, v);
      row.slope[1] += row.slope[1];
      const float* at[5];
      for (int a = 0; a < 5; a++) {
        const int r = y + a - 2;
        at[a] = r < 0 || r >= c.H ? nullptr : image + r * m.row + v;
      }
      row.run(at, to + y * m.row + v);
      // What pixel j of border i has beside that.
      const auto along = [&](int i, int j) INLINED {
        const float* line = image + m.edge(i) + v;
        float* place = to + m.edge(i) + j * m.step(i) + v;
        const int first = MomentSums::EDGES + i * MomentSums::LINE;
        Wide sum = load_wide(place) + slope(first, v);
        for (int k = 0; k < 3; k++) {
          const Wide s = slope(first + 1 + k, v);
          if (j + k < m.length(i)) sum += s * load_wide(line + (j + k) * m.step(i));
          if (j >= k) sum += s * load_wide(line + (j - k) * m.step(i));
        }
        store_wide(place, sum);
      };
      along(2, y);
      along(3, y);
      for (int i = 0; i < 2; i++)
        for (int x = 0; y == (i ? c.H - 1 : 0) && x < c.W; x++) along(i, x);
      for (int i = 0; i < 4; i++) {
        if (y != (i & 2 ? c.H - 1 : 0)) continue;
        const Wide h = load_wide(image + m.corner(i) + v);
        float* place = to + m.corner(i) + v;
        store_wide(place, load_wide(place) + slope(MomentSums::CORNERS + i, v) +
                              2.0f * slope(MomentSums::CORNERS + 4 + i, v) * h);
      }
    }
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
