// Key-only attention for inference, with the norm before it and the skip around it.
//
//     n    = LayerNorm(x)
//     mean = softmax over tokens of ask . n, times n        ask = Ws Wk / sqrt(d)       for each head
//     g    = Wk mean + bk                                   each head its own channels
//     y    = x + ((n Wv^T + bv) * g) P^T + n Q^T + c        P = U2 U1,  Q = U2 Wk
//
// P, Q, ask and c hold no image and are made beforehand. That is `folded`, three products of all
// tokens; where tokens are many, it is cheaper to make one matrix of all three for each image:
//
//     y    = x + n M^T + P (g * bv) + c                     M = P diag(g) Wv + Q
//
// Neither n nor anything else ever exists for all tokens: there are three rounds of tasks, for the
// means (chunks of tokens), the matrices (panels of columns), and y (blocks of tokens).
#pragma once
#include <cstring>

#include "linear.h"
#include "linglo.h"
#include "norm.h"

namespace saccade {
namespace SACCADE_ISA {

struct KeyOnlyPlan {
  Summary tokens{};  // the same tokens, as a summary
  int chunks, panels_each, blocks;
  size_t matrix;   // floats of one that is packed
  size_t product;  // of one that tokens are multiplied with: with PAIRS, of pairs
  explicit KeyOnlyPlan(const KeyOnly& c) {
    tokens.threads = c.threads, tokens.B = c.B, tokens.tokens = c.tokens;
    tokens.C = c.C, tokens.heads = c.heads, tokens.ask = c.ask;
    chunks = SummaryPart::chunks(tokens);
    panels_each = 0;
    panels(c.C, [&](int, auto) { panels_each++; });
    blocks = (c.tokens + LinearPlan::ROWS - 1) / LinearPlan::ROWS;
    matrix = padded(c.C) * (c.C + 1);
    product = packed_size(c.C, c.C);
  }
  // Of scratch, in floats: of the means, the matrices, and the tokens.
  size_t means_room(const KeyOnly& c) const { return size_t(SummaryPart::few(tokens, false)) * c.C; }
  size_t matrix_room(const KeyOnly& c) const {
    return size_t(c.C) * (3 * WIDE + 2) + (PAIRS ? size_t(c.C + 1) * 3 * WIDE : 0) + 16;
  }
  size_t tokens_room(const KeyOnly& c) const { return size_t(2) * LinearPlan::ROWS * c.C; }
  // What an image needs until its y is there: g, and its matrix.
  size_t image(const KeyOnly& c) const { return round_up(c.C, 16) + (c.collapsed ? product : 0); }
  // P, Q and Wv; with PAIRS, twice: what one matrix is made of, and what tokens are multiplied with.
  size_t packed() const { return 3 * matrix + (PAIRS ? 3 * product : 0); }
  const float* folded(const KeyOnly& c, int i) const {
    return c.packed + (PAIRS ? 3 * matrix : 0) + i * product;
  }
};

inline Linear square(int C, const float* w, const float* b) {
  Linear m{};
  m.inputs = m.outputs = C, m.w = w, m.b = b, m.w_output = C, m.w_input = 1;
  return m;
}
inline void key_only_pack(const KeyOnly& c, int i, float* packed) {
  const KeyOnlyPlan plan(c);
  const float* from[3] = {c.p, c.q, c.wv};
  const float* bias[3] = {nullptr, c.c, c.bv};
  const Linear one = square(c.C, from[i], bias[i]);
  linear_pack<false>(one, 0, packed + i * plan.matrix);
  if (PAIRS) linear_pack(one, 0, packed + 3 * plan.matrix + i * plan.product);
}

// Round one: the part of a chunk of tokens in the means.
inline void key_only_means(const KeyOnly& c, int task, float* partial, float* scratch) {
  const KeyOnlyPlan plan(c);
  const SummaryPart part(plan.tokens, task);
  const int few = SummaryPart::few(plan.tokens, false);
  summary_begin(plan.tokens, partial);
  for (int t = part.from; t < part.to; t += few) {
    const int n = min(few, part.to - t);
    norm_rows(c.x + (ptrdiff_t(part.b) * c.tokens + t) * c.C, n, c.C, c.scale, c.offset, *c.eps,
              scratch);
    summary_add(plan.tokens, scratch, n, partial);
  }
}

// g of an image, of the parts of its chunks.
inline void key_only_context(const KeyOnly& c, const KeyOnlyPlan& plan, const float* partials,
                             float* mean, float* g) {
  const int d = c.C / c.heads;
  for (int h = 0; h < c.heads; h++) {
    const float* first = partials + size_t(h) * (c.C + 2);
    const size_t size = SummaryPart::size(plan.tokens);
    float high = first[0], total = 0;
    for (int i = 1; i < plan.chunks; i++) high = first[i * size] > high ? first[i * size] : high;
    zero(mean, c.C);
    for (int i = 0; i < plan.chunks; i++) {
      const float *one = first + i * size, share = std::exp(one[0] - high);
      total += share * one[1];
      for (int k = 0; k < c.C; k++) mean[k] += share * one[2 + k];
    }
    for (int j = h * d; j < (h + 1) * d; j++) {
      const float* w = c.wk + ptrdiff_t(j) * c.C;
      const int whole = c.C / WIDE * WIDE;
      Wide sums{};
      for (int k = 0; k < whole; k += WIDE) sums += load_wide(w + k) * load_wide(mean + k);
      float sum = sum_wide(sums);
      for (int k = whole; k < c.C; k++) sum += w[k] * mean[k];
      g[j] = sum / total + c.bk[j];
    }
  }
}

// Round two: g of an image, and if it gets a matrix, a panel of that.
inline void key_only_matrix(const KeyOnly& c, int task, const float* partials, float* images,
                            float* scratch) {
  const KeyOnlyPlan plan(c);
  const int each = c.collapsed ? plan.panels_each : 1;
  const int b = task / each, wanted = task % each;
  float *g = scratch, *scaled = g + round_up(c.C, 16), *image = images + b * plan.image(c);
  key_only_context(c, plan, partials + size_t(b) * plan.chunks * SummaryPart::size(plan.tokens), scaled,
                   g);
  if (!wanted) memcpy(image, g, c.C * sizeof(float));
  if (!c.collapsed) return;
  const float *p = c.packed, *q = c.packed + plan.matrix;
  float *m = image + round_up(c.C, 16), *own = scaled + size_t(c.C) * 3 * WIDE;
  int i = 0;
  panels(c.C, [&](int, auto nv) INLINED {
    constexpr int NV = decltype(nv)::value, WIDTH = NV * WIDE;
    if (i++ == wanted) {
      for (int j = 0; j < c.C; j++)
        for (int v = 0; v < WIDTH; v += WIDE)
          store_wide(scaled + j * WIDTH + v, load_wide(p + (j + 1) * WIDTH + v) * g[j]);
      float* to = PAIRS ? own : m;
      memcpy(to, q, size_t(c.C + 1) * WIDTH * sizeof(float));
      const Sums first{nullptr, to, to, WIDTH, WIDTH};
      const Sums rest{nullptr, to + WIDTH, to + WIDTH, WIDTH, WIDTH};
      rows_of<NV>(1, c.bv, 1, 0, scaled, c.C, first);
      rows_of<NV>(c.C, c.wv, c.C, 1, scaled, c.C, rest);
      if (PAIRS) memcpy(m, own, WIDTH * sizeof(float));
      for (int k = 0; PAIRS && k < c.C; k += 2)
        pair_up(own + (k + 1) * WIDTH, k + 1 < c.C ? own + (k + 2) * WIDTH : nullptr, WIDTH,
                m + (k / 2 + 1) * WIDTH);
    }
    p += (c.C + 1) * WIDTH, q += (c.C + 1) * WIDTH, m += (deep(c.C) + 1) * WIDTH;
  });
}

// Round three: y of a block of tokens.
inline void key_only_tokens(const KeyOnly& c, int task, const float* images, float* scratch) {
  const KeyOnlyPlan plan(c);
  const int b = task / plan.blocks, from = task % plan.blocks * LinearPlan::ROWS;
  const int rows = min(LinearPlan::ROWS, c.tokens - from);
  const ptrdiff_t at = (ptrdiff_t(b) * c.tokens + from) * c.C;
  const float* image = images + b * plan.image(c);
  norm_rows(c.x + at, rows, c.C, c.scale, c.offset, *c.eps, scratch);
  if (c.collapsed)
    return times_packed(scratch, c.C, rows, image + round_up(c.C, 16), c.C, c.x + at, c.y + at);
  float* v = scratch + ptrdiff_t(LinearPlan::ROWS) * c.C;
  times_packed(scratch, c.C, rows, plan.folded(c, 2), c.C, nullptr, v);
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < c.C; k++) v[r * c.C + k] *= image[k];
  times_packed(v, c.C, rows, plan.folded(c, 0), c.C, c.x + at, c.y + at);
  times_packed(scratch, c.C, rows, plan.folded(c, 1), c.C, c.y + at, c.y + at);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
