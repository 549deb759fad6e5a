// SPDX-License-Identifier: Apache-2.0
// What a forward call does on the GPU, decided in full: launch/ encodes it and queues it. A plan
// does not change once it is made. Next: plan_forward.cpp (the choice of kernel and tiling),
// forward_plan.cpp (what follows from them), launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/lists/block_list_memory.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/plan/forward_call.h"
#include "engine/hopper/score_operands.h"

namespace fa3::hopper {

// Which CTA computes which tile.
enum class Scheduler : unsigned char {
  kStaticPersistent,   // CTA i computes the tiles i, i + grid, ...
  kDynamicPersistent,  // a CTA takes the next tile from a counter in the workspace
  kVarlenMetadata,     // the same over a list of tiles that a kernel makes of the lengths before
  kDirect,             // a CTA for each tile, which it finds in the lengths itself
  kStreamK,            // an equal range of KV blocks for each CTA
  kFixedSplit,         // the keys of each tile in at most num_splits splits
};

// How K and V reach shared memory.
enum class KvPath : unsigned char { kTma, kTmaPages, kCpAsync };

// How the splits of a tile become its result (CombineKind).
enum class Combine : unsigned char { kNone, kLastCta, kOpener, kKernel };

// How tiles are split along the keys (scheduler/split_kv.h).
struct SplitKv {
  int num_splits = 1;            // kFixedSplit: of each tile, at most
  int ctas = 0;                  // kStreamK: CTAs, or clusters, that get a range
  bool in_pairs = false;         // kStreamK: tiles of unequal length, which pairs even out
  int groups_log2 = 0;           // 2^groups_log2 rows of KV blocks, each with head packs of its own
  int cluster_log2 = 0;          // 2^cluster_log2 CTAs share a range
  bool opener_combines = false;  // kStreamK: a tile's splits, if the kernel can (CombineKind)
};

// What tiles are, and how they come to CTAs.
struct Tiling {
  PackGqa pack;
  Scheduler scheduler = Scheduler::kStaticPersistent;
  SplitKv split;

  bool is_split() const {
    return scheduler == Scheduler::kStreamK || scheduler == Scheduler::kFixedSplit;
  }
  // A CTA finds its tiles, or splits, in the lengths.
  bool finds_own_tiles() const { return is_split() || scheduler == Scheduler::kDirect; }
};

// Where the arrays of a workspace begin, in bytes from its own beginning.
struct ForwardWorkspace {
  int64_t tile_counter = cuda::kNoArray;
  int64_t sequences = cuda::kNoArray;  // kVarlenMetadata: the list of tiles, and how many there are
  int64_t num_entries = cuda::kNoArray;
  int64_t partial_o = cuda::kNoArray;
  int64_t partial_sums = cuda::kNoArray;
  int64_t combines = cuda::kNoArray;  // Combine::kKernel
  int64_t counters = cuda::kNoArray;  // Combine::kLastCta, kOpener
  cuda::BlockListMemory lists;
  int64_t bytes = 0;
};

struct ForwardPlan {
  ForwardKernel kernel;
  ForwardCall call;
  Tiling tiling;
  KvPath kv_loader = KvPath::kTma;
  Combine combine = Combine::kNone;
  bool q_is_clipped = false;  // Q's tensor map ends where a sequence does
  bool pdl = false;
  dim3 grid{0, 1, 1};             // CTAs; x = 0: there is nothing to do
  int cluster = 1;                // CTAs
  int tile_parts_log2 = 0;        // a kernel for one sequence: clusters of each tile
  int kv_box_rows = 0;            // of K's and V's TMA boxes
  TileOrder order{};              // of whole tiles, or of groups of them:
  TilesTogether together{};       // a score function's, where sequences have one length
  int captured_tile = kNoTile;    // the tensor that its kernel loads by tiles, if it does
  int pair_blocks = 0;            // of tiles in pairs (PairedKvSchedule)
  SplitKvSchedule schedule{};     // tiles that are found in the lengths; else .sequences alone
  CpAsyncKeys cp_async{};         // K and V for cp.async
  cuda::BlockListParams lists{};  // of a block mask; with their memory, if they are there before
  int num_combines = 0;           // Combine::kKernel: tiles, or ranges, that it looks at
  int64_t most_splits = 1;        // of a tile, if lengths are even
  int partial_rows = 0;           // of each partial result
  int64_t num_launches = 1;       // each of kMaxColumnsV columns of V and O
  ForwardWorkspace workspace;     // one for all launches
};

// Whether a kernel can load tiles of a captured tensor (scored_kernel.cpp).
bool takes_captured_tile(const Kernel& kernel);

// The kernel for a score function, which takes stages of shared memory for itself. captured: the
// tensor of which tiles could be loaded.
Kernel with_score(Kernel kernel, const fa3_score_function& score, int captured = kNoTile);

// The plan of a call for a kernel and a tiling that it can do, on this many SMs.
ForwardPlan plan_launch(const ForwardKernel& kernel, const ForwardCall& call, const Tiling& tiling,
                        int num_sms, TilesTogether together = {});

}  // namespace fa3::hopper
