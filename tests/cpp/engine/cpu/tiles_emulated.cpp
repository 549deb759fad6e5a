// SPDX-License-Identifier: Apache-2.0
//
// In the library that emulates tiles nobody has to be asked for them.
#include "engine/cpu/machine/features.h"

namespace fa3::cpu {

bool may_use_tiles() {
  return true;
}

}  // namespace fa3::cpu
