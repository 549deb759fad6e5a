// SPDX-License-Identifier: Apache-2.0
//
// The floating-point environment that all arithmetic of the library runs in: round to nearest,
// subnormal numbers kept, no traps. A caller may have set another one (a rounding mode, flush to
// zero), and threads of a pool would have the one of whoever started them: results would depend on
// threads.
#pragma once

#include <cfenv>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fa3 {

// Holds the default environment; the caller's comes back with it, exception flags included.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__x86_64__)
  // Float and double arithmetic goes by MXCSR alone; C's functions save the x87 too, which takes
  // a tenth of a microsecond.
  DefaultFloatEnvironment() : callers_(_mm_getcsr()) {
    _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    _mm_setcsr(callers_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // as a process starts
  unsigned callers_;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
#if defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(rest_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
#endif
  }
  ~DefaultFloatEnvironment() {
#if defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(rest_) : "memory");
#endif
    std::fesetenv(&callers_);
  }

 private:
  std::fenv_t callers_;
#if defined(__aarch64__)
  // Bits of the control register that C's environment leaves alone though results depend on them:
  // float16 without infinities, NaNs without payload.
  uint64_t rest_;
#endif
#endif
};

}  // namespace fa3
