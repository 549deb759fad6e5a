// SPDX-License-Identifier: Apache-2.0
// Queues the kernels before and behind a forward kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/hopper/scheduler/sequence_tiles.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {

// The kernel of one CTA that makes the varlen metadata (sequence_tiles.h).
cudaError_t prepare_varlen_metadata(const VarlenMetadata& list, cudaStream_t stream);

// The combine of tiles that were split along the keys (scheduler/split_kv.h).
struct CombineParams {
  cuda::PartialOutput partials;
  const CombineTile* combines;
  int num_combines;
  int64_t most_splits;  // expected of a tile
  cuda::ForwardOutput output;
  cuda::Element element;  // of O, unless that is float32
  cuda::GateParams gate{};
};

// For the kernel before it in the stream; starts while that ends (PDL).
cudaError_t combine_splits(const CombineParams& merge, cudaStream_t stream);

}  // namespace fa3::hopper
