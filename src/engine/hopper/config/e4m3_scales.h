// SPDX-License-Identifier: Apache-2.0
// Scales of quantized operands, as the kernels take them. Scales of key blocks are written by
// fp8/prepare_e4m3.cu, scales of tiles by the producer (forward/producer/load_tma_e4m3.cuh).
#pragma once

#include <cstdint>

#include "core/quantization.h"
#include "engine/hopper/config/kernel.h"

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

struct E4m3Params {
  const KeyScales* keys;      // (sequences, kv heads, blocks)
  const float* value_scales;  // (sequences, kv heads): the largest
  int sequences;
  int kv_heads;
  int blocks;  // of a head
  Descales<const float> query;
  ChannelMeans<const float> value_mean;

  FA3_HD constexpr int64_t head_at(int sequence, int kv_head) const {
    return int64_t{sequence} * kv_heads + kv_head;
  }
  // `key` counts from the sequence's first.
  FA3_HD const KeyScales* keys_at(int sequence, int kv_head, int key) const {
    return keys + (head_at(sequence, kv_head) * blocks + key / kDescaleRows);
  }
};

// V^T and scales may still be made when the forward kernel starts: a tile waits for its head.
struct HeadsInWork {
  const int* parts_done;  // (sequences, kv_heads); null: all of them were there before
  int parts;              // of each head
};

}  // namespace fa3::hopper
