// SPDX-License-Identifier: Apache-2.0
//
// What launch_forward.cpp and launch_backward.cpp asked the device to run. See host_runtime.cpp.
#pragma once

#include <vector_types.h>

#include <functional>

namespace fa3::machine {

inline constexpr int kSms = 2;

// Called with what is launched: function, grid, pointer to its parameters, whether it may start
// while the kernel before still runs.
extern std::function<void(const void* function, dim3 grid, const void* params, bool pdl)> on_launch;

}  // namespace fa3::machine
