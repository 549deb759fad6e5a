// SPDX-License-Identifier: Apache-2.0
// Extra outputs of a forward kernel: it may multiply O by a gate, and find the largest score of
// each head. Plain numbers and pointers. Next: output_gate.cuh, max_logit.cuh.
#pragma once

#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

// A gate's numbers are logits: their logistic function multiplies O. There is one logit for:
enum class Gate : unsigned char {
  kNone,
  kRows,     // each row of O
  kColumns,  // each number of O
  kPairs,    // likewise; rows begin at multiples of a pair, and their columns come in eights
};
enum class GateType : unsigned char { kFp16, kBf16, kFp32 };

FA3_HD constexpr int bytes_of(GateType type) {
  return type == GateType::kFp32 ? 4 : 2;
}

// Extra outputs that a kernel is compiled for.
struct Outputs {
  Gate gate = Gate::kNone;
  GateType gate_type = GateType::kFp16;
  bool max_logit = false;

  bool operator==(const Outputs&) const = default;
  FA3_HD constexpr bool any() const { return gate != Gate::kNone || max_logit; }
};

struct GateParams {
  RowTensor logits;  // strides in elements of its type; a row's columns, or its one number
  Gate kind = Gate::kNone;
  GateType type = GateType::kFp16;
};

// The largest scale * q.k of each sequence and head, before a softcap; -inf before the kernel.
struct MaxLogitParams {
  float* data = nullptr;
  int64_t sequence_stride = 0;
  int64_t head_stride = 0;
  float scale = 1.0f;  // the softmax scale

  FA3_HD float* at(int sequence, int head) const {
    return data + (sequence * sequence_stride + head * head_stride);
  }
};

struct OutputParams {
  GateParams gate;
  MaxLogitParams max_logit;
};

}  // namespace fa3::cuda
