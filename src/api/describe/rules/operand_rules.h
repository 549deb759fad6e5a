// SPDX-License-Identifier: Apache-2.0
//
// Rules that the calls share: of operands, threads, engines, and of the memory that is written.
#pragma once

#include <span>

#include "api/call_tensors.h"
#include "api/describe/describe.h"
#include "api/describe/rules/tensor_rules.h"
#include "core/append.h"

namespace fa3::api {

// The stride of an extent of one leads nowhere and may be anything: engines get 0. Likewise in a
// tensor without elements, whose data may be null: nothing may be added to that.
int64_t stride_of(const fa3_tensor& tensor, int dim);
// A packed tensor's batch stride is 0.
Operand operand(const fa3_tensor& tensor);
// One number a row: (batch, heads, seq), or (heads, total) when packed.
RowScalars row_scalars(const fa3_tensor& tensor);

// A (batch, rows, heads, dim) tensor, or (total, heads, dim) when packed.
Status check_operand(Named named, bool packed, Purpose purpose);
// `named` must have the shape of `like`, but for the last dimension.
Status check_like(Named named, const fa3_tensor& like, int64_t dim, bool packed, Purpose purpose);
// A view whose rows lie side by side (FA3_TRANSPOSED_KEYS). `rows_of_operand` is it for the rules
// above, which want that of channels.
Status check_transposed(Named named);
fa3_tensor rows_of_operand(const fa3_tensor& transposed);
Transposed transposed(const fa3_tensor& tensor);
Status check_heads(int64_t heads_q, int64_t heads_k);
inline constexpr int32_t kMaxSplits = 256;
inline constexpr int64_t kMaxHeadDim = 576;  // latent keys with rope (MLA)
Status check_head_dim(const char* name, int64_t dim, int64_t most = kMaxHeadDim);

// One number a row, the LSE or its gradient: (batch, heads, seq), or (heads, total) when packed.
Status check_row_scalars(Named named, const fa3_tensor& q, bool packed, Purpose purpose);
Status check_head_vector(Named named, const fa3_tensor& q, Purpose purpose);
// One number for each sequence and query head.
Status check_head_matrix(Named named, int64_t batch, const fa3_tensor& q, Purpose purpose);
Status check_output_dtype(Named o, Named q);
Status check_flag(const char* name, int32_t flag);

// The arguments of a rotary embedding: both tables or neither.
struct RotaryArguments {
  Named cos, sin;
  int32_t interleaved;
};

// rows: new keys, whose type and device tables may have; dim: the columns that may be turned.
Status describe_rotary(const RotaryArguments& of, Named rows, int64_t dim, RotaryTables* rotary);

// A GPU's engines take none of the host's: cores are counted, by the system, for calls on the CPU.
Status resolve_threads(int32_t asked, int32_t device_type, int* num_threads);
Status resolve_engine(int32_t asked, fa3_engine_id* engine);

// What is written shares memory neither with other outputs nor with what is read.
Status check_outputs(std::span<const CallTensor> tensors);
// The workspace is written while tensors are read, so it needs memory of its own too.
Status check_apart(const Memory& workspace, std::span<const CallTensor> tensors);

}  // namespace fa3::api
