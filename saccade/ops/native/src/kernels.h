// The kernels of one instruction set, as seen by entry.cpp.
#pragma once
#include <cstddef>

#include "call.h"

namespace saccade {

// A call is cut into tasks that may run in any order on any thread. `scratch` is in bytes, for one
// task; each task of a backward also writes `partial` bytes of gradient of the small parameters.
struct Work {
  int tasks;
  size_t scratch, partial;
};

// A feed-forward: matrices are packed by tasks of their own; its backward goes in turns of two parts,
// each with tasks, the second when the first is done.
struct FeedWork {
  int matrices, turns, tasks, blocks;
  size_t scratch, packed, dh;  // bytes
};

// Three rounds, each when the one before it is done; matrices were packed beforehand.
struct KeyOnlyWork {
  int matrices, means, panels, blocks;
  size_t scratch, packed, partial, image;  // bytes: of a task, of all matrices, of a chunk, of an image
};

struct SasaKernels {
  Work (*work)(const Sasa&, bool backward);
  void (*forward)(const Sasa&, int task, void* scratch);
  void (*backward)(const Sasa&, int task, void* scratch, void* partial);
  void (*reduce)(const Sasa&, const void* partials);
};

// What serves inference by products, for matrices as each set lays them out.
struct ProductKernels {
  Work (*linear_work)(const Linear&, bool backward);  // `partial`: of one matrix, packed
  void (*linear_pack)(const Linear&, int batch, void* packed);
  void (*linear_forward)(const Linear&, int task, const void* packed);
  FeedWork (*feed_work)(const Feed&, bool backward);
  int (*feed_chunks)(const Feed&);  // forward
  void (*feed_pack)(const Feed&, bool backward, int task, void* packed);
  void (*feed_forward)(const Feed&, int task, void* packed, void* scratch);
  KeyOnlyWork (*key_only_work)(const KeyOnly&);
  void (*key_only_pack)(const KeyOnly&, int task, void* packed);
  void (*key_only_means)(const KeyOnly&, int task, void* partial, void* scratch);
  void (*key_only_matrix)(const KeyOnly&, int task, const void* partials, void* images, void* scratch);
  void (*key_only_tokens)(const KeyOnly&, int task, const void* images, void* scratch);
  Work (*convolution_work)(const Convolution&);
  void (*convolution_forward)(const Convolution&, int task, void* scratch);
  Work (*windows_work)(const Windows&);
  void (*windows_forward)(const Windows&, int task, void* scratch);
};

struct Kernels {
  const char* name;
  SasaKernels sasa, sasa_half;  // the second for bfloat16
  ProductKernels products, half_products;  // the second with products of bfloat16, if there are such
  Work (*qna_work)(const Qna&, bool backward);
  void (*qna_forward)(const Qna&, int task, void* scratch);
  void (*qna_backward)(const Qna&, int task, void* scratch, void* partial);
  void (*qna_reduce)(const Qna&, const void* partials);
  Work (*summary_work)(const Summary&);
  void (*summary_forward)(const Summary&, int task, void* scratch, void* partial);
  void (*summary_join)(const Summary&, const void* partials);
  void (*summary_backward)(const Summary&, int task, void* scratch, void* partial);
  void (*summary_sum)(const Summary&, const void* partials);
  Work (*block_work)(const Block&, bool backward);
  void (*block_forward)(const Block&, int task, void* scratch);
  void (*block_backward)(const Block&, int task, void* scratch, void* partial);
  void (*block_reduce)(const Block&, const void* partials);
  void (*linear_backward)(const Linear&, int task, void* scratch);
  void (*feed_backward)(const Feed&, int turn, int task, const void* packed, void* dh,
                        void* scratch);
  void (*feed_inputs)(const Feed&, int turn, int task, const void* packed, const void* dh);
  uint64_t (*checksum)(const uint32_t* words, int64_t count, uint64_t total);
  void (*norm_rows)(const float* x, int rows, int C, const float* scale, const float* offset, float eps,
                    float* to);
  Work (*moments_work)(const Moments&, bool backward);
  void (*moments_forward)(const Moments&, int task, void* scratch);
  void (*moments_backward)(const Moments&, int task, void* scratch);
  void (*branches_forward)(const Branches&);
  void (*branches_backward)(const Branches&);
};

#define SACCADE_DECLARE(isa) \
  namespace isa {            \
  extern const Kernels table; \
  }

SACCADE_DECLARE(generic)
SACCADE_DECLARE(avx2)
SACCADE_DECLARE(avx512)
SACCADE_DECLARE(neon)

namespace avx512bf16 {  // avx512's kernels, but for these
extern const SasaKernels sasa_half;
extern const ProductKernels products;
}
namespace neonbf16 {  // neon's
extern const SasaKernels sasa_half;
}

}  // namespace saccade
