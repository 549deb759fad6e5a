// SPDX-License-Identifier: Apache-2.0
//
// The floating-point environment that all arithmetic of this engine runs in: round to nearest,
// subnormal numbers kept, no traps. A caller may have set another one (a rounding mode, flush to
// zero), and threads of the pool would have the one of whoever started them: results would depend
// on threads.
#pragma once

#include <cfenv>

namespace fa3::cpu {

// Holds the default environment; the caller's comes back with it, exception flags included.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t callers_;
};

}  // namespace fa3::cpu
