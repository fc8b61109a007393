// QnA's aggregation on one tile of R x LANES outputs: the steps that qna.h strings together.
#pragma once
#include "products.h"
#include "qna_part.h"

namespace saccade {
namespace SACCADE_ISA {

template <class S, int K_ = 0, int STRIDE_ = 0>
struct QnaTile : Side<K_>, Step<STRIDE_> {
  static constexpr int N = LANES<S>;
  using Side<K_>::K;
  using Side<K_>::KK;
  using Step<STRIDE_>::stride;
  const Qna& call;
  int d, L, H, W, padding, reach, groups;  // reach: outputs before that see an input
  int heads, q0, q1, pitch;
  ptrdiff_t plane;         // one channel of one row: `stride` planes of `pitch`
  ptrdiff_t row_v, row_s;  // one row of all channels of the group: values, scores
  bool weighted;
  int where[16];  // in its plane column b of a window lies: b / stride

  S *values, *scores, *powers;  // rings; powers are e^score / 2^m
  QnaTables<S> tables;
  S *p, *scale, *w;             // L x R K K N; L x R N; R K K N
  S* outs;                      // R rows of every group of queries
  // backward
  S *gouts, *dw;                // R rows; R K K N
  S *shifted_w, *shifted_ds;    // R K K pitch; L times as much
  S *dvalues, *dscores;         // rings
  S *dbias_lanes, *dweight_lanes;  // by channel of s: K K N

  QnaTile(const Qna& c, int heads_, int wide, int pitch_)
      : Side<K_>(c.window), Step<STRIDE_>(c.stride), call(c), d(c.d), L(c.queries), H(c.H), W(c.W),
        padding(c.padding), reach((c.window - 1) / c.stride), groups(c.fold ? 1 : c.queries),
        heads(heads_), q0(0), q1(wide), pitch(pitch_), plane(ptrdiff_t(c.stride) * pitch_),
        row_v(plane * heads_ * c.d), row_s(plane * heads_ * c.queries), weighted(c.weight) {
    for (int b = 0; b < K; b++) where[b] = b / stride;
  }
  int ring() const { return stride * (R - 1) + max(K, stride); }  // rows
  int place(int b) const { return STRIDE_ == 1 ? b : where[b]; }

  size_t carve(S* base, bool backward) {
    Carver<S> from{base, 0, 0};
    const size_t tile = size_t(R) * KK * N, channels = size_t(L) * heads;
    values = from.take(ring() * row_v);
    scores = from.take(ring() * row_s);
    powers = from.take(ring() * row_s);
    tables.carve(from, channels, KK);
    p = from.take(L * tile);
    scale = from.take(size_t(L) * R * N);
    w = from.take(tile);
    if (!backward) {
      outs = from.take(size_t(R) * groups * heads * d * pitch);
      return from.used;
    }
    gouts = from.take(size_t(R) * groups * heads * d * pitch);
    dw = from.take(tile);
    shifted_w = from.take(size_t(R) * KK * pitch);
    shifted_ds = from.take(size_t(L) * R * KK * pitch);
    dvalues = from.take(ring() * row_v);
    dscores = from.take(ring() * row_s);
    dbias_lanes = from.take(channels * KK * N);
    dweight_lanes = from.take(channels * KK * N);
    return from.used;
  }

  S* in_ring(S* rows, ptrdiff_t row, int y) const { return rows + (y % ring()) * row; }
  int top(int y) const { return stride * y - padding; }  // first input row of output row y
  // The first column of plane f, and its places [from, to) inside [c0, c1).
  int column(int f) const { return stride * q0 - padding + f; }
  void places(int f, int c0, int c1, int& from, int& to) const {
    const auto first = [&](int c) { return max(0, c - column(f) + stride - 1) / stride; };
    from = first(c0);
    to = max(from, first(c1));
  }
  template <class E>
  Map of_plane(Map map, int f) const {
    map.data = static_cast<E*>(map.data) + column(f) * map.column;
    map.column *= stride;
    return map;
  }

  template <class E>
  void prepare(const QnaPart& part, int y0, int y1) {
    tables.fill(call, part.head, heads);
    tables.template scan<E>(call, part, max(0, top(y0)), min(H, top(y1 - 1) + K),
                            max(0, column(0)), min(W, top(q1 - 1) + K));
    zero(values, ring() * row_v);
    zero(scores, ring() * row_s);
    zero(powers, ring() * row_s);
  }

  // Row y of the inputs enters the rings.
  template <class E>
  void enter(const QnaPart& part, int y) {
    S *v = in_ring(values, row_v, y), *s = in_ring(scores, row_s, y),
      *e = in_ring(powers, row_s, y);
    for (int f = 0; f < stride; f++) {
      int from, to;
      places(f, 0, W, from, to);
      to = min(to, pitch - N);  // columns that no window sees
      if (to <= from) continue;
      const int ahead = stride * R;  // rows
      pack<E>(of_plane<E>(call.v, f), part.b, part.head * d, heads * d, y, from, to, plane,
              ahead * call.v.row, S(1), v + f * pitch + from);
      for (int l = 0; l < L; l++)
        pack<E>(of_plane<E>(call.s, f), part.b, l * call.heads + part.head, heads, y, from, to,
                plane, ahead * call.s.row, S(1), s + l * heads * plane + f * pitch + from);
      for (int c = 0; c < L * heads; c++) {
        const S *sc = s + c * plane + f * pitch + from, m = tables.highest[c];
        S* ec = e + c * plane + f * pitch + from;
        const auto raise = [&](int x) INLINED { store(ec + x, exp_over(load(sc + x), m)); };
        if (!overlapping<N>(to - from, raise)) {
          const V<S> v = exp_over(load(sc), m);
          for (int x = 0; x < to - from; x++) ec[x] = v[x];
        }
      }
    }
  }

  // f(t, image row, lo, hi): row t of the tile's inputs is row a = t - stride * i of output row i,
  // for i in [lo, hi].
  template <class F>
  INLINE void window_rows(int y, int rows, F&& f) const {
    for (int t = 0; t < stride * (rows - 1) + K; t++) {
      const int lo = max(0, t - K + stride) / stride, hi = min(t / stride, rows - 1);
      if (lo <= hi) f(t, top(y) + t, lo, hi);
    }
  }
  bool inside(int y) const { return y >= 0 && y < H; }
  // One query at R x N outputs: its powers times e^bias (and times the weights, if Weighted) to p,
  // and to `scale` what normalises them. Rows outside the image are zeros.
  template <bool Weighted>
  void softmax(int l, int head, int y, int rows, int x0) {
    const int c = l * heads + head;
    const S *b = tables.power + c * KK, *m = tables.weighted + c * KK;
    S *to = p + size_t(l) * R * KK * N, *normal = scale + size_t(l) * R * N;
    V<S> sum[R][2];  // even and odd columns: two short chains of additions, not a long one
    clear<S>(sum);
    window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
      const S* e = inside(r) ? in_ring(powers, row_s, r) + c * plane + x0 : nullptr;
      span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
        constexpr int I0 = decltype(Lo)::value, I1 = decltype(Hi)::value;
        ptrdiff_t ab[R];
        for (int i = I0; i <= I1; i++) ab[i] = ptrdiff_t(t - stride * i) * K;
        if (!e) {
          for (int i = I0; i <= I1; i++)
            for (int j = 0; j < K; j++) store(to + (i * KK + ab[i] + j) * N, V<S>{});
          return;
        }
        const auto column = [&](int j, int x, auto odd) INLINED {
          const V<S> ex = load(e + x);
          for (int i = I0; i <= I1; i++) {
            const V<S> z = ex * splat(b[ab[i] + j]);
            sum[i][decltype(odd)::value] += z;
            store(to + (i * KK + ab[i] + j) * N, Weighted ? ex * splat(m[ab[i] + j]) : z);
          }
        };
        if (stride == 1) {
          int j = 0;
          for (; j + 1 < K; j += 2) column(j, j, Int<0>{}), column(j + 1, j + 1, Int<1>{});
          if (j < K) column(j, j, Int<0>{});
        } else {
          for (int j = 0; j < K; j++) column(j, j % stride * pitch + place(j), Int<0>{});
        }
      });
    });
    const bool wild = tables.wild(c);
    for (int i = 0; i < rows; i++) {
      const V<S> total = sum[i][0] + sum[i][1];
      store(normal + i * N, S(1) / total);
      const I<S> fine = (I<S>)(total >= splat(LEAST<S>));
      if (!wild && all_set<S>(fine)) continue;
      for (int n = 0; n < N && x0 + n < q1 - q0; n++)
        if (wild || !fine[n]) {
          exact(c, y + i, x0 + n, to + size_t(i) * KK * N + n);
          normal[i * N + n] = 1;
          for (int j = 0; Weighted && j < KK; j++)
            to[(size_t(i) * KK + j) * N + n] *= tables.weight[c * KK + j];
        }
    }
  }

  // One window by its own maximum. Rare, and slow.
  void exact(int c, int y, int x, S* to) const {
    const auto each = [&](auto f) {
      for (int a = 0; a < K; a++)
        for (int b = 0; b < K; b++) {
          const int r = top(y) + a, col = stride * (q0 + x) - padding + b;
          if (r < 0 || r >= H || col < 0 || col >= W) continue;
          f(a * K + b,
            in_ring(scores, row_s, r)[c * plane + b % stride * pitch + x + b / stride]);
        }
    };
    softmax_alone(each, tables.bias + c * KK, KK, to, N);
  }

  void forward(int head, int y, int rows, int x0) {
    for (int l = 0; l < L; l++)
      weighted ? softmax<true>(l, head, y, rows, x0) : softmax<false>(l, head, y, rows, x0);
    const bool several = call.fold && L > 1;
    for (int i = 0; several && i < rows; i++)
      for (int j = 0; j < KK; j++) {
        V<S> sum{};
        for (int l = 0; l < L; l++)
          sum += load(p + (size_t(l * R + i) * KK + j) * N) * load(scale + (l * R + i) * N);
        store(w + (size_t(i) * KK + j) * N, sum);
      }
    for (int g = 0; g < groups; g++) {
      const S* weights = several ? w : p + size_t(g) * R * KK * N;
      channel_blocks(0, d, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        V<S> sum[R][NC];
        clear<S>(sum);
        window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
          if (!inside(r)) return;
          const S* v = in_ring(values, row_v, r) + (head * d + c) * plane + x0;
          span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
            for (int f = 0; f < min(stride, K); f++)
              mix<Pixels, decltype(Lo)::value, decltype(Hi)::value>(
                  weights + (t * K + f) * N, (KK - stride * K) * N, stride * N, v + f * pitch,
                  plane, 1, (K - f + stride - 1) / stride, sum);
          });
        });
        for (int i = 0; i < R; i++) {
          const V<S> factor = several ? splat(S(1)) : load(scale + (g * R + i) * N);
          S* to = outs + ((ptrdiff_t(i) * groups + g) * heads * d + head * d + c) * pitch + x0;
          for (int j = 0; j < NC; j++) store(to + ptrdiff_t(j) * pitch, sum[i][j] * factor);
        }
      });
    }
  }

  // Group g of queries at R x N outputs: leaves w and ds at the place of the inputs, and adds to
  // the parameters' gradient the part of the outputs in `own`.
  void backward_outputs(int g, int head, int y, int rows, int x0, I<S> own) {
    const int l0 = call.fold ? 0 : g, l1 = call.fold ? L : g + 1;
    for (int l = l0; l < l1; l++) softmax<false>(l, head, y, rows, x0);
    const ptrdiff_t row_g = ptrdiff_t(groups) * heads * d * pitch;
    const S* gs = gouts + (ptrdiff_t(g) * heads + head) * d * pitch + reach + x0;
    window_rows(y, rows, [&](int t, int r, int lo, int hi) INLINED {
      const bool in = inside(r);
      const S* v = in ? in_ring(values, row_v, r) + ptrdiff_t(head) * d * plane + x0 : gs;
      for (int f = 0; f < min(stride, K); f++)
        blocks((K - f + stride - 1) / stride, [&](int b0, auto nb) INLINED {
          constexpr int NB = decltype(nb)::value;
          pick<R>(hi - lo + 1, [&](auto ni) INLINED {
            constexpr int NI = decltype(ni)::value;
            V<S> sum[NI][NB];
            clear<S>(sum);
            dot<Pixels>(gs + lo * row_g, row_g, pitch, v + f * pitch + b0, plane, in ? d : 0, sum);
            for (int i = 0; i < NI; i++) {
              S* to = dw + (ptrdiff_t(lo + i) * KK + (t - stride * (lo + i)) * K + f) * N;
              for (int b = 0; b < NB; b++) store(to + stride * (b0 + b) * N, sum[i][b]);
            }
          });
        });
    });
    const I<S> alive = lanes<S>(0, q1 - q0 - x0);
    pick<R>(rows, [&](auto ni) INLINED {
      for (int l = l0; l < l1; l++)
        gradients<decltype(ni)::value>(l, l == l0, l == l1 - 1, head, x0, alive, own);
    });
  }

  // From dw: adds query l to w, finds ds, and adds to the parameters' gradient. The complete w and
  // ds are left at the place of the inputs.
  template <int NI>
  void gradients(int l, bool first, bool last, int head, int x0, I<S> alive, I<S> own) {
    const int c = l * heads + head;
    const ptrdiff_t rows_apart = ptrdiff_t(KK) * N, shifted_apart = ptrdiff_t(KK) * pitch;
    const S *m = tables.weight + c * KK, *ps = p + size_t(l) * R * KK * N, *ts = dw;
    S *ws = w, *to_w = shifted_w + x0, *to_ds = shifted_ds + size_t(l) * R * KK * pitch + x0;
    S *db = dbias_lanes + size_t(c) * KK * N, *dm = dweight_lanes + size_t(c) * KK * N;
    V<S> mean[NI], normal[NI];
    for (int i = 0; i < NI; i++) {
      mean[i] = V<S>{};
      normal[i] = load(scale + (l * R + i) * N);
    }
    for (int j = 0, b = 0; j < KK; j++, b = b + 1 < K ? b + 1 : 0, to_w += pitch) {
      const V<S> mj = splat(m[j]);
      for (int i = 0; i < NI; i++) {
        V<S> wi = load(ps + i * rows_apart + j * N) * normal[i] * mj;
        mean[i] += wi * load(ts + i * rows_apart + j * N);
        if (!first) wi += load(ws + i * rows_apart + j * N);
        if (last)
          store(to_w + i * shifted_apart + place(b), keep<S>(alive, wi));
        else
          store(ws + i * rows_apart + j * N, wi);
      }
    }
    for (int j = 0, b = 0; j < KK; j++, b = b + 1 < K ? b + 1 : 0, to_ds += pitch) {
      const V<S> mj = splat(m[j]);
      V<S> bias_sum{}, weight_sum{};
      for (int i = 0; i < NI; i++) {
        const V<S> pj = load(ps + i * rows_apart + j * N) * normal[i];
        const V<S> tj = load(ts + i * rows_apart + j * N);
        const V<S> ds = keep<S>(alive, pj * (tj * mj - mean[i]));
        store(to_ds + i * shifted_apart + place(b), ds);
        bias_sum += ds;
        weight_sum += pj * tj;
      }
      store(db + j * N, load(db + j * N) + keep<S>(own, bias_sum));
      if (weighted) store(dm + j * N, load(dm + j * N) + keep<S>(own, weight_sum));
    }
  }

  // Input rows [r0, r1) gather from the output rows of this tile, at N places from x of plane f.
  void backward_inputs(int g, int head, int y, int rows, int r0, int r1, int f, int x) {
    const ptrdiff_t row_g = ptrdiff_t(groups) * heads * d * pitch;
    const S* gs = gouts + (ptrdiff_t(g) * heads + head) * d * pitch + reach + x;
    const int offsets = (K - f + stride - 1) / stride;
    for (int r = r0; r < r1; r += R) {
      const int n = min(R, r1 - r);
      // Output row i sees input row r as its row a0(i); its rows [lo, hi] are among these n.
      const auto seen = [&](int i, int& a0, int& lo, int& hi) INLINED {
        a0 = r - top(y + i);
        lo = max(0, -a0);
        hi = min(n - 1, K - 1 - a0);
        return lo <= hi;
      };
      channel_blocks(0, d, [&](int c, auto nc) INLINED {
        constexpr int NC = decltype(nc)::value;
        V<S> sum[R][NC];
        clear<S>(sum);
        for (int i = 0; i < rows; i++) {
          int a0, lo, hi;
          if (!seen(i, a0, lo, hi)) continue;
          span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
            mix<Pixels, decltype(Lo)::value, decltype(Hi)::value>(
                shifted_w + (ptrdiff_t(i) * KK + a0 * K + f) * pitch + x, ptrdiff_t(K) * pitch,
                ptrdiff_t(stride) * pitch, gs + i * row_g + ptrdiff_t(c) * pitch, pitch, -1,
                offsets, sum);
          });
        }
        for (int k = 0; k < n; k++) {
          S* at = in_ring(dvalues, row_v, r + k) + (head * d + c) * plane + f * pitch + x;
          for (int j = 0; j < NC; j++) store(at + j * plane, load(at + j * plane) + sum[k][j]);
        }
      });
      const int l0 = call.fold ? 0 : g, l1 = call.fold ? L : g + 1;
      for (int l = l0; l < l1; l++) {
        V<S> sum[R] = {};
        for (int i = 0; i < rows; i++) {
          int a0, lo, hi;
          if (!seen(i, a0, lo, hi)) continue;
          const S* ds = shifted_ds + (ptrdiff_t(l * R + i) * KK + a0 * K + f) * pitch + x;
          span<R>(lo, hi, [&](auto Lo, auto Hi) INLINED {
            for (int b = 0; b < offsets; b++)
              for (int k = decltype(Lo)::value; k <= decltype(Hi)::value; k++)
                sum[k] += load(ds + (ptrdiff_t(b) * stride + k * K) * pitch);
          });
        }
        for (int k = 0; k < n; k++) {
          S* at = in_ring(dscores, row_s, r + k) + (l * heads + head) * plane + f * pitch + x;
          store(at, load(at) + sum[k]);
        }
      }
    }
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
