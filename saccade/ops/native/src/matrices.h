// Matrices that several threads read, while one may replace them.
#pragma once
#include <atomic>
#include <new>
#include <utility>

#include "system.h"

namespace saccade {

// Copies share one piece of memory; who lets go of it last frees it. (std::shared_ptr asks glibc 2.32
// whether there are threads at all.)
class Matrices {
 public:
  Matrices() = default;
  explicit Matrices(size_t bytes) {
    void* memory = allocate(64, ROOM + bytes);
    if (memory) owners_ = new (memory) std::atomic<int>(1);
  }
  Matrices(const Matrices& other) : owners_(other.owners_) {
    if (owners_) owners_->fetch_add(1, std::memory_order_relaxed);
  }
  Matrices& operator=(Matrices other) {
    std::swap(owners_, other.owners_);
    return *this;
  }
  ~Matrices() {
    if (owners_ && owners_->fetch_sub(1, std::memory_order_acq_rel) == 1) release(owners_);
  }
  explicit operator bool() const { return owners_; }
  float* data() const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(owners_) + ROOM);
  }

 private:
  static constexpr size_t ROOM = 64;  // of the count, before the matrices
  std::atomic<int>* owners_ = nullptr;
};

}  // namespace saccade
