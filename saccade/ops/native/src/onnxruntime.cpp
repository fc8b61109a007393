// The kernels as operators of ONNX Runtime, domain "saccade":
//
//   options.register_custom_ops_library(saccade.kernels())        Python
//   RegisterCustomOpsLibrary(options, "kernels.so", &handle)      C, C++
//
// Built without its headers, which come with no package: its interface is a table of functions that
// only ever grows at its end, so a place in it stays. What a node reads and gives is said at its
// structure; tensors are float32 and dense. Their shapes come from a file, so all are compared before
// a kernel sees a pointer.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "call.h"
#include "matrices.h"
#include "pool.h"
#include "system.h"

using namespace saccade;

extern "C" {
uint64_t saccade_checksum(const void* const* parts, const int64_t* bytes, int32_t count);
int64_t saccade_feed_packed(const Feed*, size_t);
void saccade_feed_pack(const Feed*, void*);
int64_t saccade_linear_packed(const Linear*, size_t);
void saccade_linear_pack(const Linear*, void*);
int64_t saccade_key_only_packed(const KeyOnly*, size_t);
void saccade_key_only_pack(const KeyOnly*, void*);
int saccade_feed_forward(const Feed*, size_t);
int saccade_key_only_forward(const KeyOnly*, size_t);
int saccade_linear_forward(const Linear*, size_t);
int saccade_qna_forward(const Qna*, size_t);
int saccade_sasa_forward(const Sasa*, size_t);
int saccade_block_forward(const Block*, size_t);
}

namespace {

// -- ONNX Runtime's interface -------------------------------------------------------------------

using Status = void*;  // null: fine
struct Api {
  void* at[280];
};
struct ApiBase {
  const Api* (*get)(uint32_t version);
  const char* (*version)();
};
constexpr int VERSION = 17;  // of the interface: the first with all that is used
enum Place {
  CREATE_STATUS = 0,
  CREATE_DOMAIN = 26,
  ADD_TO_DOMAIN = 27,
  ADD_DOMAIN = 28,
  DATA = 51,
  RANK = 61,
  DIMENSIONS = 62,
  SHAPE = 65,
  FLOAT_ATTRIBUTE = 85,
  INTEGER_ATTRIBUTE = 86,
  INPUT_COUNT = 88,
  INPUT = 90,
  OUTPUT = 91,
  RELEASE_SHAPE = 99,
  PARALLEL_FOR = 274,
};
constexpr int FLOAT = 1, REQUIRED = 0, OPTIONAL = 1, INVALID_ARGUMENT = 2;

const Api* api;
template <class Result, class... Arguments>
Result call(Place place, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(api->at[place])(arguments...);
}
Status failure(const char* sentence) {
  return call<Status, int, const char*>(CREATE_STATUS, INVALID_ARGUMENT, sentence);
}

// The fields of an operator in their order, up to those of version 16.
struct Op {
  uint32_t version;
  void* (*create)(const Op*, const Api*, const void*);  // not called from version 16 on
  const char* (*name)(const Op*);
  const char* (*provider)(const Op*);
  int (*input_type)(const Op*, size_t);
  size_t (*inputs)(const Op*);
  int (*output_type)(const Op*, size_t);
  size_t (*outputs)(const Op*);
  void (*compute)(void*, void*);
  void (*destroy)(void*);
  int (*input_kind)(const Op*, size_t);
  int (*output_kind)(const Op*, size_t);
  int (*memory)(const Op*, size_t);
  int (*least_inputs)(const Op*);
  int (*inputs_alike)(const Op*);
  int (*least_outputs)(const Op*);
  int (*outputs_alike)(const Op*);
  Status (*create_node)(const Op*, const Api*, const void* info, void** node);
  Status (*run_node)(void* node, void* context);
};

// -- tensors and threads of a call --------------------------------------------------------------

constexpr int MOST_AXES = 8;
constexpr int64_t MOST = int64_t(1) << 31;  // elements: kernels count with 32 bits

struct Tensor {
  float* data = nullptr;
  int64_t rank = 0, dims[MOST_AXES] = {};

  bool there() const { return rank != 0; }
  bool is(std::initializer_list<int64_t> shape) const {
    if (rank != int64_t(shape.size())) return false;
    const int64_t* d = dims;
    for (const int64_t n : shape)
      if (*d++ != n) return false;
    return true;
  }
  bool absent_or(std::initializer_list<int64_t> shape) const { return !there() || is(shape); }
  int64_t count() const {
    int64_t n = there();
    for (int i = 0; i < rank; i++) n = dims[i] && n > MOST / dims[i] ? MOST : n * dims[i];
    return n;
  }
};

// Whether there are elements, and no more than kernels can count.
bool countable(std::initializer_list<int64_t> shape) {
  int64_t n = 1;
  for (const int64_t size : shape) {
    if (size < 1 || n >= MOST / size) return false;
    n *= size;
  }
  return true;
}

class Context {
 public:
  explicit Context(void* context) : context_(context) {
    call<Status, void*, size_t*>(INPUT_COUNT, context, &inputs_);
  }
  // Absent if the node has no such input; of a rank that fits nowhere if kernels cannot take it.
  Tensor input(size_t i) const {
    void* value = nullptr;
    if (i >= inputs_) return {};
    call<Status, void*, size_t, void**>(INPUT, context_, i, &value);
    if (!value) return {};
    void* shape = nullptr;
    Tensor t;
    size_t rank = 0;
    call<Status, void*, void**>(SHAPE, value, &shape);
    call<Status, void*, size_t*>(RANK, shape, &rank);
    if (rank > 0 && rank <= MOST_AXES) {
      call<Status, void*, int64_t*, size_t>(DIMENSIONS, shape, t.dims, rank);
      t.rank = int64_t(rank);
      call<Status, void*, void**>(DATA, value, reinterpret_cast<void**>(&t.data));
    }
    call<void, void*>(RELEASE_SHAPE, shape);
    if (!t.rank || t.count() >= MOST) t.rank = -1;
    return t;
  }
  float* output(std::initializer_list<int64_t> shape) const {
    void *value = nullptr, *data = nullptr;
    call<Status, void*, size_t, const int64_t*, size_t, void**>(OUTPUT, context_, 0, shape.begin(),
                                                                shape.size(), &value);
    if (value) call<Status, void*, void**>(DATA, value, &data);
    return static_cast<float*>(data);
  }
  void parallel(int times, void (*job)(void*, size_t), void* data) const {
    call<Status, void*, void (*)(void*, size_t), size_t, size_t, void*>(
        PARALLEL_FOR, context_, job, size_t(times), 0, data);
  }

 private:
  void* context_;
  size_t inputs_ = 0;
};

// How many threads a session has is not told. Tasks that wait for each other, a moment, find out.
int threads_of(const Context& context) {
  struct Probe {
    std::mutex lock;
    std::set<std::thread::id> seen;
    size_t most;
    std::chrono::steady_clock::time_point end;
  } probe;
  probe.most = std::thread::hardware_concurrency();
  probe.end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  if (probe.most < 2) return 1;
  context.parallel(int(probe.most), [](void* data, size_t) {
    Probe& p = *static_cast<Probe*>(data);
    for (bool wait = true; wait;) {
      const std::lock_guard<std::mutex> held(p.lock);
      p.seen.insert(std::this_thread::get_id());
      wait = p.seen.size() < p.most && std::chrono::steady_clock::now() < p.end;
    }
  }, &probe);
  return int(probe.seen.size());
}

// While it lives, kernels called from this thread run on the session's threads.
class SessionPool : Pool {
 public:
  explicit SessionPool(const Context& context) : context_(context) { pool = this; }
  ~SessionPool() override { pool = nullptr; }
  void run(int threads, void (*job)(void*), void* data) override {
    Task task{job, data};
    context_.parallel(threads, [](void* t, size_t) {
      const Task& task = *static_cast<Task*>(t);
      task.job(task.data);
    }, &task);
  }

 private:
  struct Task {
    void (*job)(void*);
    void* data;
  };
  const Context& context_;
};

// Floats of this thread, kept for its next call.
float* room(int64_t floats) {
  struct Buffer {
    void* data = nullptr;
    int64_t size = 0;
    ~Buffer() { release(data); }
  };
  thread_local Buffer buffer;
  if (buffer.size < floats) {
    release(buffer.data);
    buffer.data = allocate(64, size_t(floats) * 4);
    buffer.size = buffer.data ? floats : 0;
  }
  return static_cast<float*>(buffer.data);
}

// Matrices as a kernel wants them laid out, as long as the weights have the contents they had.
class Packed {
 public:
  // `key`: what else the layout depends on.
  template <class Call>
  Matrices of(const Call& call, std::initializer_list<Tensor> weights,
              std::initializer_list<int64_t> key, int64_t (*size)(const Call*, size_t),
              void (*pack)(const Call*, void*)) {
    const void* parts[MOST_PARTS];
    int64_t bytes[MOST_PARTS], extra[MOST_PARTS];
    int32_t count = 0, extras = 0;
    for (const Tensor& t : weights) {
      parts[count] = t.data;
      bytes[count++] = t.count() * 4;
    }
    for (const int64_t k : key) extra[extras++] = k;
    parts[count] = extra;
    bytes[count++] = extras * 8;
    const uint64_t now = saccade_checksum(parts, bytes, count);
    const std::lock_guard<std::mutex> held(lock_);
    if (!matrices_ || now != known_) {
      const Matrices fresh(size_t(size(&call, sizeof(Call))) + 64);
      if (!fresh) return fresh;
      pack(&call, fresh.data());
      matrices_ = fresh;
      known_ = now;
    }
    return matrices_;
  }

 private:
  static constexpr int MOST_PARTS = 16;
  std::mutex lock_;
  uint64_t known_ = 0;
  Matrices matrices_;
};

// -- the operators ------------------------------------------------------------------------------

constexpr const char* SHAPES =
    "saccade: a node's inputs do not fit together; export the model again with saccade";
constexpr const char* REFUSED =
    "saccade: this kernel does not take such a call, or memory ran out; "
    "export the model again without --kernels";
const char* said(int result) { return result == DONE ? nullptr : REFUSED; }

Map planes(const Tensor& t) {  // B C H W
  const int64_t *d = t.dims, pixels = d[2] * d[3];
  return {t.data, d[1] * pixels, pixels, d[3], 1};
}
Map pixels(float* data, int64_t H, int64_t W, int64_t C) {  // B H W C
  return {data, H * W * C, 1, W * C, C};
}
int32_t small(int64_t n) { return int32_t(n); }

// What every node knows: its attributes, and the threads of its session.
struct Node {
  static constexpr bool NORM = false;  // whether it has an attribute eps
  int64_t attributes[4] = {};
  float eps = 0;
  std::mutex first;
  std::atomic<int> threads{0};  // 0: not known yet
};

// q, k or none, v: B C H W; row, col or none: tables window d/2. To B C H W.
struct LocalAttention : Node {
  static constexpr const char* NAME = "LocalAttention";
  static constexpr const char* ATTRIBUTES[] = {"heads", "window", "mask"};
  static constexpr int INPUTS = 5;
  static bool optional(size_t i) { return i == 1 || i > 2; }

  const char* run(const Context& context) {
    const Tensor q = context.input(0), k = context.input(1), v = context.input(2);
    const Tensor row = context.input(3), col = context.input(4);
    const int64_t heads = attributes[0], window = attributes[1], *d = q.dims;
    if (q.rank != 4 || heads < 1 || d[1] % heads || window < 1 || window > SASA_WINDOW)
      return SHAPES;
    const auto like = {d[0], d[1], d[2], d[3]};
    const int64_t tables = row.there() ? row.dims[0] : 1;
    if (!v.is(like) || !k.absent_or(like) || row.there() != col.there() ||
        !row.absent_or({tables, window, d[1] / heads / 2}) ||
        !col.absent_or({tables, window, d[1] / heads / 2}))
      return SHAPES;
    Tensor y = q;
    y.data = context.output(like);
    if (!q.count()) return nullptr;
    if (!y.data) return REFUSED;
    Sasa c{FLOAT32, threads, small(d[0]), small(heads), small(d[1] / heads), small(d[2]),
           small(d[3]), small(window), attributes[2] != 0, small(tables), planes(q),
           k.there() ? planes(k) : Map{}, planes(v), row.data, col.data, planes(y)};
    return said(saccade_sasa_forward(&c, sizeof(c)));
  }
};

// x: B H W C; weight: J C; bias or none: J; rpe, and ws or none: k k L h; mix: D V; its bias or
// none: D. J is V + L h. To B Ho Wo D.
struct LearnedQueries : Node {
  static constexpr const char* NAME = "LearnedQueries";
  static constexpr const char* ATTRIBUTES[] = {"stride", "padding"};
  static constexpr int INPUTS = 7;
  static bool optional(size_t i) { return i == 2 || i == 4 || i == 6; }
  static constexpr int64_t ENOUGH = 1 << 19;  // floats of values and scores, for each thread
  Packed packed_weight, packed_mix;

  const char* run(const Context& context) {
    const Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
    const Tensor rpe = context.input(3), ws = context.input(4), mix = context.input(5);
    const Tensor mix_bias = context.input(6);
    const int64_t stride = attributes[0], padding = attributes[1];
    if (x.rank != 4 || weight.rank != 2 || rpe.rank != 4 || mix.rank != 2 || stride < 1 ||
        stride >= MOST || padding < 0 || padding >= rpe.dims[0])
      return SHAPES;
    const int64_t B = x.dims[0], H = x.dims[1], W = x.dims[2], C = x.dims[3], J = weight.dims[0];
    const int64_t k = rpe.dims[0], L = rpe.dims[2], heads = rpe.dims[3];
    const int64_t D = mix.dims[0], V = mix.dims[1];
    if (heads < 1 || L < 1 || V < 1 || D < 1 || V % heads || J != V + L * heads || !weight.is({J, C}) ||
        !bias.absent_or({J}) || !rpe.is({k, k, L, heads}) || !ws.absent_or({k, k, L, heads}) ||
        !mix_bias.absent_or({D}) || H + 2 * padding < k || W + 2 * padding < k || k < 1)
      return SHAPES;
    const int64_t Ho = (H + 2 * padding - k) / stride + 1, Wo = (W + 2 * padding - k) / stride + 1;
    float* y = context.output({B, Ho, Wo, D});
    if (!x.count()) return nullptr;
    if (!y || !countable({H, W, J}) || !countable({Ho, Wo, V}) || !countable({B, Ho, Wo, D}))
      return REFUSED;
    int64_t turn = threads * ENOUGH / (H * W * J);
    turn = turn < 1 ? 1 : turn < B ? turn : B;
    float* vs = room(turn * (H * W * J + Ho * Wo * V));
    if (!vs) return REFUSED;
    float* z = vs + turn * H * W * J;
    Linear project{threads, 1, 0, small(C), small(J), x.data, weight.data, 0, C, 1, bias.data};
    Linear blend{threads, 1, 0, small(V), small(D), z, mix.data, 0, V, 1, mix_bias.data};
    const auto matrix =
        packed_weight.of(project, {weight, bias}, {}, saccade_linear_packed, saccade_linear_pack);
    const auto mixing =
        packed_mix.of(blend, {mix, mix_bias}, {}, saccade_linear_packed, saccade_linear_pack);
    if (!matrix || !mixing) return REFUSED;
    project.packed = matrix.data(), project.y = vs, blend.packed = mixing.data();
    for (int64_t at = 0; at < B; at += turn) {
      const int64_t n = at + turn < B ? turn : B - at;
      project.rows = small(n * H * W), project.x = x.data + at * H * W * C;
      const Qna gather{FLOAT32, threads, small(n), small(heads), small(V / heads), small(L),
                       small(H), small(W), small(Ho), small(Wo), small(k), small(stride),
                       small(padding), 1, pixels(vs + V, H, W, J), pixels(vs, H, W, J), rpe.data,
                       ws.data, pixels(z, Ho, Wo, V)};
      blend.rows = small(n * Ho * Wo), blend.y = y + at * Ho * Wo * D;
      if (saccade_linear_forward(&project, sizeof(project)) ||
          saccade_qna_forward(&gather, sizeof(gather)) ||
          saccade_linear_forward(&blend, sizeof(blend)))
        return REFUSED;
    }
    return nullptr;
  }
};

// x: B H W C; w1: J C; b1: J; w2: D J; b2: D; taps: 9 J and shift: J, or none; scale and offset of a
// LayerNorm: C, or none. To B H W D; with a norm x is added, and D is C.
struct FeedForward : Node {
  static constexpr const char* NAME = "FeedForward";
  static constexpr bool NORM = true;
  static constexpr const char* ATTRIBUTES[] = {"tanh"};
  static constexpr int INPUTS = 9;
  static bool optional(size_t i) { return i > 4; }
  static constexpr int64_t MOST_KEPT = 1024;  // pixels up to which matrices are worth keeping
  Packed packed;

  const char* run(const Context& context) {
    const Tensor x = context.input(0), w1 = context.input(1), b1 = context.input(2);
    const Tensor w2 = context.input(3), b2 = context.input(4), taps = context.input(5);
    const Tensor shift = context.input(6), scale = context.input(7), offset = context.input(8);
    if (x.rank != 4 || w1.rank != 2 || w2.rank != 2) return SHAPES;
    const int64_t B = x.dims[0], H = x.dims[1], W = x.dims[2], C = x.dims[3];
    const int64_t J = w1.dims[0], D = w2.dims[0];
    if (!w1.is({J, C}) || !b1.is({J}) || !w2.is({D, J}) || !b2.is({D}) ||
        !taps.absent_or({9, J}) || !shift.absent_or({J}) || taps.there() != shift.there() ||
        !scale.absent_or({C}) || !offset.absent_or({C}) || scale.there() != offset.there() ||
        (scale.there() && C != D) || J < 1 || D < 1)
      return SHAPES;
    float* y = context.output({B, H, W, D});
    if (!x.count()) return nullptr;
    if (!y || !countable({B, H, W, D})) return REFUSED;
    Feed c{threads, small(B), small(H), small(W), small(C), small(J), small(D),
           attributes[0] != 0, x.data, w1.data, b1.data};
    if (!taps.there()) c.B = 1, c.H = small(B * H * W), c.W = 1;  // no pixel knows its neighbours
    c.scale = scale.data, c.offset = offset.data, c.eps = scale.there() ? &eps : nullptr;
    c.taps = taps.data, c.shift = shift.data, c.w2 = w2.data, c.b2 = b2.data, c.y = y;
    Matrices matrices;
    if (scale.there() && B * H * W <= MOST_KEPT) {
      matrices = packed.of(c, {w1, b1, w2, b2}, {threads, c.B, c.H, c.W}, saccade_feed_packed,
                           saccade_feed_pack);
      if (!matrices) return REFUSED;
      c.packed = matrices.data();
    }
    return said(saccade_feed_forward(&c, sizeof(c)));
  }
};

// x: B H W C; scale, offset of its LayerNorm: C; ask: heads C; wk, wv, p, q: C C; bk, bv, c: C, as
// key_only.h names them. To x + attention, B H W C.
struct KeyOnlyAttention : Node {
  static constexpr const char* NAME = "KeyOnlyAttention";
  static constexpr bool NORM = true;
  static constexpr const char* ATTRIBUTES[] = {nullptr};
  static constexpr int INPUTS = 11;
  static bool optional(size_t) { return false; }
  Packed packed;

  const char* run(const Context& context) {
    Tensor in[INPUTS];
    for (int i = 0; i < INPUTS; i++) in[i] = context.input(i);
    const auto& [x, scale, offset, ask, wk, bk, wv, bv, p, q, constant] = in;
    if (x.rank != 4 || ask.rank != 2) return SHAPES;
    const int64_t B = x.dims[0], N = x.dims[1] * x.dims[2], C = x.dims[3], heads = ask.dims[0];
    if (heads < 1 || C % heads || !ask.is({heads, C})) return SHAPES;
    for (const Tensor& t : {wk, wv, p, q})
      if (!t.is({C, C})) return SHAPES;
    for (const Tensor& t : {scale, offset, bk, bv, constant})
      if (!t.is({C})) return SHAPES;
    float* y = context.output({B, x.dims[1], x.dims[2], C});
    if (!x.count()) return nullptr;
    if (!y) return REFUSED;
    KeyOnly c{threads, small(B), small(N), small(C), small(heads), N + C < 3 * N, x.data,
              scale.data, offset.data, &eps, ask.data, wk.data, bk.data, wv.data, bv.data, p.data,
              q.data, constant.data};
    const Matrices matrices = packed.of(
        c, {wv, bv, p, q, constant}, {}, saccade_key_only_packed, saccade_key_only_pack);
    if (!matrices) return REFUSED;
    c.packed = matrices.data();
    c.y = y;
    return said(saccade_key_only_forward(&c, sizeof(c)));
  }
};

// x: B C H W; wq, wk: D C; wv: 16 D C; row, col: 7 d/2, or none; scale, shift: D, or none. To
// B H W D or, with a scale, the maximum of every 4 x 4 pixels.
struct BlockAttention : Node {
  static constexpr const char* NAME = "BlockAttention";
  static constexpr const char* ATTRIBUTES[] = {"heads", "mask"};
  static constexpr int INPUTS = 8;
  static bool optional(size_t i) { return i > 3; }

  const char* run(const Context& context) {
    Tensor in[INPUTS];
    for (int i = 0; i < INPUTS; i++) in[i] = context.input(i);
    const auto& [x, wq, wk, wv, row, col, scale, shift] = in;
    const int64_t heads = attributes[0];
    if (x.rank != 4 || wq.rank != 2 || heads < 1) return SHAPES;
    const int64_t B = x.dims[0], C = x.dims[1], H = x.dims[2], W = x.dims[3], D = wq.dims[0];
    const int64_t half = D / heads / 2, table = 2 * BLOCK_SIDE - 1;
    if (D < 1 || D % heads || !wq.is({D, C}) || !wk.is({D, C}) ||
        !wv.is({BLOCK_SIDE * BLOCK_SIDE, D, C}) || !row.absent_or({table, half}) ||
        !col.absent_or({table, half}) || row.there() != col.there() || !scale.absent_or({D}) ||
        !shift.absent_or({D}) || scale.there() != shift.there())
      return SHAPES;
    const int64_t side = scale.there() ? BLOCK_SIDE : 1;
    float* y = context.output({B, (H + side - 1) / side, (W + side - 1) / side, D});
    if (!x.count()) return nullptr;
    if (!y || !countable({B, H, W, D})) return REFUSED;
    const Block c{threads, small(B), small(H), small(W), small(C), small(D), small(heads),
                  attributes[1] != 0, planes(x), wq.data, wk.data, wv.data, row.data, col.data,
                  scale.data, shift.data, y};
    return said(saccade_block_forward(&c, sizeof(c)));
  }
};

// -- as ONNX Runtime asks for them --------------------------------------------------------------

template <class Kind>
Status create(const Op*, const Api*, const void* info, void** node) {
  auto made = std::make_unique<Kind>();
  int i = 0;
  for (const char* name : Kind::ATTRIBUTES)
    if (name)
      if (Status bad = call<Status, const void*, const char*, int64_t*>(
              INTEGER_ATTRIBUTE, info, name, &made->attributes[i++]))
        return bad;
  if (Kind::NORM)
    if (Status bad =
            call<Status, const void*, const char*, float*>(FLOAT_ATTRIBUTE, info, "eps", &made->eps))
      return bad;
  *node = made.release();
  return nullptr;
}

template <class Kind>
Status run(void* node, void* pointer) {
  Kind& kind = *static_cast<Kind*>(node);
  const Context context(pointer);
  if (!kind.threads) {
    const std::lock_guard<std::mutex> held(kind.first);
    if (!kind.threads) kind.threads = threads_of(context);
  }
  const SessionPool threads(context);
  const char* sentence = kind.run(context);
  return sentence ? failure(sentence) : nullptr;
}

template <class Kind>
const Op* op() {
  static const Op made = {
      16,
      nullptr,
      [](const Op*) { return Kind::NAME; },
      [](const Op*) -> const char* { return nullptr; },  // the CPU
      [](const Op*, size_t) { return FLOAT; },
      [](const Op*) { return size_t(Kind::INPUTS); },
      [](const Op*, size_t) { return FLOAT; },
      [](const Op*) { return size_t(1); },
      nullptr,
      [](void* node) { delete static_cast<Kind*>(node); },
      [](const Op*, size_t i) { return Kind::optional(i) ? OPTIONAL : REQUIRED; },
      [](const Op*, size_t) { return REQUIRED; },
      [](const Op*, size_t) { return 0; },
      [](const Op*) { return 1; },
      [](const Op*) { return 1; },
      [](const Op*) { return 1; },
      [](const Op*) { return 1; },
      create<Kind>,
      run<Kind>,
  };
  return &made;
}

}  // namespace

EXPORT Status RegisterCustomOps(void* options, const ApiBase* base) {
  api = base->get(VERSION);
  if (!api) return nullptr;  // too old to be told: it will not know the nodes, and say so
  void* domain = nullptr;
  if (Status bad = call<Status, const char*, void**>(CREATE_DOMAIN, "saccade", &domain)) return bad;
  for (const Op* made : {op<LocalAttention>(), op<LearnedQueries>(), op<FeedForward>(),
                         op<KeyOnlyAttention>(), op<BlockAttention>()})
    if (Status bad = call<Status, void*, const Op*>(ADD_TO_DOMAIN, domain, made)) return bad;
  return call<Status, void*, void*>(ADD_DOMAIN, options, domain);
}
