// SPDX-License-Identifier: Apache-2.0
// Shared memory of the latent backward: 226 of the 227 KB. All tiles are 64 rows in slabs of 64
// channels, so there is one layout.
#pragma once

#include "engine/hopper/config/sm90.h"
#include "engine/hopper/latent/backward/latent_backward_params.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

inline constexpr tile::TileLayout kGradientSlab{64, 64};
inline constexpr int kGradientSlabBytes = kGradientSlab.bytes();
inline constexpr int kGradientValueSlabs = int(kLatentValueDim) / 64;

template <int HeadDim>
struct LatentBackwardSmem {
  static constexpr int kSlabs = HeadDim / 64;
  alignas(kSmemAlignment) unsigned char q[kSlabs][kGradientSlabBytes];
  unsigned char d_o[kGradientValueSlabs][kGradientSlabBytes];
  unsigned char kv[kSlabs][kGradientSlabBytes];
  unsigned char p[kGradientSlabBytes], ds[kGradientSlabBytes];  // rows by keys
  // Statistics of rows: the LSE in log2 units, the keys' share of a softmax with a sink that the
  // LSE leaves out, rowsum(dO O), and that times the share without the gradient of the LSE.
  float lse_log2[kGradientRows], share[kGradientRows], product[kGradientRows], delta[kGradientRows];
  PipelineBarriers<1> barriers;
};

// Registers of a thread of the loader and of both others, which part 0 has more channels of dQ in:
// 504 in all.
struct LatentBackwardRegisters {
  static constexpr int kLoader = 40;
  static constexpr int kGradients[2] = {248, 216};
  static_assert(kLoader + kGradients[0] + kGradients[1] == 504);
};

}  // namespace fa3::hopper
