// SPDX-License-Identifier: Apache-2.0
//
// What launch_forward.cpp and launch_backward.cpp asked the device to run. See host_runtime.cpp.
#pragma once

#include <functional>

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

// Called with what launch_backward.cpp launches: function, thread blocks, pointer to its parameters.
extern std::function<void(const void* function, unsigned blocks, const void* params)> on_launch;

}  // namespace fa3::machine
