// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

namespace fa3 {

std::span<const AbsentEngine> absent_engines() {
#ifdef FA3_HAS_CUDA
  return {};
#else
  static constexpr AbsentEngine kAbsent[] = {{"hopper", FA3_ENGINE_HOPPER},
                                             {"ampere", FA3_ENGINE_AMPERE}};
  return kAbsent;
#endif
}

}  // namespace fa3
