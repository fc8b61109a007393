// The feed-forward half of a block: all between its two products stays in the cache.
//
//     h = x W1 + b1     u = h * taps + shift (depth-wise 3x3)     y = gelu(u) W2 + b2
//
// The hidden map is several times as wide as x and y, so the time goes into moving it. Here some
// rows of a chunk of its channels exist at a time: the 3x3 mixes no channels, and y is a sum over
// them. Backward, with h kept:
//
//     du = (g W2^T) gelu'(u)     dh = du * turned taps     dx = dh W1^T
//     dW1 = dh^T x     dW2 = g^T gelu(u)     dtaps = sums over pixels of du h
//
// A task has a chunk of its own, so that it owns the sums over pixels. Only dx is a sum over chunks:
// dh is laid down for some rows of the map (a turn), and multiplied when all chunks are there.
// Without W1, x is h and dx is dh. With a norm, a task normalises its rows with its first chunk, and
// the sum that is y begins with x.
#pragma once
#include <cstring>

#include "feed_rows.h"
#include "linear.h"
#include "norm.h"

namespace saccade {
namespace SACCADE_ISA {

struct FeedPlan {
  static constexpr int CHUNK = 128;     // hidden channels at once, if the cache has room for them
  static constexpr int TURN = 1 << 20;  // numbers of dh
  static constexpr int STEP = FEED_HIDDEN_STEP;
  int halo, step;            // rows above and below that the 3x3 sees; rows at once
  int chunk, chunks;
  int band, bands;           // rows of a forward task; in an image
  int part, parts, images;   // of a turn: rows; how many of them in an image, or how many images
  int turns;

  FeedPlan(const Feed& c, bool backward) : halo(c.taps ? 1 : 0) {
    step = min(c.H, (LinearPlan::ROWS + c.W - 1) / c.W);
    const int maps = backward ? 3 : 2;
    const size_t pixels = size_t(maps * step + 2 * halo) * c.W;
    chunk = CHUNK;
    if (backward) chunk = min(chunk, round_up((c.hidden + c.threads - 1) / c.threads, STEP));
    while (chunk > STEP && pixels * chunk * sizeof(float) > BUDGET) chunk -= STEP;
    chunks = (c.hidden + chunk - 1) / chunk;
    chunk = round_up((c.hidden + chunks - 1) / chunks, STEP);
    chunks = (c.hidden + chunk - 1) / chunk;
    // Bands share rows, whose h is computed twice; but x and y should stay in the second cache, and
    // all threads busy.
    const size_t row = size_t(c.W) * (c.inputs + c.outputs) * sizeof(float);
    bands = max(c.threads / std::gcd(c.threads, max(1, c.B)), int(c.H * row / (2 * BUDGET)));
    band = max((c.H + bands - 1) / bands, 1 + 2 * halo);
    bands = (c.H + band - 1) / band;
    if (!backward) step = min(step, band);
    const size_t image = size_t(c.H) * c.W * c.hidden;
    parts = max(1, int(image / TURN));
    part = round_up((c.H + parts - 1) / parts, step);
    parts = (c.H + part - 1) / part;
    images = parts > 1 ? 1 : max(1, min(c.B, int(TURN / image)));
    turns = parts > 1 ? c.B * parts : (c.B + images - 1) / images;
  }
  int width(const Feed& c, int i) const { return min(chunk, c.hidden - i * chunk); }
  // Whether every matrix is read by one task alone: then a chunk is laid out where the one before it
  // was, and what is laid out stays in the second cache.
  bool once(const Feed& c) const { return c.B * bands == 1 && !c.packed; }
  // Of scratch, in floats: rows of h and gelu(u), and x as products read it.
  size_t forward_room(const Feed& c) const {
    return size_t(most() + step) * c.W * chunk + 64 + (anew(c) ? rows_of_x(c) + few_of_x(c) : 0);
  }
  int most() const { return step + 2 * halo; }  // rows of h at a time
  static bool anew(const Feed& c) { return c.w1 && (PAIRS || c.scale); }  // x is written so
  static size_t few_of_x(const Feed& c) { return round_up(c.inputs * LANES<float>, 16) + 16; }
  size_t rows_of_x(const Feed& c) const {
    return round_up(size_t(band + 2 * halo) * c.W * deep(c.inputs), 16);
  }
  size_t backward_room(const Feed& c) const {
    return size_t(3 * step + 2 * halo) * c.W * chunk + 64 + ROOM;
  }
};

// Its two matrices (or the second alone), chunk by chunk; backward, each turned round.
struct FeedMatrices {
  size_t first, second;  // numbers of one chunk
  FeedMatrices(const Feed& c, const FeedPlan& plan, bool backward)
      : first(backward ? packed_size(c.outputs, plan.chunk)
              : c.w1   ? packed_size(c.inputs, plan.chunk)
                       : 0),
        second(backward ? 0 : packed_size(plan.chunk, c.outputs)) {}
  static size_t last(const Feed& c) { return c.w1 ? packed_size(c.hidden, c.inputs) : 0; }
};
inline size_t feed_packed(const Feed& c, bool backward) {
  const FeedPlan plan(c, backward);
  const FeedMatrices size(c, plan, backward);
  if (!backward && plan.once(c)) return size.first + size.second;
  return plan.chunks * (size.first + size.second) + (backward ? FeedMatrices::last(c) : 0);
}
// Task `chunks` of the backward lays out W1 whole.
inline void feed_pack(const Feed& c, bool backward, int i, float* to) {
  const FeedPlan plan(c, backward);
  const FeedMatrices size(c, plan, backward);
  const auto pack = [](int inputs, int outputs, const float* w, ptrdiff_t w_output,
                       ptrdiff_t w_input, const float* b, float* at) {
    Linear matrix{};
    matrix.inputs = inputs, matrix.outputs = outputs, matrix.w = w, matrix.b = b;
    matrix.w_output = w_output, matrix.w_input = w_input;
    linear_pack(matrix, 0, at);
  };
  float* at = to + i * (size.first + size.second);
  if (i == plan.chunks) return pack(c.hidden, c.inputs, c.w1, 1, c.inputs, nullptr, at);
  const int from = i * plan.chunk, n = plan.width(c, i);
  if (backward) return pack(c.outputs, n, c.w2 + from, 1, c.hidden, nullptr, at);
  if (c.w1) pack(c.inputs, n, c.w1 + ptrdiff_t(from) * c.inputs, c.inputs, 1, c.b1 + from, at);
  pack(n, c.outputs, c.w2 + from, c.hidden, 1, i ? nullptr : c.b2, at + size.first);
}

// Rows of a map that wait until the rows below are there, too.
struct Sliding {
  float* base;
  ptrdiff_t row;  // numbers
  int first = 0, end = 0;
  float* at(int y) const { return base + (y - first) * row; }
  void drop_before(int y) {
    if (y <= first) return;
    if (end > y) memmove(base, at(y), (end - y) * row * sizeof(float));
    first = y;
  }
};

// Some rows of a chunk of h, as they wait: in panels as the product makes them, for a panel's rows are
// read again and again and should stay in the first cache. Row y lies where row y - most lay.
struct HiddenRows {
  float* base;
  int W, n, most;  // pixels of a row, channels, rows that there is room for
  int tail;  // where the last panel begins; the others have two vectors
  HiddenRows(float* base_, int W_, int n_, int most_) : base(base_), W(W_), n(n_), most(most_), tail(0) {
    while (n - tail > 3 * WIDE) tail += 2 * WIDE;
  }
  INLINE int panel(int v) const { return v >= tail ? tail : v / (2 * WIDE) * 2 * WIDE; }
  INLINE int width(int v) const { return v >= tail ? n - tail : 2 * WIDE; }
  // Row y of channel v's panel, from that channel on.
  INLINE float* at(int y, int v) const {
    const int p = panel(v);
    return base + ptrdiff_t(p) * most * W + ptrdiff_t(y % most) * W * width(v) + (v - p);
  }
};

// Pixels of x as the first product reads them: normalised if there is a norm, and ready.
inline void feed_ready(const Feed& c, const float* x, int pixels, float* to, float* few) {
  if (!PAIRS) return norm_rows(x, pixels, c.inputs, c.scale, c.offset, *c.eps, to);
  constexpr int N = LANES<float>;
  for (; pixels > 0; pixels -= N, x += ptrdiff_t(N) * c.inputs) {
    const int some = min(N, pixels);
    if (c.scale) norm_rows(x, some, c.inputs, c.scale, c.offset, *c.eps, few);
    for (int p = 0; p < some; p++, to += deep(c.inputs))
      ready_row((c.scale ? few : x) + ptrdiff_t(p) * c.inputs, c.inputs, to);
  }
}

template <bool TANH>
void feed_forward(const Feed& c, int task, float* room, float* scratch) {
  const FeedPlan plan(c, false);
  const FeedMatrices size(c, plan, false);
  const int b = task / plan.bands, r0 = task % plan.bands * plan.band;
  const int r1 = min(c.H, r0 + plan.band), top = max(0, r0 - plan.halo);
  const auto pixel = [&](int y) { return (ptrdiff_t(b) * c.H + y) * c.W; };
  const bool anew = plan.anew(c);
  const int step = anew ? deep(c.inputs) : c.inputs;  // floats of a pixel of x
  float* const few = scratch + plan.rows_of_x(c);
  const float* x = anew ? scratch - ptrdiff_t(top) * c.W * step : c.x + pixel(0) * step;
  if (anew) scratch = few + plan.few_of_x(c);
  const float* packed = c.packed ? c.packed : room;
  for (int i = 0; i < plan.chunks; i++, packed += plan.once(c) ? 0 : size.first + size.second) {
    const int from = i * plan.chunk, n = plan.width(c, i);
    if (plan.once(c)) feed_pack(c, false, i, room - i * (size.first + size.second));
    const HiddenRows h(scratch, c.W, n, plan.most());
    float* active = scratch + ptrdiff_t(plan.most()) * c.W * n;
    const FeedRows rows(c, from, n);
    int end = top;  // of the rows of h that are there
    for (int y = r0; y < r1; y += plan.step) {
      const int count = min(plan.step, r1 - y), begin = end;
      const auto activate = [&](int first, int last) INLINED {
        for (int r = y; r < y + count; r++)
          rows.template activate<TANH>(
              [&](int v, const float** here) INLINED -> ptrdiff_t {
                for (int a = 0; a < 3; a++) {
                  const int s = r + a - 1;
                  here[a] = s < 0 || s >= c.H || (a != 1 && !plan.halo) ? nullptr
                            : c.w1 ? h.at(s, v) : c.x + pixel(s) * c.hidden + from + v;
                }
                return c.w1 ? h.width(v) : c.hidden;
              },
              first, last, active + ptrdiff_t(r - y) * c.W * deep(n));
      };
      if (c.w1) {
        end = min(c.H, y + count + plan.halo);
        if (anew && !i)
          feed_ready(c, c.x + pixel(begin) * c.inputs, (end - begin) * c.W,
                     const_cast<float*>(x) + ptrdiff_t(begin) * c.W * step, few);
        const float* panel = packed;
        panels(n, [&](int n0, auto nv) INLINED {
          constexpr int NV = decltype(nv)::value, WIDTH = NV * WIDE;
          for (int r = begin, some; r < end; r += some) {  // up to where the rows of h begin again
            some = min(end - r, h.most - r % h.most);
            panel_times<NV>(x + ptrdiff_t(r) * c.W * step, step, some * c.W, panel, c.inputs,
                            Sums{nullptr, nullptr, h.at(r, n0), WIDTH, WIDTH});
          }
          panel += (deep(c.inputs) + 1) * WIDTH;
          for (int r = max(begin, r0); c.h && r < min(end, r1); r++)
            for (int p = 0; p < c.W; p++)
              memcpy(c.h + (pixel(r) + p) * c.hidden + from + n0, h.at(r, n0) + p * WIDTH,
                     WIDTH * sizeof(float));
          activate(n0, n0 + WIDTH);
        });
      } else {
        activate(0, n);
      }
      const ptrdiff_t at = pixel(y) * c.outputs;
      times_ready(active, n, count * c.W, packed + size.first, c.outputs,
                  i ? c.y + at : c.scale ? c.x + at : nullptr, c.y + at);
    }
  }
}

// The rows of image b that a turn has.
struct FeedTurn {
  int b0, b1, r0, r1;
  FeedTurn(const Feed& c, const FeedPlan& plan, int turn) {
    b0 = plan.parts > 1 ? turn / plan.parts : turn * plan.images;
    b1 = min(c.B, b0 + plan.images);
    r0 = plan.parts > 1 ? turn % plan.parts * plan.part : 0;
    r1 = min(c.H, r0 + plan.part);
  }
  ptrdiff_t pixels(const Feed& c) const { return ptrdiff_t(b1 - b0) * (r1 - r0) * c.W; }
  ptrdiff_t first(const Feed& c) const { return (ptrdiff_t(b0) * c.H + r0) * c.W; }
};

// Chunk i of one turn: dh, and its share of all sums.
template <bool TANH>
void feed_backward(const Feed& c, int t, int i, const float* packed, float* dh, float* scratch) {
  const FeedPlan plan(c, true);
  const FeedTurn turn(c, plan, t);
  const int from = i * plan.chunk, n = plan.width(c, i);
  packed += i * FeedMatrices(c, plan, true).first;
  const ptrdiff_t row = ptrdiff_t(c.W) * n;
  float *da = scratch, *active = da + plan.step * row, *waiting = active + plan.step * row;
  float* room = waiting + (plan.step + 2 * plan.halo) * row;
  const FeedRows rows(c, from, n);
  // Some pixels at a time, whose sums meet before they are added to those of all others.
  const auto in_blocks = [&](int pixels, auto f) {
    for (int m = 0; m < pixels; m += LinearPlan::ROWS) f(m, min(LinearPlan::ROWS, pixels - m));
  };
  for (int b = turn.b0; b < turn.b1; b++) {
    const auto pixel = [&](int y) { return (ptrdiff_t(b) * c.H + y) * c.W; };
    const auto dh_at = [&](int y) {
      return c.w1 ? dh + (pixel(y) - turn.first(c)) * c.hidden + from
                  : c.dx + pixel(y) * c.hidden + from;
    };
    const int first = max(0, turn.r0 - plan.halo), last = min(c.H, turn.r1 + plan.halo);
    Sliding du{waiting, row, first, first};
    int done = turn.r0;
    for (int y = first; y < last; y += plan.step) {
      const int count = min(plan.step, last - y);
      times_packed(c.g + pixel(y) * c.outputs, c.outputs, count * c.W, packed, n, nullptr, da);
      du.drop_before(done - plan.halo);
      du.end = y + count;
      for (int r = y; r < du.end; r++) {
        const auto h_at = [&](int s) {
          return s < 0 || s >= c.H ? nullptr : c.h + pixel(s) * c.hidden + from;
        };
        const float* at[3] = {h_at(r - 1), h_at(r), h_at(r + 1)};
        const bool own = r >= turn.r0 && r < turn.r1;
        rows.template slopes<TANH>(at, da + (r - y) * row, active + (r - y) * row,
                                   plan.halo ? du.at(r) : dh_at(r), plan.halo ? n : c.hidden);
        if (own && plan.halo) rows.add_taps(at, du.at(r));
      }
      const int own = max(y, turn.r0), count_own = min(du.end, turn.r1) - own;
      in_blocks(count_own * c.W, [&](int m, int pixels) {
        const float* g = c.g + (pixel(own) + m) * c.outputs;
        add_products(g, c.outputs, c.outputs, active + (own - y) * row + ptrdiff_t(m) * n, n, n,
                     pixels, 0, c.dw2 + from, c.hidden, room);
        if (!i) add_rows(g, c.outputs, pixels, c.outputs, c.db2);
      });
      const int ready = min(turn.r1, du.end < c.H ? du.end - plan.halo : c.H);
      for (int r = done; plan.halo && r < ready; r++) {
        const float* at[3] = {r ? du.at(r - 1) : nullptr, du.at(r),
                              r + 1 < c.H ? du.at(r + 1) : nullptr};
        rows.turn_back(at, dh_at(r));
      }
      in_blocks(c.w1 ? (ready - done) * c.W : 0, [&](int m, int pixels) {
        const float* g = dh_at(done) + ptrdiff_t(m) * c.hidden;
        add_products(g, c.hidden, n, c.x + (pixel(done) + m) * c.inputs, c.inputs, c.inputs, pixels,
                     0, c.dw1 + ptrdiff_t(from) * c.inputs, c.inputs, room);
        add_rows(g, c.hidden, pixels, n, c.db1 + from);
      });
      done = max(done, ready);
    }
  }
}

// Block `task` of a turn's pixels, once all chunks of dh are there.
inline void feed_inputs(const Feed& c, int t, int task, const float* packed, const float* dh) {
  const FeedPlan plan(c, true);
  const FeedTurn turn(c, plan, t);
  const ptrdiff_t m = ptrdiff_t(task) * LinearPlan::ROWS;
  if (m >= turn.pixels(c)) return;
  const int pixels = int(turn.pixels(c) - m < LinearPlan::ROWS ? turn.pixels(c) - m
                                                               : LinearPlan::ROWS);
  times_packed(dh + m * c.hidden, c.hidden, pixels,
               packed + plan.chunks * FeedMatrices(c, plan, true).first, c.inputs, nullptr,
               c.dx + (turn.first(c) + m) * c.inputs);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
