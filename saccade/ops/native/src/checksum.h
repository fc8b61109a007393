// A number that tells contents of memory apart, at the speed of memory.
//
// Words are summed in several chains, and those sums are summed: the order counts, and one change in
// one word always shows. It is against accidents, not against somebody who seeks two equal ones.
#pragma once
#include <cstring>

#include "vec.h"

namespace saccade {
namespace SACCADE_ISA {

inline uint64_t checksum(const uint32_t* words, int64_t count, uint64_t total) {
  typedef uint64_t Sums __attribute__((vector_size(WIDEST), aligned(8)));
  constexpr int CHAINS = 4, STEP = CHAINS * WIDEST / 4;
  Sums once[CHAINS] = {}, twice[CHAINS] = {};
  int64_t w = 0;
  for (; w + STEP <= count; w += STEP)
    for (int j = 0; j < CHAINS; j++) {
      Sums next;
      memcpy(&next, words + w + j * (WIDEST / 4), sizeof(next));
      once[j] += next;
      twice[j] += once[j];
    }
  constexpr uint64_t A = 0x9e3779b97f4a7c15u, B = 0xc2b2ae3d27d4eb4fu;
  for (int j = 0; j < CHAINS; j++)
    for (int l = 0; l < WIDEST / 8; l++) total = (total * A + once[j][l]) * B + twice[j][l];
  for (; w < count; w++) total = (total + words[w]) * A;
  return total * B + uint64_t(count);
}

}  // namespace SACCADE_ISA
}  // namespace saccade
