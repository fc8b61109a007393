// First and second moments of a map's 3x3 windows, zeros around it, channel by channel: the sums over
// pixels p of h(p + a), and of h(p + a) h(p + b), for all places a and b of a 3x3.
//
// A product is a sum over pixels q = p + a of h(q) h(q + b - a): it depends on the difference of the
// places alone, of which there are thirteen, but for what p itself leaves out at the border of the
// map. So one pass sums thirteen products, and beside them the same along the four borders, from
// which branches.h makes all others. Backward, each pixel has a 5x5 of its neighbours:
//
//     dh(q) = dsum + sum over differences d of dproduct_d (h(q + d) + h(q - d)), and the borders'
//
// Pixels of a wide map lie far apart, which crowds them into a few sets of the cache. So some rows of
// one vector of channels are copied into a tile first, with zeros around them.
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
  // The same along a border: top, bottom, left, right; `sum` of h alone.
  static constexpr int sum(int edge) { return EDGES + edge * LINE; }
  static constexpr int product_along(int edge, int d) { return sum(edge) + 1 + d; }
};

struct MomentPlan {
  static constexpr int CHUNK = 128, PIXELS = 64, REACH = 2;
  static constexpr size_t TILE = 32 << 10;  // bytes: of a first cache
  int chunk, chunks;  // channels of a forward task, which owns their sums
  int group;          // rows whose sums meet in single precision
  int rows, bands;    // of a tile, without those around; in an image
  explicit MomentPlan(const Moments& c)
      : chunk(min(CHUNK, round_up((c.C + c.threads - 1) / c.threads, FEED_HIDDEN_STEP))),
        chunks((c.C + chunk - 1) / chunk),
        group((PIXELS + c.W - 1) / c.W),
        rows(int(TILE / ((c.W + 2 * REACH) * sizeof(Wide))) - 2 * REACH) {
    rows = max(1, min(rows, c.H));
    bands = (c.H + rows - 1) / rows;
    rows = (c.H + bands - 1) / bands;
  }
  size_t room(const Moments& c) const {  // of scratch, in floats
    return ((rows + 2 * REACH) * size_t(c.W + 2 * REACH) + 8) * WIDE;  // the last pixels look beyond
  }
};

struct MomentMap {
  const Moments& c;
  const ptrdiff_t column, row;  // numbers from one to the next
  explicit MomentMap(const Moments& c_) : c(c_), column(c_.C), row(ptrdiff_t(c_.W) * c_.C) {}
  ptrdiff_t at(int b) const { return ptrdiff_t(b) * c.H * row; }
  // Where border i begins in an image: top, bottom, left, right; its pixels are `step` apart.
  ptrdiff_t edge(int i) const { return i == 1 ? (c.H - 1) * row : i == 3 ? (c.W - 1) * column : 0; }
  ptrdiff_t step(int i) const { return i < 2 ? column : row; }
  int length(int i) const { return i < 2 ? c.W : c.H; }
  ptrdiff_t corner(int i) const {
    return (i & 2 ? (c.H - 1) * row : 0) + (i & 1 ? (c.W - 1) * column : 0);
  }
};

struct MomentTile {
  static constexpr int REACH = MomentPlan::REACH;
  const MomentMap& m;
  const int rows;
  const ptrdiff_t pitch;
  float* cells;
  MomentTile(const MomentMap& m_, const MomentPlan& plan, float* scratch)
      : m(m_), rows(plan.rows), pitch(ptrdiff_t(m_.c.W + 2 * REACH) * WIDE), cells(scratch) {
    for (size_t i = 0; i < plan.room(m.c); i += WIDE) store_wide(cells + i, Wide{});
  }
  float* at(int y) const { return cells + (y + REACH) * pitch + REACH * WIDE; }
  // Rows from y0 - above on of the channels that `image` points at; asks for those of the next tile.
  void fill(const float* image, int y0, int above) const {
    for (int y = -above; y < rows + REACH; y++) {
      float* to = at(y);
      const bool inside = y0 + y >= 0 && y0 + y < m.c.H;
      const float* from = image + (y0 + y) * m.row;
      const ptrdiff_t ahead = y0 + y + rows < m.c.H ? rows * m.row : 0;
      for (int x = 0; x < m.c.W; x++, to += WIDE) {
        store_wide(to, inside ? load_wide(from + x * m.column) : Wide{});
        if (inside && ahead) __builtin_prefetch(from + x * m.column + ahead);
      }
    }
  }
};

inline void add_wide(double* to, Wide more) {
  float each[WIDE];
  store_wide(each, more);
  for (int l = 0; l < WIDE; l++) to[l] += each[l];
}

// Adds the products of a row's pixels with themselves and those after them.
INLINE void add_moments(const MomentTile& tile, int y, Wide (&sum)[MomentSums::INNER]) {
  const float* at[3] = {tile.at(y), tile.at(y + 1), tile.at(y + 2)};
  for (int x = 0; x < tile.m.c.W; x++) {
    const Wide h = loaded(load_wide(at[0]));
    sum[0] += h;
    repeat<3>([&](auto i) INLINED {
      constexpr int dy = decltype(i)::value;
      repeat<5>([&](auto j) INLINED {
        constexpr int dx = decltype(j)::value - 2;
        if constexpr (dy || dx >= 0)
          sum[MomentSums::product(dy, dx)] += h * load_wide(at[dy] + dx * WIDE);
      });
      at[dy] += WIDE;
    });
  }
}

// The same along borders and in corners.
inline void add_border_moments(const MomentMap& m, const float* image, double* total) {
  const ptrdiff_t C = m.c.C;
  for (int i = 0; i < 4; i++) {
    const float* line = image + m.edge(i);
    Wide sum[MomentSums::LINE];
    for (int k = 0; k < MomentSums::LINE; k++) sum[k] = Wide{};
    for (int j = 0; j < m.length(i); j++) {
      const Wide h = load_wide(line + j * m.step(i));
      sum[0] += h;
      for (int k = 0; k < 3 && j + k < m.length(i); k++)
        sum[1 + k] += h * load_wide(line + (j + k) * m.step(i));
    }
    for (int k = 0; k < MomentSums::LINE; k++)
      add_wide(total + (MomentSums::sum(i) + k) * C, sum[k]);
    const Wide h = load_wide(image + m.corner(i));
    add_wide(total + (MomentSums::CORNERS + i) * C, h);
    add_wide(total + (MomentSums::CORNERS + 4 + i) * C, h * h);
  }
}

inline void moments_forward(const Moments& c, int task, float* scratch) {
  const MomentPlan plan(c);
  const MomentMap m(c);
  const MomentTile tile(m, plan, scratch);
  const int from = task * plan.chunk, n = min(plan.chunk, c.C - from);
  for (int b = 0; b < c.B; b++) {
    const float* image = c.h + m.at(b) + from;
    for (int y0 = 0; y0 < c.H; y0 += plan.rows)
      for (int v = 0; v < n; v += WIDE) {
        tile.fill(image + v, y0, 0);
        const int end = min(plan.rows, c.H - y0);
        for (int y = 0; y < end; y += plan.group) {
          Wide sum[MomentSums::INNER];
          for (int i = 0; i < MomentSums::INNER; i++) sum[i] = Wide{};
          for (int r = y; r < min(end, y + plan.group); r++) add_moments(tile, r, sum);
          for (int i = 0; i < MomentSums::INNER; i++)
            add_wide(c.sums + ptrdiff_t(i) * c.C + from + v, sum[i]);
        }
      }
    for (int v = 0; v < n; v += WIDE) add_border_moments(m, image + v, c.sums + from + v);
  }
}

// Rows of dh for one vector of channels, added to what is there.
struct MomentRows {
  static constexpr int PX = REGISTERS < 32 ? 4 : 8;  // pixels at once: their sums and 14 slopes
  const MomentTile& tile;
  const MomentMap& m;
  const float* slopes;  // MOMENT_SUMS C
  INLINE Wide slope(int i) const { return load_wide(slopes + ptrdiff_t(i) * m.c.C); }

  // Row y of the tile, without what the borders add.
  void inner(int y, float* to) const {
    Wide each[MomentSums::INNER];
    for (int i = 0; i < MomentSums::INNER; i++) each[i] = slope(i);
    each[1] += each[1];  // of the square
    for (int x = 0; x < m.c.W; x += PX) {
      Wide sum[PX];
      for (int i = 0; i < PX; i++) sum[i] = each[0];
      for (int i = 2 * PX; i < 3 * PX && x + i < m.c.W; i++)
        __builtin_prefetch(to + (x + i) * m.column, 1);  // lies far apart, which no processor guesses
      const float* at = tile.at(y - 2) + (x - 2) * WIDE;
      repeat<5>([&](auto a) INLINED {
        constexpr int dy = decltype(a)::value - 2;
        repeat<PX + 4>([&](auto j) INLINED {
          const Wide h = loaded(load_wide(at + j * WIDE));
          repeat<5>([&](auto b) INLINED {
            constexpr int i = decltype(j)::value - decltype(b)::value;
            constexpr int dx = decltype(b)::value - 2;
            constexpr bool turned = dy < 0 || (dy == 0 && dx < 0);  // the sum has the difference -d
            if constexpr (i >= 0 && i < PX)
              sum[i] += each[MomentSums::product(turned ? -dy : dy, turned ? -dx : dx)] * h;
          });
        });
        at += tile.pitch;
      });
      for (int i = 0; i < PX; i++) sum[i] = loaded(sum[i]);  // or GCC puts each off into its branch
      repeat<PX>([&](auto i) INLINED {
        float* place = to + (x + i) * m.column;
        if (x + i < m.c.W) store_wide(place, load_wide(place) + sum[i]);
      });
    }
  }
  // What pixel j of border i of an image has beside that.
  void along(int i, int j, const float* image, float* to) const {
    const float* line = image + m.edge(i);
    float* place = to + m.edge(i) + j * m.step(i);
    Wide sum = load_wide(place) + slope(MomentSums::sum(i));
    for (int k = 0; k < 3; k++) {
      const Wide s = slope(MomentSums::product_along(i, k));
      if (j + k < m.length(i)) sum += s * load_wide(line + (j + k) * m.step(i));
      if (j >= k) sum += s * load_wide(line + (j - k) * m.step(i));
    }
    store_wide(place, sum);
  }
  void corner(int i, const float* image, float* to) const {
    float* place = to + m.corner(i);
    store_wide(place, load_wide(place) + slope(MomentSums::CORNERS + i) +
                          2.0f * slope(MomentSums::CORNERS + 4 + i) * load_wide(image + m.corner(i)));
  }
  // All that the borders add to row y of the image.
  void borders(int y, const float* image, float* to) const {
    along(2, y, image, to);
    along(3, y, image, to);
    for (int i = 0; i < 2; i++) {
      if (y != (i ? m.c.H - 1 : 0)) continue;
      for (int x = 0; x < m.c.W; x++) along(i, x, image, to);
      corner(2 * i, image, to);
      corner(2 * i + 1, image, to);
    }
  }
};

inline void moments_backward(const Moments& c, int task, float* scratch) {
  const MomentPlan plan(c);
  const MomentMap m(c);
  const MomentTile tile(m, plan, scratch);
  const int b = task / plan.bands, y0 = task % plan.bands * plan.rows;
  const int end = min(plan.rows, c.H - y0);
  for (int v = 0; v < c.C; v += WIDE) {
    const float* image = c.h + m.at(b) + v;
    float* to = c.dh + m.at(b) + v;
    tile.fill(image, y0, MomentTile::REACH);
    const MomentRows rows{tile, m, c.dsums + v};
    for (int y = 0; y < end; y++) {
      rows.inner(y, to + (y0 + y) * m.row);
      rows.borders(y0 + y, image, to);
    }
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
