// SPDX-License-Identifier: Apache-2.0
// Which row of the tables of compiled kernels does a problem, and how. Pure functions. Next:
// choose_split.h (packed heads, split keys), plan_forward.cpp (the plan of it).
#pragma once

#include <span>

#include "engine/hopper/plan/describe_launch.h"

namespace fa3::hopper {

constexpr int kNoKernel = -1;

// What the choice of a row of kForwardTable depends on.
struct ForwardShape {
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t keys;  // that a query may see
  // Of a sequence's queries, heads packed, where they are known to be few.
  int64_t rows = INT64_MAX;
  bool single_rows = false;  // of keys are copied, from pages of odd sizes
  bool split = false;        // tiles are to be split along the keys
  bool any_rows = false;     // ForwardConfig::stores_any_rows()
};

// The row of a table for a shape, or kNoKernel.
int select_kernel(const ForwardShape& shape, std::span<const KernelInstance> table = kForwardTable);

// Whether a kernel can read pages row by row: TMA writes to multiples of 128 bytes.
bool copies_single_rows(const ForwardConfig& config);

// The rows that may do a problem, and its shape for them.
std::span<const KernelInstance> table_of(const Problem& problem);
ForwardShape shape_of(const Problem& problem);

// A row of the table and how it is used, on so many SMs; the pack and the split go into the
// launch.
int select_kernel_and_split(const Problem& problem, int num_sms, ForwardLaunch* launch);

// Whether a kernel of kStreamKTable does a launch whose split is chosen; its row for one that a row
// of kForwardTable would do, or kNoKernel.
bool always_splits(const ForwardConfig& config, const Problem& problem,
                   const ForwardLaunch& launch);
int select_stream_k(const Problem& problem, int row, const ForwardLaunch& launch);

}  // namespace fa3::hopper
