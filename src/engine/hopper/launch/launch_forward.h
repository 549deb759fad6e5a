// SPDX-License-Identifier: Apache-2.0
// One forward launch: tensors and lengths in, tensor maps and a grid out. Next: launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "core/key_places.h"
#include "core/mask_rule.h"
#include "core/seqlen.h"
#include "engine/cuda/rows.h"
#include "engine/hopper/config/e4m3_scales.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

// How tiles are split along the keys (scheduler/split_kv.h).
struct SplitKv {
  static constexpr int kStreamK = 0;
  int num_splits = 1;    // of each tile, at most; 1: none is split; kStreamK: stream-K ranges
  int ctas = 0;          // CTAs that runs are for, or clusters
  int groups_log2 = 0;   // 2^groups_log2 runs side by side, each of head packs of its own
  int cluster_log2 = 0;  // 2^cluster_log2 CTAs have a range in common
  bool direct = false;   // whole tiles of varlen sequences too are found by number, not in a list

  bool active() const { return num_splits != 1; }
  // Where a tile lies, or a split of one, is worked out by the CTA that computes it.
  bool finds_own_tiles() const { return active() || direct; }
};

struct ForwardLaunch {
  TensorSpan q;  // packed sequences are one batch entry
  TensorSpan k;
  TensorSpan v;
  TensorSpan o;
  RowFloats lse;
  const float* sink = nullptr;  // null: none
  float scale = 0.0f;
  float softcap = 0.0f;  // 0: none
  MaskRuleOf<int> mask;
  int seqlen_q = 0;     // of the longest sequence
  int seqlen_k = 0;     // may be 0, where k and v stand for nothing
  bool varlen = false;  // lengths differ; the device reads them, from these:
  int64_t sequences = 0;
  Lengths lengths_q;
  Lengths lengths_k;
  KeyPlaces places;  // of the keys; paged: k's and v's batch entries are pages
  int heads_per_kv_head = 1;
  E4m3Params e4m3{};
  CacheScales cache_scales{};
  PackGqa pack;               // choose_pack()
  SplitKv split;              // choose_split()
  void* workspace = nullptr;  // forward_workspace_bytes()
};

// Whether threads copy keys and values, instead of TMA.
bool uses_cp_async(const ForwardConfig& config, const ForwardLaunch& launch);

// Whether a kernel that decodes can do a launch whose split is chosen.
bool can_always_split(const ForwardConfig& config, const ForwardLaunch& launch);

int64_t forward_num_tiles(const ForwardConfig& config, const ForwardLaunch& launch);
int64_t forward_workspace_bytes(const ForwardConfig& config, const ForwardLaunch& launch);

// Queues the launch; allocates nothing, waits for nothing.
cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardLaunch& launch,
                           cudaStream_t stream);

}  // namespace fa3::hopper
