// Attention inside windows that tile a map, for inference; see ops/window.py.
//
//     s_ij = q_i . k_j / sqrt(d) + b_ij      y_i = sum over j of  softmax_j(s_ij) v_j
//
// A task is one head of one window: its logits exist for some pixels at a time. Windows that reach
// beyond the map have fewer pixels.
#pragma once
#include "linear.h"
#include "norm.h"

namespace saccade {
namespace SACCADE_ISA {

struct WindowsPlan {
  static constexpr int ROWS = 48;  // pixels whose logits exist at once
  int down, across, d;
  size_t most;  // pixels of a window
  explicit WindowsPlan(const Windows& c)
      : down((c.H + c.h - 1) / c.h), across((c.W + c.w - 1) / c.w), d(c.C / c.heads),
        most(size_t(c.h) * c.w) {}
  int tasks(const Windows& c) const { return c.B * down * across * c.heads; }
  size_t keys() const { return packed_size(d, int(most)); }
  size_t values() const { return packed_size(int(most), d); }
  size_t room() const { return 3 * most * d + keys() + values() + ROWS * (most + d) + 64; }
};

inline void windows_forward(const Windows& c, int task, float* room) {
  const WindowsPlan plan(c);
  const int d = plan.d, head = task % c.heads;
  task /= c.heads;
  const int y0 = task / plan.across % plan.down * c.h, x0 = task % plan.across * c.w;
  const int b = task / plan.across / plan.down;
  const int h = min(c.h, c.H - y0), w = min(c.w, c.W - x0), n = h * w;
  float *q = room, *k = q + plan.most * d, *v = k + plan.most * d;
  float *keys = v + plan.most * d, *values = keys + plan.keys();
  float *logits = values + plan.values(), *sums = logits + plan.ROWS * plan.most;
  const auto pixel = [&](int i) { return (ptrdiff_t(b) * c.H + y0 + i / w) * c.W + x0 + i % w; };
  const float scale = 1.0f / std::sqrt(float(d));
  for (int i = 0; i < n; i++) {
    const float* from = c.qkv + pixel(i) * 3 * c.C + head * d;
    for (int j = 0; j < d; j++) q[i * d + j] = from[j] * scale;
    memcpy(k + i * d, from + c.C, d * sizeof(float));
    memcpy(v + i * d, from + 2 * c.C, d * sizeof(float));
  }
  Linear matrix{};
  matrix.inputs = d, matrix.outputs = n, matrix.w = k, matrix.w_output = d, matrix.w_input = 1;
  linear_pack(matrix, 0, keys);
  matrix.inputs = n, matrix.outputs = d, matrix.w = v, matrix.w_output = 1, matrix.w_input = d;
  linear_pack(matrix, 0, values);
  const int whole = n / WIDE * WIDE;
  const size_t N = plan.most;
  const float* bias = c.bias + head * N * N;
  for (int from = 0; from < n; from += plan.ROWS) {
    const int rows = min(plan.ROWS, n - from);
    times_packed(q + from * d, d, rows, keys, n, nullptr, logits);
    for (int r = 0; r < rows; r++) {
      float* s = logits + r * n;
      const int i = from + r;
      const float* of = bias + (i / w * c.w + i % w) * N;
      if (w == c.w) {
        for (int j = 0; j < n; j++) s[j] += of[j];
      } else {
        for (int j = 0; j < n; j++) s[j] += of[j / w * c.w + j % w];
      }
      Wide tops = splat_wide(s[0]);
      for (int j = 0; j < whole; j += WIDE) tops = maximum_wide(tops, load_wide(s + j));
      float top = s[0];
      for (int l = 0; whole && l < WIDE; l++) top = tops[l] > top ? tops[l] : top;
      for (int j = whole; j < n; j++) top = s[j] > top ? s[j] : top;
      Wide totals{};
      for (int j = 0; j < whole; j += WIDE) {
        const Wide e = exp_wide(load_wide(s + j) - top);
        totals += e;
        store_wide(s + j, e);
      }
      float total = sum_wide(totals);
      if (whole < n) {
        float rest[WIDE];
        for (int j = 0; j < WIDE; j++) rest[j] = whole + j < n ? s[whole + j] - top : -1e30f;
        store_wide(rest, exp_wide(load_wide(rest)));
        for (int j = whole; j < n; j++) total += s[j] = rest[j - whole];
      }
      sums[r * d] = total;  // until values come
    }
    float shares[WindowsPlan::ROWS];
    for (int r = 0; r < rows; r++) shares[r] = 1.0f / sums[r * d];
    times_packed(logits, n, rows, values, d, nullptr, sums);
    for (int r = 0; r < rows; r++) {
      float* to = c.y + pixel(from + r) * c.C + head * d;
      for (int j = 0; j < d; j++) to[j] = sums[r * d + j] * shares[r];
    }
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
