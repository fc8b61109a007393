// Local attention in bfloat16 on one tile of 2 x LANES queries: what sasa_tile.h does, on pairs.
//
// A window row t of the tile is row a = t - i of the window of query row i. Rows t = 2m and 2m + 1
// of keys and values form a pair, and each sum takes its weights in the pairs it needs:
//
//     out, dq   (p[i][2m - i], p[i][2m + 1 - i])      for a query, over the rows it sees
//     dk, dv    (p[0][t], p[1][t - 1])                for a key in row t, over queries that see it
//
// At the first and the last pair, one half is out of the window: its weight is zero, and `only`
// keeps what it would multiply out of the sum.
#pragma once
#include "call.h"
#include "pairs.h"
#include "sasa_plan.h"

namespace saccade {
namespace SACCADE_ISA {

template <int Known = 0>
struct SasaHalfTile : SasaWindow<Known> {
  using SasaWindow<Known>::K;
  using SasaWindow<Known>::P;
  using Element = float;
  static constexpr int ROWS = 2, N = LANES_OF<Half>;
  const Sasa& call;
  int d, H, W, half, pitch;
  bool content, position;
  int q0, q1, left;    // columns of the queries; the column at index 0 of every row buffer
  int turn = 0;        // index at slot 0 of the rings
  ptrdiff_t row, duo;  // elements of a row in fp32, or by rows; of a row by channels

  Pair *keys, *values, *queries;             // by channels: rings of 2 + 2P rows; 2 rows
  Pair *key_rows, *value_rows;               // by rows: rings of 1 + P pairs
  Pair *weights;                             // 2 (P + 1) K N, for a query
  float *outs;                               // 2 rows
  float *logits, *along_row, *along_col;     // 2 K K N; 2 K N twice
  float *border;                             // per vector of columns K N
  Pair *row_table, *col_table;               // pairs of channels x K
  // backward
  Pair *gouts, *query_rows, *gout_rows;      // 2 rows by channels; one pair by rows each
  float *dqueries, *dkeys, *dvalues;         // 2 rows; rings of 2 + 2P rows
  float *dweights;                           // as logits
  Pair *shifted_p, *shifted_ds;              // (K + 1) K pitch, at the place of the key
  Pair *row_sums, *col_sums;                 // K pitch: of ds, for the tables' gradient
  float *row_fp32, *col_fp32;                // half x K
  float *drow_lanes, *dcol_lanes;            // half K N

  SasaHalfTile(const Sasa& c, int queries_wide, int pitch_)
      : SasaWindow<Known>(c.window), call(c), d(c.d), H(c.H), W(c.W), half(c.d / 2),
        pitch(pitch_), content(c.k.data), position(c.row), q0(0), q1(queries_wide), left(0),
        row(ptrdiff_t(c.d) * pitch_), duo(ptrdiff_t((c.d + 1) / 2) * pitch_) {}

  size_t carve(float* base, bool backward) {
    Carver<float> from{base, 0, (16 - P % 16) % 16};
    const auto pairs = [&](size_t n) { return reinterpret_cast<Pair*>(from.take(n)); };
    const size_t ring = (2 + 2 * P) * duo, stacked = (1 + P) * row, tile = size_t(2) * K * K * N;
    const size_t table = size_t(half) * K;
    keys = pairs(content ? ring : 0);
    values = pairs(backward ? ring : 2 * duo);
    value_rows = pairs(backward ? 0 : stacked);
    key_rows = pairs(backward && content ? stacked : 0);
    queries = pairs(2 * duo);
    if (backward) {
      gouts = pairs(2 * duo);
      query_rows = pairs(row);
      gout_rows = pairs(row);
      dqueries = from.take(2 * row);
      dkeys = from.take(content ? 2 * stacked : 0);
      dvalues = from.take(2 * stacked);
      shifted_p = pairs(size_t(K + 1) * K * pitch);
      shifted_ds = pairs(content ? size_t(K + 1) * K * pitch : 0);
      row_sums = pairs(position ? size_t(K) * pitch : 0);
      col_sums = pairs(position ? size_t(K) * pitch : 0);
    } else {
      outs = from.take(2 * row);
    }
    from.skew = 0;
    logits = from.take(tile);
    weights = pairs(size_t(2) * (P + 1) * K * N);
    along_row = from.take(size_t(2) * K * N);
    along_col = from.take(size_t(2) * K * N);
    border = from.take(size_t(round_up(q1 - q0, N)) * K);
    row_table = pairs(table + K);
    col_table = pairs(table + K);
    if (backward) {
      dweights = from.take(tile);
      row_fp32 = from.take(table);
      col_fp32 = from.take(table);
      drow_lanes = from.take(table * N);
      dcol_lanes = from.take(table * N);
    }
    return from.used;
  }

  // Window row t of the tile at y, which is even, has index y + t in a ring; its slot is the rest
  // of the division by 2 + 2P, near enough to that of y to do without one.
  int slot(int index) const {
    const int from_turn = index - turn, n = 2 + 2 * P;
    return from_turn < 0 ? from_turn + n : from_turn < n ? from_turn : from_turn - n;
  }
  void begin(int y) { turn = y / (2 + 2 * P) * (2 + 2 * P); }
  template <class T>
  T* in_ring(T* ring, int index, ptrdiff_t size) const {
    return ring + slot(index) * size;
  }
  Pair* pair_in_ring(Pair* ring, int index) const { return ring + slot(index) / 2 * row; }
  bool inside(int y) const { return y >= 0 && y < H; }

  // What does not change within a task: tables, and the columns outside the image.
  void prepare(int head, bool backward) {
    const size_t ring = (2 + 2 * P) * duo, stacked = (1 + P) * row;
    if (content) zero(keys, ring);
    zero(values, backward ? ring : 2 * duo);
    if (!backward) zero(value_rows, stacked);
    if (backward && content) zero(key_rows, stacked);
    zero(queries, 2 * duo);
    if (backward) {
      zero(gouts, 2 * duo);
      zero(query_rows, row);
      zero(gout_rows, row);
      zero(shifted_p, size_t(K + 1) * K * pitch);
      if (content) zero(shifted_ds, size_t(K + 1) * K * pitch);
      zero(drow_lanes, size_t(half) * K * N);
      zero(dcol_lanes, size_t(half) * K * N);
    }
    if (position) prepare_tables(head, backward);
    float* m = border;
    for (int x0 = q0; x0 < q1; x0 += N, m += K * N)
      for (int b = 0; b < K; b++)
        for (int l = 0; l < N; l++) {
          const int x = x0 + l, key = x + b - P;
          m[b * N + l] = call.mask && x < q1 && (key < 0 || key >= W) ? -1e30f : 0;
        }
  }
  // Rows have the first half of the channels, columns the second; the pair that both share, if
  // half is odd, has a zero for the other.
  void prepare_tables(int head, bool backward) {
    const size_t table = size_t(call.tables == 1 ? 0 : head) * K * half;
    const float* by_row = static_cast<const float*>(call.row) + table;
    const float* by_col = static_cast<const float*>(call.col) + table;
    const auto bits = [](float x) {
      bfloat16 rounded;
      narrow_one(&rounded, x);
      return Pair(rounded.bits);
    };
    zero(row_table, size_t(half + 1) * K);
    zero(col_table, size_t(half + 1) * K);
    for (int c = 0; c < half; c++)
      for (int a = 0; a < K; a++) {
        const float r = by_row[a * half + c], s = by_col[a * half + c];
        const int e = c + half % 2;
        row_table[c / 2 * K + a] |= bits(r) << c % 2 * 16;
        col_table[e / 2 * K + a] |= bits(s) << e % 2 * 16;
        if (backward) row_fp32[c * K + a] = r, col_fp32[c * K + a] = s;
      }
  }

  // q . r splits into a part for the row and one for the column of the window. The column part
  // also carries the border.
  void position_logits(const Pair* q, const float* outside) {
    const int pairs = position ? (half + 1) / 2 : 0;
    blocks(K, [&](int b0, auto nb) INLINED {
      constexpr int NB = decltype(nb)::value;
      Lanes r[2][NB], c[2][NB];
      clear_as<Half>(r);
      dot_pairs<PairConstant>(q, duo, pitch, row_table + b0, K, pairs, r);
      for (int i = 0; i < 2; i++)
        for (int b = 0; b < NB; b++) {
          store_as<Half>(along_row + (i * K + b0 + b) * N, r[i][b]);
          c[i][b] = load_as<Half>(outside + (b0 + b) * N);
        }
      dot_pairs<PairConstant>(q + half / 2 * ptrdiff_t(pitch), duo, pitch, col_table + b0, K, pairs,
                              c);
      for (int i = 0; i < 2; i++)
        for (int b = 0; b < NB; b++) store_as<Half>(along_col + (i * K + b0 + b) * N, c[i][b]);
    });
  }

  // to[i][a][b] = sum over channels of q[i] * keys(row a, column + b); if Biased, plus q . r, and
  // `top` is the largest.
  template <bool Biased>
  void products(const Pair* q, Pair* ring, int pairs, int y, int x0, float* to,
                Lanes (&top)[2]) {
    for (int t = 0; t < 2 + 2 * P; t++) {
      const bool in = inside(y + t - P);
      if (!in && call.mask) continue;  // never looked at
      const int n = in ? pairs : 0, lo = max(0, t - 2 * P), hi = min(t, 1);
      const Pair* k = n ? in_ring(ring, y + t, duo) + x0 : q;
      blocks(K, [&](int b0, auto nb) INLINED {
        constexpr int NB = decltype(nb)::value;
        span<2>(lo, hi, [&](auto Lo, auto Hi) INLINED {
          constexpr int LO = decltype(Lo)::value, NI = decltype(Hi)::value - LO + 1;
          Lanes s[NI][NB];
          clear_as<Half>(s);
          if constexpr (Biased)
            for (int i = 0; i < NI; i++) {
              const Lanes r = load_as<Half>(along_row + ((LO + i) * K + t - LO - i) * N);
              for (int b = 0; b < NB; b++)
                s[i][b] = r + load_as<Half>(along_col + ((LO + i) * K + b0 + b) * N);
            }
          dot_pairs<PairPixels>(q + LO * duo, duo, pitch, k + b0, pitch, n, s);
          for (int i = 0; i < NI; i++) {
            Lanes most = s[i][0];
            for (int b = 0; b < NB; b++) {
              store_as<Half>(to + (((LO + i) * K + t - LO - i) * K + b0 + b) * N, s[i][b]);
              if constexpr (Biased) most = maximum_as<Half>(most, s[i][b]);
            }
            if constexpr (Biased) top[LO + i] = maximum_as<Half>(top[LO + i], most);
          }
        });
      });
    }
  }

  // Which rows of the window of a query in row y take part.
  int first_row(int y) const { return call.mask ? max(0, P - y) : 0; }
  int last_row(int y) const { return call.mask ? min(K, H - y + P) : K; }  // one beyond
  bool takes_part(int y, int i, int a) const {
    return a >= first_row(y + i) && a < last_row(y + i);
  }

  // sum[i][c] over the window of query row i, of weights * ring(row, column).
  template <int NC>
  INLINE void gather(Pair* ring, int c, int y, int x0, Lanes (&sum)[2][NC]) {
    const ptrdiff_t next = ptrdiff_t(P + 1) * K * N;
    for (int m = 0; m <= P; m++) {
      const int r = y + 2 * m - P;
      if (r + 1 < 0 || r >= H) continue;  // zeros
      const Pair* p = weights + m * K * N;
      const Pair* v = pair_in_ring(ring, y + 2 * m) + ptrdiff_t(c) * pitch + x0;
      if (m == 0)
        mix_pairs<BOTH, HIGH>(p, next, N, v, pitch, 1, K, sum);
      else if (m == P)
        mix_pairs<LOW, BOTH>(p, next, N, v, pitch, 1, K, sum);
      else
        mix_pairs<BOTH, BOTH>(p, next, N, v, pitch, 1, K, sum);
    }
  }

  // Of s log2e - top log2e, one product is rounded, and the other, fused with the difference, is not.
  // Where logits are larger than this, that may exceed all exponents; there, s - top comes first.
  static constexpr float STEEP = 1e8f;

  // The numerators of query row i in pairs, of logits of which `top` is the largest; their sum.
  template <class Steep>
  INLINE Lanes exponentials(Steep, int y, int i, Lanes top) {
    const Lanes log2e = splat_as<Half>(float(LOG2E)), most = top * log2e;
    const auto power = [&](const float* s) INLINED {
      const Lanes x = load_as<Half>(s);
      return exp2_coarse(Steep::value ? (x - top) * log2e : x * log2e - most);
    };
    Lanes total[2] = {};
    for (int m = 0; m <= P; m++) {
      const float* s = logits + ptrdiff_t(i * K + 2 * m - i) * K * N;
      Pair* to = weights + (i * (P + 1) + m) * K * N;
      const auto row_of = [&](auto first, auto second) INLINED {
        for (int b = 0; b < K; b++) {
          Lanes e[2] = {};
          if (first) total[0] += e[0] = power(s + b * N);
          if (second) total[1] += e[1] = power(s + (K + b) * N);
          store_pairs(to + b * N, interleave(e[0], e[1]));
        }
      };
      const bool first = takes_part(y, i, 2 * m - i), second = takes_part(y, i, 2 * m + 1 - i);
      if (first && second)
        row_of(std::true_type{}, std::true_type{});
      else if (first)
        row_of(std::true_type{}, std::false_type{});
      else if (second)
        row_of(std::false_type{}, std::true_type{});
    }
    return total[0] + total[1];
  }

  void forward(int y, int x0) {
    const Pair* q = queries + P + x0;
    position_logits(q, border + x0 * K);
    Lanes top[2] = {splat_as<Half>(-3e38f), splat_as<Half>(-3e38f)}, scale[2];
    products<true>(q, keys, content ? int(duo / pitch) : 0, y, x0, logits, top);
    for (int i = 0; i < 2; i++)
      scale[i] = 1.0f / (any_above(top[i], STEEP) ? exponentials(std::true_type{}, y, i, top[i])
                                                  : exponentials(std::false_type{}, y, i, top[i]));
    channel_blocks(0, d, [&](int c, auto nc) INLINED {
      constexpr int NC = decltype(nc)::value;
      Lanes sum[2][NC];
      clear_as<Half>(sum);
      gather(value_rows, c, y, x0, sum);
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < NC; j++)
          store_as<Half>(outs + i * row + ptrdiff_t(c + j) * pitch + P + x0, sum[i][j] * scale[i]);
    });
  }

  // Backward: see sasa_half_gradient.h.
  void leave_weights(int y, int rows, int x0, const Lanes (&scale)[2],
                     const Lanes (&mean)[2]);
  void backward_queries(int y, int rows, int x0, bool own, Half::I own_lanes);
  void backward_tables();
  void backward_keys(const Pair* shifted, const Pair* u, float* ring, int y, int from, int to,
                     int fresh, int j);
};

}  // namespace SACCADE_ISA
}  // namespace saccade
