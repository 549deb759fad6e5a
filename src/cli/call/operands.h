// SPDX-License-Identifier: Apache-2.0
//
// The tensors of one attention call, and the library's arguments over them.
// Made from a shape (bench, verify, info, demo) or from files (run).
#pragma once

#include <fa3/attention.h>

#include <cstdint>

#include "cli/call/host_tensor.h"

namespace fa3::cli {

struct Shape {
  int64_t batch = 1;
  int64_t heads = 8;
  int64_t kv_heads = 8;
  int64_t seqlen_q = 4096;
  int64_t seqlen_k = 4096;
  int64_t head_dim = 64;
  int64_t head_dim_v = 64;
};

// Absent tensors are not part of the call.
struct Operands {
  Layout layout = Layout::bshd;
  HostTensor q, k, v, sink, d_o;         // inputs
  HostTensor o, lse, dq, dk, dv, dsink;  // outputs
};

enum class Memory { allocate, shapes_only };

struct Wanted {
  bool backward = false;
  bool sink = false;
  Memory memory = Memory::allocate;
};

// Inputs of the given shape, uninitialised, and the outputs that go with them.
Operands make_operands(const Shape& shape, fa3_dtype dtype, Layout layout, const Wanted& wanted);

// The inputs of `from`, rounded to `dtype`, with new outputs.
Operands with_inputs_of(const Operands& from, fa3_dtype dtype, const Wanted& wanted);

// Adds the outputs that fit the inputs, poisoned; and d_o, uninitialised, if it is absent.
void add_outputs(Operands* operands, const Wanted& wanted);

// N(0, 1), the same numbers for the same seed on every machine.
void fill_inputs(Operands* operands, uint64_t seed);

ForwardArgs forward_args(const Operands& operands, const fa3_options& options);
BackwardArgs backward_args(const Operands& operands, const fa3_options& options);

fa3_options default_options();

// Bytes of what the call reads, and of what it writes.
int64_t input_bytes(const Operands& operands);
int64_t output_bytes(const Operands& operands);

}  // namespace fa3::cli
