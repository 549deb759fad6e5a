// SPDX-License-Identifier: Apache-2.0
//
// How the tiled forward will run: instruction set, block sizes, splits, tasks, memory, and why.
// Next: schedule.h.
#pragma once

#include <fa3/status.h>

#include <cstddef>
#include <cstdint>

#include "core/plan.h"
#include "core/problem.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/tiled/schedule.h"

namespace fa3::cpu {

Status plan_forward(const Problem& problem, Plan* plan);

// Whether tiles are packed once, before all blocks: where there are too few rows for each thread to
// have many blocks of a size that makes packing cheap.
bool packs_ahead(const Problem& problem, const TileShape& shape);

// For the kernels in use.
TileShape forward_tile_shape(const Problem& problem);

struct ForwardWorkspace {
  SequenceTasks* sequences = nullptr;  // (batch); null where all are alike
  int32_t* parts_done = nullptr;       // (batch, heads_k); null where no keys are split
  float* partials = nullptr;
  float* packed = nullptr;  // (batch, heads_k, packed_per_head) tiles; null: each block packs
  int64_t packed_per_head = 0;
  ThreadMemory threads;
  int64_t rows_per_thread = 0;  // at least the plan's block_q
};

ForwardWorkspace carve_forward(const Problem& problem, const TileShape& shape,
                               WorkspaceAllocator& allocator);

}  // namespace fa3::cpu
