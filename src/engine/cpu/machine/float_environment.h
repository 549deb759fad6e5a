// SPDX-License-Identifier: Apache-2.0
//
// The floating-point environment that all arithmetic of this engine runs in: round to nearest,
// subnormal numbers kept, no traps. A caller may have set another one (a rounding mode, flush to
// zero), and threads of the pool would have the one of whoever started them: results would depend
// on threads.
#pragma once

#include <cfenv>
#include <cstdint>

namespace fa3::cpu {

// Holds the default environment; the caller's comes back with it, exception flags included.
class DefaultFloatEnvironment {
 public:
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
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t callers_;
#if defined(__aarch64__)
  // Bits of the control register that C's environment leaves alone though results depend on them:
  // float16 without infinities, NaNs without payload.
  uint64_t rest_;
#endif
};

}  // namespace fa3::cpu
