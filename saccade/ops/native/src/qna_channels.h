// QnA's aggregation by windowed sums with constant weights.
//
//     out(l) = sum over ab of  e^bias(ab) weight(ab) (e^s v)(ab)  /  den,
//     den    = sum over ab of  e^bias(ab) (e^s)(ab)
//
// and backward, with g' = g / den and u' = g' . out(l), as sums over the same windows turned round:
//
//     dv = e^s D,    ds = e^s (v . D - sum of e^bias u'),    D = sum of e^bias weight g'
//     dweight(ab) = e^bias sum over pixels of g' . (e^s v)(ab)
//     dbias(ab)   = weight dweight - e^bias sum over pixels of u' (e^s)(ab)
//
// Nothing exists per pixel and offset: a softmax's weights never do. Where heads are as wide as
// vectors, lanes are channels: values are read and written as they lie in memory, and e^s and den
// are one number for many lanes. But the work on values grows with the number of queries (see
// `by_channels`).
//
// Bands of rows share inputs, whose work is done twice, so there are no more of them than threads
// ask for. No bit depends on how many: m is that of the whole image, and the sums over pixels are
// those of SHARE rows at a time, wherever a band begins.
#pragma once
#include <numeric>

#include "qna_channels_back.h"

namespace saccade {
namespace SACCADE_ISA {

constexpr int SHARE = 16;        // output rows

// Heads that fill cells to the last lane.
template <class S>
int filling_heads(const Qna& c) {
  return CELL<S> / std::gcd(CELL<S>, c.d);
}

// What a task of so many heads needs all the time, in elements; and at most.
struct Room {
  size_t often, all;
};
template <class S>
Room channels_room(const Qna& c, int heads, bool backward) {
  Carver<S> from{nullptr, 0, 0};
  if (backward) {
    const size_t often = QnaChannelsBack<S>(c, heads).carve(from);
    return {often, from.used};
  }
  QnaChannels<S>(c, heads).carve(from);
  return {from.used, from.used};
}

template <class S>
QnaPlan qna_channels_plan(const Qna& c, bool backward) {
  QnaPlan plan;
  const int least = max(fewest_heads<S>(c), filling_heads<S>(c));
  const auto size = [&] {
    const Room room = channels_room<S>(c, plan.group, backward);
    plan.scratch = room.all;
    return room.often * sizeof(S);
  };
  plan.group = c.heads;
  while (size() > BUDGET && plan.group > least)
    plan.group = round_up((plan.group + 1) / 2, filling_heads<S>(c));
  plan.groups = (c.heads + plan.group - 1) / plan.group;
  plan.strips = 1, plan.strip = c.Wo, plan.pitch = 0;
  const int each = c.B * plan.groups, wanted = c.threads > 1 ? 2 * c.threads : 1;
  const int most = (c.Ho + SHARE - 1) / SHARE;
  plan.bands = max(1, min(most, (wanted + each - 1) / max(1, each)));
  plan.band = round_up((c.Ho + plan.bands - 1) / plan.bands, SHARE);
  plan.bands = (c.Ho + plan.band - 1) / plan.band;
  plan.shares = plan.band / SHARE;
  plan.tasks = c.B * plan.groups * plan.bands;
  return plan;
}

// Windows that the forward knows as constants.
INLINE bool has_common_window(const Qna& c) {
  return c.window >= 3 && c.window <= 7 && c.stride <= 2;
}

// Whether this way can go, and costs less than a softmax: the more queries, the less it does, but
// wide cells make up for a third one backward. Of a window of one pixel the bias has no gradient,
// exactly so by a softmax only.
template <class S>
bool by_channels(const Qna& c, bool backward) {
  const bool common = has_common_window(c) && c.type == FLOAT32;
  const int most = !common ? 2 : backward ? QnaChannelsBack<S>::MOST_QUERIES : 4;
  if (c.window == 1 || c.stride > c.window) return false;
  if (c.d % LANES<S> || c.queries > most) return false;
  if (c.v.channel != 1 || (backward ? c.gout : c.out).channel != 1) return false;
  if (backward && c.dv.channel != 1) return false;
  const int least = min(fewest_heads<S>(c), c.heads);
  return channels_room<S>(c, least, backward).often * sizeof(S) <= 2 * BUDGET;
}

template <class E, class S, int K, int STRIDE>
void qna_channels_forward(const Qna& c, const QnaPlan& plan, int task, S* scratch) {
  const QnaPart part(c, plan, task);
  QnaChannels<S, K, STRIDE> tile(c, part.heads);
  Carver<S> from{scratch, 0, 0};
  tile.carve(from);
  tile.template prepare<E>(part);
  int next = max(0, tile.top(part.y0));
  for (int y = part.y0; y < part.y1; y++) {
    for (; next < min(c.H, tile.top(y) + c.window); next++) tile.template enter<E>(part, next);
    tile.look(y);
    tile.template forward<E>(part, y);
  }
}

// `partial` receives this task's shares of dbias and dweight: each 2 x queries * heads x window^2,
// of which it fills the channels of its heads.
template <class E, class S, int K, int STRIDE>
void qna_channels_backward(const Qna& c, const QnaPlan& plan, int task, S* scratch, S* partial) {
  const QnaPart part(c, plan, task);
  QnaChannelsBack<S, K, STRIDE> tile(c, part.heads);
  Carver<S> from{scratch, 0, 0};
  tile.carve(from);
  const int first = max(0, part.y0 - tile.reach);  // rows before share the inputs
  tile.template prepare<E>(part);
  tile.prepare_backward();
  const size_t share = size_t(2) * c.queries * c.heads * c.window * c.window;
  zero(partial, plan.shares * share);
  int next = max(0, tile.top(first)), done = part.r0;
  const auto enter_to = [&](int end) {
    for (; next < end; next++) tile.template enter<E>(part, next);
  };
  const auto leave_to = [&](int end) {
    for (; done < end; done++) {
      enter_to(done + 1);
      tile.look_back(done);
      tile.template backward_inputs<E>(part, done);
    }
  };
  for (int y = first; y < part.y1; y++) {
    enter_to(min(c.H, tile.top(y) + c.window));
    const bool own = y >= part.y0;
    tile.look(y);
    tile.alone.partial = partial + (own ? (y - part.y0) / SHARE * share : 0);
    tile.template backward_outputs<E>(part, y, own);
    if (own && (y % tile.FLUSH == tile.FLUSH - 1 || y == part.y1 - 1)) tile.flush(part);
    leave_to(min(part.r1, tile.top(y + 1)));
  }
  leave_to(part.r1);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
