// Random calls of all kernels, for a build with sanitisers; tools/sanitize.py builds and runs it.
//
//     driver SEED FIRST COUNT SET...      one line a call; "wrong: ..." where a result is not right
//
// Every buffer ends exactly where its memory ends, begins anywhere a number may, and has its unused
// parts looked at afterwards. Results are compared with the equations in plain loops in float64.
// This file itself is built without checks; only the kernels are watched.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "call.h"

using namespace saccade;

extern "C" {
int saccade_use(const char*);
#define WAYS(Call, name)                                \
  int saccade_##name##_forward(const Call*, size_t);    \
  int saccade_##name##_backward(const Call*, size_t);
WAYS(Sasa, sasa)
WAYS(Qna, qna)
WAYS(Summary, summary)
WAYS(Linear, linear)
WAYS(Feed, feed)
WAYS(Block, block)
WAYS(Moments, moments)
WAYS(Branches, branches)
int saccade_layer_norm_forward(const LayerNorm*, size_t);
int saccade_key_only_forward(const KeyOnly*, size_t);
int saccade_convolution_forward(const Convolution*, size_t);
int saccade_windows_forward(const Windows*, size_t);
#define LAID_OUT(Call, name)                             \
  int64_t saccade_##name##_packed(const Call*, size_t);  \
  void saccade_##name##_pack(const Call*, void*);
LAID_OUT(Linear, linear)
LAID_OUT(Feed, feed)
LAID_OUT(KeyOnly, key_only)
}

namespace {

std::mt19937_64 generator;
int whole(int least, int most) { return std::uniform_int_distribution<int>(least, most)(generator); }
bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(generator) < p; }
double normal() { return std::normal_distribution<double>()(generator); }
int one_of(std::initializer_list<int> of) { return of.begin()[whole(0, int(of.size()) - 1)]; }

std::string text;  // of the call at hand
int wrongs = 0;
void wrong(const std::string& what) {
  wrongs++;
  printf("wrong: %s: %s\n", text.c_str(), what.c_str());
  fflush(stdout);
}
void say(const char* name, std::initializer_list<std::pair<const char*, int>> sizes) {
  text += std::string(" ") + name;
  for (const auto& [key, value] : sizes) text += " " + std::string(key) + "=" + std::to_string(value);
  printf("%s\n", text.c_str());
  fflush(stdout);
}

// -- memory ------------------------------------------------------------------------------------

constexpr int UNUSED = 0xcb;  // every byte that nobody may write
#ifdef GUARDED
constexpr size_t GUARD = 256;  // bytes behind a buffer, where no sanitiser looks after them
#else
constexpr size_t GUARD = 0;
#endif

size_t size_of(Type type) { return type == BFLOAT16 ? 2 : type == FLOAT32 ? 4 : 8; }
Type wide(Type type) { return type == FLOAT64 ? FLOAT64 : FLOAT32; }

struct Numbers {
  Type type = FLOAT32;
  size_t n = 0, lead = 0;
  char* memory = nullptr;
  Numbers() = default;
  Numbers(Type type_, size_t n_) : type(type_), n(n_), lead(size_of(type_) * whole(0, 5)) {
    memory = static_cast<char*>(malloc(std::max<size_t>(1, bytes())));
    memset(memory, UNUSED, bytes());
  }
  Numbers(const Numbers&) = delete;
  Numbers(Numbers&& other) noexcept { *this = std::move(other); }
  Numbers& operator=(Numbers&& other) noexcept {
    std::swap(type, other.type), std::swap(n, other.n), std::swap(lead, other.lead);
    std::swap(memory, other.memory);
    return *this;
  }
  ~Numbers() { free(memory); }
  size_t bytes() const { return lead + n * size_of(type) + GUARD; }
  char* data() const { return memory ? memory + lead : nullptr; }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  double get(size_t i) const {
    if (type == FLOAT32) return floats()[i];
    if (type == FLOAT64) return reinterpret_cast<double*>(data())[i];
    const uint32_t bits = uint32_t(reinterpret_cast<uint16_t*>(data())[i]) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
  void put(size_t i, double value) {
    if (type == FLOAT64) {
      reinterpret_cast<double*>(data())[i] = value;
    } else if (type == FLOAT32) {
      floats()[i] = float(value);
    } else {
      const float x = float(value);
      uint32_t bits;
      memcpy(&bits, &x, 4);
      reinterpret_cast<uint16_t*>(data())[i] = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
  }
  void fill(double scale) {
    for (size_t i = 0; i < n; i++) put(i, scale * normal());
  }
  std::vector<double> values() const {
    std::vector<double> all(n);
    for (size_t i = 0; i < n; i++) all[i] = get(i);
    return all;
  }
  bool untouched(size_t from, size_t to) const {  // bytes of memory
    for (size_t i = from; i < to; i++)
      if (static_cast<unsigned char>(memory[i]) != UNUSED) return false;
    return true;
  }
  void check_ends(const char* name) const {
    if (!untouched(0, lead)) wrong(std::string(name) + ": written before its begin");
    if (!untouched(bytes() - GUARD, bytes())) wrong(std::string(name) + ": written behind its end");
  }
};

Numbers dense(size_t n, double scale, Type type = FLOAT32) {
  Numbers numbers(type, n);
  numbers.fill(scale);
  return numbers;
}

double tolerance(Type type) { return type == FLOAT64 ? 1e-9 : type == FLOAT32 ? 2e-4 : 6e-2; }

void compare(const char* name, const Numbers& got, const std::vector<double>& want, double most) {
  got.check_ends(name);
  double high = 1;
  for (double w : want) high = std::max(high, std::abs(w));
  for (size_t i = 0; i < want.size(); i++)
    if (!(std::abs(got.get(i) - want[i]) <= most * high))
      return wrong(std::string(name) + "[" + std::to_string(i) + "] is " +
                   std::to_string(got.get(i)) + ", not " + std::to_string(want[i]));
}

// Four axes, anywhere: dense in some order, with gaps, or (inputs only) the same number repeated.
struct Tensor {
  int size[4] = {};
  int64_t stride[4] = {};
  Numbers numbers;
  Tensor() = default;
  Tensor(Type type, int B, int C, int H, int W, bool input) : size{B, C, H, W} {
    int order[4] = {0, 1, 2, 3};  // from the slowest
    if (chance(0.4)) std::swap(order[1], order[2]), std::swap(order[2], order[3]);  // channels last
    else if (chance(0.3)) std::shuffle(order, order + 4, generator);
    const bool gaps = chance(0.3);
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
      const int axis = order[i];
      stride[axis] = input && chance(0.03) ? 0 : step * (gaps && chance(0.3) ? 2 : 1);
      if (stride[axis]) step = stride[axis] * size[axis] + (gaps ? whole(0, 3) : 0);
    }
    int64_t last = 0;
    for (int i = 0; i < 4; i++) last += stride[i] * (size[i] - 1);
    numbers = Numbers(type, B ? size_t(last + 1) : 0);
  }
  size_t at(int b, int c, int y, int x) const {
    return b * stride[0] + c * stride[1] + y * stride[2] + x * stride[3];
  }
  double get(int b, int c, int y, int x) const { return numbers.get(at(b, c, y, x)); }
  Map map() const { return {numbers.data(), stride[0], stride[1], stride[2], stride[3]}; }
  template <class F>
  void each(F&& f) const {
    for (int b = 0; b < size[0]; b++)
      for (int c = 0; c < size[1]; c++)
        for (int y = 0; y < size[2]; y++)
          for (int x = 0; x < size[3]; x++) f(b, c, y, x);
  }
  void fill(double scale) {
    each([&](int b, int c, int y, int x) { numbers.put(at(b, c, y, x), scale * normal()); });
  }
};
Tensor input(Type type, int B, int C, int H, int W, double scale) {
  Tensor t(type, B, C, H, W, true);
  t.fill(scale);
  return t;
}

// The same as a plain array, for the equations.
struct Plain {
  int C, H, W;
  std::vector<double> v;
  Plain(int B, int C_, int H_, int W_) : C(C_), H(H_), W(W_), v(size_t(B) * C_ * H_ * W_) {}
  explicit Plain(const Tensor& t) : Plain(t.size[0], t.size[1], t.size[2], t.size[3]) {
    t.each([&](int b, int c, int y, int x) { (*this)(b, c, y, x) = t.get(b, c, y, x); });
  }
  double& operator()(int b, int c, int y, int x) {
    return v[((size_t(b) * C + c) * H + y) * W + x];
  }
};

void compare(const char* name, const Tensor& got, Plain& want, double most) {
  got.numbers.check_ends(name);
  double high = 1;
  for (double w : want.v) high = std::max(high, std::abs(w));
  std::vector<bool> used(got.numbers.n);
  bool said = false;
  got.each([&](int b, int c, int y, int x) {
    used[got.at(b, c, y, x)] = true;
    const double here = got.get(b, c, y, x), there = want(b, c, y, x);
    if (!said && !(std::abs(here - there) <= most * high)) {
      said = true;
      char place[160];
      snprintf(place, sizeof place, "[%d %d %d %d] is %g, not %g", b, c, y, x, here, there);
      wrong(std::string(name) + place);
    }
  });
  const size_t bytes = size_of(got.numbers.type), lead = got.numbers.lead;
  for (size_t i = 0; i < used.size(); i++)
    if (!used[i] && !got.numbers.untouched(lead + i * bytes, lead + (i + 1) * bytes))
      return wrong(std::string(name) + ": written between its numbers");
}

template <class Call>
bool done(int (*function)(const Call*, size_t), const Call& call) {
  const int code = function(&call, sizeof(Call));
  if (code) wrong("returned " + std::to_string(code));
  return !code;
}

// -- sizes -------------------------------------------------------------------------------------

Type any_type() { return Type(one_of({FLOAT32, FLOAT32, BFLOAT16, BFLOAT16, FLOAT64})); }
int any_threads() { return one_of({1, 2, 2, 3, 4, 7}); }
int any_batch() { return chance(0.03) ? 0 : whole(1, 3); }
int any_side() { return chance(0.1) ? whole(1, 3) : whole(1, 21); }
int any_width() { return chance(0.5) ? one_of({1, 2, 3, 4, 8, 16, 32}) : whole(1, 40); }
// Halves the larger of two sides until a call of `each` products a pixel takes no longer than others.
void shrink(int& H, int& W, double each, double most = 4e5) {
  while (H * W > 1 && each * H * W > most) (H > W ? H : W) = (std::max(H, W) + 1) / 2;
}

// -- local attention -----------------------------------------------------------------------------

void sasa() {
  Sasa c{};
  const Type type = any_type();
  c.type = type, c.threads = any_threads(), c.B = any_batch(), c.heads = whole(1, 3);
  c.window = chance(0.4) ? 7 : 1 + 2 * whole(1, SASA_WINDOW / 2), c.mask = whole(0, 1);
  c.d = chance(0.1) ? whole(1, SASA_HEAD_WIDTH) : any_width();
  c.H = any_side(), c.W = any_side();
  const bool content = chance(0.8), position = !content || chance(0.6);
  if (position) c.d += c.d % 2;
  shrink(c.H, c.W, double(std::max(1, c.B)) * c.heads * c.window * c.window * c.d);
  if (chance(0.04))  // strips: rows that do not fit the cache
    c.B = c.heads = 1, c.d = 128, c.window = one_of({3, 7, 15}), c.H = whole(1, 2),
    c.W = whole(40, 140);
  c.tables = position && chance(0.5) ? c.heads : 1;
  say("sasa", {{"type", c.type}, {"threads", c.threads}, {"B", c.B}, {"heads", c.heads}, {"d", c.d},
               {"H", c.H}, {"W", c.W}, {"window", c.window}, {"mask", c.mask},
               {"tables", c.tables}, {"content", content}, {"position", position}});
  const int B = c.B, C = c.heads * c.d, H = c.H, W = c.W, K = c.window, P = K / 2, half = c.d / 2;
  const double scale = one_of({1, 1, 2}) / std::sqrt(std::sqrt(double(c.d)));
  Tensor q = input(type, B, C, H, W, scale), k, v = input(type, B, C, H, W, 1);
  Tensor g = input(type, B, C, H, W, 1), out(type, B, C, H, W, false);
  Tensor dq(type, B, C, H, W, false), dk, dv(type, B, C, H, W, false);
  Numbers row, col, drow, dcol;
  c.q = q.map(), c.v = v.map(), c.out = out.map(), c.gout = g.map();
  c.dq = dq.map(), c.dv = dv.map();
  if (content) {
    k = input(type, B, C, H, W, scale), dk = Tensor(type, B, C, H, W, false);
    c.k = k.map(), c.dk = dk.map();
  }
  if (position) {
    const size_t n = size_t(c.tables) * K * half;
    row = dense(n, 0.5, wide(type)), col = dense(n, 0.5, wide(type));
    drow = Numbers(wide(type), n), dcol = Numbers(wide(type), n);
    c.row = row.data(), c.col = col.data(), c.drow = drow.data(), c.dcol = dcol.data();
  }
  Plain qs(q), vs(v), gs(g), ks(B, C, H, W), outs(B, C, H, W), dqs(B, C, H, W), dks(B, C, H, W),
      dvs(B, C, H, W);
  if (content) ks = Plain(k);
  std::vector<double> drows(drow.n), dcols(dcol.n), p(K * K), ds(K * K);
  const auto inside = [&](int y, int x) { return y >= 0 && y < H && x >= 0 && x < W; };
  for (int b = 0; b < B; b++)
    for (int h = 0; h < c.heads; h++)
      for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
          const int c0 = h * c.d;
          const size_t table = c.tables == 1 ? 0 : size_t(h) * K * half;
          double high = -INFINITY, total = 0, mean = 0;
          for (int j = 0; j < K * K; j++) {
            const int a = j / K, e = j % K, r = y + a - P, s = x + e - P;
            p[j] = -INFINITY;
            if (c.mask && !inside(r, s)) continue;
            double sum = 0;
            for (int i = 0; i < c.d; i++) {
              double with = inside(r, s) ? ks(b, c0 + i, r, s) : 0;
              if (position)
                with += i < half ? row.get(table + a * half + i)
                                 : col.get(table + e * half + i - half);
              sum += qs(b, c0 + i, y, x) * with;
            }
            p[j] = sum, high = std::max(high, sum);
          }
          for (double& w : p) total += w = std::exp(w - high);
          for (int j = 0; j < K * K; j++) {
            const int r = y + j / K - P, s = x + j % K - P;
            p[j] /= total, ds[j] = 0;
            if (!inside(r, s)) continue;
            for (int i = 0; i < c.d; i++) {
              outs(b, c0 + i, y, x) += p[j] * vs(b, c0 + i, r, s);
              dvs(b, c0 + i, r, s) += p[j] * gs(b, c0 + i, y, x);
              ds[j] += gs(b, c0 + i, y, x) * vs(b, c0 + i, r, s);
            }
            mean += p[j] * ds[j];
          }
          for (int j = 0; j < K * K; j++) {
            const int a = j / K, e = j % K, r = y + a - P, s = x + e - P;
            ds[j] = p[j] * (ds[j] - mean);
            for (int i = 0; i < c.d; i++) {
              double with = inside(r, s) ? ks(b, c0 + i, r, s) : 0;
              if (inside(r, s)) dks(b, c0 + i, r, s) += ds[j] * qs(b, c0 + i, y, x);
              if (position) {
                const size_t at = i < half ? table + a * half + i : table + e * half + i - half;
                with += (i < half ? row : col).get(at);
                (i < half ? drows : dcols)[at] += ds[j] * qs(b, c0 + i, y, x);
              }
              dqs(b, c0 + i, y, x) += ds[j] * with;
            }
          }
        }
  const double most = tolerance(type);
  if (done(saccade_sasa_forward, c)) compare("out", out, outs, most);
  if (!done(saccade_sasa_backward, c)) return;
  compare("dq", dq, dqs, most), compare("dv", dv, dvs, most);
  if (content) compare("dk", dk, dks, most);
  if (position) compare("drow", drow, drows, most), compare("dcol", dcol, dcols, most);
}

// -- learned queries -----------------------------------------------------------------------------

void qna() {
  Qna c{};
  const Type type = any_type();
  c.type = type, c.threads = any_threads(), c.B = any_batch(), c.heads = whole(1, 9);
  c.queries = whole(1, 4), c.d = any_width(), c.H = any_side(), c.W = any_side();
  c.window = chance(0.4) ? 3 : chance(0.3) ? 7 : whole(1, QNA_WINDOW);
  c.stride = one_of({1, 1, 2, 2, 3, 4, 9}), c.padding = whole(0, c.window - 1);
  if (chance(0.6)) c.padding = (c.window - 1) / 2;
  c.fold = chance(0.8);
  shrink(c.H, c.W, double(std::max(1, c.B)) * c.heads * c.window * c.window * c.queries *
                       (c.d + 4) / c.stride / c.stride);
  if (chance(0.04))  // strips
    c.B = 1, c.heads = 1, c.queries = 1, c.d = 64, c.window = one_of({3, 5, 7}), c.stride = 1,
    c.padding = 1, c.H = c.window, c.W = whole(60, 200);
  c.H = std::max(c.H, c.window - 2 * c.padding), c.W = std::max(c.W, c.window - 2 * c.padding);
  c.Ho = (c.H + 2 * c.padding - c.window) / c.stride + 1;
  c.Wo = (c.W + 2 * c.padding - c.window) / c.stride + 1;
  const bool weighted = c.fold && chance(0.7), kept = chance(0.5);
  const int wild = one_of({1, 1, 1, 1, 60, 3000});  // how far apart scores lie
  say("qna", {{"type", c.type}, {"threads", c.threads}, {"B", c.B}, {"heads", c.heads}, {"d", c.d},
              {"queries", c.queries}, {"H", c.H}, {"W", c.W}, {"window", c.window},
              {"stride", c.stride}, {"padding", c.padding}, {"fold", c.fold},
              {"weighted", weighted}, {"kept", kept}, {"wild", wild}});
  const int B = c.B, L = c.queries, K = c.window, KK = K * K, J = L * c.heads, V = c.heads * c.d;
  const int O = c.fold ? V : L * V;
  Tensor s = input(type, B, J, c.H, c.W, wild), v = input(type, B, V, c.H, c.W, 1);
  Tensor g = input(type, B, O, c.Ho, c.Wo, 1), out(type, B, O, c.Ho, c.Wo, false);
  Tensor ds(type, B, J, c.H, c.W, false), dv(type, B, V, c.H, c.W, false);
  Numbers bias = dense(size_t(KK) * J, 0.5, wide(type)), weight, dweight;
  Numbers dbias(wide(type), size_t(KK) * J);
  if (weighted)
    weight = dense(size_t(KK) * J, 1, wide(type)), dweight = Numbers(wide(type), size_t(KK) * J);
  c.s = s.map(), c.v = v.map(), c.bias = bias.data(), c.weight = weight.data();
  c.out = out.map(), c.gout = g.map(), c.ds = ds.map(), c.dv = dv.map();
  c.dbias = dbias.data(), c.dweight = dweight.data();
  Plain ss(s), vs(v), gs(g), outs(B, O, c.Ho, c.Wo), dss(B, J, c.H, c.W), dvs(B, V, c.H, c.W);
  std::vector<double> dbiases(bias.n), dweights(weight.n), p(KK), t(KK);
  for (int b = 0; b < B; b++)
    for (int y = 0; y < c.Ho; y++)
      for (int x = 0; x < c.Wo; x++)
        for (int l = 0; l < L; l++)
          for (int h = 0; h < c.heads; h++) {
            const int channel = l * c.heads + h, first = (c.fold ? h : channel) * c.d;
            const auto each = [&](auto f) {
              for (int j = 0; j < KK; j++) {
                const int r = y * c.stride - c.padding + j / K, q = x * c.stride - c.padding + j % K;
                if (r >= 0 && r < c.H && q >= 0 && q < c.W) f(j, r, q);
              }
            };
            double high = -INFINITY, total = 0, mean = 0;
            each([&](int j, int r, int q) {
              p[j] = ss(b, channel, r, q) + bias.get(size_t(j) * J + channel);
              high = std::max(high, p[j]);
            });
            each([&](int j, int, int) { total += p[j] = std::exp(p[j] - high); });
            each([&](int j, int r, int q) {
              const double m = weighted ? weight.get(size_t(j) * J + channel) : 1;
              p[j] /= total, t[j] = 0;
              for (int i = 0; i < c.d; i++) {
                outs(b, first + i, y, x) += p[j] * m * vs(b, h * c.d + i, r, q);
                dvs(b, h * c.d + i, r, q) += p[j] * m * gs(b, first + i, y, x);
                t[j] += gs(b, first + i, y, x) * vs(b, h * c.d + i, r, q);
              }
              mean += p[j] * m * t[j];
            });
            each([&](int j, int r, int q) {
              const size_t at = size_t(j) * J + channel;
              const double m = weighted ? weight.get(at) : 1, one = p[j] * (m * t[j] - mean);
              if (weighted) dweights[at] += p[j] * t[j];
              dss(b, channel, r, q) += one, dbiases[at] += one;
            });
          }
  const double most = tolerance(type) * (wild > 1 ? 20 : 1);
  if (done(saccade_qna_forward, c)) compare("out", out, outs, most);
  if (!kept) c.out = Map{};
  if (!done(saccade_qna_backward, c)) return;
  compare("ds", ds, dss, most), compare("dv", dv, dvs, most), compare("dbias", dbias, dbiases, most);
  if (weighted) compare("dweight", dweight, dweights, most);
}

// -- the summary of key-only attention -----------------------------------------------------------

void summary() {
  Summary c{};
  c.threads = any_threads(), c.B = any_batch(), c.C = chance(0.1) ? whole(1, 300) : any_width();
  c.heads = chance(0.1) ? c.C : whole(1, 8);  // heads of one channel, too
  c.tokens = chance(0.3) ? whole(700, 1700) : chance(0.2) ? whole(1, 4) : whole(1, 150);
  c.add = whole(0, 1);
  while (c.tokens > 1 && double(c.tokens) * c.C * c.heads > 2e5) c.tokens = (c.tokens + 1) / 2;
  say("summary", {{"threads", c.threads}, {"B", c.B}, {"tokens", c.tokens}, {"C", c.C},
                  {"heads", c.heads}, {"add", c.add}});
  const int B = c.B, N = c.tokens, C = c.C, h = c.heads;
  Numbers x = dense(size_t(B) * N * C, 1), ask = dense(size_t(h) * C, one_of({1, 1, 20}) / std::sqrt(C));
  Numbers mean(FLOAT32, size_t(B) * h * C), lse(FLOAT32, size_t(B) * h);
  Numbers dmean = dense(size_t(B) * h * C, 1), delta(FLOAT32, size_t(B) * h);
  Numbers dx(FLOAT32, size_t(B) * N * C), dask(FLOAT32, size_t(h) * C);
  if (c.add) dx.fill(1);
  c.x = x.floats(), c.ask = ask.floats(), c.mean = mean.floats(), c.lse = lse.floats();
  c.dmean = dmean.floats(), c.delta = delta.floats(), c.dx = dx.floats(), c.dask = dask.floats();
  std::vector<double> means(mean.n), lses(lse.n), dxs(dx.n), dasks(dask.n), a(N), t(N);
  if (c.add) dxs = dx.values();
  for (int b = 0; b < B; b++)
    for (int k = 0; k < h; k++) {
      const size_t image = size_t(b) * N * C, at = (size_t(b) * h + k) * C;
      double high = -INFINITY, total = 0, dot = 0;
      for (int n = 0; n < N; n++) {
        a[n] = t[n] = 0;
        for (int i = 0; i < C; i++) {
          a[n] += ask.get(size_t(k) * C + i) * x.get(image + size_t(n) * C + i);
          t[n] += dmean.get(at + i) * x.get(image + size_t(n) * C + i);
        }
        high = std::max(high, a[n]);
      }
      for (double& one : a) total += one = std::exp(one - high);
      for (int n = 0; n < N; n++) dot += (a[n] /= total) * t[n];
      lses[size_t(b) * h + k] = high + std::log(total);
      delta.put(size_t(b) * h + k, dot);
      for (int n = 0; n < N; n++)
        for (int i = 0; i < C; i++) {
          const double one = x.get(image + size_t(n) * C + i), ds = a[n] * (t[n] - dot);
          means[at + i] += a[n] * one;
          dxs[image + size_t(n) * C + i] += a[n] * dmean.get(at + i) + ds * ask.get(size_t(k) * C + i);
          dasks[size_t(k) * C + i] += ds * one;
        }
    }
  if (!done(saccade_summary_forward, c)) return;
  compare("mean", mean, means, 2e-4), compare("lse", lse, lses, 2e-4);
  if (!done(saccade_summary_backward, c)) return;
  compare("dx", dx, dxs, 5e-4), compare("dask", dask, dasks, 5e-4);
}

// -- products ------------------------------------------------------------------------------------

void linear() {
  Linear c{};
  c.threads = any_threads(), c.batches = any_batch();
  c.rows = chance(0.03) ? 0 : chance(0.3) ? whole(90, 310) : whole(1, 60);
  c.inputs = chance(0.1) ? whole(250, 530) : whole(1, 90);
  c.outputs = chance(0.1) ? whole(100, 300) : whole(1, 90);
  while (c.rows > 1 && double(c.rows) * c.inputs * c.outputs > 6e5) c.rows = (c.rows + 1) / 2;
  const bool turned = whole(0, 1), biased = chance(0.7), summed = chance(0.7);
  const int pad = chance(0.3) ? whole(1, 5) : 0;
  const int64_t K = c.inputs, N = c.outputs;
  c.w_output = turned ? 1 : K + pad, c.w_input = turned ? N + pad : 1;
  const int64_t one = (N - 1) * c.w_output + (K - 1) * c.w_input + 1;
  c.w_batch = chance(0.5) ? one + whole(0, 3) : 0, c.b_batch = biased && chance(0.5) ? N : 0;
  say("linear", {{"threads", c.threads}, {"batches", c.batches}, {"rows", c.rows},
                 {"inputs", c.inputs}, {"outputs", c.outputs}, {"turned", turned}, {"pad", pad},
                 {"own", c.w_batch != 0}, {"biased", biased}, {"own_bias", c.b_batch != 0}});
  const int B = c.batches, M = c.rows, last = std::max(0, B - 1);
  Numbers x = dense(size_t(B) * M * K, 1), w = dense(c.w_batch * last + one, 1 / std::sqrt(double(K)));
  Numbers b, y(FLOAT32, size_t(B) * M * N);
  if (biased) b = dense(c.b_batch * last + N, 1);
  c.x = x.floats(), c.w = w.floats(), c.b = b.floats(), c.y = y.floats();
  std::vector<double> ys(y.n);
  for (int i = 0; i < B; i++)
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        double sum = biased ? b.get(i * c.b_batch + n) : 0;
        for (int k = 0; k < K; k++)
          sum += x.get((size_t(i) * M + m) * K + k) *
                 w.get(i * c.w_batch + n * c.w_output + k * c.w_input);
        ys[(size_t(i) * M + m) * N + n] = sum;
      }
  if (done(saccade_linear_forward, c)) compare("y", y, ys, 1e-4);
  Numbers dw = dense(size_t(B) * N * K, 1), db, g = dense(y.n, 1);
  if (summed) db = dense(size_t(B) * N, 1);
  c.y = g.floats(), c.dw = dw.floats(), c.db = db.floats();
  std::vector<double> dws = dw.values(), dbs = db.values();
  for (int i = 0; i < B; i++)
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        const double one_g = g.get((size_t(i) * M + m) * N + n);
        if (summed) dbs[size_t(i) * N + n] += one_g;
        for (int k = 0; k < K; k++)
          dws[(size_t(i) * N + n) * K + k] += one_g * x.get((size_t(i) * M + m) * K + k);
      }
  if (!done(saccade_linear_backward, c)) return;
  compare("dw", dw, dws, 1e-4);
  if (summed) compare("db", db, dbs, 1e-4);
}

// -- the feed-forward ------------------------------------------------------------------------------

double gelu(double u, bool tanh, double* slope) {
  if (!tanh) {
    const double cdf = 0.5 * (1 + std::erf(u / std::sqrt(2.0)));
    *slope = cdf + u * std::exp(-u * u / 2) / std::sqrt(2 * M_PI);
    return u * cdf;
  }
  const double a = std::sqrt(2 / M_PI), t = std::tanh(a * (u + 0.044715 * u * u * u));
  *slope = 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * a * (1 + 3 * 0.044715 * u * u);
  return 0.5 * u * (1 + t);
}

void feed() {
  Feed c{};
  c.threads = any_threads(), c.B = any_batch(), c.H = any_side(), c.W = any_side();
  c.inputs = whole(1, 40), c.outputs = whole(1, 40);
  c.hidden = FEED_HIDDEN_STEP * (chance(0.1) ? whole(8, 20) : whole(1, 6)), c.tanh = whole(0, 1);
  const bool mixing = chance(0.7), kept = chance(0.7);
  if (!mixing && chance(0.7)) c.W = 1, c.H = whole(1, 250);
  shrink(c.H, c.W, double(std::max(1, c.B)) * c.hidden * (c.inputs + c.outputs));
  if (chance(0.01))  // more than one turn
    c.B = whole(1, 3), c.inputs = whole(1, 2), c.outputs = 1, c.hidden = 1024, c.H = whole(20, 40),
    c.W = whole(20, 40);
  say("feed", {{"threads", c.threads}, {"B", c.B}, {"H", c.H}, {"W", c.W}, {"inputs", c.inputs},
               {"hidden", c.hidden}, {"outputs", c.outputs}, {"tanh", c.tanh}, {"taps", mixing},
               {"kept", kept}});
  const int B = c.B, H = c.H, W = c.W, K = c.inputs, J = c.hidden, N = c.outputs;
  const size_t M = size_t(B) * H * W;
  Numbers x = dense(M * K, 1), w1 = dense(size_t(J) * K, 1 / std::sqrt(double(K))), b1 = dense(J, 1);
  Numbers taps, shift, w2 = dense(size_t(N) * J, 1 / std::sqrt(double(J))), b2 = dense(N, 1);
  Numbers h(FLOAT32, M * J), y(FLOAT32, M * N), g = dense(M * N, 1), dx(FLOAT32, M * K);
  Numbers dw1 = dense(w1.n, 1), db1 = dense(J, 1), dtaps, dshift, dw2 = dense(w2.n, 1), db2 = dense(N, 1);
  if (mixing)
    taps = dense(9 * J, 0.4), shift = dense(J, 1), dtaps = dense(9 * J, 1), dshift = dense(J, 1);
  c.x = x.floats(), c.w1 = w1.floats(), c.b1 = b1.floats(), c.taps = taps.floats();
  c.shift = shift.floats(), c.w2 = w2.floats(), c.b2 = b2.floats(), c.y = y.floats();
  c.h = kept ? h.floats() : nullptr;
  std::vector<double> hs(M * J), us(M * J), active(M * J), du(M * J), dh(M * J), ys(y.n), dxs(dx.n);
  std::vector<double> dw1s = dw1.values(), db1s = db1.values(), dw2s = dw2.values(),
                      db2s = db2.values(), dtap = dtaps.values(), dshifts = dshift.values();
  for (size_t m = 0; m < M; m++)
    for (int j = 0; j < J; j++) {
      double sum = b1.get(j);
      for (int k = 0; k < K; k++) sum += x.get(m * K + k) * w1.get(size_t(j) * K + k);
      hs[m * J + j] = sum;
    }
  // f(pixel, neighbour, tap) for neighbours inside.
  const auto around = [&](auto f) {
    for (size_t m = 0; m < M; m++)
      for (int t = 0; t < 9; t++) {
        const int r = int(m / W % H) + t / 3 - 1, s = int(m % W) + t % 3 - 1;
        if (r >= 0 && r < H && s >= 0 && s < W) f(m, (m / W / H * H + r) * W + s, t);
      }
  };
  if (mixing) {
    for (size_t i = 0; i < us.size(); i++) us[i] = shift.get(i % J);
    around([&](size_t m, size_t n, int t) {
      for (int j = 0; j < J; j++) us[m * J + j] += taps.get(size_t(t) * J + j) * hs[n * J + j];
    });
  } else {
    us = hs;
  }
  for (size_t m = 0; m < M; m++) {
    for (int j = 0; j < J; j++) {
      double slope, da = 0;
      active[m * J + j] = gelu(us[m * J + j], c.tanh, &slope);
      for (int n = 0; n < N; n++) {
        da += g.get(m * N + n) * w2.get(size_t(n) * J + j);
        dw2s[size_t(n) * J + j] += g.get(m * N + n) * active[m * J + j];
      }
      du[m * J + j] = da * slope;
    }
    for (int n = 0; n < N; n++) {
      double sum = b2.get(n);
      for (int j = 0; j < J; j++) sum += active[m * J + j] * w2.get(size_t(n) * J + j);
      ys[m * N + n] = sum, db2s[n] += g.get(m * N + n);
    }
  }
  if (mixing) {
    for (size_t i = 0; i < du.size(); i++) dshifts[i % J] += du[i];
    around([&](size_t m, size_t n, int t) {
      for (int j = 0; j < J; j++) {
        dh[n * J + j] += taps.get(size_t(t) * J + j) * du[m * J + j];
        dtap[size_t(t) * J + j] += du[m * J + j] * hs[n * J + j];
      }
    });
  } else {
    dh = du;
  }
  for (size_t m = 0; m < M; m++)
    for (int j = 0; j < J; j++) {
      db1s[j] += dh[m * J + j];
      for (int k = 0; k < K; k++) {
        dxs[m * K + k] += dh[m * J + j] * w1.get(size_t(j) * K + k);
        dw1s[size_t(j) * K + k] += dh[m * J + j] * x.get(m * K + k);
      }
    }
  if (!done(saccade_feed_forward, c)) return;
  compare("y", y, ys, 2e-4);
  if (kept) compare("h", h, hs, 1e-4);
  for (size_t i = 0; i < h.n; i++) h.put(i, hs[i]);
  c.h = h.floats(), c.g = g.floats(), c.dx = dx.floats(), c.dw1 = dw1.floats();
  c.db1 = db1.floats(), c.dtaps = dtaps.floats(), c.dshift = dshift.floats();
  c.dw2 = dw2.floats(), c.db2 = db2.floats();
  if (!done(saccade_feed_backward, c)) return;
  compare("dx", dx, dxs, 2e-4), compare("dw1", dw1, dw1s, 2e-4), compare("db1", db1, db1s, 2e-4);
  compare("dw2", dw2, dw2s, 2e-4), compare("db2", db2, db2s, 2e-4);
  if (mixing) compare("dtaps", dtaps, dtap, 2e-4), compare("dshift", dshift, dshifts, 2e-4);
}

// -- the stem ----------------------------------------------------------------------------------------

void block() {
  Block c{};
  constexpr int SIDE = BLOCK_SIDE, PIXELS = SIDE * SIDE;
  c.threads = any_threads(), c.B = any_batch(), c.H = whole(1, 14), c.W = whole(1, 14);
  c.inputs = chance(0.7) ? whole(1, 6) : whole(1, BLOCK_INPUTS), c.heads = whole(1, 3);
  c.outputs = c.heads * BLOCK_WIDTH_STEP * whole(1, 2), c.mask = whole(0, 1);
  shrink(c.H, c.W, double(std::max(1, c.B)) * c.outputs * (4 * c.inputs + 3 * PIXELS));
  const bool position = chance(0.7), maximum = chance(0.3);
  say("block", {{"threads", c.threads}, {"B", c.B}, {"H", c.H}, {"W", c.W}, {"inputs", c.inputs},
                {"outputs", c.outputs}, {"heads", c.heads}, {"mask", c.mask},
                {"position", position}, {"maximum", maximum}});
  const int B = c.B, H = c.H, W = c.W, C = c.inputs, D = c.outputs, d = D / c.heads, half = d / 2;
  const int down = (H + SIDE - 1) / SIDE, along = (W + SIDE - 1) / SIDE;
  const double scale = 1 / std::sqrt(double(C));
  Tensor x = input(FLOAT32, B, C, H, W, 1);
  const size_t matrix = size_t(D) * C, table = size_t(2 * SIDE - 1) * half;
  Numbers wq = dense(matrix, scale * 0.4), wk = dense(matrix, scale * 0.4), wv = dense(PIXELS * matrix, scale);
  Numbers row, col, drow, dcol, factor, shift;
  Numbers y(FLOAT32, size_t(B) * D * (maximum ? down * along : H * W)), g = dense(size_t(B) * H * W * D, 1);
  Numbers dx(FLOAT32, size_t(B) * C * H * W), dwq(FLOAT32, matrix), dwk(FLOAT32, matrix),
      dwv(FLOAT32, PIXELS * matrix);
  if (position)
    row = dense(table, 0.5), col = dense(table, 0.5), drow = Numbers(FLOAT32, table),
    dcol = Numbers(FLOAT32, table);
  if (maximum) factor = dense(D, 1), shift = dense(D, 1);
  c.x = x.map(), c.wq = wq.floats(), c.wk = wk.floats(), c.wv = wv.floats(), c.row = row.floats();
  c.col = col.floats(), c.scale = factor.floats(), c.shift = shift.floats(), c.y = y.floats();
  c.g = g.floats(), c.dx = dx.floats(), c.dwq = dwq.floats(), c.dwk = dwk.floats();
  c.dwv = dwv.floats(), c.drow = drow.floats(), c.dcol = dcol.floats();
  std::vector<double> ys(y.n), dxs(dx.n), dwqs(matrix), dwks(matrix), dwvs(PIXELS * matrix),
      drows(drow.n), dcols(dcol.n);
  if (maximum) std::fill(ys.begin(), ys.end(), -INFINITY);
  for (int b = 0; b < B; b++)
    for (int t = 0; t < down * along; t++)
      for (int h = 0; h < c.heads; h++) {
        const int y0 = t / along * SIDE, x0 = t % along * SIDE;
        const auto at_y = [&](int j) { return y0 + j / SIDE; };
        const auto at_x = [&](int j) { return x0 + j % SIDE; };
        const auto inside = [&](int j) { return at_y(j) < H && at_x(j) < W; };
        std::vector<double> xs(PIXELS * C), q(PIXELS * d), k(q), v(q), dq(q), dk(q), dv(q);
        for (int j = 0; j < PIXELS; j++)
          for (int n = 0; n < C; n++)
            if (inside(j)) xs[j * C + n] = x.get(b, n, at_y(j), at_x(j));
        for (int j = 0; j < PIXELS; j++)
          for (int i = 0; i < d; i++)
            for (int n = 0; n < C; n++) {
              const size_t w = size_t(h * d + i) * C + n;
              q[j * d + i] += wq.get(w) * xs[j * C + n], k[j * d + i] += wk.get(w) * xs[j * C + n];
              v[j * d + i] += wv.get(j * matrix + w) * xs[j * C + n];
            }
        for (int i = 0; i < PIXELS; i++) {
          if (!inside(i)) continue;
          double p[PIXELS], dp[PIXELS] = {}, high = -INFINITY, total = 0, mean = 0;
          const auto place = [&](int j, bool by_row) {
            return size_t((by_row ? j / SIDE - i / SIDE : j % SIDE - i % SIDE) + SIDE - 1) * half;
          };
          for (int j = 0; j < PIXELS; j++) {
            p[j] = c.mask && !inside(j) ? -INFINITY : 0;
            for (int e = 0; e < d; e++) {
              double with = k[j * d + e];
              if (position)
                with += e < half ? row.get(place(j, true) + e) : col.get(place(j, false) + e - half);
              p[j] += q[i * d + e] * with;
            }
            high = std::max(high, p[j]);
          }
          for (double& one : p) total += one = std::exp(one - high);
          const size_t pixel = (size_t(b) * H + at_y(i)) * W + at_x(i);
          for (int e = 0; e < d; e++) {
            double sum = 0;
            for (int j = 0; j < PIXELS; j++) sum += p[j] / total * v[j * d + e];
            const int channel = h * d + e;
            if (maximum) {
              double& most = ys[(size_t(b) * down * along + t) * D + channel];
              most = std::max(most, sum * factor.get(channel) + shift.get(channel));
            } else {
              ys[pixel * D + channel] = sum;
            }
          }
          for (int j = 0; j < PIXELS; j++) {
            p[j] /= total;
            for (int e = 0; e < d; e++) {
              const double one = g.get(pixel * D + h * d + e);
              dp[j] += one * v[j * d + e], dv[j * d + e] += p[j] * one;
            }
            mean += p[j] * dp[j];
          }
          for (int j = 0; j < PIXELS; j++)
            for (int e = 0; e < d; e++) {
              const double ds = p[j] * (dp[j] - mean);
              double with = k[j * d + e];
              dk[j * d + e] += ds * q[i * d + e];
              if (position) {
                const size_t at = e < half ? place(j, true) + e : place(j, false) + e - half;
                with += (e < half ? row : col).get(at);
                (e < half ? drows : dcols)[at] += ds * q[i * d + e];
              }
              dq[i * d + e] += ds * with;
            }
        }
        for (int j = 0; j < PIXELS; j++)
          for (int i = 0; i < d && inside(j); i++)
            for (int n = 0; n < C; n++) {
              const size_t w = size_t(h * d + i) * C + n;
              const double one = xs[j * C + n];
              dwqs[w] += dq[j * d + i] * one, dwks[w] += dk[j * d + i] * one;
              dwvs[j * matrix + w] += dv[j * d + i] * one;
              dxs[((size_t(b) * C + n) * H + at_y(j)) * W + at_x(j)] +=
                  dq[j * d + i] * wq.get(w) + dk[j * d + i] * wk.get(w) +
                  dv[j * d + i] * wv.get(j * matrix + w);
            }
      }
  if (done(saccade_block_forward, c)) compare("y", y, ys, 2e-4);
  if (maximum || !done(saccade_block_backward, c)) return;
  compare("dx", dx, dxs, 5e-4), compare("dwq", dwq, dwqs, 5e-4), compare("dwk", dwk, dwks, 5e-4);
  compare("dwv", dwv, dwvs, 5e-4);
  if (position) compare("drow", drow, drows, 5e-4), compare("dcol", dcol, dcols, 5e-4);
}

// -- for inference -----------------------------------------------------------------------------------

// Matrices as a call wants them, in memory of just that size.
template <class Call>
Numbers laid_out(const Call& c, int64_t (*size)(const Call*, size_t), void (*pack)(const Call*, void*)) {
  Numbers room(FLOAT32, size_t(size(&c, sizeof(Call)) / 4));
  pack(&c, room.data());
  room.check_ends("packed");
  return room;
}

// LayerNorm of the pixels of x.
struct Normed {
  Numbers scale, offset, eps = Numbers(FLOAT32, 1);
  std::vector<double> n;
  Normed(const Numbers& x, int C) : scale(dense(C, 1)), offset(dense(C, 1)), n(x.n) {
    eps.put(0, 1e-5);
    for (size_t m = 0; m < x.n / C; m++) {
      double mean = 0, spread = 0;
      for (int k = 0; k < C; k++) mean += x.get(m * C + k) / C;
      for (int k = 0; k < C; k++) spread += std::pow(x.get(m * C + k) - mean, 2) / C;
      for (int k = 0; k < C; k++)
        n[m * C + k] = (x.get(m * C + k) - mean) / std::sqrt(spread + eps.get(0)) * scale.get(k) +
                       offset.get(k);
    }
  }
};

// y(m, n) += over k the sum of x(m, k) w(n, k)
void add_product(const std::vector<double>& x, const Numbers& w, int K, int N, std::vector<double>& y) {
  for (size_t m = 0; m < x.size() / K; m++)
    for (int n = 0; n < N; n++)
      for (int k = 0; k < K; k++) y[m * N + n] += x[m * K + k] * w.get(size_t(n) * K + k);
}
void add_bias(const Numbers& b, int N, std::vector<double>& y) {
  for (size_t i = 0; i < y.size(); i++) y[i] += b.get(i % N);
}

void layer_norm() {
  LayerNorm c{};
  c.threads = any_threads(), c.rows = chance(0.1) ? whole(500, 1100) : whole(1, 60);
  c.C = chance(0.1) ? whole(100, 600) : whole(1, 70);
  say("layer_norm", {{"threads", c.threads}, {"rows", c.rows}, {"C", c.C}});
  Numbers x = dense(size_t(c.rows) * c.C, 2), y(FLOAT32, x.n);
  const Normed norm(x, c.C);
  c.x = x.floats(), c.scale = norm.scale.floats(), c.offset = norm.offset.floats();
  c.eps = norm.eps.floats(), c.y = y.floats();
  if (done(saccade_layer_norm_forward, c)) compare("y", y, norm.n, 5e-4);
}

void product() {
  Linear c{};
  c.threads = any_threads(), c.batches = 1, c.rows = chance(0.3) ? whole(90, 310) : whole(1, 60);
  c.inputs = chance(0.2) ? whole(180, 530) : whole(1, 90), c.outputs = whole(1, 130);
  while (c.rows > 1 && double(c.rows) * c.inputs * c.outputs > 6e5) c.rows = (c.rows + 1) / 2;
  const bool skips = whole(0, 1), biased = whole(0, 1);
  c.relu = whole(0, 1), c.w_output = c.inputs, c.w_input = 1;
  const int K = c.inputs, N = c.outputs;
  say("product", {{"threads", c.threads}, {"rows", c.rows}, {"inputs", K}, {"outputs", N},
                  {"skip", skips}, {"biased", biased}, {"relu", c.relu}});
  Numbers x = dense(size_t(c.rows) * K, 1), w = dense(size_t(N) * K, 1 / std::sqrt(double(K)));
  Numbers b, skip, y(FLOAT32, size_t(c.rows) * N);
  if (biased) b = dense(N, 1);
  if (skips) skip = dense(y.n, 1);
  std::vector<double> ys = skips ? skip.values() : std::vector<double>(y.n);
  add_product(x.values(), w, K, N, ys);
  if (biased) add_bias(b, N, ys);
  if (c.relu)
    for (double& one : ys) one = std::max(one, 0.0);
  c.w = w.floats(), c.b = b.floats();
  const Numbers packed = laid_out(c, saccade_linear_packed, saccade_linear_pack);
  c.x = x.floats(), c.y = y.floats(), c.skip = skip.floats(), c.packed = packed.floats();
  if (chance(0.5)) c.w = c.b = nullptr;
  if (done(saccade_linear_forward, c)) compare("y", y, ys, 1e-4);
}

void feed_residual() {
  Feed c{};
  c.threads = any_threads(), c.B = whole(1, 3), c.H = any_side(), c.W = any_side();
  c.inputs = c.outputs = chance(0.1) ? whole(180, 260) : whole(1, 60);
  c.hidden = FEED_HIDDEN_STEP * (chance(0.2) ? whole(8, 24) : whole(1, 6)), c.tanh = whole(0, 1);
  const bool mixing = chance(0.7), keeps = chance(0.6);
  if (!mixing) c.B = c.W = 1, c.H = whole(1, 250);
  shrink(c.H, c.W, double(c.B) * c.hidden * 2 * c.inputs);
  const int H = c.H, W = c.W, C = c.inputs, J = c.hidden;
  say("feed_residual", {{"threads", c.threads}, {"B", c.B}, {"H", H}, {"W", W}, {"C", C},
                        {"hidden", J}, {"tanh", c.tanh}, {"taps", mixing}, {"packed", keeps}});
  const size_t M = size_t(c.B) * H * W;
  Numbers x = dense(M * C, 1), w1 = dense(size_t(J) * C, 1 / std::sqrt(double(C))), b1 = dense(J, 1);
  Numbers taps, shift, w2 = dense(size_t(C) * J, 1 / std::sqrt(double(J))), b2 = dense(C, 1);
  Numbers y(FLOAT32, M * C);
  if (mixing) taps = dense(9 * J, 0.4), shift = dense(J, 1);
  const Normed norm(x, C);
  std::vector<double> h(M * J), u(M * J), ys = x.values();
  add_product(norm.n, w1, C, J, h), add_bias(b1, J, h);
  for (size_t m = 0; mixing && m < M; m++)
    for (int t = 0; t < 9; t++) {
      const int r = int(m / W % H) + t / 3 - 1, s = int(m % W) + t % 3 - 1;
      if (r < 0 || r >= H || s < 0 || s >= W) continue;
      const size_t from = (m / W / H * H + r) * W + s;
      for (int j = 0; j < J; j++) u[m * J + j] += taps.get(size_t(t) * J + j) * h[from * J + j];
    }
  if (mixing) add_bias(shift, J, u);
  else u = h;
  double slope;
  for (double& one : u) one = gelu(one, c.tanh, &slope);
  add_product(u, w2, J, C, ys), add_bias(b2, C, ys);
  c.w1 = w1.floats(), c.b1 = b1.floats(), c.w2 = w2.floats(), c.b2 = b2.floats();
  c.x = x.floats(), c.scale = norm.scale.floats(), c.offset = norm.offset.floats();
  c.eps = norm.eps.floats(), c.taps = taps.floats(), c.shift = shift.floats(), c.y = y.floats();
  Numbers packed;
  if (keeps) packed = laid_out(c, saccade_feed_packed, saccade_feed_pack);
  c.packed = packed.floats();
  if (done(saccade_feed_forward, c)) compare("y", y, ys, 5e-4);
}

void key_only() {
  KeyOnly c{};
  c.threads = any_threads(), c.B = whole(1, 3), c.heads = one_of({1, 1, 2, 3, 5});
  c.C = c.heads * (chance(0.2) ? whole(20, 60) : whole(1, 20));
  c.tokens = chance(0.2) ? whole(200, 700) : whole(1, 120), c.collapsed = whole(0, 1);
  while (c.tokens > 1 && double(c.B) * c.tokens * c.C * c.C > 6e5) c.tokens = (c.tokens + 1) / 2;
  const int N = c.tokens, C = c.C, d = C / c.heads;
  say("key_only", {{"threads", c.threads}, {"B", c.B}, {"tokens", N}, {"C", C}, {"heads", c.heads},
                   {"collapsed", c.collapsed}});
  const double scale = 1 / std::sqrt(double(C));
  const size_t square = size_t(C) * C;
  Numbers x = dense(size_t(c.B) * N * C, 1), y(FLOAT32, x.n), ask = dense(size_t(c.heads) * C, scale);
  Numbers wk = dense(square, scale), bk = dense(C, 1), wv = dense(square, scale), bv = dense(C, 1);
  Numbers p = dense(square, scale), q = dense(square, scale), constant = dense(C, 1);
  const Normed norm(x, C);
  std::vector<double> v(x.n), ys = x.values();
  add_product(norm.n, wv, C, C, v), add_bias(bv, C, v);
  for (int b = 0; b < c.B; b++) {
    const double* n = norm.n.data() + size_t(b) * N * C;
    for (int h = 0; h < c.heads; h++) {
      std::vector<double> a(N), mean(C);
      double high = -INFINITY, total = 0;
      for (int t = 0; t < N; t++) {
        for (int k = 0; k < C; k++) a[t] += ask.get(size_t(h) * C + k) * n[size_t(t) * C + k];
        high = std::max(high, a[t]);
      }
      for (double& one : a) total += one = std::exp(one - high);
      for (int t = 0; t < N; t++)
        for (int k = 0; k < C; k++) mean[k] += a[t] / total * n[size_t(t) * C + k];
      for (int i = h * d; i < (h + 1) * d; i++) {
        double g = bk.get(i);
        for (int k = 0; k < C; k++) g += mean[k] * wk.get(size_t(i) * C + k);
        for (int t = 0; t < N; t++) v[(size_t(b) * N + t) * C + i] *= g;
      }
    }
  }
  add_product(v, p, C, C, ys), add_product(norm.n, q, C, C, ys), add_bias(constant, C, ys);
  c.x = x.floats(), c.scale = norm.scale.floats(), c.offset = norm.offset.floats();
  c.eps = norm.eps.floats(), c.ask = ask.floats(), c.wk = wk.floats(), c.bk = bk.floats();
  c.wv = wv.floats(), c.bv = bv.floats(), c.p = p.floats(), c.q = q.floats();
  c.c = constant.floats(), c.y = y.floats();
  const Numbers packed = laid_out(c, saccade_key_only_packed, saccade_key_only_pack);
  c.packed = packed.floats();
  if (done(saccade_key_only_forward, c)) compare("y", y, ys, 5e-4);
}


// Branches of a map, from its moments: as one 3x3, and backward to the map.
void branches() {
  Moments m{};
  m.threads = any_threads(), m.B = whole(1, 3), m.H = any_side(), m.W = any_side();
  m.C = FEED_HIDDEN_STEP * (chance(0.1) ? whole(8, 12) : whole(1, 4));
  Branches c{};
  c.branches = whole(1, 4), c.skip = whole(0, 1), c.C = m.C;
  shrink(m.H, m.W, double(m.B) * m.C * c.branches * 18);
  if (m.B * m.H * m.W < 8) m.H = m.W = 3;  // variances of a few numbers are too close to zero
  const int B = m.B, H = m.H, W = m.W, C = m.C, n = c.branches, M = B * H * W;
  c.pixels = M;
  say("branches", {{"threads", m.threads}, {"B", B}, {"H", H}, {"W", W}, {"C", C},
                   {"branches", n}, {"skip", c.skip}});
  Numbers h = dense(size_t(M) * C, 1), dh = dense(h.n, 1), sums(FLOAT64, size_t(MOMENT_SUMS) * C);
  Numbers k = dense(size_t(n) * 9 * C, 0.4), gamma = dense(n * C, 1), beta = dense(n * C, 1);
  Numbers eps = dense(1, 0), taps(FLOAT32, 9 * C), shift(FLOAT32, C), mean(FLOAT32, n * C),
          var(FLOAT32, n * C), dtaps = dense(9 * C, 1), dshift = dense(C, 1), dk(FLOAT32, k.n),
          dgamma(FLOAT32, n * C), dbeta(FLOAT32, n * C), dsums(FLOAT32, sums.n);
  eps.put(0, 1e-3);
  for (size_t i = 0; i < sums.n; i++) sums.put(i, 0);
  m.h = h.floats(), m.sums = reinterpret_cast<double*>(sums.data());
  m.dsums = dsums.floats(), m.dh = dh.floats();
  c.sums = m.sums, c.k = k.floats(), c.gamma = gamma.floats(), c.beta = beta.floats();
  c.eps = eps.floats(), c.taps = taps.floats(), c.shift = shift.floats(), c.mean = mean.floats();
  c.var = var.floats(), c.dtaps = dtaps.floats(), c.dshift = dshift.floats(), c.dk = dk.floats();
  c.dgamma = dgamma.floats(), c.dbeta = dbeta.floats(), c.dsums = dsums.floats();
  std::vector<double> tapss(9 * C), shifts(C), means(n * C), vars(n * C), dks(k.n), dgammas(n * C),
      dbetas(n * C), dhs = dh.values(), z(M);
  const auto around = [&](auto f) {
    for (int p = 0; p < M; p++)
      for (int t = 0; t < 9; t++) {
        const int y = p / W % H + t / 3 - 1, x = p % W + t % 3 - 1;
        if (y >= 0 && y < H && x >= 0 && x < W) f(p, (p / W / H * H + y) * W + x, t);
      }
  };
  for (int j = 0; j < C; j++) {
    if (c.skip) tapss[4 * C + j] = 1;
    for (int i = 0; i < n; i++) {
      const auto tap = [&](int t) { return k.get(size_t(9 * i + t) * C + j); };
      const size_t at = size_t(i) * C + j;
      std::fill(z.begin(), z.end(), 0.0);
      around([&](int p, int q, int t) { z[p] += tap(t) * h.get(size_t(q) * C + j); });
      double u = 0, v = 0;
      for (double one : z) u += one / M;
      for (double one : z) v += (one - u) * (one - u) / M;
      const double r = 1 / std::sqrt(v + eps.get(0)), scale = gamma.get(at) * r, ds = dshift.get(j);
      double dscale = -ds * u;
      for (int t = 0; t < 9; t++) {
        tapss[t * C + j] += scale * tap(t);
        dscale += dtaps.get(t * C + j) * tap(t);
        dks[size_t(9 * i + t) * C + j] += scale * dtaps.get(t * C + j);
      }
      shifts[j] += beta.get(at) - scale * u;
      means[at] = u, vars[at] = v, dgammas[at] = dscale * r, dbetas[at] = ds;
      const double dv = -0.5 * dscale * scale * r * r, du = -scale * ds;
      around([&](int p, int q, int t) {
        const double dz = (du + 2 * dv * (z[p] - u)) / M;
        dks[size_t(9 * i + t) * C + j] += dz * h.get(size_t(q) * C + j);
        dhs[size_t(q) * C + j] += dz * tap(t);
      });
    }
  }
  if (!done(saccade_moments_forward, m) || !done(saccade_branches_forward, c)) return;
  sums.check_ends("sums");
  compare("taps", taps, tapss, 2e-4), compare("shift", shift, shifts, 2e-4);
  compare("mean", mean, means, 2e-4), compare("var", var, vars, 2e-4);
  if (!done(saccade_branches_backward, c) || !done(saccade_moments_backward, m)) return;
  compare("dk", dk, dks, 5e-4), compare("dgamma", dgamma, dgammas, 5e-4);
  compare("dbeta", dbeta, dbetas, 2e-4), compare("dh", dh, dhs, 5e-4);
}

// A convolution of any map, or of the mean of pixels, with whatever may follow it.
void convolution() {
  Convolution c{};
  c.threads = any_threads(), c.B = whole(1, 3), c.H = any_side(), c.W = any_side();
  c.inputs = chance(0.2) ? whole(30, 70) : whole(1, 20), c.outputs = whole(1, 70);
  c.mean = chance(0.3), c.kernel = c.mean ? 1 : one_of({1, 2, 3, 4, 7});
  c.stride = c.mean ? whole(1, 2) : whole(1, 4), c.padding = c.mean ? 0 : whole(0, c.kernel - 1);
  c.H = std::max(c.H, c.kernel), c.W = std::max(c.W, c.kernel);
  shrink(c.H, c.W, double(c.B) * c.kernel * c.kernel * c.inputs * c.outputs);
  c.H = std::max(c.H, c.kernel), c.W = std::max(c.W, c.kernel);
  c.relu = whole(0, 1);
  const bool skips = chance(0.4), normed = chance(0.4), biased = whole(0, 1), planar = !c.mean && whole(0, 1);
  const bool shifts = c.mean && whole(0, 1);
  const int H = c.H, W = c.W, C = c.inputs, N = c.outputs, K = c.kernel, s = c.stride;
  const int last = c.mean ? 1 : K - 2 * c.padding;  // the last pixels are those that there are
  const int h = (H - last) / s + 1, w = (W - last) / s + 1;
  const int depth = K * K * C;
  say("convolution", {{"threads", c.threads}, {"B", c.B}, {"H", H}, {"W", W}, {"C", C}, {"N", N},
                      {"kernel", K}, {"stride", s}, {"padding", c.padding}, {"mean", c.mean},
                      {"skip", skips}, {"norm", normed}, {"planar", planar}, {"relu", c.relu}});
  Numbers x = dense(size_t(c.B) * H * W * C, 1), shift, skip, bias;
  Numbers weights = dense(size_t(N) * depth, 1 / std::sqrt(double(depth)));
  Numbers y(FLOAT32, size_t(c.B) * h * w * N), scale = dense(N, 1), offset = dense(N, 1);
  if (shifts) shift = dense(C, 1);
  if (skips) skip = dense(y.n, 1);
  if (biased) bias = dense(N, 1);
  c.x = {x.data(), int64_t(H) * W * C, planar ? int64_t(H) * W : 1, planar ? W : int64_t(W) * C,
         planar ? 1 : C};
  const auto at = [&](int b, int r, int q, int k) {
    return x.get(b * c.x.batch + r * c.x.row + q * c.x.column + k * c.x.channel);
  };
  std::vector<double> squares(size_t(c.B) * h * w * depth);
  for (size_t m = 0; m < squares.size(); m++) {
    const int k = m % C, j = m / C % K, i = m / C / K % K;
    const size_t pixel = m / depth;
    const int b = pixel / w / h, r = int(pixel / w % h) * s - c.padding + i;
    const int q = int(pixel % w) * s - c.padding + j;
    if (c.mean) {
      int count = 0;
      for (int a = 0; a < s * s; a++)
        if (r + a / s < H && q + a % s < W) squares[m] += at(b, r + a / s, q + a % s, k), count++;
      squares[m] = std::max(0.0, squares[m] / count + (shifts ? shift.get(k) : 0));
    } else if (r >= 0 && r < H && q >= 0 && q < W) {
      squares[m] = at(b, r, q, k);
    }
  }
  std::vector<double> ys = skips ? skip.values() : std::vector<double>(y.n);
  add_product(squares, weights, depth, N, ys);
  if (biased) add_bias(bias, N, ys);
  const double eps = 1e-5;
  Numbers small(FLOAT32, 1);
  small.put(0, eps);
  for (size_t m = 0; normed && m < ys.size() / N; m++) {
    double mean = 0, spread = 0, *row = &ys[m * N];
    for (int k = 0; k < N; k++) mean += row[k] / N;
    for (int k = 0; k < N; k++) spread += std::pow(row[k] - mean, 2) / N;
    for (int k = 0; k < N; k++)
      row[k] = (row[k] - mean) / std::sqrt(spread + eps) * scale.get(k) + offset.get(k);
  }
  for (double& one : ys) one = c.relu ? std::max(one, 0.0) : one;
  Linear matrix{};
  matrix.threads = 1, matrix.inputs = depth, matrix.outputs = N, matrix.w = weights.floats();
  matrix.w_output = depth, matrix.w_input = 1, matrix.b = bias.floats();
  const Numbers packed = laid_out(matrix, saccade_linear_packed, saccade_linear_pack);
  c.packed = packed.floats(), c.y = y.floats(), c.shift = shift.floats(), c.skip = skip.floats();
  if (normed) c.scale = scale.floats(), c.offset = offset.floats(), c.eps = small.floats();
  if (done(saccade_convolution_forward, c)) compare("y", y, ys, normed && N < 4 ? 2e-2 : 1e-3);
}

// Attention inside windows that tile a map, or reach over its ends.
void windows() {
  Windows c{};
  c.threads = any_threads(), c.B = whole(1, 2), c.H = whole(1, 20), c.W = whole(1, 20);
  c.heads = whole(1, 3), c.C = c.heads * whole(1, 40);
  c.h = whole(1, std::min(c.H, 14)), c.w = whole(1, std::min(c.W, 14));
  const int H = c.H, W = c.W, C = c.C, d = C / c.heads, N = c.h * c.w;
  say("windows", {{"threads", c.threads}, {"B", c.B}, {"H", H}, {"W", W}, {"C", C},
                  {"heads", c.heads}, {"h", c.h}, {"w", c.w}});
  Numbers qkv = dense(size_t(c.B) * H * W * 3 * C, 1), bias = dense(size_t(c.heads) * N * N, 1);
  Numbers y(FLOAT32, size_t(c.B) * H * W * C);
  std::vector<double> ys(y.n);
  const auto place = [&](int r, int q) { return r % c.h * c.w + q % c.w; };
  for (int b = 0; b < c.B; b++)
    for (int head = 0; head < c.heads; head++)
      for (int m = 0; m < H * W; m++) {
        const int r = m / W, q = m % W, r0 = r / c.h * c.h, q0 = q / c.w * c.w;
        const auto pixel = [&](int r_, int q_) { return ((size_t(b) * H + r_) * W + q_) * 3 * C + head * d; };
        double total = 0;
        std::vector<double> sums(d);
        for (int r_ = r0; r_ < std::min(H, r0 + c.h); r_++)
          for (int q_ = q0; q_ < std::min(W, q0 + c.w); q_++) {
            double s = 0;
            for (int k = 0; k < d; k++) s += qkv.get(pixel(r, q) + k) * qkv.get(pixel(r_, q_) + C + k);
            s = s / std::sqrt(double(d)) + bias.get((size_t(head) * N + place(r, q)) * N + place(r_, q_));
            total += s = std::exp(s);
            for (int k = 0; k < d; k++) sums[k] += s * qkv.get(pixel(r_, q_) + 2 * C + k);
          }
        for (int k = 0; k < d; k++) ys[((size_t(b) * H + r) * W + q) * C + head * d + k] = sums[k] / total;
      }
  c.qkv = qkv.floats(), c.bias = bias.floats(), c.y = y.floats();
  if (done(saccade_windows_forward, c)) compare("y", y, ys, 5e-4);
}

}  // namespace

int main(int arguments, char** values) {
  if (arguments < 5) return fprintf(stderr, "driver SEED FIRST COUNT SET...\n"), 2;
  const uint64_t seed = strtoull(values[1], nullptr, 10);
  const long first = atol(values[2]), count = atol(values[3]);
  void (*const operators[])() = {sasa,  sasa,       qna,     qna,           summary, linear,
                                 feed,  block,      product, feed_residual, key_only, layer_norm,
                                 branches, convolution, windows};
  for (int i = 4; i < arguments; i++)
    if (saccade_use(values[i])) return fprintf(stderr, "no %s on this machine\n", values[i]), 2;
  for (long i = first; i < first + count; i++) {
    const char* set = values[4 + i % (arguments - 4)];
    saccade_use(set);
    generator.seed(seed * 1000003 + uint64_t(i));
    text = "call " + std::to_string(i) + " " + set;
    operators[whole(0, std::size(operators) - 1)]();
  }
  printf("%d wrong\n", wrongs);
  return wrongs ? 1 : 0;
}
