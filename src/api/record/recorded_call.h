// SPDX-License-Identifier: Apache-2.0
//
// A call as the flight recorder writes it: its tensors and options by the names of the C ABI.
#pragma once

#include <fa3/fa3.h>
#include <fa3/mla.h>

#include <string>
#include <utility>
#include <vector>

#include "api/call_tensors.h"

namespace fa3::api {

struct RecordedTensor {
  const char* name;
  const fa3_tensor* view;
  bool written;
};

struct RecordedCall {
  const char* verb;
  std::vector<RecordedTensor> tensors;                       // those that are there
  std::vector<std::pair<const char*, std::string>> options;  // those not at their defaults
  bool can_be_kept = false;  // inputs outlive the call, and `fa3 replay` runs it
};

RecordedCall recorded(const fa3_forward_params& params);
RecordedCall recorded(const fa3_backward_params& params);
RecordedCall recorded(const fa3_quantize_params& params);
RecordedCall recorded(const DequantizeParams& params);
RecordedCall recorded(const fa3_merge_params& params);
RecordedCall recorded(const fa3_append_params& params);
RecordedCall recorded(const fa3_mla_forward_params& params);
RecordedCall recorded(const fa3_mla_backward_params& params);
RecordedCall recorded(const fa3_mla_append_params& params);
RecordedCall recorded(const fa3_mla_gather_params& params);

// "forward q=bfloat16[2,1024,8,64] ... causal=1 cuda:0"; strides only where rows do not follow each
// other. Reads no tensor, and takes views that no call would take.
std::string line_of(const RecordedCall& call);

// Whether elements lie row-major without gaps.
bool is_dense(const fa3_tensor& view);

}  // namespace fa3::api
