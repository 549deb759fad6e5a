// SPDX-License-Identifier: Apache-2.0
// Queues the making of a list of tiles (piece/sequence_tiles.h), by one thread block.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/piece/sequence_tiles.h"

namespace fa3::hopper {

cudaError_t list_sequences(const SequenceList& list, cudaStream_t stream);

}  // namespace fa3::hopper
