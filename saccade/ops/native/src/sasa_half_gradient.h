// The backward of local attention in bfloat16 on a tile: p and ds recomputed, then
//
//     ds = p (dp - sum p dp)      dq = sum ds (k + r)      dk = sum ds q      dv = sum p g
//     dr = sum over queries of q times the sums of ds over a column or a row of the window
//
// in the pairs that sasa_half_tile.h speaks of.
#pragma once
#include "sasa_half_tile.h"

namespace saccade {
namespace SACCADE_ISA {

// p and ds in the pairs that the sums need, from the numerators in `logits` and dp; and the sums
// of ds over the rows and the columns of the window.
template <int Known>
void SasaHalfTile<Known>::leave_weights(int y, int rows, int x0, const Lanes (&scale)[2],
                                        const Lanes (&mean)[2]) {
  const int K = this->K, P = this->P, pitch = this->pitch;  // stores of pairs may not change them
  const bool content = this->content;
  const SomeLanes alive = first_lanes(min(N, q1 - q0 - x0)), nobody = first_lanes(0);
  for (int m = 0; m <= P; m++) {
    SomeLanes in[2][2];
    Lanes in_row[2][2];
    clear_as<Half>(in_row);
    for (int i = 0; i < 2; i++)
      for (int h = 0; h < 2; h++)
        in[i][h] = i < rows && takes_part(y, i, 2 * m + h - i) ? alive : nobody;
    const float *s = logits + 2 * m * K * N, *dp = dweights + 2 * m * K * N;
    Pair *to = weights + m * K * N, *to_p = shifted_p + ptrdiff_t(2 * m) * K * pitch + x0;
    Pair* to_ds = shifted_ds + ptrdiff_t(2 * m) * K * pitch + x0;
    for (int b = 0; b < K; b++, s += N, dp += N, to += N, to_p += pitch + 1, to_ds += pitch + 1) {
      Lanes p[2][2], ds[2][2];
      for (int i = 0; i < 2; i++) {
        for (int h = 0; h < 2; h++) {
          const ptrdiff_t j = ptrdiff_t(i * K + h - i) * K * N;
          p[i][h] = multiply_some(in[i][h], load_as<Half>(s + j), scale[i]);
          ds[i][h] = multiply_some(in[i][h], p[i][h], load_as<Half>(dp + j) - mean[i]);
          in_row[i][h] += ds[i][h];
        }
        store_pairs(to + i * (P + 1) * K * N, interleave(ds[i][0], ds[i][1]));
        float* in_col = along_col + (i * K + b) * N;  // not of rounded ds: they may cancel
        const Lanes both = ds[i][0] + ds[i][1];
        store_as<Half>(in_col, m ? load_as<Half>(in_col) + both : both);
      }
      for (int h = 0; h < 2; h++) {
        store_pairs(to_p + h * K * pitch, interleave(p[0][h], p[1][h]));
        if (content) store_pairs(to_ds + h * K * pitch, interleave(ds[0][h], ds[1][h]));
      }
    }
    for (int i = 0; i < 2; i++)
      for (int h = 0; h < 2; h++)
        if (2 * m + h - i >= 0 && 2 * m + h - i < K)
          store_as<Half>(along_row + (i * K + 2 * m + h - i) * N, in_row[i][h]);
  }
}

// p and ds of a tile, dq, and the sums of ds that the tables' gradient needs. `own`: the task
// answers for these queries (others are here because keys of this task are in their window).
template <int Known>
void SasaHalfTile<Known>::backward_queries(int y, int rows, int x0, bool own, Half::I own_lanes) {
  const Pair *q = queries + P + x0, *g = gouts + P + x0;
  const Lanes log2e = splat_as<Half>(float(LOG2E));
  position_logits(q, border + x0 * K);
  Lanes top[2] = {splat_as<Half>(-3e38f), splat_as<Half>(-3e38f)}, scale[2], mean[2];  // of dp under p
  products<true>(q, keys, content ? int(duo / pitch) : 0, y, x0, logits, top);
  products<false>(g, values, int(duo / pitch), y, x0, dweights, top);
  for (int i = 0; i < 2; i++) {
    const Lanes most = top[i];  // see STEEP
    Lanes total[2] = {}, weighted[2] = {};
    float *s = logits + i * K * K * N, *dp = dweights + i * K * K * N;
    const auto entry = [&](int j, int n) INLINED {
      const Lanes e = exp2_coarse((load_as<Half>(s + j * N) - most) * log2e);
      store_as<Half>(s + j * N, e);
      total[n] += e;
      weighted[n] += e * load_as<Half>(dp + j * N);
    };
    int j = first_row(y + i) * K;
    const int end = last_row(y + i) * K;
    for (; j + 1 < end; j += 2) entry(j, 0), entry(j + 1, 1);
    if (j < end) entry(j, 0);
    scale[i] = 1.0f / (total[0] + total[1]);
    mean[i] = (weighted[0] + weighted[1]) * scale[i];
  }
  leave_weights(y, rows, x0, scale, mean);
  if (!own) return;
  const auto dq = [&](int from, int to, const float* ds, const float* table) INLINED {
    channel_blocks(from, to, [&](int c, auto nc) INLINED {
      constexpr int NC = decltype(nc)::value;
      Lanes sum[2][NC];
      clear_as<Half>(sum);
      if (position)
        for (int a = 0; a < K; a++)
          for (int j = 0; j < NC; j++) {
            const Lanes r = splat_as<Half>(table[(c - from + j) * K + a]);
            for (int i = 0; i < 2; i++) sum[i][j] += load_as<Half>(ds + (i * K + a) * N) * r;
          }
      if (content) gather(key_rows, c, y, x0, sum);
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < NC; j++)
          store_as<Half>(dqueries + i * row + ptrdiff_t(c + j) * pitch + P + x0, sum[i][j]);
    });
  };
  if (!position) return dq(0, d, nullptr, nullptr);
  dq(0, half, along_row, row_fp32);
  dq(half, d, along_col, col_fp32);
  for (int a = 0; a < K; a++) {
    const auto both = [&](const float* ds) INLINED {
      return interleave(keep_as<Half>(own_lanes, load_as<Half>(ds + a * N)),
                        keep_as<Half>(own_lanes, load_as<Half>(ds + (K + a) * N)));
    };
    store_pairs(row_sums + a * pitch + P + x0, both(along_row));
    store_pairs(col_sums + a * pitch + P + x0, both(along_col));
  }
}

// The tables' gradient: sum over the queries of the tile's rows of q times ds.
template <int Known>
void SasaHalfTile<Known>::backward_tables() {
  const auto dtable = [&](const Pair* q, const Pair* ds, float* to) INLINED {
    channel_blocks<2>(0, half, [&](int c, auto nc) INLINED {
      constexpr int NC = decltype(nc)::value;
      blocks(K, [&](int a0, auto na) INLINED {
        constexpr int NA = decltype(na)::value;
        Lanes sum[NC][NA];
        clear_as<Half>(sum);
        for (int x = P; x < P + q1 - q0; x += N) {
          Pairs qs[NC];
          for (int j = 0; j < NC; j++) qs[j] = load_pairs(q + ptrdiff_t(c + j) * pitch + x);
          for (int a = 0; a < NA; a++) {
            const Pairs s = load_pairs(ds + ptrdiff_t(a0 + a) * pitch + x);
            for (int j = 0; j < NC; j++) sum[j][a] = multiply_add(qs[j], s, sum[j][a]);
          }
        }
        for (int j = 0; j < NC; j++)
          for (int a = 0; a < NA; a++) {
            float* at = to + ((c + j) * K + a0 + a) * N;
            store_as<Half>(at, load_as<Half>(at) + sum[j][a]);
          }
      });
    });
  };
  dtable(query_rows, row_sums, drow_lanes);
  dtable(query_rows + half * ptrdiff_t(pitch), col_sums, dcol_lanes);
}

// Key rows [from, to) gather from the two query rows of this tile, those from `fresh` on for the
// first time; j: index of the first key.
template <int Known>
void SasaHalfTile<Known>::backward_keys(const Pair* shifted, const Pair* u, float* ring, int y,
                                        int from, int to, int fresh, int j) {
  for (int m = 0; m <= P; m++) {
    const int r = y + 2 * m - P;
    if (r + 1 < from || r >= to) continue;
    const Pair* p = shifted + ptrdiff_t(2 * m) * K * pitch + j;
    channel_blocks(0, d, [&](int c, auto nc) INLINED {
      constexpr int NC = decltype(nc)::value;
      Lanes sum[2][NC];
      clear_as<Half>(sum);
      const Pair* v = u + ptrdiff_t(c) * pitch + j + P;
      if (m == 0)
        mix_pairs<LOW, BOTH>(p, K * pitch, pitch, v, pitch, -1, K, sum);
      else if (m == P)
        mix_pairs<BOTH, HIGH>(p, K * pitch, pitch, v, pitch, -1, K, sum);
      else
        mix_pairs<BOTH, BOTH>(p, K * pitch, pitch, v, pitch, -1, K, sum);
      for (int g = 0; g < 2; g++) {
        if (r + g < from || r + g >= to) continue;
        float* at = in_ring(ring, y + 2 * m + g, row) + ptrdiff_t(c) * pitch + j;
        if (r + g < fresh)
          for (int k = 0; k < NC; k++) sum[g][k] += load_as<Half>(at + k * pitch);
        for (int k = 0; k < NC; k++) store_as<Half>(at + k * pitch, sum[g][k]);
      }
    });
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
