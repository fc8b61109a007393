// Local attention and products in bfloat16 for processors with a dot product of it; all else they
// share with the instruction set below.
#ifdef __AVX512BF16__  // ARM multiplies matrices in fp32
#define SACCADE_PAIRS
#endif
#include "kernels.h"

#ifdef SACCADE_PAIRS
#include "product_tasks.h"
#endif
#include "sasa_half.h"

namespace saccade {
namespace SACCADE_ISA {
namespace {

Work work(const Sasa& c, bool backward) {
  const SasaPlan plan = sasa_plan<SasaHalfTile<>>(c, backward);
  return {plan.tasks, plan.scratch * sizeof(float), sasa_partial<SasaHalfTile<>>(c, backward)};
}
void forward(const Sasa& c, int task, void* scratch) {
  known_window(c.window, [&](auto k) {
    const SasaPlan plan = sasa_plan<SasaHalfTile<>>(c, false);
    sasa_half_forward<decltype(k)::value>(c, plan, task, static_cast<float*>(scratch));
  });
}
void backward(const Sasa& c, int task, void* scratch, void* partial) {
  known_window(c.window, [&](auto k) {
    const SasaPlan plan = sasa_plan<SasaHalfTile<>>(c, true);
    sasa_half_backward<decltype(k)::value>(c, plan, task, static_cast<float*>(scratch),
                                           static_cast<float*>(partial));
  });
}

}  // namespace

extern const SasaKernels sasa_half = {work, forward, backward, sasa_reduce<SasaHalfTile<>>};
#ifdef SACCADE_PAIRS
extern const ProductKernels products = all_products;
#endif

}  // namespace SACCADE_ISA
}  // namespace saccade
