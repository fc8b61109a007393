// Whether a call is one that the kernels take. Python's checks come first and say more; these keep
// the library from reading or writing where nobody said it may, whoever calls it.
#pragma once
#include "call.h"

namespace saccade {

inline bool within(int least, int n, int most) { return least <= n && n <= most; }
template <class... Sizes>
bool positive(Sizes... sizes) {
  return (... && (sizes > 0));
}
template <class... Pointers>
bool there(Pointers... pointers) {
  return (... && (pointers != nullptr));
}
inline bool known(int type) { return within(FLOAT32, type, FLOAT64); }

inline bool takes(const Sasa& c, bool backward) {
  const bool position = c.row, content = c.k.data;
  const bool sizes = c.B >= 0 && positive(c.threads, c.heads, c.d, c.H, c.W) && known(c.type) &&
                     within(SASA_LEAST_WINDOW, c.window, SASA_WINDOW) && c.window % 2 == 1 &&
                     c.d <= SASA_HEAD_WIDTH;
  const bool tables = !c.col == !position && (position || content) &&
                      (!position || (c.d % 2 == 0 && (c.tables == 1 || c.tables == c.heads)));
  if (!sizes || !tables || !c.B) return sizes && tables;
  if (!backward) return there(c.q.data, c.v.data, c.out.data);
  return there(c.q.data, c.v.data, c.gout.data, c.dq.data, c.dv.data) &&
         (!content || c.dk.data) && (!position || there(c.drow, c.dcol));
}

inline bool takes(const Qna& c, bool backward) {
  const bool sizes = c.B >= 0 && known(c.type) && within(1, c.window, QNA_WINDOW) &&
                     positive(c.threads, c.heads, c.d, c.queries, c.H, c.W, c.stride) &&
                     within(0, c.padding, c.window - 1) && there(c.bias) && (c.fold || !c.weight);
  const auto outputs = [&](int n) { return n + 2 * c.padding - c.window; };
  const bool fit = sizes && outputs(c.H) >= 0 && outputs(c.W) >= 0 &&
                   c.Ho == outputs(c.H) / c.stride + 1 && c.Wo == outputs(c.W) / c.stride + 1;
  if (!fit || !c.B) return fit;
  if (!backward) return there(c.s.data, c.v.data, c.out.data);
  return there(c.s.data, c.v.data, c.gout.data, c.ds.data, c.dv.data);
}

inline bool takes(const Summary& c, bool backward) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.tokens, c.C, c.heads) && there(c.ask);
  if (!sizes || !c.B) return sizes && (!backward || c.dask);
  if (!backward) return there(c.x, c.mean, c.lse);
  return there(c.x, c.lse, c.dmean, c.delta, c.dx, c.dask);
}

inline bool takes(const Linear& c, bool backward) {
  const bool sizes = c.batches >= 0 && c.rows >= 0 && positive(c.threads, c.inputs, c.outputs);
  if (!sizes || !(backward ? there(c.dw) : c.w || c.packed)) return false;
  return !c.batches || !c.rows || there(c.x, c.y);
}

inline bool takes(const Feed& c, bool backward) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.H, c.W, c.inputs, c.hidden, c.outputs) &&
                     c.hidden % FEED_HIDDEN_STEP == 0 && !c.taps == !c.shift && there(c.w2) &&
                     !c.w1 == !c.b1 && (c.w1 || c.inputs == c.hidden) && !c.scale == !c.offset &&
                     !c.scale == !c.eps;
  const bool normed = c.scale && (backward || !c.w1 || c.h || c.inputs != c.outputs);
  if (!sizes || normed || !c.B) return sizes && !normed;
  if (!backward) return there(c.x, c.b2, c.y);
  return there(c.x, c.h, c.g, c.dx, c.dw2, c.db2) && (!c.w1 || there(c.dw1, c.db1)) &&
         (!c.taps || there(c.dtaps, c.dshift));
}

inline bool takes(const LayerNorm& c) {
  return c.rows >= 0 && positive(c.threads, c.C) &&
         (!c.rows || there(c.x, c.scale, c.offset, c.eps, c.y));
}

inline bool takes(const KeyOnly& c) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.tokens, c.C, c.heads) && c.C % c.heads == 0;
  if (!sizes || !c.B) return sizes;
  return there(c.x, c.scale, c.offset, c.eps, c.ask, c.wk, c.bk, c.wv, c.bv, c.packed, c.y);
}

inline bool takes(const Convolution& c) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.H, c.W, c.inputs, c.outputs, c.kernel, c.stride) &&
                     within(0, c.padding, c.kernel - 1) && c.H + 2 * c.padding >= c.kernel &&
                     c.W + 2 * c.padding >= c.kernel && !c.scale == !c.offset && !c.scale == !c.eps;
  const bool mean = !c.mean || (c.kernel == 1 && c.stride <= 2 && c.x.channel == 1);
  if (!sizes || !mean || (c.shift && !c.mean)) return false;
  return !c.B || there(c.x.data, c.packed, c.y);
}

inline bool takes(const Windows& c) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.H, c.W, c.C, c.heads, c.h, c.w) &&
                     c.C % c.heads == 0;
  return sizes && (!c.B || there(c.qkv, c.bias, c.y));
}

inline bool takes(const Moments& c, bool backward) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.H, c.W, c.C) && c.C % FEED_HIDDEN_STEP == 0;
  if (!sizes || !c.B) return sizes;
  return there(c.h) && (backward ? there(c.dsums, c.dh) : there(c.sums));
}

inline bool takes(const Branches& c, bool backward) {
  const bool sizes = positive(c.C, c.branches, c.pixels) && c.C % FEED_HIDDEN_STEP == 0 &&
                     there(c.sums, c.k, c.gamma, c.beta, c.eps);
  if (!backward) return sizes && there(c.taps, c.shift, c.mean, c.var);
  return sizes && there(c.dtaps, c.dshift, c.dk, c.dgamma, c.dbeta, c.dsums);
}

inline bool takes(const Block& c, bool backward) {
  const bool sizes = c.B >= 0 && positive(c.threads, c.H, c.W, c.heads, c.outputs) &&
                     within(1, c.inputs, BLOCK_INPUTS) &&
                     c.outputs % (int64_t(c.heads) * BLOCK_WIDTH_STEP) == 0 &&
                     !c.row == !c.col && !c.scale == !c.shift && there(c.wq, c.wk, c.wv);
  if (!sizes || !c.B) return sizes;
  return there(c.x.data) && (backward ? there(c.g, c.dx) : there(c.y));
}

}  // namespace saccade
