// The C interface: picks the instruction set, spreads tasks over threads. Built for any machine.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "check.h"
#include "kernels.h"
#include "pool.h"
#include "system.h"

namespace saccade {

thread_local Pool* pool = nullptr;

namespace {

#if defined(SACCADE_AVX512BF16) || defined(SACCADE_NEONBF16)
const Kernels* with_bf16() {
  static const Kernels table = [] {
#ifdef SACCADE_AVX512BF16
    Kernels t = avx512::table;
    t.name = "avx512bf16";
    t.sasa_half = avx512bf16::sasa_half;
    t.half_products = avx512bf16::products;
#else
    Kernels t = neon::table;
    t.name = "neonbf16";
    t.sasa_half = neonbf16::sasa_half;
#endif
    return t;
  }();
  return &table;
}
#endif

const Kernels* best() {
#ifdef SACCADE_AVX512BF16
  if (machine().avx512bf16) return with_bf16();
#endif
#ifdef SACCADE_X86
  if (machine().avx512) return &avx512::table;
  if (machine().avx2) return &avx2::table;
#endif
#ifdef SACCADE_NEONBF16
  if (machine().neonbf16) return with_bf16();
#endif
#ifdef SACCADE_ARM
  return &neon::table;
#else
  return &generic::table;
#endif
}

std::atomic<const Kernels*> chosen{nullptr};

const Kernels& kernels() {
  const Kernels* k = chosen.load(std::memory_order_acquire);
  if (!k) chosen.store(k = best(), std::memory_order_release);
  return *k;
}

// Scratch of one thread, kept for the next call; a megabyte or so.
void* scratch(size_t bytes) {
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    ~Buffer() { release(data); }
  };
  thread_local Buffer buffer;
#ifdef SACCADE_SANITIZED
  const bool enough = buffer.size == bytes;  // whoever goes past its end is to be seen
#else
  const bool enough = buffer.size >= bytes;
#endif
  if (!enough) {
    release(buffer.data);
#ifdef SACCADE_SANITIZED
    buffer.size = bytes;
    buffer.data = allocate(64, bytes);
#else
    buffer.size = (bytes + 4095) / 4096 * 4096;
    buffer.data = allocate(4096, buffer.size);
#endif
    if (!buffer.data) buffer.size = 0;
  }
  return buffer.data;
}

// Runs job() on `threads` threads, the calling one among them: those of the caller's pool, or of
// OpenMP's if the process has one (torch brings it), so that cores are never claimed twice.
template <class Job>
void on_threads(int threads, Job& job) {
  if (threads <= 1) return job();
  if (pool) return pool->run(threads, [](void* j) { (*static_cast<Job*>(j))(); }, &job);
  if (const Parallel parallel = openmp())
    return parallel([](void* j) { (*static_cast<Job*>(j))(); }, &job, unsigned(threads), 0);
  const std::unique_ptr<std::thread[]> others(new std::thread[threads - 1]);
  for (int i = 0; i < threads - 1; i++) others[i] = std::thread([&] { job(); });
  job();
  for (int i = 0; i < threads - 1; i++) others[i].join();
}

template <class Run>
int each_task(const Work& work, int threads, Run run) {
  std::atomic<int> next{0};
  std::atomic<bool> failed{false};
  // Neighbours stay on one thread, where there are many: what one reads ahead is its own.
  const int run_of = std::max(1, work.tasks / (4 * std::max(1, threads)));
  auto job = [&] {
    void* buffer = scratch(work.scratch);
    if (!buffer) failed = true;
    for (int task; !failed && (task = next.fetch_add(run_of)) < work.tasks;)
      for (int end = std::min(task + run_of, work.tasks); task < end; task++) run(task, buffer);
  };
  on_threads(threads < work.tasks ? threads : work.tasks, job);
  return failed ? NO_MEMORY : DONE;
}

const Kernels& kernels_for(int32_t type) { return type == FLOAT64 ? generic::table : kernels(); }

const SasaKernels& sasa_for(int32_t type) {
  const Kernels& k = kernels_for(type);
  return type == BFLOAT16 ? k.sasa_half : k.sasa;
}

const ProductKernels& products_for(int32_t half) {
  return half ? kernels().half_products : kernels().products;
}

template <class Call>
int forward(const Call& call, const Work& work, void (*run)(const Call&, int, void*)) {
  return each_task(work, call.threads, [&](int task, void* buffer) { run(call, task, buffer); });
}

using Bytes = std::unique_ptr<char, decltype(&release)>;
Bytes room(size_t bytes) { return Bytes(static_cast<char*>(allocate(64, bytes + 1)), &release); }

// Every task leaves its share of a sum over all (the small parameters' gradient) in a place of its
// own; summed in the order of the tasks, they do not depend on which thread was first.
template <class Call>
int reduced(const Call& call, const Work& work, void (*run)(const Call&, int, void*, void*),
             void (*reduce)(const Call&, const void*)) {
  const Bytes partials = room(work.partial * work.tasks);
  if (!partials) return NO_MEMORY;
  const int failed = each_task(work, call.threads, [&](int task, void* buffer) {
    run(call, task, buffer, partials.get() + work.partial * task);
  });
  if (!failed && work.partial) reduce(call, partials.get());
  return failed;
}

int run_forward(const Sasa& call) {
  const SasaKernels& k = sasa_for(call.type);
  return forward(call, k.work(call, false), k.forward);
}
int run_backward(const Sasa& call) {
  const SasaKernels& k = sasa_for(call.type);
  return reduced(call, k.work(call, true), k.backward, k.reduce);
}
int run_forward(const Qna& call) {
  const Kernels& k = kernels_for(call.type);
  return forward(call, k.qna_work(call, false), k.qna_forward);
}
int run_backward(const Qna& call) {
  const Kernels& k = kernels_for(call.type);
  return reduced(call, k.qna_work(call, true), k.qna_backward, k.qna_reduce);
}
int run_forward(const Summary& call) {
  const Kernels& k = kernels();
  return reduced(call, k.summary_work(call), k.summary_forward, k.summary_join);
}
int run_backward(const Summary& call) {
  const Kernels& k = kernels();
  return reduced(call, k.summary_work(call), k.summary_backward, k.summary_sum);
}
int run_forward(const Block& call) {
  const Kernels& k = kernels();
  return forward(call, k.block_work(call, false), k.block_forward);
}
int run_backward(const Block& call) {
  const Kernels& k = kernels();
  return reduced(call, k.block_work(call, true), k.block_backward, k.block_reduce);
}
int run_forward(const Linear& call) {
  const ProductKernels& k = products_for(call.half);
  const Work work = k.linear_work(call, false);
  if (call.packed)
    return each_task(work, call.threads, [&](int task, void*) {
      k.linear_forward(call, task, call.packed);
    });
  const int matrices = call.w_batch || call.b_batch ? call.batches : 1;
  const Bytes packed = room(work.partial * matrices);
  if (!packed) return NO_MEMORY;
  const int failed = each_task({matrices, 64, 0}, call.threads, [&](int i, void*) {
    k.linear_pack(call, i, packed.get() + work.partial * i);
  });
  if (failed) return failed;
  return each_task(work, call.threads, [&](int task, void*) {
    k.linear_forward(call, task, packed.get());
  });
}
int run_backward(const Linear& call) {
  const Kernels& k = kernels();
  return forward(call, k.products.linear_work(call, true), k.linear_backward);
}
int run_forward(const Feed& call) {
  const ProductKernels& k = products_for(call.half);
  const FeedWork work = k.feed_work(call, false);
  const Bytes packed = room(work.packed);
  if (!packed) return NO_MEMORY;
  const int failed = each_task({work.matrices, 64, 0}, call.threads, [&](int i, void*) {
    k.feed_pack(call, false, i, packed.get());
  });
  if (failed) return failed;
  return each_task({work.tasks, work.scratch, 0}, call.threads, [&](int i, void* buffer) {
    k.feed_forward(call, i, packed.get(), buffer);
  });
}
int run_backward(const Feed& call) {
  const Kernels& k = kernels();
  const FeedWork work = k.products.feed_work(call, true);
  const Bytes packed = room(work.packed), dh = room(work.dh);
  if (!packed || !dh) return NO_MEMORY;
  int failed = each_task({work.matrices, 64, 0}, call.threads, [&](int i, void*) {
    k.products.feed_pack(call, true, i, packed.get());
  });
  for (int turn = 0; !failed && turn < work.turns; turn++) {
    failed = each_task({work.tasks, work.scratch, 0}, call.threads, [&](int i, void* buffer) {
      k.feed_backward(call, turn, i, packed.get(), dh.get(), buffer);
    });
    if (failed) break;
    failed = each_task({work.blocks, 64, 0}, call.threads, [&](int i, void*) {
      k.feed_inputs(call, turn, i, packed.get(), dh.get());
    });
  }
  return failed;
}

int run_forward(const LayerNorm& call) {
  constexpr int ROWS = 512;
  const Kernels& k = kernels();
  const int tasks = (call.rows + ROWS - 1) / ROWS;
  return each_task({tasks, 64, 0}, call.threads, [&](int i, void*) {
    const ptrdiff_t at = ptrdiff_t(i) * ROWS * call.C;
    k.norm_rows(call.x + at, std::min(ROWS, call.rows - i * ROWS), call.C, call.scale, call.offset,
                *call.eps, call.y + at);
  });
}
int run_forward(const KeyOnly& call) {
  const ProductKernels& k = products_for(call.half);
  const KeyOnlyWork work = k.key_only_work(call);
  const Bytes partials = room(work.partial * work.means), images = room(work.image * call.B);
  if (!partials || !images) return NO_MEMORY;
  int failed = each_task({work.means, work.scratch, 0}, call.threads, [&](int i, void* buffer) {
    k.key_only_means(call, i, partials.get() + work.partial * i, buffer);
  });
  if (failed) return failed;
  failed = each_task({work.panels, work.scratch, 0}, call.threads, [&](int i, void* buffer) {
    k.key_only_matrix(call, i, partials.get(), images.get(), buffer);
  });
  if (failed) return failed;
  return each_task({work.blocks, work.scratch, 0}, call.threads, [&](int i, void* buffer) {
    k.key_only_tokens(call, i, images.get(), buffer);
  });
}

int run_forward(const Convolution& call) {
  const ProductKernels& k = products_for(call.half);
  return forward(call, k.convolution_work(call), k.convolution_forward);
}
int run_forward(const Windows& call) {
  const ProductKernels& k = products_for(call.half);
  return forward(call, k.windows_work(call), k.windows_forward);
}

int run_forward(const Moments& call) {
  const Kernels& k = kernels();
  return forward(call, k.moments_work(call, false), k.moments_forward);
}
int run_backward(const Moments& call) {
  const Kernels& k = kernels();
  return forward(call, k.moments_work(call, true), k.moments_backward);
}

int run_forward(const Branches& call) {
  kernels().branches_forward(call);
  return DONE;
}
int run_backward(const Branches& call) {
  kernels().branches_backward(call);
  return DONE;
}

}  // namespace
}  // namespace saccade

using namespace saccade;

// Of every structure its size and how many fields it has, of every field where it begins and its
// size, as this compiler sees them: Python compares them with its own. The list of the fields comes
// from the build, which reads them from call.h.
EXPORT const int64_t* saccade_layout(int64_t* count) {
#define STRUCTURE(name, fields) sizeof(name), fields,
#define FIELD(name, field) offsetof(name, field), sizeof(name::field),
  static const int64_t layout[] = {SACCADE_LAYOUT};
  *count = sizeof(layout) / sizeof(*layout);
  return layout;
}

EXPORT const char* saccade_instruction_set() { return kernels().name; }

// Whether `linear` is faster than the library of products that torch brings, MKL: wherever that
// computes with no wider vectors.
EXPORT int saccade_linear_pays() {
#ifdef SACCADE_X86
  const Kernels& k = kernels();
  return &k == &avx2::table || (&k != &generic::table && !machine().intel);
#else
  return 0;
#endif
}

// Forces an instruction set ("" for the best one). 0 if the machine has it.
EXPORT int saccade_use(const char* name) {
  const Kernels* known[] = {
      &generic::table,
#ifdef SACCADE_X86
      &avx2::table,
      &avx512::table,
#endif
#ifdef SACCADE_ARM
      &neon::table,
#endif
#if defined(SACCADE_AVX512BF16) || defined(SACCADE_NEONBF16)
      with_bf16(),
#endif
  };
  const Kernels* top = best();
  for (const Kernels* k : known) {
    if (!*name || !strcmp(k->name, name)) {
      chosen = *name ? k : top;
      return 0;
    }
    if (k == top) break;
  }
  return 1;
}

// A number that tells contents apart; see checksum.h.
EXPORT uint64_t saccade_checksum(const void* const* parts, const int64_t* bytes, int32_t count) {
  uint64_t total = 0;
  for (int32_t i = 0; i < count; i++)
    total = kernels().checksum(static_cast<const uint32_t*>(parts[i]), bytes[i] / 4, total);
  return total;
}

// Matrices of a call laid out beforehand, to be handed to many: the bytes they take, and into `to`.
EXPORT int64_t saccade_feed_packed(const Feed* call, size_t bytes) {
  if (bytes != sizeof(Feed) || call->packed) return 0;
  Feed whole = *call;
  whole.packed = reinterpret_cast<const float*>(call);  // anything: all chunks, not one by one
  return products_for(call->half).feed_work(whole, false).packed;
}
EXPORT void saccade_feed_pack(const Feed* call, void* to) {
  const ProductKernels& k = products_for(call->half);
  const Feed whole = *call;
  for (int i = 0; i < k.feed_chunks(whole); i++) k.feed_pack(whole, false, i, to);
}
EXPORT int64_t saccade_linear_packed(const Linear* call, size_t bytes) {
  return bytes == sizeof(Linear) ? products_for(call->half).linear_work(*call, false).partial : 0;
}
EXPORT void saccade_linear_pack(const Linear* call, void* to) {
  products_for(call->half).linear_pack(*call, 0, to);
}
EXPORT int64_t saccade_key_only_packed(const KeyOnly* call, size_t bytes) {
  return bytes == sizeof(KeyOnly) ? products_for(call->half).key_only_work(*call).packed : 0;
}
EXPORT void saccade_key_only_pack(const KeyOnly* call, void* to) {
  for (int i = 0; i < 3; i++) products_for(call->half).key_only_pack(*call, i, to);
}

// Forward and backward of each operator: the call, and the bytes that the caller believes it has.
// They return a Result.
#define BORDER(Call, name)                                                  \
  EXPORT int saccade_##name##_forward(const Call* call, size_t bytes) {     \
    if (bytes != sizeof(Call)) return OTHER_SIZE;                           \
    return takes(*call, false) ? run_forward(*call) : OUT_OF_LIMITS;        \
  }                                                                         \
  EXPORT int saccade_##name##_backward(const Call* call, size_t bytes) {    \
    if (bytes != sizeof(Call)) return OTHER_SIZE;                           \
    return takes(*call, true) ? run_backward(*call) : OUT_OF_LIMITS;        \
  }

// Those that serve inference alone have no backward.
#define INFERENCE(Call, name)                                             \
  EXPORT int saccade_##name##_forward(const Call* call, size_t bytes) {   \
    if (bytes != sizeof(Call)) return OTHER_SIZE;                         \
    return takes(*call) ? run_forward(*call) : OUT_OF_LIMITS;             \
  }

INFERENCE(LayerNorm, layer_norm)
INFERENCE(KeyOnly, key_only)
INFERENCE(Convolution, convolution)
INFERENCE(Windows, windows)

BORDER(Sasa, sasa)
BORDER(Qna, qna)
BORDER(Summary, summary)
BORDER(Linear, linear)
BORDER(Feed, feed)
BORDER(Moments, moments)
BORDER(Branches, branches)
BORDER(Block, block)

// A row of calls of the functions above, one after the other; ends with the first that fails.
struct Step {
  int (*run)(const void* call, size_t bytes);
  const void* call;
  size_t bytes;
};
EXPORT int saccade_walk(const Step* steps, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (const int result = steps[i].run(steps[i].call, steps[i].bytes)) return result;
  return DONE;
}
