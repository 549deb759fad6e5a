// SPDX-License-Identifier: Apache-2.0
//
// Outputs need memory of their own. Both rules cost the same for views of any extents.
#pragma once

#include <fa3/status.h>

#include <span>

#include "api/call_tensors.h"
#include "api/describe/rules/tensor_rules.h"

namespace fa3::api {

// The elements of an output may not share memory with each other...
Status check_distinct_elements(Named output);
// ... nor with those of another tensor.
Status check_no_overlap(Named output, Named other);
// Looks at the others that have one of the `uses`.
Status check_no_overlap(Named output, std::span<const CallTensor> others, unsigned uses);

// Whether both are one tensor.
bool is_same_view(const fa3_tensor& a, const fa3_tensor& b);

// Whether `whole`, a stack of partials along its first dimension, holds `part` as one of them that
// shares no element with the others.
bool is_entry_of(const fa3_tensor& part, const fa3_tensor& whole);

}  // namespace fa3::api
