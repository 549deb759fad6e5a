// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/engine.h"
#include "engine/engine.h"
#ifdef FA3_HAS_CUDA
#include "engine/ampere/engine.h"
#include "engine/hopper/engine.h"
#endif

namespace fa3 {

std::span<const Engine* const> engines() {
  static constexpr const Engine* kEngines[] = {
#ifdef FA3_HAS_CUDA
      &hopper::kHopperEngine, &ampere::kAmpereEngine,
#endif
      &cpu::kCpuEngine,       &cpu::kReferenceEngine, &cpu::kStandardEngine,
  };
  return kEngines;
}

}  // namespace fa3
