// SPDX-License-Identifier: Apache-2.0
// Which row of the kernel tables does a problem, and with which tiles. Pure functions. Next:
// choose_split.h (PackGQA, split-KV), plan_forward.cpp.
#pragma once

#include <span>

#include "engine/hopper/kernels/offers.h"
#include "engine/hopper/plan/forward_plan.h"
#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

constexpr int kNoKernel = -1;

// What the choice of a row depends on.
struct ForwardShape {
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t keys;              // that a query may see
  int64_t rows = INT64_MAX;  // of a sequence's queries, heads packed, where known to be few
  bool single_rows = false;  // keys are copied row by row, from pages of odd sizes
  bool split = false;        // tiles are to be split along the keys
  bool any_rows = false;     // ForwardConfig::stores_any_rows()
};

// The row of a table for a shape, or kNoKernel.
int select_kernel(const ForwardShape& shape, std::span<const KernelInstance> table = kForwardTable);

// The same for a table whose rows have a variant each, one variant after the other: of this one's.
int select_kernel(const ForwardShape& shape, std::span<const KernelInstance> table,
                  Variant variant);

// The row of kDropoutTable for a problem with dropout, or kNoKernel.
int select_dropout_kernel(const Problem& problem);

// The row of kContinuedTable for a problem that goes on from a partial result, or writes O in
// float32; or kNoKernel.
int select_continued_kernel(const Problem& problem);

// Whether kMaskTable has a row, and which one suits the number of tiles.
bool has_mask_kernel(const Problem& problem);
int select_mask_kernel(const Problem& problem, const ForwardCall& call, int num_sms);

// The rows that may do a problem, and the problem's shape for them.
std::span<const KernelInstance> table_of(const Problem& problem);
ForwardShape shape_of(const Problem& problem);

// A row of a table, and what its tiles are.
struct KernelChoice {
  int row = kNoKernel;
  Tiling tiling;
};

// A row of table_of() for a problem on this many SMs.
KernelChoice select_kernel_and_split(const Problem& problem, const ForwardCall& call, int num_sms);

// Whether a kernel that does nothing but decode (ForwardConfig::always_splits()) can do a call with
// this tiling.
bool always_splits(const ForwardConfig& config, const Problem& problem, const ForwardCall& call,
                   const Tiling& tiling);

// The row of kStreamKTable that does what a row of table_of() would, or kNoKernel. Whole tiles may
// hold other heads there.
KernelChoice select_stream_k(const Problem& problem, const ForwardCall& call,
                             const KernelChoice& choice, int num_sms);

}  // namespace fa3::hopper
