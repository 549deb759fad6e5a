// SPDX-License-Identifier: Apache-2.0
// What a forward call does on the GPU, decided in full: launch/ encodes it and queues it. A plan
// does not change once it is made. Next: plan_forward.cpp, launch_forward.cpp.
#pragma once

#include "core/problem.h"
#include "core/workspace.h"
#include "engine/ampere/config/forward_config.h"
#include "engine/ampere/instances/forward_entry.h"
#include "engine/ampere/tile_schedule.h"
#include "engine/cuda/host/forward_call.h"
#include "engine/cuda/tile/rows.h"

namespace fa3::ampere {

using cuda::ForwardCall;

// What splits leave in the workspace, in float32: O (splits, batches, rows, heads, pitch) and the
// LSE (splits, batches, heads, rows). Batches and rows are the tensors': packed rows are one entry.
struct PartialResults {
  int64_t batches = 0, rows = 0, heads = 0;
  int64_t pitch = 0;  // columns of O's rows, which begin at multiples of 16 bytes
  int64_t num_splits = 1;

  bool any() const { return num_splits > 1; }
  int64_t o_stride() const { return batches * rows * heads * pitch; }  // between splits
  int64_t lse_stride() const { return batches * rows * heads; }
  struct Arrays {
    float* o;
    float* lse;
  };
  Arrays carve(WorkspaceAllocator& allocator) const {
    if (!any()) return {};
    return {allocator.take<float>(num_splits, batches, rows, heads, pitch),
            allocator.take<float>(num_splits, batches, rows, heads)};
  }
  int64_t bytes() const {
    return bytes_of([&](WorkspaceAllocator& allocator) { carve(allocator); });
  }
};

struct ForwardPlan {
  ForwardKernel kernel;
  ForwardCall call;
  TileSchedule schedule;
  int64_t num_tiles = 0;     // numbers of tiles, those of CTAs that have none too
  int64_t num_launches = 1;  // each of kMaxColumnsV columns of V and O
  PartialResults partials;   // of split tiles
  int q_width = 0, k_width = 0, v_width = 0, o_width = 0;  // bytes of a copy, or store

  bool has_work() const { return num_tiles > 0; }
  int64_t num_ctas() const { return capped_product(num_tiles, int64_t{schedule.num_splits}); }
};

// num_splits: 0 chooses, else no more than these.
ForwardPlan plan_launch(const ForwardKernel& kernel, const ForwardCall& call, PackGqa pack,
                        int num_sms, int num_splits = 1);

// ---- Which row a problem takes, and how many query heads share its tiles: pure functions ----

// A row of kForward, or null, for a GPU with so much shared memory on each SM.
const Row* select_kernel(const Problem& problem, int smem_bytes_of_sm);

cuda::PackGqa select_pack(const Problem& problem, const ForwardConfig& config);

}  // namespace fa3::ampere
