// Threads of whoever calls the kernels, where they should run on those: ONNX Runtime has a pool of
// its own for each session.
#pragma once

namespace saccade {

struct Pool {
  virtual ~Pool() = default;
  // Calls job(data) `threads` times, on as many threads as there are.
  virtual void run(int threads, void (*job)(void*), void* data) = 0;
};

extern thread_local Pool* pool;  // of calls from this thread; null: OpenMP's, or threads of our own

}  // namespace saccade
