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
  static constexpr int kRowBytes = 656, kScaleOffset = 512, kRopeOffset = 528;
  static constexpr int kGroups = 4, kGroupChannels = 128;
  static constexpr int kConsumerRows = 16;  // query rows of a consumer
};
// The smallest unit of keys of bytes that become fp16, as its exponent.
inline constexpr int kLeastLatentUnit = -100;

struct LatentShape {
  int rows;      // query rows of a CTA: 16, 32 or 64
  int head_dim;  // 576 or 512
  Element element;
  bool is_group128 = false;  // else rows of the element

  // 64 rows: two consumers, each with half of the value channels (latent_wide_rows.cuh). Fewer, and
  // rows of bytes: two with 16 query rows each, the same ones or others (latent_byte_rows.cuh).
  FA3_HD constexpr bool is_wide() const { return rows == kRowsPerWarpgroup; }
  FA3_HD constexpr bool reads_bytes() const { return is_group128 && !is_wide(); }
  // With 64 rows a loader makes fp16 of bytes (latent_wide_byte_loader.cuh).
  FA3_HD constexpr bool converts() const { return is_group128 && is_wide(); }
  FA3_HD constexpr Element product_element() const {
    return is_group128 ? Element::kFp16 : element;
  }
  FA3_HD constexpr int consumers() const { return is_wide() || is_group128 ? 2 : 1; }
  FA3_HD constexpr int consumer_rows() const {
    return reads_bytes() ? Group128::kConsumerRows : rows;
  }
  // Consumers that wait for each stage, and release it.
  FA3_HD constexpr int readers() const { return reads_bytes() ? consumers() : 1; }
  FA3_HD constexpr int consumer_threads() const { return consumers() * kWarpgroupSize; }
  FA3_HD constexpr int threads() const { return kWarpgroupSize + consumer_threads(); }
  FA3_HD constexpr int stream_tiles() const { return most_stream_tiles(rows); }
  FA3_HD constexpr int slabs() const { return head_dim / kSlabChannels; }
  FA3_HD constexpr int slab_of_q_bytes() const { return consumer_rows() * kSlabChannels * 2; }
  // A row of bytes, as far as it is read.
  FA3_HD constexpr int row_bytes() const {
    return head_dim == 576 ? Group128::kRowBytes : Group128::kRopeOffset;
  }
  // What Q, P, statistics of four warps, barriers and the sums of lengths leave.
  FA3_HD constexpr int ring_bytes() const {
    const int statistics = 2 * kWarpsPerWarpgroup * rows * int(sizeof(float));
    const int others = 1024 + kMostStreamTiles * int(sizeof(int));
    const int weights = rows * kLatentBlockKeys * 2;
    return kMaxSmemBytes - slabs() * slab_of_q_bytes() - weights - statistics - others;
  }
  // Slabs that are announced at once, by CTAs of up to 32 rows (latent_wide_ring.cuh). All threads
  // of the loader arrive for what they have copied, one after the other: with a slab a stage that
  // took 3,600 clocks a block, measured on an H200.
  FA3_HD constexpr int stage_slabs() const { return head_dim == 576 ? 3 : 2; }
  FA3_HD constexpr int stage_bytes() const {
    return reads_bytes() ? kLatentBlockKeys * Group128::kRowBytes : stage_slabs() * kSlabBytes;
  }
  FA3_HD constexpr int block_stages() const { return slabs() / stage_slabs(); }
  // The ring holds a block, and more: with 64 rows two. Rows of bytes have a stage a block: two are
  // computed, two are on their way.
  FA3_HD constexpr int stages() const {
    return is_wide() || is_group128 ? 4 : ring_bytes() / stage_bytes();
  }
  FA3_HD constexpr int stages_bytes() const {
    return is_wide() ? 2 * slabs() * kSlabBytes : stages() * stage_bytes();
  }
  friend constexpr bool operator==(const LatentShape&, const LatentShape&) = default;
};

}  // namespace fa3::hopper
