// Kernels that multiply matrices which were laid out beforehand, as entry.cpp calls them.
#pragma once
#include <algorithm>

#include "convolution.h"
#include "feed.h"
#include "kernels.h"
#include "key_only.h"
#include "linear.h"
#include "windows.h"

namespace saccade {
namespace SACCADE_ISA {
namespace {

Work linear_work(const Linear& c, bool backward) {
  const LinearPlan plan(c);
  if (backward) return {c.batches * plan.splits, ROOM * sizeof(float), 0};
  return {c.batches * plan.blocks, 64, packed_size(c) * sizeof(float)};
}
void linear_pack_one(const Linear& c, int batch, void* packed) {
  linear_pack(c, batch, static_cast<float*>(packed));
}
void linear_forward_task(const Linear& c, int task, const void* packed) {
  linear_forward(c, task, static_cast<const float*>(packed));
}

FeedWork feed_work(const Feed& c, bool backward) {
  const FeedPlan plan(c, backward);
  const size_t packed = feed_packed(c, backward) * sizeof(float);
  if (!backward)
    return {plan.once(c) || c.packed ? 0 : plan.chunks, 1, c.B * plan.bands, 0,
            plan.forward_room(c) * sizeof(float), packed, 0};
  const size_t room = plan.backward_room(c) * sizeof(float);
  if (!c.w1) return {plan.chunks, plan.turns, plan.chunks, 0, room, packed, 0};
  const ptrdiff_t most = FeedTurn(c, plan, 0).pixels(c);  // of pixels in a turn
  return {plan.chunks + 1, plan.turns, plan.chunks,
          int((most + LinearPlan::ROWS - 1) / LinearPlan::ROWS), room, packed,
          most * c.hidden * sizeof(float)};
}
int feed_chunks(const Feed& c) { return FeedPlan(c, false).chunks; }
void feed_pack_one(const Feed& c, bool backward, int task, void* packed) {
  feed_pack(c, backward, task, static_cast<float*>(packed));
}
void feed_forward_task(const Feed& c, int task, void* packed, void* scratch) {
  (c.tanh ? feed_forward<true> : feed_forward<false>)(c, task, static_cast<float*>(packed),
                                                      static_cast<float*>(scratch));
}

KeyOnlyWork key_only_work(const KeyOnly& c) {
  const KeyOnlyPlan plan(c);
  const size_t most = std::max({plan.means_room(c), plan.matrix_room(c), plan.tokens_room(c)});
  const size_t size = sizeof(float);
  return {3, c.B * plan.chunks, c.B * (c.collapsed ? plan.panels_each : 1),
          c.B * plan.blocks, most * size, plan.packed() * size,
          SummaryPart::size(plan.tokens) * size, plan.image(c) * size};
}
void key_only_pack_one(const KeyOnly& c, int task, void* packed) {
  key_only_pack(c, task, static_cast<float*>(packed));
}
void key_only_means_task(const KeyOnly& c, int task, void* partial, void* scratch) {
  key_only_means(c, task, static_cast<float*>(partial), static_cast<float*>(scratch));
}
void key_only_matrix_task(const KeyOnly& c, int task, const void* partials, void* images,
                          void* scratch) {
  key_only_matrix(c, task, static_cast<const float*>(partials), static_cast<float*>(images),
                  static_cast<float*>(scratch));
}
void key_only_tokens_task(const KeyOnly& c, int task, const void* images, void* scratch) {
  key_only_tokens(c, task, static_cast<const float*>(images), static_cast<float*>(scratch));
}


Work convolution_work(const Convolution& c) {
  const ConvolutionPlan plan(c);
  return {c.B * plan.blocks, plan.room() * sizeof(float), 0};
}
void convolution_task(const Convolution& c, int task, void* scratch) {
  convolution_forward(c, task, static_cast<float*>(scratch));
}
Work windows_work(const Windows& c) {
  const WindowsPlan plan(c);
  return {plan.tasks(c), plan.room() * sizeof(float), 0};
}
void windows_task(const Windows& c, int task, void* scratch) {
  windows_forward(c, task, static_cast<float*>(scratch));
}

constexpr ProductKernels all_products = {
    linear_work,   linear_pack_one,   linear_forward_task,  feed_work,
    feed_chunks,   feed_pack_one,     feed_forward_task,    key_only_work,
    key_only_pack_one, key_only_means_task, key_only_matrix_task, key_only_tokens_task,
    convolution_work, convolution_task, windows_work, windows_task,
};

}  // namespace
}  // namespace SACCADE_ISA
}  // namespace saccade
