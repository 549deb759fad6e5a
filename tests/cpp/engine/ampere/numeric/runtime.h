// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace fa3::machine {

// Called with what is launched: function, CTAs, pointer to its parameters.
extern std::function<void(const void* function, unsigned ctas, const void* params)> on_launch;

}  // namespace fa3::machine
