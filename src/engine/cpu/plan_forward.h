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
#include "engine/cpu/schedule.h"

namespace fa3::cpu {

Status plan_forward(const Problem& problem, Plan* plan);

// The caller's workspace, cut up. Planning and running cut with the same function.
struct ForwardWorkspace {
  SequenceTasks* sequences = nullptr;  // (batch)
  int32_t* parts_done = nullptr;       // (batch, heads_k); null where no keys are split
  float* partials = nullptr;
  std::byte* threads = nullptr;  // (num_threads, thread_bytes)
  int64_t thread_bytes = 0;
  int64_t rows_per_thread = 0;  // at least the plan's block_q

  int64_t bytes = 0;
};

ForwardWorkspace carve_forward(const Problem& problem, void* memory);

}  // namespace fa3::cpu
