// Key-only attention's summary of an image: for each head the mean of its tokens under a softmax.
//
//     s(n) = ask . x(n)      a = softmax of s over the tokens      mean = sum over n of a(n) x(n)
//
// One walk over the tokens, N at a time: a token is read once, while its logit, its share and its
// part of the sum are found (the sum so far is rescaled when a larger logit comes). Backward, with
// the log-sum-exp kept and D = dmean . mean, is one walk too:
//
//     ds = a (dmean . x - D)     dx = a dmean + ds ask     dask = sum over n of ds x
//
// A task is a chunk of the tokens of one image. Chunks are joined in their order, whatever thread
// did them.
#pragma once
#include <cmath>

#include "call.h"
#include "rows.h"
#include "scratch.h"

namespace saccade {
namespace SACCADE_ISA {

// Tokens come from far away, a few at a time: floats ahead of use to ask for them.
constexpr ptrdiff_t AHEAD = 4096;

struct SummaryPart {
  static constexpr int CHUNK = 784;  // tokens
  int b, from, to;
  static int chunks(const Summary& c) { return (c.tokens + CHUNK - 1) / CHUNK; }
  // Of one head: the largest logit, the sum of exponentials, and C sums.
  static size_t size(const Summary& c) { return size_t(c.heads) * (c.C + 2); }
  SummaryPart(const Summary& c, int task)
      : b(task / chunks(c)), from(task % chunks(c) * CHUNK), to(min(c.tokens, from + CHUNK)) {}
};

// u . x for N tokens of C channels, of which `n` exist; the others give `other`.
INLINE V<float> dots(const float* u, const float* x, int C, int n, float other) {
  constexpr int N = LANES<float>;
  V<float> sum[N];
  float rest[N];
  for (int j = 0; j < N; j++) sum[j] = V<float>{}, rest[j] = 0;
  const int whole = C / N * N;
  const float* at[N];
  for (int j = 0; j < N; j++) at[j] = x + ptrdiff_t(j < n ? j : 0) * C;
  for (int c = 0; c < whole; c += N) {
    const V<float> uc = load(u + c);
    for (int j = 0; j < N; j++) sum[j] += uc * load(at[j] + c);
  }
  for (int c = whole; c < C; c++)
    for (int j = 0; j < N; j++) rest[j] += u[c] * at[j][c];
  transpose<float>(sum);
  V<float> total = load(rest);
  for (int j = 0; j < N; j++) total += sum[j];
  for (int j = n; j < N; j++) total[j] = other;
  return total;
}

// to[c] = to[c] * scale + sum over the n tokens of e[j] x[j][c].
INLINE void add_tokens(float* to, float scale, V<float> e, const float* x, int C, int n) {
  constexpr int N = LANES<float>;
  const int whole = C / N * N;
  V<float> share[N];
  for (int j = 0; j < N; j++) share[j] = splat(float(e[j]));
  for (int c = 0; c < whole; c += N) {
    V<float> even = load(to + c) * splat(scale), odd{};
    if (n == N) {
      for (int j = 0; j < N; j += 2) {
        even += share[j] * load(x + ptrdiff_t(j) * C + c);
        odd += share[j + 1] * load(x + ptrdiff_t(j + 1) * C + c);
      }
    } else {
      for (int j = 0; j < n; j++) even += share[j] * load(x + ptrdiff_t(j) * C + c);
    }
    store(to + c, even + odd);
  }
  for (int c = whole; c < C; c++) {
    float sum = to[c] * scale;
    for (int j = 0; j < n; j++) sum += e[j] * x[ptrdiff_t(j) * C + c];
    to[c] = sum;
  }
}

inline void summary_forward(const Summary& c, int task, float* partial) {
  constexpr int N = LANES<float>;
  const SummaryPart part(c, task);
  zero(partial, SummaryPart::size(c));
  for (int h = 0; h < c.heads; h++) partial[h * (c.C + 2)] = -1e30f;
  for (int t = part.from; t < part.to; t += N) {
    const int n = min(N, part.to - t);
    const float* x = c.x + (ptrdiff_t(part.b) * c.tokens + t) * c.C;
    fetch(x + AHEAD, size_t(n) * c.C * sizeof(float));
    for (int h = 0; h < c.heads; h++) {
      float *top = partial + h * (c.C + 2), *total = top + 1, *sums = top + 2;
      const V<float> s = dots(c.ask + ptrdiff_t(h) * c.C, x, c.C, n, -INFINITY);
      float high = *top;
      for (int j = 0; j < n; j++) high = s[j] > high ? s[j] : high;
      const float scale = std::exp(*top - high);
      const V<float> e = exp2((s - high) * splat(float(LOG2E)));
      *total = *total * scale + sum<float>(e);
      *top = high;
      add_tokens(sums, scale, e, x, c.C, n);
    }
  }
}

// Joins the chunks of every image: mean and log-sum-exp.
inline void summary_join(const Summary& c, const float* partials) {
  const int chunks = SummaryPart::chunks(c);
  const size_t size = SummaryPart::size(c);
  for (int b = 0; b < c.B; b++)
    for (int h = 0; h < c.heads; h++) {
      const float* first = partials + size_t(b) * chunks * size + size_t(h) * (c.C + 2);
      float high = first[0], total = 0;
      for (int i = 1; i < chunks; i++) high = first[i * size] > high ? first[i * size] : high;
      float* mean = c.mean + (ptrdiff_t(b) * c.heads + h) * c.C;
      zero(mean, c.C);
      for (int i = 0; i < chunks; i++) {
        const float* one = first + i * size;
        const float scale = std::exp(one[0] - high);
        total += scale * one[1];
        for (int k = 0; k < c.C; k++) mean[k] += scale * one[2 + k];
      }
      for (int k = 0; k < c.C; k++) mean[k] /= total;
      c.lse[b * c.heads + h] = high + std::log(total);
    }
}

inline void summary_backward(const Summary& c, int task, float* partial) {
  constexpr int N = LANES<float>;
  const SummaryPart part(c, task);
  zero(partial, SummaryPart::size(c));
  const int whole = c.C / N * N;
  for (int t = part.from; t < part.to; t += N) {
    const int n = min(N, part.to - t);
    const ptrdiff_t at = (ptrdiff_t(part.b) * c.tokens + t) * c.C;
    const float* x = c.x + at;
    float* dx = c.dx + at;
    fetch(x + AHEAD, size_t(n) * c.C * sizeof(float));
    if (c.add) fetch(dx + AHEAD, size_t(n) * c.C * sizeof(float));
    for (int h = 0; h < c.heads; h++) {
      const bool more = h || c.add;
      const ptrdiff_t head = ptrdiff_t(part.b) * c.heads + h;
      const float *ask = c.ask + ptrdiff_t(h) * c.C, *dmean = c.dmean + head * c.C;
      const V<float> s = dots(ask, x, c.C, n, -INFINITY), t = dots(dmean, x, c.C, n, 0);
      const V<float> a = exp2((s - c.lse[head]) * splat(float(LOG2E)));
      const V<float> ds = a * (t - c.delta[head]);
      add_tokens(partial + size_t(h) * (c.C + 2) + 2, 1, ds, x, c.C, n);
      for (int j = 0; j < n; j++) {
        const V<float> aj = splat(float(a[j])), dsj = splat(float(ds[j]));
        float* row = dx + ptrdiff_t(j) * c.C;
        for (int k = 0; k < whole; k += N) {
          const V<float> term = aj * load(dmean + k) + dsj * load(ask + k);
          store(row + k, more ? load(row + k) + term : term);
        }
        for (int k = whole; k < c.C; k++)
          row[k] = (more ? row[k] : 0.0f) + (a[j] * dmean[k] + ds[j] * ask[k]);
      }
    }
  }
}

// dask: over all chunks of all images.
inline void summary_sum(const Summary& c, const float* partials) {
  const int tasks = c.B * SummaryPart::chunks(c);
  const size_t size = SummaryPart::size(c);
  for (int h = 0; h < c.heads; h++)
    for (int k = 0; k < c.C; k++) {
      double sum = 0;
      for (int i = 0; i < tasks; i++) sum += partials[i * size + h * (c.C + 2) + 2 + k];
      c.dask[h * c.C + k] = float(sum);
    }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
