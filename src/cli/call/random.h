// SPDX-License-Identifier: Apache-2.0
//
// Normal data that does not depend on the C++ library: a failed case can be repeated elsewhere.
#pragma once

#include "cli/call/host_tensor.h"

namespace fa3::cli {

// Fills with N(0, 1), rounded to the tensor's dtype. Nothing happens to an absent tensor.
void fill_normal(HostTensor* tensor, uint64_t seed);

}  // namespace fa3::cli
