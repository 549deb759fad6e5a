// SPDX-License-Identifier: Apache-2.0
// The built kernel of a row of kForward (kernels/forward.h).
#pragma once

#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/kernels/row.h"

namespace fa3::hopper {

// One that is compiled at run time has no function yet.
ForwardKernel kernel_at(const Row& row, Element element);

}  // namespace fa3::hopper
