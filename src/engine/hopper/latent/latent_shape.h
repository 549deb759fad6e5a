// SPDX-License-Identifier: Apache-2.0
// What the latent kernel is compiled for, and its budget of shared memory.
#pragma once

#include "engine/hopper/config/sm90.h"
#include "engine/hopper/latent/latent_params.h"

namespace fa3::hopper {

inline constexpr int kSlabChannels = 64;  // 128 bytes, the widest swizzle
inline constexpr int kSlabBytes = kLatentBlockKeys * kSlabChannels * 2;
inline constexpr int kValueSlabs = int(kLatentValueDim) / kSlabChannels;

// Rows of 656 bytes: 512 e4m3, four float32 scales of 128 channels each, 64 bfloat16.
struct Group128 {
  static constexpr int kScaleOffset = 512, kRopeOffset = 528;
  static constexpr int kGroups = 4;
  static constexpr int kSlabsOfGroup = kValueSlabs / kGroups;
  static constexpr int kScaleBytes = kGroups * int(sizeof(float));  // of a key
  static constexpr int kScaleSlots = 8;  // blocks (latent_byte_loader.cuh)
  // What the loader copies and converts at once: slabs of values.
  static constexpr int kBatchSlabs = 4;
  static constexpr int kBatchBytes = kBatchSlabs * kLatentBlockKeys * kSlabChannels;
};

struct LatentShape {
  int rows;      // query rows of a CTA: 16, 32 or 64
  int head_dim;  // 576 or 512
  Element element;
  bool is_group128 = false;  // else rows of the element

  FA3_HD constexpr int loader_warpgroups() const { return is_group128 ? 2 : 1; }
  // 64 rows: two consumers, each with half of the value channels (latent_wide_rows.cuh).
  FA3_HD constexpr bool is_wide() const { return rows == kRowsPerWarpgroup; }
  FA3_HD constexpr int consumers() const { return is_wide() ? 2 : 1; }
  FA3_HD constexpr int consumer_threads() const { return consumers() * kWarpgroupSize; }
  FA3_HD constexpr int loader_threads() const { return loader_warpgroups() * kWarpgroupSize; }
  FA3_HD constexpr int threads() const { return loader_threads() + consumer_threads(); }
  FA3_HD constexpr int stream_tiles() const { return most_stream_tiles(rows); }
  FA3_HD constexpr int slabs() const { return head_dim / kSlabChannels; }
  FA3_HD constexpr int slab_of_q_bytes() const { return rows * kSlabChannels * 2; }
  // P, and with scales P times the scales of each group.
  FA3_HD constexpr int weights() const { return is_group128 ? Group128::kGroups : 1; }
  FA3_HD constexpr int weight_bytes() const { return rows * kLatentBlockKeys * 2; }
  FA3_HD constexpr int scale_bytes() const {
    return is_group128 ? Group128::kScaleSlots * kLatentBlockKeys * Group128::kScaleBytes : 0;
  }
  // What Q, P, scales, statistics of four warps, barriers and the sums of lengths leave.
  FA3_HD constexpr int ring_bytes() const {
    const int statistics = 2 * kWarpsPerWarpgroup * rows * int(sizeof(float));
    const int others = 1024 + kMostStreamTiles * int(sizeof(int));
    return kMaxSmemBytes - slabs() * slab_of_q_bytes() - weights() * weight_bytes() -
           scale_bytes() - statistics - others;
  }
  // Slabs that are announced at once, by CTAs of up to 32 rows (latent_wide_ring.cuh). All threads
  // of the loader arrive for what they have copied, one after the other: with a slab a stage that
  // took 3,600 clocks a block, measured on an H200.
  FA3_HD constexpr int stage_slabs() const { return is_group128 ? 1 : head_dim == 576 ? 3 : 2; }
  FA3_HD constexpr int stage_bytes() const { return stage_slabs() * kSlabBytes; }
  FA3_HD constexpr int block_stages() const { return slabs() / stage_slabs(); }
  // The ring holds a block, and more: a batch is converted while a block is computed. With 64 rows
  // it holds two blocks.
  FA3_HD constexpr int stages() const {
    return is_wide()     ? 4
           : is_group128 ? slabs() + Group128::kBatchSlabs + (rows == 16 ? 2 : 0)
                         : ring_bytes() / stage_bytes();
  }
  FA3_HD constexpr int stages_bytes() const {
    return is_wide() ? 2 * slabs() * kSlabBytes : stages() * stage_bytes();
  }
  // Batches of raw rows on their way.
  FA3_HD constexpr int raw_batches() const {
    return is_group128 ? (ring_bytes() - stages_bytes()) / Group128::kBatchBytes : 0;
  }
  FA3_HD constexpr int batches_of_block() const {
    return kValueSlabs / Group128::kBatchSlabs + (slabs() - kValueSlabs);
  }
  friend constexpr bool operator==(const LatentShape&, const LatentShape&) = default;
};

}  // namespace fa3::hopper
