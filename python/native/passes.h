// SPDX-License-Identifier: Apache-2.0
//
// What the passes of attention are given: one list for every kind of caller. A reader takes tensors
// and options by name and in this order, which for options is that of the table in fa3/_options.py:
// reader.h reads a Python call, ffi.cpp a call of XLA.
#pragma once

#include <fa3/fa3.h>

#include "tensor.h"

namespace fa3::python {

// The seed and offset of dropout: two numbers of 64 bits in 4 int32, in q's memory.
template <class Reader>
void read_dropout_seed(Reader* read, const fa3_tensor& q, fa3_options* options) {
  fa3_tensor seed = {};
  read->tensor("dropout_seed", Access::read, &seed);
  if (seed.rank == 0) return;
  const bool is_seed = seed.dtype == FA3_INT32 && seed.rank == 1 && seed.shape[0] == 4 &&
                       seed.stride[0] == 1 && seed.device_type == q.device_type &&
                       seed.device_index == q.device_index;
  if (!is_seed) {
    read->refuse("dropout_seed: expected the seed and the offset, 64 bits each, in q's memory");
    return;
  }
  options->dropout_seed_at = static_cast<const uint64_t*>(seed.data);
  options->dropout_offset_at = options->dropout_seed_at + 1;
}

// Logits of an output gate, or their gradient: in q's rank, or without the last dimension, where a
// row has one.
template <class Reader>
void read_gate(Reader* read, const char* name, Access access, const fa3_tensor& q,
               fa3_tensor* gate) {
  read->tensor(name, access, gate);
  if (gate->rank == 0 || gate->rank != q.rank - 1) return;
  gate->shape[gate->rank] = gate->stride[gate->rank] = 1;
  ++gate->rank;
}

// The options of both passes, in the order of fa3/_options.py.
template <class Reader, class Params>
void read_options(Reader* read, Params* params) {
  fa3_options* options = &params->options;
  read->rest_is_optional();
  read->flag("causal", &options->causal);
  read->integer("window_left", &options->window_left);
  read->integer("window_right", &options->window_right);
  read->real("softcap", &options->softcap);
  read->optional_real("scale", &options->scale);
  read->tensor("sink", Access::read, &params->sink);
  read_gate(read, "gate", Access::read, params->q, &params->gate);
  read->tensor("cu_seqlens_q", Access::read, &options->cu_seqlens_q);
  read->tensor("cu_seqlens_k", Access::read, &options->cu_seqlens_k);
  read->tensor("seqused_q", Access::read, &options->seqused_q);
  read->tensor("seqused_k", Access::read, &options->seqused_k);
  read_dropout_seed(read, params->q, options);
  read->tensor("block_mask", Access::read, &options->block_mask);
  read->tensor("block_mask_bits", Access::read, &options->block_mask_bits);
  read->integer("max_seqlen_q", &options->max_seqlen_q);
  read->integer("max_seqlen_k", &options->max_seqlen_k);
  read->flag("deterministic", &options->deterministic);
  read->integer("engine", &options->engine);
  read->integer("num_threads", &options->num_threads);
  read->integer("attention_chunk", &options->attention_chunk);
  read->flag("batch_invariant", &options->batch_invariant);
  read->integer("window_shift", &options->window_shift);
  read->integer("sm_margin", &options->sm_margin);
  read->real("dropout_p", &options->dropout_p);
  read->integer("dropout_sequence", &options->dropout_sequence);
  read->integer("dropout_head", &options->dropout_head);
  read->integer("dropout_query", &options->dropout_query);
  read->integer("dropout_key", &options->dropout_key);
}

struct Forward {
  using Params = fa3_forward_params;
  static constexpr auto init = fa3_forward_params_init;
  static constexpr auto run = fa3_forward_with_allocator;
  static constexpr auto run_within = fa3_forward;
  static constexpr auto workspace_size = fa3_forward_workspace_size;
  static constexpr int32_t kListedPass = 1;
  static constexpr auto block_lists_size = fa3_forward_block_lists_size;
  static constexpr auto make_block_lists = fa3_forward_make_block_lists;

  template <class Reader>
  static void read(Reader* read, Params* params) {
    read->tensor("q", Access::read, &params->q);
    read->tensor("k", Access::read, &params->k);
    read->tensor("v", Access::read, &params->v);
    read->tensor("out", Access::write, &params->o);
    read->tensor("lse", Access::write, &params->lse);
    read_options(read, params);
    read->tensor("page_table", Access::read, &params->page_table);
    read->tensor("batch_index", Access::read, &params->batch_index);
    read->tensor("left_padding", Access::read, &params->left_padding);
    read->integer("num_splits", &params->num_splits);
    read->tensor("q_descale", Access::read, &params->q_descale);
    read->tensor("k_descale", Access::read, &params->k_descale);
    read->tensor("v_descale", Access::read, &params->v_descale);
    read->tensor("k_mean", Access::read, &params->k_mean);
    read->tensor("v_mean", Access::read, &params->v_mean);
    read->flag("v_transposed", &params->v_transposed);
    read->tensor("max_logit", Access::write, &params->max_logit);
  }
  // A step of a ring has these behind all options.
  template <class Reader>
  static void read_step(Reader* read, Params* params) {
    read->tensor("o_partial", Access::read, &params->o_partial);
    read->tensor("lse_partial", Access::read, &params->lse_partial);
  }
  static const fa3_tensor& first(const Params& params) { return params.q; }
};

struct Backward {
  using Params = fa3_backward_params;
  static constexpr auto init = fa3_backward_params_init;
  static constexpr auto run = fa3_backward_with_allocator;
  static constexpr auto run_within = fa3_backward;
  static constexpr auto workspace_size = fa3_backward_workspace_size;
  static constexpr int32_t kListedPass = 2;
  static constexpr auto block_lists_size = fa3_backward_block_lists_size;
  static constexpr auto make_block_lists = fa3_backward_make_block_lists;

  template <class Reader>
  static void read(Reader* read, Params* params) {
    read->tensor("do", Access::read, &params->d_o);
    read->tensor("q", Access::read, &params->q);
    read->tensor("k", Access::read, &params->k);
    read->tensor("v", Access::read, &params->v);
    read->tensor("out", Access::read, &params->o);
    read->tensor("lse", Access::read, &params->lse);
    read->tensor("dlse", Access::read, &params->d_lse);
    read->tensor("dq", Access::write, &params->dq);
    read->tensor("dk", Access::write, &params->dk);
    read->tensor("dv", Access::write, &params->dv);
    read->tensor("dsink", Access::write, &params->dsink);
    read_options(read, params);
    read_gate(read, "dgate", Access::write, params->q, &params->d_gate);
  }
  template <class Reader>
  static void read_step(Reader* read, Params* params) {
    read->flag("accumulate_dq", &params->accumulate_dq);
    read->flag("accumulate_dkv", &params->accumulate_dkv);
  }
  static const fa3_tensor& first(const Params& params) { return params.q; }
};

// New rows of a cache. A call of XLA has the caches as operands too, whose memory is the results'.
struct Append {
  using Params = fa3_append_params;
  static constexpr auto init = fa3_append_params_init;
  static constexpr auto run = fa3_append;
  static fa3_status run_within(const Params* params, void*, size_t, void* stream) {
    return fa3_append(params, stream);
  }

  template <class Reader>
  static void read(Reader* read, Params* params) {
    read->tensor("k_cache", Access::write, &params->k_cache);
    read->tensor("v_cache", Access::write, &params->v_cache);
    read->tensor("k", Access::read, &params->k);
    read->tensor("v", Access::read, &params->v);
    read->tensor("cu_seqlens_new", Access::read, &params->cu_seqlens_new);
    read->tensor("seqused", Access::read, &params->seqused);
    read->tensor("page_table", Access::read, &params->page_table);
    read->tensor("batch_index", Access::read, &params->batch_index);
    read->tensor("rotary_cos", Access::read, &params->rotary_cos);
    read->tensor("rotary_sin", Access::read, &params->rotary_sin);
    read->tensor("first_position", Access::read, &params->first_position);
    read->tensor("q", Access::read, &params->q);
    read->tensor("q_rotated", Access::write, &params->q_rotated);
    read->tensor("cu_seqlens_q", Access::read, &params->cu_seqlens_q);
    read->tensor("k_descale", Access::read, &params->k_descale);
    read->tensor("v_descale", Access::read, &params->v_descale);
    read->flag("rotary_interleaved", &params->rotary_interleaved);
    read->flag("queries_share_position", &params->queries_share_position);
    read->integer("num_threads", &params->num_threads);
  }
};

}  // namespace fa3::python
