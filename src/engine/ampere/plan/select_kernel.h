// SPDX-License-Identifier: Apache-2.0
// Which row of the table a problem takes, and how many query heads share its tiles. Pure functions.
#pragma once

#include "core/problem.h"
#include "engine/ampere/config/forward_config.h"
#include "engine/cuda/tile/rows.h"

namespace fa3::ampere {

inline constexpr int kNoKernel = -1;

// A row of kForwardTable, or kNoKernel, for a GPU with so much shared memory on each SM.
int select_kernel(const Problem& problem, int smem_bytes_of_sm);

cuda::PackGqa select_pack(const Problem& problem, const ForwardConfig& config);

}  // namespace fa3::ampere
