// SPDX-License-Identifier: Apache-2.0
// The kernel that transposes V ahead of the forward kernel's tiles. A warp brings 64 channels of a
// part to shared memory by TMA, transposes them where they lie, and has TMA bring them to V^T. Run
// on the protocol model as it is. Next: transpose_ahead.cu.
#pragma once

#include "engine/cuda/ptx/fragment.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/fp8/transpose_ahead.h"
#include "engine/hopper/fp8/value_part.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// A CTA has an SM to itself. Its warps form teams, each of as many as have channels: a multiple of
// all numbers of these. A warp has room for two parts: while one is transposed, the other is on its
// way.
inline constexpr int kAheadWarps = 12;
inline constexpr uint32_t kAheadStages = 2;
static_assert(kAheadWarps % 4 == 0 && kAheadWarps % 3 == 0);

struct AheadSmem {
  alignas(kSmemAlignment) unsigned char parts[kAheadWarps][kAheadStages][kPartBytes];
  uint64_t full[kAheadWarps][kAheadStages];
};
static_assert(sizeof(AheadSmem) <= kMaxSmemBytes);

class AheadWarp {
 public:
  __device__ __forceinline__ AheadWarp(const TransposeAhead& params, uint32_t smem, int warp)
      : params_(params),
        warps_(warps_of_part(params.values.v.columns)),
        team_(warp / warps_),
        first_channel_(warp % warps_ * tile::kSquare),
        squares_(smem + uint32_t(warp) * kAheadStages * uint32_t{kPartBytes}),
        full_(smem + uint32_t{offsetof(AheadSmem, full)} +
              uint32_t(warp) * kAheadStages * uint32_t{sizeof(uint64_t)}),
        parts_(params.order, int(blockIdx.x), team_, kAheadWarps / warps_) {}

  __device__ __forceinline__ void run() {
    if (leads()) {
      for (uint32_t stage = 0; stage < kAheadStages; ++stage) ptx::mbarrier_init(full(stage), 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    Part part = load(0), next = load(1), before{};
    // The counters are clear from here on. The forward kernel's CTAs come as these go.
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
    for (uint32_t i = 0; part.exists; ++i) {
      const uint32_t stage = i % kAheadStages;
      ptx::mbarrier_wait_parity(full(stage), i / kAheadStages % 2);
      transpose(part.at, stage);
      if (leads()) {
        ptx::cp_async_bulk_wait_group<1>();
        count(before);
        ptx::cp_async_bulk_wait_group_read<0>();
      }
      before = part;
      part = next;
      next = load(stage);
    }
    if (leads()) {
      ptx::cp_async_bulk_wait_group<0>();
      count(before);
    }
  }

 private:
  struct Part {
    bool exists = false;
    int head = 0;  // of all sequences
    ValuePart at{};
  };

  static __device__ __forceinline__ bool leads() { return ptx::lane() == 0; }
  __device__ __forceinline__ uint32_t squares(uint32_t stage) const {
    return squares_ + stage * uint32_t{kPartBytes};
  }
  __device__ __forceinline__ uint32_t full(uint32_t stage) const {
    return full_ + stage * uint32_t{sizeof(uint64_t)};
  }

  // Asks for the team's next part, if there is one. Keys behind the last are zeros.
  __device__ __forceinline__ Part load(uint32_t stage) {
    if (parts_.done()) return {};
    const int parts_of_head = params_.order.parts_of_head, kv_heads = params_.values.kv_heads;
    const int head = parts_.get() / parts_of_head;
    const Part part{true, head, {head / kv_heads, head % kv_heads, parts_.get() % parts_of_head}};
    parts_.advance();
    if (leads()) {
      ptx::mbarrier_arrive_expect_tx(full(stage), kPartBytes);
      ptx::cp_async_bulk_tensor_load(
          squares(stage), params_.v,
          {first_channel_, part.at.number * kPreparedKeys, part.at.head, part.at.sequence},
          full(stage));
    }
    return part;
  }

  __device__ __forceinline__ void transpose(const ValuePart& part, uint32_t stage) {
    bool all_zero = true;  // lane i: block i of the part
#pragma unroll
    for (int i = 0; i < kPartBlocks; ++i) {
      const uint32_t square = squares(stage) + uint32_t(i * tile::kSquareBytes);
      const bool seen = transpose_square(square);
      ptx::fence_proxy_async();
      __syncwarp();
      if (leads()) {
        ptx::cp_async_bulk_tensor_store(params_.transposed,
                                        {(part.number * kPartBlocks + i) * tile::kSquare,
                                         first_channel_, part.head, part.sequence},
                                        square);
      }
      const bool any = ptx::bar_count(1 + team_, warps_ * kWarpSize, seen) > 0;
      if (any && int(ptx::lane()) == i) all_zero = false;
    }
    if (leads()) ptx::cp_async_bulk_commit_group();
    if (first_channel_ == 0) write_scales(params_.values, params_.keys, part, all_zero);
    __syncwarp();  // the leader counts on behalf of all
  }

  // By the leader, behind the warp's stores. TMA reads what is counted.
  __device__ __forceinline__ void count(const Part& part) const {
    if (!part.exists) return;
    ptx::fence_proxy_async_global();
    ptx::add_release(params_.parts_done + part.head, 1);
  }

  const TransposeAhead& params_;
  const int warps_, team_, first_channel_;
  const uint32_t squares_, full_;
  TeamParts parts_;
};

__global__ void __launch_bounds__(kAheadWarps* kWarpSize, 1)
    transpose_ahead_kernel(const __grid_constant__ TransposeAhead params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  AheadWarp(params, ptx::cvta_to_shared(raw_smem), int(threadIdx.x / kWarpSize)).run();
}

}  // namespace fa3::hopper
