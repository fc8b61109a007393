// One block of 4 x 4 pixels, head by head.
//
//     q = Wq x, k = Wk x      v = Wv(place) x      s(i, j) = q(i) . k(j) + q(i) . r(i, j)
//     y(i) = sum over j of  p(i, j) v(j),     p = softmax over j of s
//
// A block has as many pixels as the widest vector has lanes. Logits have the pixels i along lanes:
// queries are vectors, keys are numbers for all lanes, and r, which depends on both, is a table for
// each row and column of j. Results have channels along lanes, as they lie in memory.
//
// Forward, an image of few channels spares q and k: with M = Wq^T Wk and R(i, j) = Wq^T r(i, j),
//
//     s(i, j) = x(i) M x(j) + x(i) R(i, j)
#pragma once
#include <cmath>

#include "call.h"
#include "rows.h"
#include "scratch.h"

namespace saccade {
namespace SACCADE_ISA {

constexpr int SIDE = BLOCK_SIDE, PIXELS = SIDE * SIDE, PLACES = 2 * SIDE - 1;
static_assert(PIXELS % WIDE == 0 && BLOCK_WIDTH_STEP % WIDE == 0, "vectors have no odd ends");

INLINE int head_width(const Block& c) { return c.outputs / c.heads; }

// Where in a task's share of the gradients each parameter's begins.
struct BlockSums {
  size_t q = 0, k, v, row, col, size;
  explicit BlockSums(const Block& c) {
    const size_t matrix = size_t(c.outputs) * c.inputs, table = size_t(PLACES) * (head_width(c) / 2);
    k = matrix, v = 2 * matrix, row = v + PIXELS * matrix, col = row + table, size = col + table;
  }
};

struct BlockTile {
  const Block& call;
  const int C, D, d, half;
  int b = 0, y0 = 0, x0 = 0;  // the block
  int inside = 0;             // a bit for each pixel of it that the image has
  // Of the call: Wv with channels along lanes (place, input, channel); the tables of positions with
  // pixels i along lanes (row or column of j, channel).
  float *values, *rows, *cols;
  // Of the block, or of one of its heads: (channel, pixel), or (pixel, channel) for v; p is (j, i).
  float *xs, *q, *k, *v, *p;
  float *images, *image_rows, *image_cols;  // of each head: log2 e times M; R by row and column of j
  // Backward; forward, g is room for a result. Sums over blocks have lanes that are added up in the end.
  float *g, *g_turned, *dp, *ds_turned, *dv, *dv_turned, *dxs;
  float *values_turned;  // (channel, input, place)
  float *sum_q, *sum_k, *sum_v, *sum_row, *sum_col;

  static size_t room(const Block& c, bool backward) {
    BlockTile tile(c);
    return tile.carve(nullptr, backward);
  }
  BlockTile(const Block& c, float* scratch, bool backward) : BlockTile(c) {
    const size_t all = carve(scratch, backward);
    zero(scratch, all);
    lay_out(backward);
  }

  // -- forward ------------------------------------------------------------------------------

  // The block in row y and column x of blocks.
  void enter(int image, int y, int x) {
    b = image, y0 = y * SIDE, x0 = x * SIDE, inside = 0;
    const float* from = static_cast<const float*>(call.x.data) + b * call.x.batch;
    if (C == 3 && y0 + SIDE <= call.H && x0 + SIDE <= call.W) {
      inside = (1 << PIXELS) - 1;
      from += y0 * call.x.row + x0 * call.x.column;
      for (int j = 0; j < PIXELS; j++)
        for (int i = 0; i < 3; i++)
          xs[i * PIXELS + j] =
              from[i * call.x.channel + j / SIDE * call.x.row + j % SIDE * call.x.column];
      return;
    }
    for (int j = 0; j < PIXELS; j++) {
      const int row = y0 + j / SIDE, column = x0 + j % SIDE;
      const bool here = row < call.H && column < call.W;
      inside |= here << j;
      for (int i = 0; i < C; i++)
        xs[i * PIXELS + j] =
            here ? from[i * call.x.channel + row * call.x.row + column * call.x.column] : 0;
    }
  }
  // q, k, v and p of head h.
  void weigh(int h) {
    for (int c = 0; c < d; c++) {
      project(call.wq + ptrdiff_t(h * d + c) * C, q + c * PIXELS);
      project(call.wk + ptrdiff_t(h * d + c) * C, k + c * PIXELS);
    }
    for (int j = 0; j < PIXELS; j++)
      for (int c = 0; c < d; c += WIDE) {
        Wide sum{};
        for (int i = 0; i < C; i++)
          sum += splat_wide(xs[i * PIXELS + j]) *
                 load_wide(values + (ptrdiff_t(j) * C + i) * D + h * d + c);
        store_wide(v + j * d + c, sum);
      }
    for (int i = 0; i < PIXELS; i += WIDE) {
      products(q + i, PIXELS, k, PIXELS, 1, d, p + i, PIXELS);
      if (call.row) {
        Wide by_row[SIDE], by_col[SIDE];
        for (int a = 0; a < SIDE; a++) by_row[a] = by_col[a] = Wide{};
        for (int c = 0; c < half; c++)
          for (int a = 0; a < SIDE; a++) {
            const ptrdiff_t at = (ptrdiff_t(a) * half + c) * PIXELS + i;
            by_row[a] += load_wide(q + c * PIXELS + i) * load_wide(rows + at);
            by_col[a] += load_wide(q + (half + c) * PIXELS + i) * load_wide(cols + at);
          }
        for (int j = 0; j < PIXELS; j++)
          add(p + j * PIXELS + i, by_row[j / SIDE] + by_col[j % SIDE]);
      }
      softmax(p + i);
    }
  }
  bool has_few_channels() const { return C <= d; }
  // The same p without q and k; KNOWN: C, if it is 3.
  template <int KNOWN>
  void weigh_image(int h) {
    float* const p = this->p + ptrdiff_t(h) * PIXELS * PIXELS;
    const int C = KNOWN ? KNOWN : this->C;
    const float* m = images + ptrdiff_t(h) * C * C;
    const ptrdiff_t table = ptrdiff_t(SIDE) * C * PIXELS;
    for (int i = 0; i < PIXELS; i += WIDE) {
      Wide s[PIXELS], by_row[SIDE], by_col[SIDE];
      for (int a = 0; a < SIDE; a++) by_row[a] = by_col[a] = Wide{};
      for (int n = 0; call.row && n < C; n++) {
        const Wide x = load_wide(xs + n * PIXELS + i);
        for (int a = 0; a < SIDE; a++) {
          const ptrdiff_t at = h * table + (ptrdiff_t(a) * C + n) * PIXELS + i;
          by_row[a] += x * load_wide(image_rows + at);
          by_col[a] += x * load_wide(image_cols + at);
        }
      }
      for (int j = 0; j < PIXELS; j++) s[j] = by_row[j / SIDE] + by_col[j % SIDE];
      for (int c = 0; c < C; c++) {
        Wide u{};
        for (int n = 0; n < C; n++) u += splat_wide(m[n * C + c]) * load_wide(xs + n * PIXELS + i);
        for (int j = 0; j < PIXELS; j++) s[j] += u * splat_wide(xs[c * PIXELS + j]);
      }
      if (call.mask && inside != (1 << PIXELS) - 1)
        for (int j = 0; j < PIXELS; j++)
          if (!(inside >> j & 1)) s[j] = splat_wide(-3e38f);
      Wide highs[4] = {s[0], s[1], s[2], s[3]}, totals[4] = {};  // four need not wait for each other
      repeat<PIXELS - 4>([&](auto j) INLINED { highs[j % 4] = maximum_wide(s[j + 4], highs[j % 4]); });
      const Wide most = maximum_wide(maximum_wide(highs[0], highs[1]), maximum_wide(highs[2], highs[3]));
      repeat<PIXELS>([&](auto j) INLINED {
        totals[j % 4] += s[j] = exp2_as<Widest<float>>(s[j] - most);
      });
      const Wide inverse = 1.0f / ((totals[0] + totals[1]) + (totals[2] + totals[3]));
      repeat<PIXELS>([&](auto j) INLINED { store_wide(p + j * PIXELS + i, s[j] * inverse); });
    }
  }
  // y(i) of a vector of channels from c on, at pixels from `first` on.
  template <int KNOWN, int COUNT>
  INLINE void sums_of_image(int first, int channel, Wide (&sum)[COUNT]) const {
    const int C = KNOWN ? KNOWN : this->C;
    const float* const p = this->p + ptrdiff_t(channel / d) * PIXELS * PIXELS;
    for (int i = 0; i < COUNT; i++) sum[i] = Wide{};
#pragma GCC unroll 1
    for (int j = 0; j < PIXELS; j++) {
      Wide value{};
      for (int n = 0; n < C; n++)
        value += splat_wide(xs[n * PIXELS + j]) *
                 load_wide(values + (ptrdiff_t(j) * C + n) * D + channel);
      for (int i = 0; i < COUNT; i++) sum[i] += value * splat_wide(p[j * PIXELS + first + i]);
    }
  }
  template <int KNOWN>
  void gather_image(int h) {
    constexpr int FEW = REGISTERS == 32 ? PIXELS : 8;
    for (int c = 0; c < d; c += WIDE) {
      const int channel = h * d + c;
      if (call.scale && inside == (1 << PIXELS) - 1) {
        const Wide scale = load_wide(call.scale + channel), shift = load_wide(call.shift + channel);
        Wide highs[4], totals[4] = {};
        for (Wide& high : highs) high = splat_wide(-INFINITY);
        for (int first = 0; first < PIXELS; first += FEW) {
          Wide sum[FEW];
          sums_of_image<KNOWN>(first, channel, sum);
          repeat<FEW>([&](auto i) INLINED {
            const Wide one = sum[i] * scale + shift;
            highs[i % 4] = maximum_wide(highs[i % 4], one), totals[i % 4] += one;
          });
        }
        if (all_finite(totals[0] + totals[1] + (totals[2] + totals[3]))) {  // else a NaN may be lost
          store_wide(maxima() + channel, maximum_wide(maximum_wide(highs[0], highs[1]),
                                                      maximum_wide(highs[2], highs[3])));
          continue;
        }
      }
      for (int first = 0; first < PIXELS; first += FEW) {
        Wide sum[FEW];
        sums_of_image<KNOWN>(first, channel, sum);
        for (int i = 0; i < FEW; i++) store_wide(g + (first + i) * WIDE, sum[i]);
      }
      give(channel, g);
    }
  }
  // y of head h, at every pixel; or its maximum over the block.
  void gather(int h) {
    for (int c = 0; c < d; c += WIDE) {
      products(v + c, d, p, PIXELS, 1, PIXELS, g, WIDE);
      give(h * d + c, g);
    }
  }
  // A vector of channels of y at all pixels (pixel, lane).
  INLINE void give(int channel, const float* all) {
    if (!call.scale)
      return each_inside([&](int i) INLINED {
        store_wide(call.y + place(i) + channel, load_wide(all + i * WIDE));
      });
    const Wide scale = load_wide(call.scale + channel), shift = load_wide(call.shift + channel);
    Wide most{};
    bool first = true;
    each_inside([&](int i) INLINED {
      const Wide one = load_wide(all + i * WIDE) * scale + shift;
      most = first ? one : most > one ? most : most != most ? most : one;
      first = false;
    });
    store_wide(maxima() + channel, most);
  }

  // -- backward -----------------------------------------------------------------------------

  void back(int h) {
    for (int j = 0; j < PIXELS * d; j += WIDE) store_wide(g + j, Wide{});
    each_inside([&](int i) {
      for (int c = 0; c < d; c += WIDE)
        store_wide(g + i * d + c, load_wide(call.g + place(i) + h * d + c));
    });
    turn(g, PIXELS, d, g_turned);
    // dv(j) = sum over i of p(i, j) g(i);  dp(j, i) = g(i) . v(j)
    for (int c = 0; c < d; c += WIDE) products(g + c, d, p, 1, PIXELS, PIXELS, dv + c, d);
    for (int i = 0; i < PIXELS; i += WIDE) {
      products(g_turned + i, PIXELS, v, 1, d, d, dp + i, PIXELS);
      Wide mean{};
      for (int j = 0; j < PIXELS; j++)
        mean += load_wide(p + j * PIXELS + i) * load_wide(dp + j * PIXELS + i);
      for (int j = 0; j < PIXELS; j++) {
        float* at = dp + j * PIXELS + i;
        store_wide(at, load_wide(p + j * PIXELS + i) * (load_wide(at) - mean));  // ds
      }
    }
    turn(dp, PIXELS, PIXELS, ds_turned);
    turn(dv, PIXELS, d, dv_turned);
    for (int i = 0; i < PIXELS; i += WIDE) {
      Wide by_row[SIDE], by_col[SIDE];
      for (int a = 0; a < SIDE; a++) by_row[a] = by_col[a] = Wide{};
      for (int j = 0; j < PIXELS; j++) {
        const Wide ds = load_wide(dp + j * PIXELS + i);
        by_row[j / SIDE] += ds;
        by_col[j % SIDE] += ds;
      }
      for (int c = 0; c < d; c++) {
        const bool upper = c < half;
        Wide dq{}, dk{};
        for (int j = 0; j < PIXELS; j++) {
          dq += load_wide(dp + j * PIXELS + i) * splat_wide(k[c * PIXELS + j]);
          dk += load_wide(ds_turned + j * PIXELS + i) * splat_wide(q[c * PIXELS + j]);
        }
        for (int a = 0; call.row && a < SIDE; a++) {
          const ptrdiff_t at = (ptrdiff_t(a) * half + (upper ? c : c - half)) * PIXELS + i;
          const Wide ds = upper ? by_row[a] : by_col[a];
          dq += ds * load_wide((upper ? rows : cols) + at);
          add((upper ? sum_row : sum_col) + at, ds * load_wide(q + c * PIXELS + i));
        }
        give_inputs(i, h * d + c, dq, dk, load_wide(dv_turned + c * PIXELS + i));
      }
    }
    for (int j = 0; j < PIXELS; j++)
      for (int n = 0; n < C; n++)
        for (int c = 0; c < d; c += WIDE)
          add(sum_v + (ptrdiff_t(j) * C + n) * D + h * d + c,
              splat_wide(xs[n * PIXELS + j]) * load_wide(dv + j * d + c));
  }
  // The gradient of the block's pixels is whole.
  void leave() {
    const ptrdiff_t plane = ptrdiff_t(call.H) * call.W;
    each_inside([&](int j) {
      const ptrdiff_t at = ptrdiff_t(y0 + j / SIDE) * call.W + x0 + j % SIDE;
      for (int n = 0; n < C; n++) call.dx[(ptrdiff_t(b) * C + n) * plane + at] = dxs[n * PIXELS + j];
    });
    zero(dxs, size_t(C) * PIXELS);
  }
  void flush(float* partial) const {
    const BlockSums sums(call);
    const auto lanes = [](const float* from) {
      float sum = 0;
      for (int i = 0; i < PIXELS; i++) sum += from[i];
      return sum;
    };
    for (int j = 0; j < D * C; j++) {
      partial[sums.q + j] = lanes(sum_q + ptrdiff_t(j) * PIXELS);
      partial[sums.k + j] = lanes(sum_k + ptrdiff_t(j) * PIXELS);
    }
    for (int j = 0; j < PIXELS; j++)
      for (int c = 0; c < D; c++)
        for (int n = 0; n < C; n++)
          partial[sums.v + (size_t(j) * D + c) * C + n] = sum_v[(ptrdiff_t(j) * C + n) * D + c];
    zero(partial + sums.row, sums.size - sums.row);
    each_position([&](int a, int c, int i, ptrdiff_t at) {
      partial[sums.row + (a - i / SIDE + SIDE - 1) * half + c] += sum_row[at];
      partial[sums.col + (a - i % SIDE + SIDE - 1) * half + c] += sum_col[at];
    });
  }

 private:
  explicit BlockTile(const Block& c)
      : call(c), C(c.inputs), D(c.outputs), d(head_width(c)), half(d / 2) {}

  size_t carve(float* base, bool backward) {
    Carver<float> from{base, 0, 0};
    const size_t channels = size_t(d) * PIXELS, square = PIXELS * PIXELS;
    const size_t matrix = size_t(C) * D * PIXELS, table = size_t(SIDE) * half * PIXELS;
    values = from.take(matrix);
    rows = from.take(table), cols = from.take(table);
    xs = from.take(size_t(C) * PIXELS);
    q = from.take(channels), k = from.take(channels), v = from.take(channels);
    p = from.take(square * (has_few_channels() && !backward ? call.heads : 1));
    g = from.take(channels);
    if (!backward && has_few_channels()) {
      const size_t image_table = size_t(call.heads) * SIDE * C * PIXELS;
      images = from.take(size_t(call.heads) * C * C);
      image_rows = from.take(image_table), image_cols = from.take(image_table);
    }
    if (backward) {
      g_turned = from.take(channels), dv = from.take(channels), dv_turned = from.take(channels);
      dp = from.take(square), ds_turned = from.take(square);
      dxs = from.take(size_t(C) * PIXELS);
      values_turned = from.take(matrix);
      sum_q = from.take(matrix), sum_k = from.take(matrix), sum_v = from.take(matrix);
      sum_row = from.take(table), sum_col = from.take(table);
    }
    return from.used;
  }
  void lay_out(bool backward) {
    for (int j = 0; j < PIXELS; j++)
      for (int c = 0; c < D; c++)
        for (int n = 0; n < C; n++) {
          const float w = call.wv[(ptrdiff_t(j) * D + c) * C + n];
          values[(ptrdiff_t(j) * C + n) * D + c] = w;
          if (backward) values_turned[(ptrdiff_t(c) * C + n) * PIXELS + j] = w;
        }
    if (!backward && has_few_channels()) return lay_out_image();
    if (!call.row) return;
    each_position([&](int a, int c, int i, ptrdiff_t at) {
      rows[at] = call.row[(a - i / SIDE + SIDE - 1) * half + c];
      cols[at] = call.col[(a - i % SIDE + SIDE - 1) * half + c];
    });
  }
  void lay_out_image() {
    for (int h = 0; h < call.heads; h++) {
      const float *wq = call.wq + ptrdiff_t(h) * d * C, *wk = call.wk + ptrdiff_t(h) * d * C;
      for (int n = 0; n < C; n++)
        for (int m = 0; m < C; m++) {
          float sum = 0;
          for (int c = 0; c < d; c++) sum += wq[c * C + n] * wk[c * C + m];
          images[(ptrdiff_t(h) * C + n) * C + m] = sum * float(LOG2E);
        }
      for (int offset = 0; call.row && offset < PLACES; offset++)
        for (int n = 0; n < C; n++) {
          float by_row = 0, by_col = 0;
          for (int c = 0; c < half; c++) {
            by_row += call.row[offset * half + c] * wq[c * C + n];
            by_col += call.col[offset * half + c] * wq[(half + c) * C + n];
          }
          for (int a = 0; a < SIDE; a++) {  // the row or column of j; SIDE - 1 + a - offset is that of i
            float* to = image_rows + ((ptrdiff_t(h) * SIDE + a) * C + n) * PIXELS;
            float* at = image_cols + ((ptrdiff_t(h) * SIDE + a) * C + n) * PIXELS;
            const int line = a + SIDE - 1 - offset;
            for (int e = 0; line >= 0 && line < SIDE && e < SIDE; e++)
              to[line * SIDE + e] = by_row * float(LOG2E), at[e * SIDE + line] = by_col * float(LOG2E);
          }
        }
    }
  }
  // f(row or column of j, channel, pixel i, place in the table).
  template <class F>
  void each_position(F&& f) const {
    for (int a = 0; a < SIDE; a++)
      for (int c = 0; c < half; c++)
        for (int i = 0; i < PIXELS; i++) f(a, c, i, (ptrdiff_t(a) * half + c) * PIXELS + i);
  }
  template <class F>
  INLINE void each_inside(F&& f) const {
    for (int i = 0; i < PIXELS; i++)
      if (inside >> i & 1) f(i);
  }
  // Of y and its gradient.
  ptrdiff_t place(int i) const {
    return ((ptrdiff_t(b) * call.H + y0 + i / SIDE) * call.W + x0 + i % SIDE) * D;
  }
  // Of the block, for all channels.
  float* maxima() const {
    const ptrdiff_t along = (call.W + SIDE - 1) / SIDE, down = (call.H + SIDE - 1) / SIDE;
    return call.y + ((b * down + y0 / SIDE) * along + x0 / SIDE) * D;
  }
  static INLINE bool all_finite(Wide v) {
#ifdef __AVX512F__
    return !_mm512_cmp_ps_mask(v - v, v - v, _CMP_UNORD_Q);
#else
    const Wide difference = v - v;
    float sum = 0;
    for (int i = 0; i < WIDE; i++) sum += difference[i];
    return sum == 0;
#endif
  }
  static INLINE void add(float* to, Wide more) { store_wide(to, load_wide(to) + more); }
  INLINE void project(const float* w, float* to) const {
    for (int i = 0; i < PIXELS; i += WIDE) {
      Wide sum{};
      for (int n = 0; n < C; n++) sum += splat_wide(w[n]) * load_wide(xs + n * PIXELS + i);
      store_wide(to + i, sum);
    }
  }
  // to(j) = over `depth` steps the sum of a(step) b(step, j), for all pixels j; b is one number.
  static INLINE void products(const float* a, ptrdiff_t a_step, const float* b, ptrdiff_t b_step,
                              ptrdiff_t b_row, int depth, float* to, ptrdiff_t to_row) {
    constexpr int FEW = REGISTERS == 32 ? PIXELS : 8;
    for (int j0 = 0; j0 < PIXELS; j0 += FEW) {
      Wide sum[FEW];
      for (int j = 0; j < FEW; j++) sum[j] = Wide{};
#pragma GCC unroll 1
      for (int c = 0; c < depth; c++) {
        const Wide one = load_wide(a + c * a_step);
        for (int j = 0; j < FEW; j++)
          sum[j] += one * splat_wide(b[c * b_step + (j0 + j) * b_row]);
      }
      for (int j = 0; j < FEW; j++) store_wide(to + (j0 + j) * to_row, sum[j]);
    }
  }
  // Over j, of the logits (j, i) of some pixels i.
  INLINE void softmax(float* s) const {
    const Wide low = splat_wide(-INFINITY);
    Wide most = low, total{};
    if (call.mask)
      for (int j = 0; j < PIXELS; j++)
        if (!(inside >> j & 1)) store_wide(s + j * PIXELS, low);
    for (int j = 0; j < PIXELS; j++) most = maximum_wide(load_wide(s + j * PIXELS), most);
    for (int j = 0; j < PIXELS; j++) {
      Wide e = exp_wide(load_wide(s + j * PIXELS) - most);
      if (call.mask && !(inside >> j & 1)) e = Wide{};
      store_wide(s + j * PIXELS, e);
      total += e;
    }
    const Wide inverse = 1.0f / total;
    for (int j = 0; j < PIXELS; j++)
      store_wide(s + j * PIXELS, load_wide(s + j * PIXELS) * inverse);
  }
  // to(c, r) = from(r, c)
  static void turn(const float* from, int rows, int columns, float* to) {
    constexpr int N = LANES<float>;
    for (int r = 0; r < rows; r += N)
      for (int c = 0; c < columns; c += N) {
        V<float> block[N];
        for (int j = 0; j < N; j++) block[j] = load(from + (r + j) * columns + c);
        transpose<float>(block);
        for (int j = 0; j < N; j++) store(to + (c + j) * rows + r, block[j]);
      }
  }
  // What a channel's dq, dk and dv at some pixels give to their inputs, and to the matrices.
  INLINE void give_inputs(int i, int channel, Wide dq, Wide dk, Wide dv_here) {
    for (int n = 0; n < C; n++) {
      const ptrdiff_t at = ptrdiff_t(channel) * C + n;
      const Wide x = load_wide(xs + n * PIXELS + i);
      add(dxs + n * PIXELS + i, dq * splat_wide(call.wq[at]) + dk * splat_wide(call.wk[at]) +
                                    dv_here * load_wide(values_turned + at * PIXELS + i));
      add(sum_q + at * PIXELS + i, dq * x);
      add(sum_k + at * PIXELS + i, dk * x);
    }
  }
};

}  // namespace SACCADE_ISA
}  // namespace saccade
