// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel for a forward problem, or says why there is none. plan_forward asks which GPU
// there is; everything else here is a pure function.
#pragma once

#include <span>

#include "core/plan.h"
#include "core/problem.h"
#include "engine/engine.h"
#include "engine/hopper/launch_forward.h"

namespace fa3::hopper {

constexpr int kNoRow = -1;

// What the choice of a row of kForwardTable depends on.
struct ForwardShape {
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t keys;  // that a query may see
  int64_t rows =
      INT64_MAX;  // of a sequence's queries, heads packed, where they are known to be few
  bool single_rows = false;  // of keys are copied, from pages of odd sizes
  bool cut = false;          // tiles are to be cut along the keys
  bool any_rows = false;     // ForwardConfig::stores_any_rows()
};

// The row of a table for a shape, or kNoRow.
int choose_row(const ForwardShape& shape, std::span<const CompiledForward> table = kForwardTable);

// Whether a kernel can read pages row by row: the copy engine writes to multiples of 128 bytes.
bool copies_single_rows(const ForwardConfig& config);

// Whether rows are whole copies of the copy engine. It moves others too, if their strides are.
bool has_whole_copies(const Problem& problem);

// Whether keys must be copied row by row.
bool reads_single_rows(const KeyPlaces& places, const Lengths& keys);

// The least that a kernel must be compiled for.
Variant variant_of(const Problem& problem);

// What no kernel of either pass can do yet, in a sentence; OK if one can. Needs no GPU.
Status check_forward(const Problem& problem);

// A problem's words in the kernels'. Shared with the backward.
const char* mask_name(const MaskRuleOf<int>& mask);
Element element_of(DType dtype);
TensorSpan span_of(const Operand& operand, int64_t batches, int64_t rows, int64_t heads,
                   int64_t columns);

// The launch for the values' columns from `first_column` on.
ForwardLaunch launch_of(const Problem& problem, int64_t first_column = 0);

// A row of the table and how it is used, on so many multiprocessors; the pack and the cut go into the
// launch.
int choose_row_and_cut(const Problem& problem, int multiprocessors, ForwardLaunch* launch);

// Whether a kernel of kDecodeTable does a launch whose cut is chosen; its row for one that a row of
// kForwardTable would do, or kNoRow.
bool decodes(const ForwardConfig& config, const Problem& problem, const ForwardLaunch& launch);
int choose_decode_row(const Problem& problem, int row, const ForwardLaunch& launch);

Status plan_forward(const Problem& problem, Plan* plan);
Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::hopper
