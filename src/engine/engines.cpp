// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/engine.h"
#include "engine/engine.h"
#ifdef FA3_HAS_HOPPER
#include "engine/hopper/engine.h"
#endif

namespace fa3 {

std::span<const Engine* const> engines() {
  static constexpr const Engine* kEngines[] = {
#ifdef FA3_HAS_HOPPER
      &hopper::kHopperEngine,
#endif
      &cpu::kCpuEngine,
      &cpu::kReferenceEngine,
      &cpu::kStandardEngine,
  };
  return kEngines;
}

}  // namespace fa3
