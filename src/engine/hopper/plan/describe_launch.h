// SPDX-License-Identifier: Apache-2.0
// A problem in the kernels' words, shared by both passes. Pure functions. Next: select_kernel.h.
#pragma once

#include "core/error.h"
#include "core/problem.h"
#include "engine/hopper/launch/launch_forward.h"

namespace fa3::hopper {

constexpr int64_t kMaxRows = int64_t{1} << 30;  // row and key numbers are 32-bit in the kernels
constexpr int64_t kMaxTiles = int64_t{1} << 30;
constexpr int64_t kMaxColumnsV = 256;  // of a launch: wider values take one for each part of them

// In 32 bits. A window that reaches over the longest sequence hides nothing.
MaskRuleOf<int> narrow_mask(const Problem& problem);
const char* mask_name(const MaskRuleOf<int>& mask);

Element element_of(DType dtype);

// Of lengths, or of the keys' places: what a list of sequences tells.
bool is_varlen(const Problem& problem);

// Whether rows are whole copies of TMA. It moves others too, if their strides are.
bool has_whole_copies(const Problem& problem);

// What not every general kernel stores.
bool has_other_rows(const Problem& problem);

// Whether keys must be copied row by row.
bool reads_single_rows(const KeyPlaces& places, const Lengths& keys);

// The least that a kernel must be compiled for.
Variant variant_of(const Problem& problem);

TensorSpan span_of(const Operand& operand, int64_t batches, int64_t rows, int64_t heads,
                   int64_t columns);

// Refuses what the kernels cannot number.
Status check_row_numbers(const Problem& problem);

// The launch for the values' columns from `first_column` on.
ForwardLaunch launch_of(const Problem& problem, int64_t first_column = 0);

}  // namespace fa3::hopper
