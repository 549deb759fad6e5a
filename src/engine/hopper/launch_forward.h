// SPDX-License-Identifier: Apache-2.0
// One forward launch: tensors and lengths in, tensor maps and a grid out. Next: launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "core/key_places.h"
#include "core/mask_rule.h"
#include "core/seqlen.h"
#include "engine/cuda/rows.h"
#include "engine/hopper/forward_entry.h"
#include "engine/hopper/piece/e4m3_scales.h"
#include "engine/hopper/tensor_map.h"

namespace fa3::hopper {

// How tiles are cut along the keys (piece/key_split.h).
struct KeyCut {
  static constexpr int kRuns = 0;
  int parts = 1;          // of each tile, at most; 1: none is cut; kRuns: runs of key blocks
  int blocks = 0;         // thread blocks that runs are for, or clusters
  int rows_log2 = 0;      // 2^rows_log2 runs side by side, each of head packs of its own
  int cluster_log2 = 0;   // 2^cluster_log2 thread blocks have a run in common
  bool numbered = false;  // whole tiles of ragged sequences too are found by number, not in a list

  bool active() const { return parts != 1; }
  // Where a tile lies, or a piece of one, is worked out by the thread block that computes it.
  bool finds_pieces() const { return active() || numbered; }
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
  bool ragged = false;  // lengths differ; the device reads them, from these:
  int64_t sequences = 0;
  Lengths lengths_q;
  Lengths lengths_k;
  KeyPlaces places;  // of the keys; paged: k's and v's batch entries are pages
  int heads_per_kv_head = 1;
  E4m3Params e4m3{};
  CacheScales cache_scales{};
  HeadPack pack;              // choose_pack()
  KeyCut cut;                 // choose_cut()
  void* workspace = nullptr;  // forward_workspace_bytes()
};

// Whether threads copy keys and values, instead of the copy engine.
bool gathers_keys(const ForwardConfig& config, const ForwardLaunch& launch);

// Whether a kernel that decodes can do a launch whose cut is chosen.
bool can_decode(const ForwardConfig& config, const ForwardLaunch& launch);

int64_t forward_num_tiles(const ForwardConfig& config, const ForwardLaunch& launch);
int64_t forward_workspace_bytes(const ForwardConfig& config, const ForwardLaunch& launch);

// Queues the launch; allocates nothing, waits for nothing.
cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardLaunch& launch,
                           cudaStream_t stream);

}  // namespace fa3::hopper
