// Key-only attention's summary of an image: for each head the mean of its tokens under a softmax.
//
//     s(n) = ask . x(n)      a = softmax of s over the tokens      mean = sum over n of a(n) x(n)
//
// One walk over the tokens, a few at a time: while they are in the first cache, their logits, their
// shares and their part of the sum are found (the sum so far is rescaled when a larger logit comes).
// Backward, with the log-sum-exp kept and D = dmean . mean, is one walk too:
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
  static constexpr int CHUNK = 784;  // tokens of a task
  static constexpr int FEW = 64;     // tokens at once, at most
  int b, from, to;
  // Tokens at once, in whole vectors: with their gradient they fill half of a first cache.
  static int few(const Summary& c, bool backward) {
    constexpr int N = LANES<float>;
    return max(N, min(FEW, (backward ? 2048 : 4096) / c.C / N * N));
  }
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

// f(first channel, Int<vectors>) for as many vectors at once as keep the adders busy; returns the
// first channel that is left for numbers alone.
template <class F>
INLINE int channels(int C, F&& f) {
  constexpr int N = LANES<float>;
  int c = 0;
  for (; c + 8 * N <= C; c += 8 * N) f(c, Int<8>{});
  for (; c + 4 * N <= C; c += 4 * N) f(c, Int<4>{});
  for (; c + N <= C; c += N) f(c, Int<1>{});
  return c;
}

// to[c] = to[c] * scale + sum over the n tokens of e[j] x[j][c].
INLINE void add_tokens(float* to, float scale, const float* e, const float* x, int C, int n) {
  constexpr int N = LANES<float>;
  const int whole = channels(C, [&](int c, auto count) INLINED {
    constexpr int NV = decltype(count)::value;
    V<float> even[NV], odd[NV];
    for (int v = 0; v < NV; v++) even[v] = load(to + c + v * N) * splat(scale), odd[v] = V<float>{};
    const float* row = x + c;
    int j = 0;
    for (; j + 2 <= n; j += 2, row += 2 * ptrdiff_t(C))
      for (int v = 0; v < NV; v++) {
        even[v] += splat(e[j]) * load(row + v * N);
        odd[v] += splat(e[j + 1]) * load(row + C + v * N);
      }
    for (int v = 0; v < NV; v++) {
      if (j < n) even[v] += splat(e[j]) * load(row + v * N);
      store(to + c + v * N, even[v] + odd[v]);
    }
  });
  for (int c = whole; c < C; c++) {
    float sum = to[c] * scale;
    for (int j = 0; j < n; j++) sum += e[j] * x[ptrdiff_t(j) * C + c];
    to[c] = sum;
  }
}

// What a chunk's part is before its first token.
inline void summary_begin(const Summary& c, float* partial) {
  zero(partial, SummaryPart::size(c));
  for (int h = 0; h < c.heads; h++) partial[h * (c.C + 2)] = -1e30f;
}
// Adds n tokens, at most FEW, to a chunk's part.
inline void summary_add(const Summary& c, const float* x, int n, float* partial) {
  constexpr int N = LANES<float>;
  for (int h = 0; h < c.heads; h++) {
    float *top = partial + h * (c.C + 2), *total = top + 1, *sums = top + 2;
    float e[SummaryPart::FEW];
    V<float> highs = splat(*top), totals{};
    for (int j = 0; j < n; j += N) {
      const float* at = x + ptrdiff_t(j) * c.C;
      if (!h) fetch(at + AHEAD, size_t(N) * c.C * sizeof(float));
      const V<float> s = dots(c.ask + ptrdiff_t(h) * c.C, at, c.C, min(N, n - j), -INFINITY);
      store(e + j, s);
      highs = maximum<float>(s, highs);  // not of NaN, which comes back below
    }
    float high = highs[0];
    for (int l = 1; l < N; l++) high = highs[l] > high ? highs[l] : high;
    for (int j = 0; j < n; j += N) {
      const V<float> one = exp2((load(e + j) - high) * splat(float(LOG2E)));
      store(e + j, one);
      totals += one;
    }
    const float scale = high > *top ? std::exp(*top - high) : 1;
    *total = *total * scale + sum<float>(totals);
    *top = high;
    add_tokens(sums, scale, e, x, c.C, n);
  }
}
inline void summary_forward(const Summary& c, int task, float* partial) {
  const SummaryPart part(c, task);
  const int few = SummaryPart::few(c, false);
  summary_begin(c, partial);
  for (int t = part.from; t < part.to; t += few)
    summary_add(c, c.x + (ptrdiff_t(part.b) * c.tokens + t) * c.C, min(few, part.to - t), partial);
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

// dx[j][c] = a[j] dmean[c] + ds[j] ask[c] for n tokens, or with `more` added to what is there.
template <bool more>
INLINE void give_tokens(float* dx, const float* a, const float* ds, const float* dmean,
                        const float* ask, int C, int n) {
  constexpr int N = LANES<float>;
  const int whole = channels(C, [&](int c, auto count) INLINED {
    constexpr int NV = decltype(count)::value;
    V<float> m[NV], u[NV];
    for (int v = 0; v < NV; v++) m[v] = load(dmean + c + v * N), u[v] = load(ask + c + v * N);
    float* row = dx + c;
    for (int j = 0; j < n; j++, row += C)
      for (int v = 0; v < NV; v++) {
        const V<float> term = splat(a[j]) * m[v] + splat(ds[j]) * u[v];
        store(row + v * N, more ? load(row + v * N) + term : term);
      }
  });
  for (int c = whole; c < C; c++)
    for (int j = 0; j < n; j++) {
      float& to = dx[ptrdiff_t(j) * C + c];
      to = (more ? to : 0.0f) + (a[j] * dmean[c] + ds[j] * ask[c]);
    }
}

inline void summary_backward(const Summary& c, int task, float* partial) {
  constexpr int N = LANES<float>;
  const SummaryPart part(c, task);
  const int few = SummaryPart::few(c, true);
  zero(partial, SummaryPart::size(c));
  for (int t = part.from; t < part.to; t += few) {
    const int n = min(few, part.to - t);
    const ptrdiff_t first = (ptrdiff_t(part.b) * c.tokens + t) * c.C;
    const float* x = c.x + first;
    float* dx = c.dx + first;
    for (int h = 0; h < c.heads; h++) {
      const ptrdiff_t head = ptrdiff_t(part.b) * c.heads + h;
      const float *ask = c.ask + ptrdiff_t(h) * c.C, *dmean = c.dmean + head * c.C;
      float a[SummaryPart::FEW], ds[SummaryPart::FEW];
      for (int j = 0; j < n; j += N) {
        const int some = min(N, n - j);
        const ptrdiff_t at = ptrdiff_t(j) * c.C;
        if (!h) fetch(x + at + AHEAD, size_t(N) * c.C * sizeof(float));
        if (!h && c.add) fetch(dx + at + AHEAD, size_t(N) * c.C * sizeof(float));
        const V<float> s = dots(ask, x + at, c.C, some, -INFINITY);
        const V<float> share = exp2((s - c.lse[head]) * splat(float(LOG2E)));
        store(a + j, share);
        store(ds + j, share * (dots(dmean, x + at, c.C, some, 0) - c.delta[head]));
      }
      add_tokens(partial + size_t(h) * (c.C + 2) + 2, 1, ds, x, c.C, n);
      if (h || c.add)
        give_tokens<true>(dx, a, ds, dmean, ask, c.C, n);
      else
        give_tokens<false>(dx, a, ds, dmean, ask, c.C, n);
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
