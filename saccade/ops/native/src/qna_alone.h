// Windows whose powers are too small, or not exact: each gets a softmax of its own, number by
// number. Rare, and slow.
#pragma once
#include "qna_part.h"

namespace saccade {
namespace SACCADE_ISA {

// Row y of one image, from a channel on; channels are neighbours.
template <class E>
E* pixels(const Map& map, int b, int channel, int y) {
  return static_cast<E*>(map.data) + b * map.batch + channel + y * map.row;
}

template <class S>
struct QnaAlone {
  static constexpr int N = LANES<S>;
  const Qna& call;
  const QnaTables<S>& tables;
  const int heads, d, L, K, KK, W, ring;
  S* late = nullptr;     // ring of input rows: the gradients of values and scores, by channel
  S* partial = nullptr;  // the task's share of dbias and dweight
  bool dirty[32] = {};   // whether a row of `late` holds anything

  QnaAlone(const Qna& c, const QnaTables<S>& tables_, int heads_, int ring_)
      : call(c), tables(tables_), heads(heads_), d(c.d), L(c.queries), K(c.window), KK(K * K),
        W(c.W), ring(ring_) {}
  size_t row() const { return size_t(heads) * (d + L) * W; }
  const S* table(const S* of, int l, int h) const { return of + size_t(l * heads + h) * KK; }
  // Of the outputs.
  int first_channel(const QnaPart& part, int l, int h) const {
    return ((call.fold ? 0 : l * call.heads) + part.head + h) * d;
  }

  template <class E>
  static S one(const Map& map, int b, int channel, int y, int x) {
    return widen_one(static_cast<const E*>(map.data)[b * map.batch + channel * map.channel +
                                                     y * map.row + x * map.column]);
  }
  // f(offset, image row, column) for the offsets of a window that are inside the map.
  template <class F>
  void places(int y, int x, F&& f) const {
    for (int a = 0; a < K; a++)
      for (int b = 0; b < K; b++) {
        const int r = call.stride * y - call.padding + a, c = call.stride * x - call.padding + b;
        if (r >= 0 && r < call.H && c >= 0 && c < W) f(a * K + b, r, c);
      }
  }
  template <class E>
  void softmax(const QnaPart& part, int l, int h, int y, int x, S* p) const {
    const auto each = [&](auto f) {
      places(y, x, [&](int j, int r, int c) {
        f(j, one<E>(call.s, part.b, l * call.heads + part.head + h, r, c));
      });
    };
    softmax_alone(each, table(tables.bias, l, h), KK, p, 1);
  }
  template <class E>
  void forward(const QnaPart& part, int l, int h, int y, int x) {
    S p[QNA_WINDOW * QNA_WINDOW], z[N];
    softmax<E>(part, l, h, y, x, p);
    E* out = pixels<E>(call.out, part.b, first_channel(part, l, h), y) + x * call.out.column;
    for (int c0 = 0; c0 < d; c0 += N) {
      store(z, widen(out + c0));
      places(y, x, [&](int j, int r, int column) {
        const S w = p[j] * table(tables.weight, l, h)[j];
        for (int c = 0; c < N; c++)
          z[c] += w * one<E>(call.v, part.b, (part.head + h) * d + c0 + c, r, column);
      });
      narrow(out + c0, load(z));
    }
  }

  // One window of query l on its own.
  template <class E>
  void backward(const QnaPart& part, int l, int h, int y, int x, bool own) {
    S p[QNA_WINDOW * QNA_WINDOW], ts[QNA_WINDOW * QNA_WINDOW], mean = 0;
    const S* m = table(tables.weight, l, h);
    softmax<E>(part, l, h, y, x, p);
    places(y, x, [&](int j, int r, int column) {
      S* to = late_at(r);
      ts[j] = 0;
      for (int c = 0; c < d; c++) {
        const S g = one<E>(call.gout, part.b, first_channel(part, l, h) + c, y, x);
        ts[j] += g * one<E>(call.v, part.b, (part.head + h) * d + c, r, column);
        to[(h * d + c) * W + column] += p[j] * m[j] * g;
      }
      mean += p[j] * m[j] * ts[j];
    });
    places(y, x, [&](int j, int r, int column) {
      const S ds = p[j] * (m[j] * ts[j] - mean);
      late_at(r)[(heads * d + l * heads + h) * W + column] += ds;
      if (!own) return;
      S* sums = partial + size_t(j) * L * call.heads + l * call.heads + part.head + h;
      sums[0] += ds;
      sums[size_t(L) * call.heads * KK] += p[j] * ts[j];
    });
  }
  S* late_at(int r) {
    S* to = late + size_t(r % ring) * row();
    if (!dirty[r % ring]) zero(to, row());
    dirty[r % ring] = true;
    return to;
  }

  // What windows on their own have left for row r is added.
  template <class E>
  void settle(const QnaPart& part, int r) {
    if (!dirty[r % ring]) return;
    dirty[r % ring] = false;
    const S* from = late + size_t(r % ring) * row();
    const auto add = [&](const Map& map, int channel, const S* values) {
      E* to = static_cast<E*>(map.data) + part.b * map.batch + channel * map.channel + r * map.row;
      for (int x = 0; x < W; x++) {
        E* at = to + x * map.column;
        narrow_one(at, widen_one(*at) + values[x]);
      }
    };
    for (int c = 0; c < heads * d; c++) add(call.dv, part.head * d + c, from + ptrdiff_t(c) * W);
    for (int l = 0; l < L; l++)
      for (int h = 0; h < heads; h++)
        add(call.ds, l * call.heads + part.head + h,
            from + ptrdiff_t(heads * d + l * heads + h) * W);
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
