// What differs between systems: exported names, aligned memory, the threads of the process and what
// its processor can do. All else is the same source everywhere.
//
// The library asks no more of the system than glibc 2.28 and the C++ library of GCC 8 have: newer
// names of old functions (dlsym, call_once, exp of doubles) are kept out, so that what is built on a
// new machine runs on an old one; tools/packages.py looks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#ifdef _WIN32
#include <malloc.h>
#elif !defined(__linux__)
#include <dlfcn.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#ifdef _WIN32
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

#ifdef __linux__
extern "C" __attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
#endif

namespace saccade {

// `bytes` in whole multiples of `alignment`, a power of two; null if there are none.
inline void* allocate(size_t alignment, size_t bytes) {
  bytes = (bytes + alignment - 1) / alignment * alignment;
#ifdef _WIN32
  return _aligned_malloc(bytes, alignment);
#else
  void* data = nullptr;
  return posix_memalign(&data, alignment, bytes) ? nullptr : data;
#endif
}
inline void release(void* data) {
#ifdef _WIN32
  _aligned_free(data);
#else
  free(data);
#endif
}

// Runs a function on as many threads as it is told; of OpenMP, if the process has it.
using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
inline Parallel openmp() {
#ifdef __linux__
  return GOMP_parallel;  // null where nobody brought it
#elif defined(_WIN32)
  return nullptr;
#else
  static const Parallel parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return parallel;
#endif
}

// What this processor, and the system on it, can do.
struct Machine {
  bool avx2 = false, avx512 = false, avx512bf16 = false, intel = false;  // x86
  bool neonbf16 = false;                                                 // ARM
};

inline Machine ask_machine() {
  Machine machine;
#if defined(__x86_64__) || defined(_M_X64)
  unsigned a, b, c, d;
  machine.intel = __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx;
  const auto bit = [](unsigned word, int i) { return (word >> i & 1) != 0; };
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return machine;  // no XGETBV
  const bool fma = bit(c, 12);
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // registers that the system saves
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return machine;
  machine.avx2 = fma && bit(b, 5) && (low & 0x6) == 0x6;
  machine.avx512 = machine.avx2 && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) &&
                   (low & 0xe6) == 0xe6;
  machine.avx512bf16 = machine.avx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
                       bit(a, 5);
#elif defined(__aarch64__) && defined(__linux__)
  machine.neonbf16 = (getauxval(AT_HWCAP2) >> 14 & 1) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  int32_t answer = 0;
  size_t size = sizeof(answer);
  machine.neonbf16 =
      !sysctlbyname("hw.optional.arm.FEAT_BF16", &answer, &size, nullptr, 0) && answer;
#endif
  return machine;
}

// Asked once, for in a virtual machine the question takes microseconds.
inline const Machine& machine() {
  static const Machine answer = ask_machine();
  return answer;
}

}  // namespace saccade
