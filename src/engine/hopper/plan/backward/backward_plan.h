// SPDX-License-Identifier: Apache-2.0
// What a backward call does on the GPU, decided in full: launch/ encodes it and queues it. Nothing
// here changes once it is made. Next: plan_backward.cpp (who chooses the kernel), backward_plan.cpp
// (what follows from it), launch_backward.cpp.
#pragma once

#include "engine/cuda/host/backward_call.h"
#include "engine/cuda/lists/block_list_memory.h"
#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/scheduler/key_block_order.h"

namespace fa3::hopper {

// Where the arrays of a workspace begin, in bytes from its own beginning.
struct BackwardWorkspace {
  int64_t dq_accum = cuda::kNoArray;
  int64_t lse_log2 = cuda::kNoArray;
  int64_t delta = cuda::kNoArray;
  int64_t dq_semaphore = cuda::kNoArray;  // deterministic calls, persistent kernels
  int64_t sink_sums = cuda::kNoArray;     // calls with sinks
  int64_t d_a = cuda::kNoArray;           // calls with a gate: (batches, rows, heads, columns of V)
  int64_t dk_accum = cuda::kNoArray;      // where steps are split; dV's lies behind dK's
  int64_t dv_accum = cuda::kNoArray;
  int64_t dkv_accum_bytes = 0;       // of both
  int64_t q_tiles = cuda::kNoArray;  // varlen calls: the list of tiles, and how many there are
  int64_t num_q_tiles = cuda::kNoArray;
  int64_t k_tiles = cuda::kNoArray;
  int64_t num_k_tiles = cuda::kNoArray;
  cuda::BlockListMemory lists;  // block masks
  int64_t bytes = 0;
};

// Blocks of rows of the queries, or of the keys of a cluster of CTAs. Varlen: the most that there
// can be, since each sequence, and the rows that none owns, ends within a block.
struct RowBlockCounts {
  int64_t in_all = 0;    // for one head: all sequences
  int64_t of_entry = 0;  // for one head: a batch entry of the scratch; packed queries are one
};

// CTAs of each launch; 0: it is not queued.
struct BackwardGrids {
  int64_t short_sequences = 0;  // does it all
  int64_t preprocess = 0;
  int64_t main = 0;
  int64_t postprocess = 0;
  int64_t postprocess_dk = 0;
  int64_t postprocess_dv = 0;
};

struct BackwardPlan {
  BackwardKernel kernel;
  BackwardCall call;
  RowBlockCounts q_blocks;
  RowBlockCounts k_blocks;
  KeyBlockOrder order{};
  cuda::BlockListParams lists{};  // of a block mask; with their memory, if they are there before
  int64_t num_tiles = 0;          // key blocks, times their splits
  const void* main = nullptr;     // of a score function: found when it runs
  BackwardConfig main_config;
  int tail_tiles = 0;  // varlen: the last clusters' key blocks, longest first whatever their head
  bool short_sequences = false;  // one launch does it all: no sequence is longer than a tile
  cuda::PackGqa short_pack;      // the query heads that it has in a tile
  BackwardGrids grids;           // all 0: there is nothing to do
  BackwardWorkspace workspace;

  int64_t num_query_blocks() const;  // of all heads
  int step_splits() const { return order.step_splits; }
  // Whether CTAs add to sums of dK and dV.
  bool has_sums() const { return step_splits() > 1; }
};

// Which lists of a block mask it walks.
cuda::ListsOf lists_of(const BackwardCall& call);

// The plan of a call for a kernel that can do it, on this many SMs.
BackwardPlan plan_launches(const BackwardKernel& kernel, const BackwardCall& call, int num_sms);

// The number of splits of all key blocks' steps; 1: they stay whole. Where few key blocks are a
// wave or two of CTAs at most, the longest one's time is the call's. Their steps are split over all
// SMs instead, as stream-K does with the last tiles of a product (Osama et al., arXiv 2301.03598,
// section 4). Requires the plan's kernel, call and blocks. Causal groups of heads:
// backward_plan.cpp.
int splits_of_few(const BackwardPlan& plan, int num_sms);

}  // namespace fa3::hopper
