// All kernels for the instruction set named by SACCADE_ISA; built once for each.
#include "kernels.h"

#include <algorithm>

#include "branches.h"
#include "checksum.h"
#include "linglo.h"
#include "product_tasks.h"
#include "qna.h"
#include "qna_channels.h"
#include "sasa.h"
#include "sasa_block.h"

namespace saccade {
namespace SACCADE_ISA {
namespace {

// f(E, S): the stored and the accumulating type. Double precision is for proofs, not for speed: it
// exists in the generic set only (entry.cpp sees to that), which spares the others half their size.
template <class F>
INLINE auto typed(int32_t type, F&& f) {
#ifdef SACCADE_DOUBLE
  if (type == FLOAT64) return f(double{}, double{});
#endif
  return type == BFLOAT16 ? f(bfloat16{}, float{}) : f(float{}, float{});
}

#if defined(SACCADE_DOUBLE) && (defined(__x86_64__) || defined(__aarch64__))
constexpr bool SPARE = true;  // the generic set where it is a last resort: not worth its build
#else
constexpr bool SPARE = false;
#endif

// f(Int<window>) for what occurs most, f(Int<0>) for the rest.
template <class E, class F>
INLINE void usual(const Sasa& c, F&& f) {
  if constexpr (!SPARE && std::is_same<E, float>::value)
    known_window(c.window, f);
  else
    f(Int<0>{});
}

// f(E, Vector or Widest of S): the widest vectors, but where half of one would lie beyond the map.
template <class F>
INLINE auto in_vectors(const Sasa& c, F&& f) {
  return typed(c.type, [&](auto e, auto s) {
    using S = decltype(s);
    if constexpr (LANES_OF<Widest<S>> > LANES<S>)
      if (c.W > LANES<S>) return f(e, Widest<S>{});
    return f(e, Vector<S>{});
  });
}

Work sasa_work(const Sasa& c, bool backward) {
  return in_vectors(c, [&](auto, auto t) {
    using Tile = SasaTile<decltype(t)>;
    const SasaPlan plan = sasa_plan<Tile>(c, backward);
    const size_t size = sizeof(typename Tile::Element);
    return Work{plan.tasks, plan.scratch * size, sasa_partial<Tile>(c, backward)};
  });
}

void sasa_forward_task(const Sasa& c, int task, void* scratch) {
  in_vectors(c, [&](auto e, auto t) {
    using T = decltype(t);
    const SasaPlan plan = sasa_plan<SasaTile<T>>(c, false);
    usual<decltype(e)>(c, [&](auto k) {
      sasa_forward<decltype(e), T, decltype(k)::value>(c, plan, task,
                                                       static_cast<typename T::Number*>(scratch));
    });
  });
}

void sasa_backward_task(const Sasa& c, int task, void* scratch, void* partial) {
  in_vectors(c, [&](auto e, auto t) {
    using T = decltype(t);
    using S = typename T::Number;
    const SasaPlan plan = sasa_plan<SasaTile<T>>(c, true);
    usual<decltype(e)>(c, [&](auto k) {
      sasa_backward<decltype(e), T, decltype(k)::value>(c, plan, task, static_cast<S*>(scratch),
                                                        static_cast<S*>(partial));
    });
  });
}

void sasa_reduce_all(const Sasa& c, const void* partials) {
  in_vectors(c, [&](auto, auto t) { sasa_reduce<SasaTile<decltype(t)>>(c, partials); });
}

template <class S>
QnaPlan plan_of(const Qna& c, bool backward) {
  return by_channels<S>(c, backward) ? qna_channels_plan<S>(c, backward)
                                    : qna_plan<S>(c, backward);
}

Work qna_work(const Qna& c, bool backward) {
  return typed(c.type, [&](auto, auto s) {
    using S = decltype(s);
    const QnaPlan plan = plan_of<S>(c, backward);
    const size_t parameters = size_t(2) * c.window * c.window * c.queries * c.heads;
    const size_t partial = plan.shares * parameters * sizeof(S);
    return Work{plan.tasks, plan.scratch * sizeof(S), backward ? partial : 0};
  });
}

// f(Int<window>, Int<stride>) for what occurs most, f(Int<0>, Int<0>) for the rest.
template <class E, class F>
INLINE void usual(const Qna& c, F&& f) {
  if constexpr (!SPARE && std::is_same<E, float>::value) {
    if (c.stride == 1 && c.window == 3) return f(Int<3>{}, Int<1>{});
    if (c.stride == 1 && c.window == 7) return f(Int<7>{}, Int<1>{});
    if (c.stride == 1) return f(Int<0>{}, Int<1>{});
    if (c.stride == 2 && c.window == 3) return f(Int<3>{}, Int<2>{});
  }
  f(Int<0>{}, Int<0>{});
}

// The same forward, by channels: a small build for each window and stride that papers use.
template <class E, class F>
INLINE void common(const Qna& c, F&& f) {
  if constexpr (!SPARE && std::is_same<E, float>::value)
    if (has_common_window(c))
      return pick<2>(c.stride, [&](auto stride) {
        pick<5>(c.window - 2, [&](auto k) { f(Int<decltype(k)::value + 2>{}, stride); });
      });
  f(Int<0>{}, Int<0>{});
}

void qna_forward_task(const Qna& c, int task, void* scratch) {
  typed(c.type, [&](auto e, auto s) {
    using S = decltype(s);
    using E = decltype(e);
    S* room = static_cast<S*>(scratch);
    const QnaPlan plan = plan_of<S>(c, false);
    if (by_channels<S>(c, false))
      return common<E>(c, [&](auto k, auto stride) {
        qna_channels_forward<E, S, decltype(k)::value, decltype(stride)::value>(c, plan, task, room);
      });
    usual<E>(c, [&](auto k, auto stride) {
      constexpr bool OWN = decltype(k)::value > 0 && decltype(stride)::value == 1;
      qna_forward<E, S, OWN ? decltype(k)::value : 0, OWN ? 1 : 0>(c, plan, task, room);
    });
  });
}

void qna_backward_task(const Qna& c, int task, void* scratch, void* partial) {
  typed(c.type, [&](auto e, auto s) {
    using S = decltype(s);
    using E = decltype(e);
    S *room = static_cast<S*>(scratch), *sums = static_cast<S*>(partial);
    const QnaPlan plan = plan_of<S>(c, true);
    usual<E>(c, [&](auto k, auto stride) {
      constexpr int K = decltype(k)::value, STRIDE = decltype(stride)::value;
      constexpr bool OWN = K > 0 && STRIDE == 1;  // others are not worth a build of their own
      if (by_channels<S>(c, true))
        qna_channels_backward<E, S, K, STRIDE>(c, plan, task, room, sums);
      else
        qna_backward<E, S, OWN ? K : 0, OWN ? STRIDE : 0>(c, plan, task, room, sums);
    });
  });
}

void qna_reduce(const Qna& c, const void* partials) {
  typed(c.type, [&](auto, auto s) {
    using S = decltype(s);
    const QnaPlan plan = plan_of<S>(c, true);
    const int shares = plan.tasks * plan.shares, size = c.window * c.window * c.queries * c.heads;
    for (int j = 0; j < 2 * size; j++) {
      double sum = 0;
      for (int share = 0; share < shares; share++)
        sum += static_cast<const S*>(partials)[size_t(share) * 2 * size + j];
      S* to = static_cast<S*>(j < size ? c.dbias : c.dweight);
      if (to) to[j % size] = S(sum);
    }
  });
}

Work summary_work(const Summary& c) {
  return {c.B * SummaryPart::chunks(c), 64, SummaryPart::size(c) * sizeof(float)};
}
void summary_forward_task(const Summary& c, int task, void*, void* partial) {
  summary_forward(c, task, static_cast<float*>(partial));
}
void summary_join_all(const Summary& c, const void* partials) {
  summary_join(c, static_cast<const float*>(partials));
}
void summary_backward_task(const Summary& c, int task, void*, void* partial) {
  summary_backward(c, task, static_cast<float*>(partial));
}
void summary_sum_all(const Summary& c, const void* partials) {
  summary_sum(c, static_cast<const float*>(partials));
}

Work block_work(const Block& c, bool backward) {
  const size_t partial = backward ? BlockSums(c).size * sizeof(float) : 0;
  return {c.B * BlockPart::parts(c), BlockTile::room(c, backward) * sizeof(float), partial};
}
void block_forward_task(const Block& c, int task, void* scratch) {
  block_forward(c, task, static_cast<float*>(scratch));
}
void block_backward_task(const Block& c, int task, void* scratch, void* partial) {
  block_backward(c, task, static_cast<float*>(scratch), static_cast<float*>(partial));
}
void block_reduce_all(const Block& c, const void* partials) {
  block_reduce(c, static_cast<const float*>(partials));
}

void linear_backward_task(const Linear& c, int task, void* scratch) {
  linear_backward(c, task, static_cast<float*>(scratch));
}

void feed_backward_task(const Feed& c, int turn, int task, const void* packed, void* dh,
                        void* scratch) {
  (c.tanh ? feed_backward<true> : feed_backward<false>)(
      c, turn, task, static_cast<const float*>(packed), static_cast<float*>(dh),
      static_cast<float*>(scratch));
}
void feed_inputs_task(const Feed& c, int turn, int task, const void* packed, const void* dh) {
  feed_inputs(c, turn, task, static_cast<const float*>(packed), static_cast<const float*>(dh));
}

Work moments_work(const Moments& c, bool backward) {
  const MomentPlan plan(c);
  return {backward ? c.B * plan.bands : plan.chunks, plan.room(c) * sizeof(float), 0};
}
void moments_forward_task(const Moments& c, int task, void* scratch) {
  moments_forward(c, task, static_cast<float*>(scratch));
}
void moments_backward_task(const Moments& c, int task, void* scratch) {
  moments_backward(c, task, static_cast<float*>(scratch));
}

}  // namespace

#define SASA {sasa_work, sasa_forward_task, sasa_backward_task, sasa_reduce_all}

extern const Kernels table = {
#define NAME(isa) #isa
#define NAME_OF(isa) NAME(isa)
    NAME_OF(SACCADE_ISA),
    SASA, SASA, all_products, all_products,
    qna_work,  qna_forward_task,  qna_backward_task,  qna_reduce,
    summary_work, summary_forward_task, summary_join_all, summary_backward_task, summary_sum_all,
    block_work, block_forward_task, block_backward_task, block_reduce_all,
    linear_backward_task, feed_backward_task, feed_inputs_task,
    checksum, norm_rows,
    moments_work, moments_forward_task, moments_backward_task,
    branches_forward, branches_backward,
};

}  // namespace SACCADE_ISA
}  // namespace saccade
