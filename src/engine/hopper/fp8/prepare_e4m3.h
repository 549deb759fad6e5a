// SPDX-License-Identifier: Apache-2.0
// Around the e4m3 forward kernel: what it wants to have made of V and of the scales, and what
// centred keys owe to the LSE. Next: prepare_e4m3.cu, transpose_ahead.h.
#pragma once

#include <cuda_runtime_api.h>

#include "core/key_places.h"
#include "core/seqlen.h"
#include "engine/cuda/tile/rows.h"
#include "engine/hopper/fp8/e4m3_scales.h"
#include "engine/hopper/tile/byte_square.h"

namespace fa3::hopper {

inline constexpr int kPreparedKeys = 128;  // that are transposed together: a part of a head

// A warp transposes 64 channels of a part.
FA3_HD constexpr int warps_of_part(int64_t columns) {
  return int((columns + tile::kSquare - 1) / tile::kSquare);
}

// The tensor cores sum e4m3 products along columns only, so V is transposed, its keys in the order
// of e4m3_key().
struct E4m3Preparation {
  cuda::RowTensor v;
  int sequences, kv_heads;  // without sequences, one without keys is prepared
  Lengths lengths;
  KeyPlaces places;
  int padded_keys;  // of the longest, a multiple of `step`
  int step;  // of kPreparedKeys: from a sequence's last key on, up to a multiple, keys become zero
  Descales<const float> key_scales, value_scales;

  uint8_t* transposed;      // (sequences, kv_heads, columns, padded_keys)
  KeyScales* prepared;      // (sequences, kv_heads, padded_keys / kDescaleRows)
  float* largest_of_heads;  // (sequences, kv_heads): V's largest scale
  int* tile_counter;        // of the forward kernel, cleared here; null: it has none
};
cudaError_t prepare_e4m3(const E4m3Preparation& preparation, cudaStream_t stream);

// For a V that is transposed already, of sequences of `keys`: scales and the counter alone.
cudaError_t prepare_scales(const E4m3Preparation& preparation, int keys, cudaStream_t stream);

// lse += scale * q . mean, q being what the e4m3 numbers stand for.
struct MeanScores {
  cuda::RowTensor q;
  int batches, heads, rows;  // of q
  int sequences;
  Lengths lengths_q;
  int heads_per_kv_head;
  Descales<const float> query_scales;
  ChannelMeans<const float> mean;
  float scale;
  cuda::RowFloats lse;
};
cudaError_t add_mean_scores(const MeanScores& scores, cudaStream_t stream);

}  // namespace fa3::hopper
