// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/engine.h"
#include "engine/engine.h"

namespace fa3 {

std::span<const Engine* const> engines() {
  static constexpr const Engine* kEngines[] = {&cpu::kCpuEngine, &cpu::kReferenceEngine,
                                               &cpu::kStandardEngine};
  return kEngines;
}

}  // namespace fa3
