// What a square of pixels holds, times a matrix: convolutions, for inference.
//
//     y(m) = W x(around m) + b       then, if asked for: + skip, LayerNorm over channels, ReLU
//
// Squares of some pixels are laid side by side (row, column, channel) and multiplied while they are
// in the cache. With `mean`, what stands for a pixel is the mean of the 2 x 2 that it is made of, as
// far as they exist, plus `shift`, and nowhere below 0.
#pragma once
#include "linear.h"
#include "norm.h"

namespace saccade {
namespace SACCADE_ISA {

struct ConvolutionPlan {
  int depth;   // numbers of a square
  bool there;  // they lie side by side as they are
  int rows, blocks, Ho, Wo;
  explicit ConvolutionPlan(const Convolution& c)
      : depth(c.kernel * c.kernel * c.inputs), Ho(outputs(c, c.H)), Wo(outputs(c, c.W)) {
    there = c.kernel == 1 && c.stride == 1 && !c.mean && !c.padding && c.x.channel == 1 &&
            c.x.column == c.inputs && c.x.row == int64_t(c.W) * c.inputs && !c.shift;
    rows = depth > 512 ? LinearPlan::ROWS / 2 : LinearPlan::ROWS;
    if (Ho * Wo <= LinearPlan::ROWS * 3 / 4) rows = Ho * Wo;  // not a second block of a few
    blocks = (Ho * Wo + rows - 1) / max(1, rows);
  }
  static int outputs(const Convolution& c, int side) {
    if (c.mean) return (side + c.stride - 1) / c.stride;
    return (side + 2 * c.padding - c.kernel) / c.stride + 1;
  }
  size_t room() const { return there ? 16 : size_t(rows) * depth + 16; }
};

// A few numbers, inline: a library's function costs more than they do.
INLINE void copy(const float* from, int n, float* to) {
  constexpr int N = LANES<float>;
  if (n >= WIDE)
    overlapping<WIDE>(n, [&](int k) INLINED { store_wide(to + k, load_wide(from + k)); });
  else if (!overlapping<N>(n, [&](int k) INLINED { store(to + k, load(from + k)); }))
    for (int k = 0; k < n; k++) to[k] = from[k];
}

// The square of pixel (y, x): `depth` numbers.
INLINE void square_of(const Convolution& c, const float* image, int y, int x, float* to) {
  const int top = y * c.stride - c.padding, left = x * c.stride - c.padding;
  const int first = max(0, -left), last = max(first, min(c.kernel, c.W - left));  // columns inside
  for (int a = 0; a < c.kernel; a++, to += c.kernel * c.inputs) {
    const bool inside = top + a >= 0 && top + a < c.H;
    const int from = inside ? first : 0, end = inside ? last : 0;
    zero(to, size_t(from) * c.inputs);
    zero(to + end * c.inputs, size_t(c.kernel - end) * c.inputs);
    const float* at = image + (top + a) * c.x.row + (left + from) * c.x.column;
    if (c.x.channel == 1 && c.x.column == c.inputs) {
      copy(at, (end - from) * c.inputs, to + from * c.inputs);
    } else {
      for (int b = from; b < end; b++, at += c.x.column)
        for (int k = 0; k < c.inputs; k++) to[b * c.inputs + k] = at[k * c.x.channel];
    }
  }
}
// Pixel (y, x) of a map that is half as large, or as large if `stride` is 1, and as it is shifted.
INLINE void mean_of(const Convolution& c, const float* image, int y, int x, float* to) {
  const int s = c.stride, rows = min(s, c.H - y * s), columns = min(s, c.W - x * s);
  const float* at = image + y * s * c.x.row + x * s * c.x.column;
  const float share = 1.0f / float(rows * columns);
  const auto all = [&](int k, auto load_one) INLINED {
    auto sum = load_one(at + k);
    if (columns > 1) sum += load_one(at + k + c.x.column);
    if (rows > 1) sum += load_one(at + k + c.x.row);
    if (rows > 1 && columns > 1) sum += load_one(at + k + c.x.row + c.x.column);
    return sum;
  };
  int k = 0;
  for (; k + WIDE <= c.inputs; k += WIDE) {
    Wide sum = all(k, [](const float* p) INLINED { return load_wide(p); }) * share;
    if (c.shift) sum += load_wide(c.shift + k);
    store_wide(to + k, maximum_wide(splat_wide(0.0f), sum));
  }
  for (; k < c.inputs; k++) {
    const float sum = all(k, [](const float* p) INLINED { return *p; }) * share +
                      (c.shift ? c.shift[k] : 0);
    to[k] = sum < 0 ? 0 : sum;
  }
}

inline void convolution_forward(const Convolution& c, int task, float* room) {
  const ConvolutionPlan plan(c);
  const int b = task / plan.blocks, from = task % plan.blocks * plan.rows, pixels = plan.Ho * plan.Wo;
  const int rows = min(plan.rows, pixels - from);
  const float* image = static_cast<const float*>(c.x.data) + b * c.x.batch;
  const float* x = image + ptrdiff_t(from) * c.inputs;
  if (!plan.there) {
    for (int r = 0; r < rows; r++) {
      const int y = (from + r) / plan.Wo, x_ = (from + r) % plan.Wo;
      float* to = room + size_t(r) * plan.depth;
      if (c.mean)
        mean_of(c, image, y, x_, to);
      else
        square_of(c, image, y, x_, to);
    }
    x = room;
  }
  const ptrdiff_t first = ptrdiff_t(b) * pixels + from;
  float* y = c.y + first * c.outputs;
  const size_t numbers = size_t(rows) * c.outputs;
  const float* skip = c.skip ? c.skip + first * c.outputs : nullptr;
  times_packed(x, plan.depth, rows, c.packed, c.outputs, skip, y);
  if (c.scale) norm_rows(y, rows, c.outputs, c.scale, c.offset, *c.eps, y);
  if (c.relu) at_least_zero(y, numbers);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
