// SPDX-License-Identifier: Apache-2.0
//
// What launch_forward.cpp asked the device to run. See host_runtime.cpp.
#pragma once

#include "engine/hopper/forward_params.h"

namespace fa3::machine {

inline constexpr int kMultiprocessors = 2;

struct Launch {
  const void* function;
  unsigned blocks;
  unsigned threads;
  hopper::ForwardParams params;
};
extern Launch last_launch;

}  // namespace fa3::machine
