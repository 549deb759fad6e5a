// SPDX-License-Identifier: Apache-2.0
// Scales of quantized operands, as the kernels take them. Scales of key blocks are written by
// fp8/prepare_e4m3.cu, scales of tiles by the producer (forward/producer/load_tma_e4m3.cuh).
#pragma once

#include <cstdint>

#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

// The scales of kDescaleRows keys: 16 bytes, which TMA can move.
struct alignas(16) KeyScales {
  float key;
  float boost;    // log2 of the values' scale over the head's largest
  float unboost;  // 2^-boost
  float unused;
};

// The scales of a tile, one of Q for each warpgroup.
struct TileScales {
  float query[3];  // times softmax scale and log2(e)
  float value;     // the head's largest
};

FA3_HD inline const KeyScales* E4m3Params::keys_at(int sequence, int kv_head, int key) const {
  return keys + (head_at(sequence, kv_head) * blocks + key / kDescaleRows);
}

}  // namespace fa3::hopper
