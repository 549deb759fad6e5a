// SPDX-License-Identifier: Apache-2.0
#include "api/record/recorded_call.h"

#include <algorithm>
#include <iomanip>

#include "api/boundary.h"
#include "core/dtype.h"
#include "core/error.h"

namespace fa3::api {
namespace {

class Words {
 public:
  explicit Words(const char* verb) { call_.verb = verb; }

  Words& read(const char* name, const fa3_tensor& view) { return add(name, view, false); }
  Words& written(const char* name, const fa3_tensor& view) { return add(name, view, true); }
  template <class T>
  Words& option(const char* name, const T& value, const T& standard = {}) {
    constexpr int kExact = 9;  // decimal digits of a float
    if (value != standard)
      call_.options.emplace_back(name, concat(std::setprecision(kExact), value));
    return *this;
  }
  Words& can_be_kept(bool can) {
    call_.can_be_kept = can;
    return *this;
  }
  operator RecordedCall() { return std::move(call_); }

 private:
  Words& add(const char* name, const fa3_tensor& view, bool is_written) {
    if (view.rank != 0) call_.tensors.push_back({name, &view, is_written});
    return *this;
  }

  RecordedCall call_;
};

// An option or a tensor of `p` by its own name.
#define FA3_READ(field) read(#field, p.field)
#define FA3_WRITTEN(field) written(#field, p.field)
#define FA3_OPTION(field) option(#field, p.field, standard.field)

void add_options(Words* words, const fa3_options& p) {
  const fa3_options standard = defaults<fa3_forward_params>().options;
  words->FA3_READ(cu_seqlens_q)
      .FA3_READ(cu_seqlens_k)
      .FA3_READ(seqused_q)
      .FA3_READ(seqused_k)
      .FA3_READ(block_mask)
      .FA3_READ(block_mask_bits)
      .FA3_OPTION(causal)
      .FA3_OPTION(window_left)
      .FA3_OPTION(window_right)
      .FA3_OPTION(window_shift)
      .FA3_OPTION(attention_chunk)
      .FA3_OPTION(scale)
      .FA3_OPTION(softcap)
      .FA3_OPTION(max_seqlen_q)
      .FA3_OPTION(max_seqlen_k)
      .FA3_OPTION(dropout_p)
      .FA3_OPTION(dropout_seed)
      .FA3_OPTION(dropout_offset)
      .FA3_OPTION(dropout_sequence)
      .FA3_OPTION(dropout_head)
      .FA3_OPTION(dropout_query)
      .FA3_OPTION(dropout_key)
      .FA3_OPTION(deterministic)
      .FA3_OPTION(batch_invariant)
      .FA3_OPTION(sm_margin)
      .FA3_OPTION(num_threads)
      .FA3_OPTION(engine);
  if (p.score != nullptr) words->option<std::string>("score", "function");
  if (p.dropout_seed_at != nullptr) words->option<std::string>("dropout_seed_at", "given");
}

void add_cache(Words* words, const char* rows, const char* rope, const char* descale,
               const fa3_mla_cache& cache, bool written = false) {
  if (written) {
    words->written(rows, cache.rows).written(rope, cache.rope);
  } else {
    words->read(rows, cache.rows).read(rope, cache.rope);
  }
  words->read(descale, cache.descale).option("format", cache.format);
}

std::string name_of_dtype(int32_t dtype) {
  return is_known(dtype) ? name_of(static_cast<DType>(dtype)) : concat("dtype ", dtype);
}

std::string numbers(const int64_t* begin, int32_t count) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += concat(i == 0 ? "" : ",", begin[i]);
  return text;
}

}  // namespace

RecordedCall recorded(const fa3_forward_params& p) {
  const auto standard = defaults<fa3_forward_params>();
  Words words("forward");
  words.FA3_READ(q).FA3_READ(k).FA3_READ(v).FA3_WRITTEN(o).FA3_WRITTEN(lse).FA3_READ(sink);
  add_options(&words, p.options);
  return words.FA3_READ(page_table)
      .FA3_READ(batch_index)
      .FA3_READ(left_padding)
      .FA3_OPTION(num_splits)
      .FA3_READ(q_descale)
      .FA3_READ(k_descale)
      .FA3_READ(v_descale)
      .FA3_READ(k_mean)
      .FA3_READ(v_mean)
      .FA3_READ(o_partial)
      .FA3_READ(lse_partial)
      .FA3_OPTION(v_transposed)
      .FA3_READ(gate)
      .FA3_WRITTEN(max_logit)
      .can_be_kept(p.options.score == nullptr &&
                   (p.o_partial.rank == 0 || p.o_partial.data != p.o.data));
}

RecordedCall recorded(const fa3_backward_params& p) {
  const auto standard = defaults<fa3_backward_params>();
  Words words("backward");
  words.FA3_READ(q).FA3_READ(k).FA3_READ(v).FA3_READ(o).FA3_READ(lse).FA3_READ(sink);
  words.FA3_READ(d_o).FA3_WRITTEN(dq).FA3_WRITTEN(dk).FA3_WRITTEN(dv).FA3_WRITTEN(dsink);
  add_options(&words, p.options);
  return words.FA3_READ(d_lse)
      .FA3_OPTION(accumulate_dq)
      .FA3_OPTION(accumulate_dkv)
      .FA3_READ(gate)
      .FA3_WRITTEN(d_gate)
      .can_be_kept(p.options.score == nullptr && p.accumulate_dq == 0 && p.accumulate_dkv == 0);
}

RecordedCall recorded(const fa3_quantize_params& p) {
  return Words("quantize")
      .FA3_READ(x)
      .FA3_WRITTEN(y)
      .FA3_WRITTEN(descale)
      .FA3_WRITTEN(mean)
      .FA3_READ(rotary_cos)
      .FA3_READ(rotary_sin)
      .FA3_READ(cu_seqlens)
      .FA3_READ(seqused)
      .option("max_seqlen", p.max_seqlen)
      .option("hadamard", p.hadamard)
      .option("seed", p.seed)
      .option("transposed", p.transposed)
      .option("engine", p.engine);
}

RecordedCall recorded(const fa3_merge_params& p) {
  return Words("merge").FA3_READ(o_partial).FA3_READ(lse_partial).FA3_WRITTEN(o).FA3_WRITTEN(lse);
}

RecordedCall recorded(const fa3_append_params& p) {
  return Words("append")
      .FA3_WRITTEN(k_cache)
      .FA3_WRITTEN(v_cache)
      .FA3_READ(k)
      .FA3_READ(v)
      .FA3_READ(cu_seqlens_new)
      .FA3_READ(seqused)
      .FA3_READ(page_table)
      .FA3_READ(batch_index)
      .FA3_READ(rotary_cos)
      .FA3_READ(rotary_sin)
      .FA3_READ(first_position)
      .FA3_READ(q)
      .FA3_WRITTEN(q_rotated)
      .FA3_READ(cu_seqlens_q)
      .FA3_READ(k_descale)
      .FA3_READ(v_descale)
      .option("rotary_interleaved", p.rotary_interleaved)
      .option("queries_share_position", p.queries_share_position);
}

RecordedCall recorded(const fa3_mla_forward_params& p) {
  const auto standard = defaults<fa3_mla_forward_params>();
  Words words("mla");
  words.FA3_READ(q).FA3_READ(q_rope);
  add_cache(&words, "cache", "cache_rope", "cache_descale", p.cache);
  words.FA3_READ(page_table).FA3_READ(seqused_k).FA3_READ(cu_seqlens_q);
  words.FA3_READ(indices).FA3_READ(index_count);
  add_cache(&words, "extra_cache", "extra_cache_rope", "extra_cache_descale", p.extra_cache);
  return words.FA3_READ(extra_indices)
      .FA3_READ(extra_index_count)
      .FA3_READ(sink)
      .FA3_WRITTEN(o)
      .FA3_WRITTEN(lse)
      .FA3_WRITTEN(max)
      .FA3_OPTION(max_seqlen_q)
      .FA3_OPTION(scale)
      .FA3_OPTION(causal)
      .FA3_OPTION(lse_with_sink)
      .FA3_OPTION(empty_lse)
      .FA3_OPTION(num_splits)
      .FA3_OPTION(batch_invariant)
      .FA3_OPTION(engine);
}

RecordedCall recorded(const fa3_mla_backward_params& p) {
  const auto standard = defaults<fa3_mla_backward_params>();
  return Words("mla_backward")
      .FA3_READ(q)
      .FA3_READ(cache)
      .FA3_READ(indices)
      .FA3_READ(index_count)
      .FA3_READ(sink)
      .FA3_READ(o)
      .FA3_READ(lse)
      .FA3_READ(d_o)
      .FA3_READ(d_lse)
      .FA3_WRITTEN(dq)
      .FA3_WRITTEN(d_cache)
      .FA3_WRITTEN(dsink)
      .FA3_OPTION(scale)
      .FA3_OPTION(lse_with_sink)
      .FA3_OPTION(deterministic)
      .FA3_OPTION(engine);
}

RecordedCall recorded(const fa3_mla_append_params& p) {
  Words words("mla_append");
  add_cache(&words, "cache", "cache_rope", "cache_descale", p.cache, true);
  return words.FA3_READ(c_kv)
      .FA3_READ(k_pe)
      .FA3_READ(slots)
      .FA3_READ(rotary_cos)
      .FA3_READ(rotary_sin)
      .FA3_READ(positions)
      .FA3_READ(q_pe)
      .FA3_WRITTEN(q_pe_rotated)
      .option("rotary_interleaved", p.rotary_interleaved)
      .option("scaling", p.scaling);
}

RecordedCall recorded(const fa3_mla_gather_params& p) {
  Words words("mla_gather");
  add_cache(&words, "cache", "cache_rope", "cache_descale", p.cache);
  return words.FA3_READ(slots).FA3_WRITTEN(o);
}

bool is_dense(const fa3_tensor& view) {
  int64_t next = 1;
  for (int32_t dim = view.rank - 1; dim >= 0; --dim) {
    if (view.shape[dim] > 1 && view.stride[dim] != next) return false;
    next *= view.shape[dim];
  }
  return true;
}

std::string line_of(const RecordedCall& call) {
  std::string line = call.verb;
  for (const RecordedTensor& tensor : call.tensors) {
    fa3_tensor view = *tensor.view;
    view.rank = std::clamp<int32_t>(view.rank, 0, FA3_MAX_RANK);
    line += concat(" ", tensor.name, "=", name_of_dtype(view.dtype), "[",
                   numbers(view.shape, view.rank), "]");
    if (!is_dense(view)) line += concat("/", numbers(view.stride, view.rank));
  }
  for (const auto& [name, value] : call.options) line += concat(" ", name, "=", value);
  if (!call.tensors.empty()) {
    const fa3_tensor& first = *call.tensors.front().view;
    line += first.device_type == FA3_CPU ? " cpu" : concat(" cuda:", first.device_index);
  }
  return line;
}

}  // namespace fa3::api
