// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test, which knows one kernel alone.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {
  machine::wait_for_kernel_before();
}

}  // namespace fa3::hopper::ptx
