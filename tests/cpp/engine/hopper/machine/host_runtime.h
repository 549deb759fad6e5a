// SPDX-License-Identifier: Apache-2.0
//
// What launch_forward.cpp and launch_backward.cpp asked the device to run. See host_runtime.cpp.
#pragma once

#include <functional>

namespace fa3::machine {

inline constexpr int kMultiprocessors = 2;

// Called with what is launched: function, thread blocks, pointer to its parameters.
extern std::function<void(const void* function, unsigned blocks, const void* params)> on_launch;

}  // namespace fa3::machine
