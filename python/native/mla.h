// SPDX-License-Identifier: Apache-2.0
//
// What calls of fa3/mla.h are given, in the order of python/fa3/_mla_calls.py.
#pragma once

#include <fa3/mla.h>

#include "reader.h"

namespace fa3::python {

// Names of errors: those of fa3.mla.
inline void read_cache(Reader* read, bool is_extra, Access access, fa3_mla_cache* cache) {
  read->tensor(is_extra ? "extra_cache" : "cache", access, &cache->rows);
  read->tensor(is_extra ? "extra_rope" : "rope", access, &cache->rope);
  read->tensor(is_extra ? "extra_descale" : "descale", Access::read, &cache->descale);
  read->integer(is_extra ? "extra_rows" : "rows", &cache->format);
}

struct MlaForward {
  using Params = fa3_mla_forward_params;
  static constexpr auto init = fa3_mla_forward_params_init;
  static constexpr auto run = fa3_mla_forward_with_allocator;

  static void read(Reader* read, Params* params) {
    read->tensor("q", Access::read, &params->q);
    read->tensor("q_rope", Access::read, &params->q_rope);
    read_cache(read, false, Access::read, &params->cache);
    read->tensor("page_table", Access::read, &params->page_table);
    read->tensor("seqused_k", Access::read, &params->seqused_k);
    read->tensor("cu_seqlens_q", Access::read, &params->cu_seqlens_q);
    read->tensor("indices", Access::read, &params->indices);
    read->tensor("index_count", Access::read, &params->index_count);
    read_cache(read, true, Access::read, &params->extra_cache);
    read->tensor("extra_indices", Access::read, &params->extra_indices);
    read->tensor("extra_index_count", Access::read, &params->extra_index_count);
    read->tensor("sink", Access::read, &params->sink);
    read->integer("max_seqlen_q", &params->max_seqlen_q);
    read->optional_real("scale", &params->scale);
    read->flag("causal", &params->causal);
    read->flag("lse_with_sink", &params->lse_with_sink);
    read->flag("empty_lse", &params->empty_lse);
    read->integer("num_splits", &params->num_splits);
    read->flag("batch_invariant", &params->batch_invariant);
    read->integer("engine", &params->engine);
    read->integer("num_threads", &params->num_threads);
    read->tensor("out", Access::write, &params->o);
    read->tensor("lse", Access::write, &params->lse);
    read->tensor("max", Access::write, &params->max);
  }
  static const fa3_tensor& first(const Params& params) { return params.q; }
};

struct MlaBackward {
  using Params = fa3_mla_backward_params;
  static constexpr auto init = fa3_mla_backward_params_init;
  static constexpr auto run = fa3_mla_backward_with_allocator;

  static void read(Reader* read, Params* params) {
    read->tensor("q", Access::read, &params->q);
    read->tensor("kv", Access::read, &params->cache);
    read->tensor("indices", Access::read, &params->indices);
    read->tensor("index_count", Access::read, &params->index_count);
    read->tensor("sink", Access::read, &params->sink);
    read->tensor("out", Access::read, &params->o);
    read->tensor("lse", Access::read, &params->lse);
    read->tensor("do", Access::read, &params->d_o);
    read->tensor("dlse", Access::read, &params->d_lse);
    read->tensor("dq", Access::write, &params->dq);
    read->tensor("dkv", Access::write, &params->d_cache);
    read->tensor("dsink", Access::write, &params->dsink);
    read->optional_real("scale", &params->scale);
    read->flag("lse_with_sink", &params->lse_with_sink);
    read->flag("deterministic", &params->deterministic);
    read->integer("engine", &params->engine);
    read->integer("num_threads", &params->num_threads);
  }
  static const fa3_tensor& first(const Params& params) { return params.q; }
};

struct MlaAppend {
  using Params = fa3_mla_append_params;
  static constexpr auto init = fa3_mla_append_params_init;
  static constexpr auto run = fa3_mla_append;

  static void read(Reader* read, Params* params) {
    read_cache(read, false, Access::write, &params->cache);
    read->tensor("c_kv", Access::read, &params->c_kv);
    read->tensor("k_pe", Access::read, &params->k_pe);
    read->tensor("slots", Access::read, &params->slots);
    read->tensor("rotary_cos", Access::read, &params->rotary_cos);
    read->tensor("rotary_sin", Access::read, &params->rotary_sin);
    read->tensor("positions", Access::read, &params->positions);
    read->tensor("q_pe", Access::read, &params->q_pe);
    read->tensor("q_pe_rotated", Access::write, &params->q_pe_rotated);
    read->flag("rotary_interleaved", &params->rotary_interleaved);
    read->integer("scaling", &params->scaling);
    read->integer("num_threads", &params->num_threads);
  }
};

struct MlaGather {
  using Params = fa3_mla_gather_params;
  static constexpr auto init = fa3_mla_gather_params_init;
  static constexpr auto run = fa3_mla_gather;

  static void read(Reader* read, Params* params) {
    read_cache(read, false, Access::read, &params->cache);
    read->tensor("slots", Access::read, &params->slots);
    read->tensor("out", Access::write, &params->o);
    read->integer("num_threads", &params->num_threads);
  }
};

}  // namespace fa3::python
