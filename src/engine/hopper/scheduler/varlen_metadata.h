// SPDX-License-Identifier: Apache-2.0
// Launches the kernel of one CTA that makes the varlen metadata (sequence_tiles.h).
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {

cudaError_t prepare_varlen_metadata(const VarlenMetadata& list, cudaStream_t stream);

}  // namespace fa3::hopper
