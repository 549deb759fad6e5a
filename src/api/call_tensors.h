// SPDX-License-Identifier: Apache-2.0
//
// The tensors of each kind of call, with their names in sentences, and what the call does with
// them. Said here once: describe/ holds their memory apart, record/ writes them down.
#pragma once

#include <fa3/fa3.h>
#include <fa3/mla.h>

#include <array>

namespace fa3::api {

enum Use : unsigned {
  kRead = 1,
  kWritten = 2,
  kReadFirst = 4,  // before what may lie in its place is written: describe() says what may
};

// Refers to a params struct.
struct CallTensor {
  const char* name;
  const fa3_tensor& tensor;
  Use use;
};

inline auto tensors_of(const fa3_forward_params& p) {
  return std::to_array<CallTensor>({{"q", p.q, kRead},
                                    {"k", p.k, kRead},
                                    {"v", p.v, kRead},
                                    {"o", p.o, kWritten},
                                    {"lse", p.lse, kWritten},
                                    {"sink", p.sink, kRead},
                                    {"cu_seqlens_q", p.options.cu_seqlens_q, kRead},
                                    {"cu_seqlens_k", p.options.cu_seqlens_k, kRead},
                                    {"seqused_q", p.options.seqused_q, kRead},
                                    {"seqused_k", p.options.seqused_k, kRead},
                                    {"block_mask", p.options.block_mask, kRead},
                                    {"block_mask_bits", p.options.block_mask_bits, kRead},
                                    {"page_table", p.page_table, kRead},
                                    {"batch_index", p.batch_index, kRead},
                                    {"left_padding", p.left_padding, kRead},
                                    {"q_descale", p.q_descale, kRead},
                                    {"k_descale", p.k_descale, kRead},
                                    {"v_descale", p.v_descale, kRead},
                                    {"k_mean", p.k_mean, kRead},
                                    {"v_mean", p.v_mean, kRead},
                                    {"o_partial", p.o_partial, kReadFirst},
                                    {"lse_partial", p.lse_partial, kReadFirst},
                                    {"gate", p.gate, kRead},
                                    {"max_logit", p.max_logit, kWritten}});
}

inline auto tensors_of(const fa3_backward_params& p) {
  return std::to_array<CallTensor>({{"q", p.q, kRead},
                                    {"k", p.k, kRead},
                                    {"v", p.v, kRead},
                                    {"o", p.o, kRead},
                                    {"lse", p.lse, kRead},
                                    {"sink", p.sink, kRead},
                                    {"d_o", p.d_o, kRead},
                                    {"dq", p.dq, kWritten},
                                    {"dk", p.dk, kWritten},
                                    {"dv", p.dv, kWritten},
                                    {"dsink", p.dsink, kWritten},
                                    {"cu_seqlens_q", p.options.cu_seqlens_q, kRead},
                                    {"cu_seqlens_k", p.options.cu_seqlens_k, kRead},
                                    {"seqused_q", p.options.seqused_q, kRead},
                                    {"seqused_k", p.options.seqused_k, kRead},
                                    {"block_mask", p.options.block_mask, kRead},
                                    {"block_mask_bits", p.options.block_mask_bits, kRead},
                                    {"d_lse", p.d_lse, kRead},
                                    {"gate", p.gate, kRead},
                                    {"d_gate", p.d_gate, kWritten}});
}

// y: that of p, or all that is written of it.
inline auto tensors_of(const fa3_quantize_params& p, const fa3_tensor& y) {
  return std::to_array<CallTensor>({{"x", p.x, kRead},
                                    {"y", y, kWritten},
                                    {"descale", p.descale, kWritten},
                                    {"mean", p.mean, kWritten},
                                    {"rotary_cos", p.rotary_cos, kRead},
                                    {"rotary_sin", p.rotary_sin, kRead},
                                    {"cu_seqlens", p.cu_seqlens, kRead},
                                    {"seqused", p.seqused, kRead}});
}

// A call of fa3_dequantize_together() has the same struct.
struct DequantizeParams : fa3_quantize_params {};

inline auto tensors_of(const DequantizeParams& p) {
  return std::to_array<CallTensor>({{"x", p.x, kWritten},
                                    {"y", p.y, kRead},
                                    {"descale", p.descale, kRead},
                                    {"mean", p.mean, kRead},
                                    {"rotary_cos", p.rotary_cos, kRead},
                                    {"rotary_sin", p.rotary_sin, kRead},
                                    {"cu_seqlens", p.cu_seqlens, kRead},
                                    {"seqused", p.seqused, kRead}});
}

inline auto tensors_of(const fa3_merge_params& p) {
  return std::to_array<CallTensor>({{"o_partial", p.o_partial, kReadFirst},
                                    {"lse_partial", p.lse_partial, kReadFirst},
                                    {"o", p.o, kWritten},
                                    {"lse", p.lse, kWritten}});
}

inline auto tensors_of(const fa3_append_params& p) {
  return std::to_array<CallTensor>({{"k_cache", p.k_cache, kWritten},
                                    {"v_cache", p.v_cache, kWritten},
                                    {"k", p.k, kRead},
                                    {"v", p.v, kRead},
                                    {"cu_seqlens_new", p.cu_seqlens_new, kRead},
                                    {"seqused", p.seqused, kRead},
                                    {"page_table", p.page_table, kRead},
                                    {"batch_index", p.batch_index, kRead},
                                    {"rotary_cos", p.rotary_cos, kRead},
                                    {"rotary_sin", p.rotary_sin, kRead},
                                    {"first_position", p.first_position, kRead},
                                    {"q", p.q, kReadFirst},
                                    {"q_rotated", p.q_rotated, kWritten},
                                    {"cu_seqlens_q", p.cu_seqlens_q, kRead},
                                    {"k_descale", p.k_descale, kRead},
                                    {"v_descale", p.v_descale, kRead}});
}

inline auto tensors_of(const fa3_mla_forward_params& p) {
  return std::to_array<CallTensor>({{"q", p.q, kRead},
                                    {"q_rope", p.q_rope, kRead},
                                    {"cache", p.cache.rows, kRead},
                                    {"rope", p.cache.rope, kRead},
                                    {"descale", p.cache.descale, kRead},
                                    {"page_table", p.page_table, kRead},
                                    {"seqused_k", p.seqused_k, kRead},
                                    {"cu_seqlens_q", p.cu_seqlens_q, kRead},
                                    {"indices", p.indices, kRead},
                                    {"index_count", p.index_count, kRead},
                                    {"extra_cache", p.extra_cache.rows, kRead},
                                    {"extra_rope", p.extra_cache.rope, kRead},
                                    {"extra_descale", p.extra_cache.descale, kRead},
                                    {"extra_indices", p.extra_indices, kRead},
                                    {"extra_index_count", p.extra_index_count, kRead},
                                    {"sink", p.sink, kRead},
                                    {"o", p.o, kWritten},
                                    {"lse", p.lse, kWritten},
                                    {"max", p.max, kWritten}});
}

inline auto tensors_of(const fa3_mla_backward_params& p) {
  return std::to_array<CallTensor>({{"q", p.q, kRead},
                                    {"cache", p.cache, kRead},
                                    {"indices", p.indices, kRead},
                                    {"index_count", p.index_count, kRead},
                                    {"sink", p.sink, kRead},
                                    {"o", p.o, kRead},
                                    {"lse", p.lse, kRead},
                                    {"d_o", p.d_o, kRead},
                                    {"d_lse", p.d_lse, kRead},
                                    {"dq", p.dq, kWritten},
                                    {"d_cache", p.d_cache, kWritten},
                                    {"dsink", p.dsink, kWritten}});
}

inline auto tensors_of(const fa3_mla_append_params& p) {
  return std::to_array<CallTensor>({{"cache", p.cache.rows, kWritten},
                                    {"rope", p.cache.rope, kWritten},
                                    {"descale", p.cache.descale, kRead},
                                    {"c_kv", p.c_kv, kRead},
                                    {"k_pe", p.k_pe, kRead},
                                    {"slots", p.slots, kRead},
                                    {"rotary_cos", p.rotary_cos, kRead},
                                    {"rotary_sin", p.rotary_sin, kRead},
                                    {"positions", p.positions, kRead},
                                    {"q_pe", p.q_pe, kReadFirst},
                                    {"q_pe_rotated", p.q_pe_rotated, kWritten}});
}

inline auto tensors_of(const fa3_mla_gather_params& p) {
  return std::to_array<CallTensor>({{"cache", p.cache.rows, kRead},
                                    {"rope", p.cache.rope, kRead},
                                    {"descale", p.cache.descale, kRead},
                                    {"slots", p.slots, kRead},
                                    {"o", p.o, kWritten}});
}

}  // namespace fa3::api
