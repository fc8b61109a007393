// What all ways to compute QnA's aggregation share: how a call is cut, and its small parameters.
#pragma once
#include <cmath>

#include "call.h"
#include "rows.h"
#include "scratch.h"

namespace saccade {
namespace SACCADE_ISA {

struct QnaPlan {
  int groups, group;  // heads
  int strips, strip;  // output columns
  int bands, band;    // output rows, a multiple of R
  int pitch;
  size_t scratch;
  int tasks;
  int shares;  // into which a task divides what it adds to the small parameters' gradient
};

// Heads whose channels fill a cache line: with fewer at a time, parts of lines are read in vain.
template <class S>
int fewest_heads(const Qna& c) {
  return max(1, 64 / int(sizeof(S)) / c.d);
}

// A part of the outputs, and of the inputs whose gradient goes with it: those that begin where the
// first window of this part begins, and end where the first window of the next part begins.
struct QnaPart {
  int b, head, heads, y0, y1, x0, x1;
  int r0, r1, c0, c1;  // rows and columns of inputs
  QnaPart(const Qna& c, const QnaPlan& plan, int task) {
    x0 = task % plan.strips * plan.strip;
    x1 = min(c.Wo, x0 + plan.strip);
    task /= plan.strips;
    y0 = task % plan.bands * plan.band;
    y1 = min(c.Ho, y0 + plan.band);
    task /= plan.bands;
    head = task % plan.groups * plan.group;
    heads = min(plan.group, c.heads - head);
    b = task / plan.groups;
    r0 = y0 ? max(0, c.stride * y0 - c.padding) : 0;
    r1 = y1 < c.Ho ? max(0, c.stride * y1 - c.padding) : c.H;
    c0 = x0 ? max(0, c.stride * x0 - c.padding) : 0;
    c1 = x1 < c.Wo ? max(0, c.stride * x1 - c.padding) : c.W;
  }
};

// The window's side and the stride, where they are usual as constants: loops over 3 columns cost
// more to steer than to run. 0 stands for "known at run time only".
template <int k>
struct Side {
  static constexpr int K = k, KK = k * k;
  explicit Side(int) {}
};
template <>
struct Side<0> {
  const int K, KK;
  explicit Side(int k) : K(k), KK(k * k) {}
};
template <int s>
struct Step {
  static constexpr int stride = s;
  explicit Step(int) {}
};
template <>
struct Step<0> {
  const int stride;
  explicit Step(int s) : stride(s) {}
};

// A sum of powers below this may have lost some of them: the window gets a softmax of its own.
template <class S>
constexpr S LEAST = std::is_same<S, float>::value ? S(0x1p-60) : S(0x1p-500);

// Of doubles by way of the widest type: glibc 2.29 gave `exp` of double a new name, which an older one
// does not have.
INLINE float exp_alone(float x) { return std::exp(x); }
INLINE double exp_alone(double x) { return double(std::exp(static_cast<long double>(x))); }

// Softmax of one window by its own maximum: rare, and slow. each(f) calls f(offset, score) for the
// offsets inside the map; the weight of offset j goes to to[j * apart].
template <class S, class Each>
void softmax_alone(Each each, const S* bias, int offsets, S* to, int apart) {
  S high = S(-1) / S(0), high_sum = high, total = 0;
  for (int j = 0; j < offsets; j++) to[j * apart] = 0;
  each([&](int, S s) { high = s > high ? s : high; });
  each([&](int j, S s) {  // near scores are subtracted exactly, however large
    const S z = to[j * apart] = (s - high) + bias[j];
    high_sum = z > high_sum ? z : high_sum;
  });
  each([&](int j, S) { total += to[j * apart] = exp_alone(to[j * apart] - high_sum); });
  each([&](int j, S) { to[j * apart] /= total; });
}

// The small parameters of a group of heads, by channel of s (l * heads + head): K K numbers each.
template <class S>
struct QnaTables {
  S *bias, *power, *weight, *weighted;  // bias up to a constant, e^bias, weight, e^bias weight
  S* highest;                           // m: the integer that powers of two are relative to

  void carve(Carver<S>& from, size_t channels, int offsets) {
    bias = from.take(channels * offsets);
    power = from.take(channels * offsets);
    weight = from.take(channels * offsets);
    weighted = from.take(channels * offsets);
    highest = from.take(channels);
  }

  void fill(const Qna& call, int head, int heads) {
    const int all = call.queries * call.heads, offsets = call.window * call.window;
    const S *b = static_cast<const S*>(call.bias), *m = static_cast<const S*>(call.weight);
    for (int l = 0; l < call.queries; l++)
      for (int h = 0; h < heads; h++) {
        const int from = l * call.heads + head + h, to = (l * heads + h) * offsets;
        S top = b[from];
        for (int j = 1; j < offsets; j++) top = b[j * all + from] > top ? b[j * all + from] : top;
        for (int j = 0; j < offsets; j++) {
          bias[to + j] = b[j * all + from] - top;
          weight[to + j] = m ? m[j * all + from] : S(1);
        }
      }
    for (int i = 0; i < call.queries * heads * offsets; i += LANES<S>) {
      const V<S> e = exp_over(maximum<S>(splat(S(-(1 << 13))), load(bias + i)), 0);
      store(power + i, e);
      store(weighted + i, e * load(weight + i));
    }
  }

  // m of each channel: from the highest score in rows [r0, r1), columns [c0, c1). NaN is none.
  template <class E>
  void scan(const Qna& call, const QnaPart& part, int r0, int r1, int c0, int c1) {
    constexpr int N = LANES<S>;
    const int all = call.queries * call.heads;
    const Map& s = call.s;
    const E* data = static_cast<const E*>(s.data) + part.b * s.batch;
    for (int l = 0; l < call.queries; l++)
      for (int h = 0; h < part.heads;) {
        S* to = highest + l * part.heads + h;
        const int c = l * call.heads + part.head + h;
        if (s.channel == 1 && all >= N) {  // N channels at once, those of other heads among them
          const int from = min(c, all - N), n = min(part.heads - h, from + N - c);
          V<S> top = splat(S(-1e30));
          for (int y = r0; y < r1; y++) {
            const E* at = data + y * s.row + c0 * s.column + from;
            for (int x = c0; x < c1; x++, at += s.column) top = maximum<S>(widen(at), top);
          }
          for (int j = 0; j < n; j++) to[j] = top[c - from + j];
          h += n;
        } else {
          S top = S(-1e30);
          for (int y = r0; y < r1; y++)
            for (int x = c0; x < c1; x++) {
              const S v = widen_one(data[y * s.row + x * s.column + c * s.channel]);
              top = v > top ? v : top;
            }
          *to = top;
          h++;
        }
      }
    for (int c = 0; c < call.queries * part.heads; c++)
      highest[c] = std::ceil(highest[c] * S(LOG2E));
  }

  // Scores so large that no power of them is exact.
  bool wild(int c) const { return !(highest[c] < S(1 << 14) && highest[c] > S(-(1 << 14))); }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
