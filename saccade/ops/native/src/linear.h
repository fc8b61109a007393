// A map's pixels times a small matrix, and the gradient of that matrix.
//
//     y(m, n) = sum over k of x(m, k) w(n, k) + b(n)
//     dw(n, k) += sum over m of y(m, n) x(m, k)        db(n) += sum over m of y(m, n)
//
// There are many more pixels than channels, so the weights are what is laid out anew, in panels of
// a few vectors of outputs, and pixels are read where they lie. Libraries of products lay out both,
// and clear y beforehand: on maps that do not fit the cache that costs them a quarter of their time.
//
// Where SACCADE_PAIRS is defined, forward products are of bfloat16, two at once, with sums in fp32:
// weights are laid out so, and pixels are rounded some rows at a time.
#pragma once
#include <cstring>
#include <memory>
#include <numeric>

#include "call.h"
#include "rows.h"
#include "scratch.h"

namespace saccade {
namespace SACCADE_ISA {

#ifdef SACCADE_PAIRS
constexpr bool PAIRS = true;
#else
constexpr bool PAIRS = false;
#endif
// Rows that `inputs` take in a panel.
constexpr INLINE int deep(int inputs) { return PAIRS ? (inputs + 1) / 2 : inputs; }

struct LinearPlan {
  static constexpr int ROWS = 96;    // pixels at once: their channels stay in the second cache
  static constexpr int DEPTH = PAIRS        ? 384  // channels at once: a panel stays in the first
                               : WIDE == 16 ? 192
                                            : 256;
  int blocks;         // of pixels, in an image
  int few;            // pixels at once, backward: the fewer, the less of them leaves the first cache,
                      // but the more often all sums are fetched
  int splits, split;  // of the outputs whose parameters' gradient a task computes
  explicit LinearPlan(const Linear& c) : blocks((c.rows + ROWS - 1) / ROWS) {
    few = c.inputs * c.outputs < 1 << 14 ? ROWS / 2 : ROWS;
    const int most = max(1, c.outputs / 24);
    splits = min(most, c.threads / std::gcd(c.threads, max(1, c.batches)));  // equal shares
    split = round_up((c.outputs + splits - 1) / splits, 4);
    splits = (c.outputs + split - 1) / split;
  }
};

// f(first column, Int<vectors>) for each panel of n columns. Three vectors are better than two and
// one.
template <class F>
INLINE void panels(int n, F&& f) {
  constexpr int N = WIDE;
  int c = 0;
  for (; n - c > 3 * N; c += 2 * N) f(c, Int<2>{});
  pick<3>((n - c + N - 1) / N, [&](auto nv) INLINED { f(c, nv); });
}
INLINE size_t padded(int n) { return round_up(n, WIDE); }
// Of one matrix with its bias.
INLINE size_t packed_size(int inputs, int outputs) { return padded(outputs) * (deep(inputs) + 1); }
INLINE size_t packed_size(const Linear& c) { return packed_size(c.inputs, c.outputs); }

// sum + a b, of a number and a vector; with BY_PAIRS, of two bfloat16 each.
template <bool BY_PAIRS>
INLINE Wide multiply_add(Wide sum, const float* a, Wide b) {
#ifdef SACCADE_PAIRS
  if constexpr (BY_PAIRS) {
    int32_t two;
    memcpy(&two, a, sizeof(two));
    const __m512i all = _mm512_set1_epi32(two);
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(all));  // GCC's own spills half of the sums
    return sum;
  }
#endif
  return sum + splat_wide(*a) * b;
}

// What products are added to, and where they go. `plus` has the rows of `to`; it may be `to`, or null.
struct Sums {
  const float *start, *plus;  // `start`: one row for all, or null
  float* to;
  ptrdiff_t row;
  int columns;  // that exist
};

// A column of `tiles` tiles of R rows and NV vectors:
//
//     to(i, v) = start(v) + plus(i, v) + over `depth` steps the sum of a(step, i) b(step, v)
//
// Meanwhile what lies behind b is fetched, for weights that were not used for a while are far away,
// and a, `ahead` floats on. A function of its own, because the sums of several of these inlined into
// one would not stay in registers.
template <int R, int NV, bool BY_PAIRS>
__attribute__((noinline)) void column(int tiles, const float* a, ptrdiff_t a_step, ptrdiff_t a_row,
                                      const float* b, int depth, Sums out, size_t ahead) {
  constexpr int N = WIDE;
  const auto cells = [](auto f) INLINED {  // without loops, which GCC would have to take apart
    repeat<R>([&](auto i) INLINED { repeat<NV>([&](auto v) INLINED { f(i, v); }); });
  };
  for (int tile = 0; tile < tiles; tile++, a += R * a_row, out.to += R * out.row) {
    if (ahead) fetch(a + ahead, R * a_row * sizeof(float));
    Wide sum[R][NV], first[NV];
    for (int v = 0; v < NV; v++) first[v] = out.start ? load_wide(out.start + v * N) : Wide{};
    cells([&](auto i, auto v) INLINED { sum[i][v] = first[v]; });
    // Three rows share a pointer: x86 adds once or twice a_row for nothing. The compiler, left alone,
    // takes a register for each row, and lets sums go for that.
    const float *as[(R + 2) / 3], *bs = b, *behind = b;
    repeat<(R + 2) / 3>([&](auto g) INLINED { as[g] = a + 3 * g * a_row; });
    const int more = tile < NV ? N : 0;  // each of the first tiles fetches its share
    if (more) behind += (NV + tile) * ptrdiff_t(depth) * N;
#pragma GCC unroll 1
    for (int j = 0; j < depth; j++, bs += NV * N, behind += more) {
      __builtin_prefetch(behind, 0, 2);
      Wide bv[NV];
      for (int v = 0; v < NV; v++) bv[v] = load_wide(bs + v * N);
      cells([&](auto i, auto v) INLINED {
        sum[i][v] = multiply_add<BY_PAIRS>(sum[i][v], as[i / 3] + i % 3 * a_row, bv[v]);
      });
      repeat<(R + 2) / 3>([&](auto g) INLINED { as[g] = apart(as[g] + a_step); });
    }
    if (out.plus) {
      cells([&](auto i, auto v) INLINED { sum[i][v] += load_wide(out.plus + i * out.row + v * N); });
      out.plus += R * out.row;
    }
    cells([&](auto i, auto v) INLINED { store_wide(out.to + i * out.row + v * N, sum[i][v]); });
  }
}
// The same where the last vectors have numbers that do not exist: by way of whole ones.
template <int R, int NV, bool BY_PAIRS>
INLINE void narrow_column(int tiles, const float* a, ptrdiff_t a_step, ptrdiff_t a_row,
                          const float* b, int depth, Sums out) {
  constexpr int WIDTH = NV * WIDE;
  for (; tiles; tiles--, a += R * a_row, out.to += R * out.row) {
    float all[R * WIDTH];
    column<R, NV, BY_PAIRS>(1, a, a_step, a_row, b, depth, Sums{out.start, nullptr, all, WIDTH, 0}, 0);
    for (int i = 0; i < R; i++)
      for (int j = 0; j < out.columns; j++) {
        const ptrdiff_t at = i * out.row + j;
        out.to[at] = out.plus ? out.plus[at] + all[i * WIDTH + j] : all[i * WIDTH + j];
      }
    if (out.plus) out.plus += R * out.row;
  }
}
// The same for n rows.
template <int NV, bool BY_PAIRS = false>
INLINE void rows_of(int n, const float* a, ptrdiff_t a_step, ptrdiff_t a_row, const float* b,
                    int depth, const Sums& out, size_t ahead = 0) {
  constexpr int R = (REGISTERS == 32 ? 24 : 12) / max(2, NV);  // as many as registers allow
  constexpr int MORE = REGISTERS == 32 ? 4 - NV : 0;           // and these, in a last tile
  const auto tiles = [&](int from, int count, auto rows) INLINED {
    const ptrdiff_t at = from * out.row;
    const Sums part{out.start, out.plus ? out.plus + at : nullptr, out.to + at, out.row, out.columns};
    constexpr int ROWS = decltype(rows)::value;
    if (out.columns >= NV * WIDE)
      column<ROWS, NV, BY_PAIRS>(count, a + from * a_row, a_step, a_row, b, depth, part, ahead);
    else
      narrow_column<ROWS, NV, BY_PAIRS>(count, a + from * a_row, a_step, a_row, b, depth, part);
  };
  int whole = n / R, rest = n % R;
  const bool longer = whole && rest && rest <= MORE;  // rather than one more tile, of few rows
  if (longer) whole--;
  if (whole) tiles(0, whole, Int<R>{});
  int done = whole * R;
  if constexpr (MORE > 0)
    if (longer) return pick<MORE>(rest, [&](auto m) INLINED {
      tiles(done, 1, Int<R + decltype(m)::value>{});
    });
  if (R > 4 && rest >= 4) {
    tiles(done, rest / 4, Int<4>{});
    done += rest / 4 * 4;
  }
  if (done < n) pick<3>(n - done, [&](auto rows) INLINED { tiles(done, 1, rows); });
}

// Two rows of a panel as one, of pairs of bfloat16.
INLINE void pair_up(const float* one, const float* two, int width, float* to) {
#ifdef SACCADE_PAIRS
  for (int v = 0; v < width; v += WIDE) {
    const auto bits = [&](const float* p) INLINED {
      return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(load_wide(p + v)));
    };
    const __m512i high = two ? _mm512_slli_epi32(bits(two), 16) : _mm512_setzero_si512();
    store_wide(to + v, (Wide)_mm512_or_si512(bits(one), high));
  }
#endif
}

// The matrix of image `batch`, panel by panel: the bias first, then input by input.
template <bool BY_PAIRS = PAIRS>
inline void linear_pack(const Linear& c, int batch, float* to) {
  constexpr int N = LANES<float>;
  const float *w = c.w + batch * c.w_batch, *b = c.b ? c.b + batch * c.b_batch : nullptr;
  // Of a panel that is to be made of pairs. (A std::vector would ask for GCC 11's library.)
  const std::unique_ptr<float[]> whole(BY_PAIRS ? new float[size_t(c.inputs) * 3 * WIDE] : nullptr);
  panels(c.outputs, [&](int n0, auto nv) INLINED {
    constexpr int WIDTH = decltype(nv)::value * WIDE;
    for (int j = 0; j < WIDTH; j++) to[j] = b && n0 + j < c.outputs ? b[n0 + j] : 0;
    to += WIDTH;
    float* const place = to;
    if (BY_PAIRS) to = whole.get();
    for (int v = 0; v < WIDTH; v += N) {
      const int n = min(N, c.outputs - n0 - v);
      const float* from = w + (n0 + v) * c.w_output;
      int k = 0;
      for (; n == N && c.w_input == 1 && k + N <= c.inputs; k += N) {
        V<float> block[N];
        for (int j = 0; j < N; j++) block[j] = load(from + j * c.w_output + k);
        transpose<float>(block);
        for (int j = 0; j < N; j++) store(to + (k + j) * WIDTH + v, block[j]);
      }
      for (; k < c.inputs; k++)
        for (int j = 0; j < N; j++)
          to[k * WIDTH + v + j] = j < n ? from[j * c.w_output + k * c.w_input] : 0;
    }
    for (int k = 0; BY_PAIRS && k < c.inputs; k += 2)
      pair_up(to + k * WIDTH, k + 1 < c.inputs ? to + (k + 1) * WIDTH : nullptr, WIDTH,
              place + k / 2 * WIDTH);
    to = place + (BY_PAIRS ? deep(c.inputs) : c.inputs) * WIDTH;
  });
}

// Some numbers of a row as products read it: `inputs` of them, from `from`. With PAIRS, rounded, and
// with a zero if they are odd.
INLINE void ready_row(const float* from, int inputs, float* row) {
#ifdef SACCADE_PAIRS
  char* to = reinterpret_cast<char*>(row);
  int k = 0;
  for (; k + WIDE <= inputs; k += WIDE) {
    const __m256bh half = _mm512_cvtneps_pbh(load_wide(from + k));
    memcpy(to + 2 * k, &half, sizeof(half));
  }
  if (k < inputs) {
    const auto some = __mmask16((1u << (inputs - k)) - 1);
    const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, from + k));
    memcpy(to + 2 * k, &half, sizeof(float) * deep(inputs - k));
  }
#else
  memcpy(row, from, inputs * sizeof(float));
#endif
}
// A vector of such a row, for numbers from k on, which is a multiple of WIDE.
INLINE void store_ready(float* row, int k, Wide v) {
#ifdef SACCADE_PAIRS
  const __m256bh half = _mm512_cvtneps_pbh(v);
  memcpy(row + k / 2, &half, sizeof(half));
#else
  store_wide(row + k, v);
#endif
}

// Rows that are ready, `step` floats each, times a panel of a matrix.
template <int NV>
INLINE void panel_times(const float* x, int step, int rows, const float* panel, int inputs, Sums out,
                        size_t ahead = 0) {
  constexpr int DEPTH = deep(LinearPlan::DEPTH);
  out.start = panel;
  for (int k = 0; k < deep(inputs); k += DEPTH) {
    rows_of<NV, PAIRS>(rows, x + k, 1, step, panel + (k + 1) * NV * WIDE, min(DEPTH, deep(inputs) - k),
                       out, k ? 0 : ahead);
    out.start = nullptr, out.plus = out.to;
  }
}
// y = x w + b + plus, of rows that are ready and a matrix as it is packed; `plus` may be null, or y.
inline void times_ready(const float* x, int inputs, int rows, const float* packed, int outputs,
                        const float* plus, float* y, size_t ahead = 0) {
  panels(outputs, [&](int n0, auto nv) INLINED {
    constexpr int NV = decltype(nv)::value;
    const Sums out{nullptr, plus ? plus + n0 : nullptr, y + n0, outputs, outputs - n0};
    panel_times<NV>(x, deep(inputs), rows, packed, inputs, out, n0 ? 0 : ahead);
    packed += (deep(inputs) + 1) * NV * WIDE;
  });
}
// The same, of any rows: with PAIRS, those are made ready some at a time.
inline void times_packed(const float* x, int inputs, int rows, const float* packed, int outputs,
                         const float* plus, float* y, size_t ahead = 0) {
  if (!PAIRS) return times_ready(x, inputs, rows, packed, outputs, plus, y, ahead);
  constexpr int ROWS = LinearPlan::ROWS, DEPTH = LinearPlan::DEPTH;
  alignas(64) float room[PAIRS ? ROWS * deep(DEPTH) : 1];
  for (int m = 0; m < rows; m += ROWS, x += ptrdiff_t(ROWS) * inputs) {
    const int n = min(ROWS, rows - m);
    for (int k = 0; k < inputs; k += DEPTH) {
      const int step = deep(min(DEPTH, inputs - k));
      for (int i = 0; i < n; i++)
        ready_row(x + ptrdiff_t(i) * inputs + k, min(DEPTH, inputs - k), room + i * step);
      const float* panel = packed;
      panels(outputs, [&](int n0, auto nv) INLINED {
        constexpr int NV = decltype(nv)::value;
        const ptrdiff_t at = ptrdiff_t(m) * outputs + n0;
        const float* more = k ? y + at : plus ? plus + at : nullptr;
        rows_of<NV, PAIRS>(n, room, 1, step, panel + (deep(k) + 1) * NV * WIDE, step,
                           Sums{k ? nullptr : panel, more, y + at, outputs, outputs - n0});
        panel += (deep(inputs) + 1) * NV * WIDE;
      });
    }
  }
}

inline void at_least_zero(float* y, size_t numbers) {
  size_t i = 0;
  for (; i + WIDE <= numbers; i += WIDE)
    store_wide(y + i, maximum_wide(splat_wide(0.0f), load_wide(y + i)));
  for (; i < numbers; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

inline void linear_forward(const Linear& c, int task, const float* packed) {
  const LinearPlan plan(c);
  const int batch = task / plan.blocks, from = task % plan.blocks * plan.ROWS;
  const int rows = min(plan.ROWS, c.rows - from);
  const ptrdiff_t first = ptrdiff_t(batch) * c.rows + from;
  if (c.w_batch || c.b_batch) packed += batch * packed_size(c);
  float* y = c.y + first * c.outputs;
  const size_t numbers = size_t(rows) * c.outputs;
  const float* skip = c.skip ? c.skip + first * c.outputs : nullptr;
  times_packed(c.x + first * c.inputs, c.inputs, rows, packed, c.outputs, skip, y,
               size_t(18) * c.inputs);
  if (c.relu) at_least_zero(y, numbers);  // of what is still in the cache
}

// to(n) += over rows the sum of g(row, n).
inline void add_rows(const float* g, ptrdiff_t row, int rows, int columns, float* to) {
  constexpr int N = LANES<float>;
  const auto vectors = [&](int n, auto count) INLINED {
    constexpr int NV = decltype(count)::value;
    V<float> sum[NV];
    for (int v = 0; v < NV; v++) sum[v] = V<float>{};
    for (int m = 0; m < rows; m++)
      for (int v = 0; v < NV; v++) sum[v] += load(g + m * row + n + v * N);
    for (int v = 0; v < NV; v++) store(to + n + v * N, load(to + n + v * N) + sum[v]);
  };
  int n = 0;
  for (; n + 4 * N <= columns; n += 4 * N) vectors(n, Int<4>{});  // four need not wait for each other
  for (; n + N <= columns; n += N) vectors(n, Int<1>{});
  for (; n < columns; n++) {
    float sum = 0;
    for (int m = 0; m < rows; m++) sum += g[m * row + n];
    to[n] += sum;
  }
}

// dw(n, k) += over some rows the sum of g(row, n) x(row, k), for `outputs` of n and all `inputs`.
// `room` takes a panel of x; `more` rows come after these.
inline void add_products(const float* g, ptrdiff_t g_row, int outputs, const float* x, ptrdiff_t x_row,
                         int inputs, int rows, int more, float* dw, ptrdiff_t dw_row, float* room) {
  panels(inputs, [&](int k0, auto nv) INLINED {
    constexpr int NV = decltype(nv)::value;
    const int columns = inputs - k0;
    if (more) {
      const ptrdiff_t a = ptrdiff_t(more) * k0 / inputs;
      const ptrdiff_t b = ptrdiff_t(more) * min(inputs, k0 + NV * WIDE) / inputs;
      fetch(x + (rows + a) * x_row, (b - a) * x_row * sizeof(float));
      fetch(g + (rows + a) * g_row, (b - a) * g_row * sizeof(float));
    }
    for (int m = 0; m < rows; m++) {
      const float* from = x + m * x_row + k0;
      float* to = room + m * NV * WIDE;
      if (columns >= NV * WIDE)
        for (int v = 0; v < NV; v++) store_wide(to + v * WIDE, load_wide(from + v * WIDE));
      else
        for (int j = 0; j < NV * WIDE; j++) to[j] = j < columns ? from[j] : 0;
    }
    rows_of<NV>(outputs, g, g_row, 1, room, rows, Sums{nullptr, dw + k0, dw + k0, dw_row, columns});
  });
}
constexpr size_t ROOM = LinearPlan::ROWS * 3 * WIDE;  // for `add_products`

// Every task has outputs of its own and sums pixels in their order: neither their number nor that
// of threads changes a bit.
inline void linear_backward(const Linear& c, int task, float* scratch) {
  const LinearPlan plan(c);
  const int batch = task / plan.splits, first = task % plan.splits * plan.split;
  const int last = min(c.outputs, first + plan.split);
  float* dw = c.dw + ptrdiff_t(batch) * c.outputs * c.inputs + ptrdiff_t(first) * c.inputs;
  for (int m0 = 0; m0 < c.rows; m0 += plan.few) {
    const int rows = min(plan.few, c.rows - m0), more = min(plan.few, c.rows - m0 - rows);
    const ptrdiff_t at = ptrdiff_t(batch) * c.rows + m0;
    const float *x = c.x + at * c.inputs, *g = c.y + at * c.outputs + first;
    add_products(g, c.outputs, last - first, x, c.inputs, c.inputs, rows, more, dw, c.inputs,
                 scratch);
    if (c.db) add_rows(g, c.outputs, rows, last - first, c.db + ptrdiff_t(batch) * c.outputs + first);
  }
}

}  // namespace SACCADE_ISA
}  // namespace saccade
