// SASA's stem: attention inside blocks of 4 x 4 pixels, projections and all (see sasa_block_tile.h).
//
// A task is a few rows of blocks of one image. Nothing but the image and the result is a map: what
// lies between them exists for one head of one block.
#pragma once
#include "sasa_block_tile.h"

namespace saccade {
namespace SACCADE_ISA {

struct BlockPart {
  static constexpr int ROWS = 2;  // of blocks
  int b, y0, y1;
  static int down(const Block& c) { return (c.H + SIDE - 1) / SIDE; }
  static int along(const Block& c) { return (c.W + SIDE - 1) / SIDE; }
  static int parts(const Block& c) { return (down(c) + ROWS - 1) / ROWS; }
  BlockPart(const Block& c, int task)
      : b(task / parts(c)), y0(task % parts(c) * ROWS), y1(min(down(c), y0 + ROWS)) {}
};

inline void block_forward(const Block& c, int task, float* scratch) {
  const BlockPart part(c, task);
  BlockTile tile(c, scratch, false);
  const int along = BlockPart::along(c);
  const auto each = [&](auto&& first, auto&& second) INLINED {
    for (int y = part.y0; y < part.y1; y++)
      for (int x = 0; x < along; x++) {
        tile.enter(part.b, y, x);
        for (int h = 0; h < c.heads; h++) first(h);
        for (int h = 0; h < c.heads; h++) second(h);
      }
  };
  if (!tile.has_few_channels())
    each([&](int h) { tile.weigh(h), tile.gather(h); }, [](int) {});
  else if (c.inputs == 3)
    each([&](int h) { tile.weigh_image<3>(h); }, [&](int h) { tile.gather_image<3>(h); });
  else
    each([&](int h) { tile.weigh_image<0>(h); }, [&](int h) { tile.gather_image<0>(h); });
}

// `partial` receives this task's share of the parameters' gradients, in the order of BlockSums.
inline void block_backward(const Block& c, int task, float* scratch, float* partial) {
  const BlockPart part(c, task);
  BlockTile tile(c, scratch, true);
  const int along = BlockPart::along(c);
  for (int y = part.y0; y < part.y1; y++)
    for (int x = 0; x < along; x++) {
      tile.enter(part.b, y, x);
      for (int h = 0; h < c.heads; h++) {
        tile.weigh(h);
        tile.back(h);
      }
      tile.leave();
    }
  tile.flush(partial);
}

inline void block_reduce(const Block& c, const float* partials) {
  const BlockSums sums(c);
  const int tasks = c.B * BlockPart::parts(c);
  const auto all = [&](float* to, size_t from, size_t n) {
    for (size_t j = 0; to && j < n; j++) {
      double sum = 0;
      for (int t = 0; t < tasks; t++) sum += partials[t * sums.size + from + j];
      to[j] = float(sum);
    }
  };
  all(c.dwq, sums.q, sums.k - sums.q);
  all(c.dwk, sums.k, sums.v - sums.k);
  all(c.dwv, sums.v, sums.row - sums.v);
  all(c.drow, sums.row, sums.col - sums.row);
  all(c.dcol, sums.col, sums.size - sums.col);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
