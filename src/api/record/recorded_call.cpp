// SPDX-License-Identifier: Apache-2.0
#include "api/record/recorded_call.h"

#include <algorithm>
#include <iomanip>
#include <span>

#include "api/boundary.h"
#include "api/call_tensors.h"
#include "core/dtype.h"
#include "core/error.h"

namespace fa3::api {
namespace {

class Words {
 public:
  Words(const char* verb, std::span<const CallTensor> tensors) {
    call_.verb = verb;
    for (const auto& [name, tensor, use] : tensors) {
      if (tensor.rank != 0) call_.tensors.push_back({name, &tensor, use == kWritten});
    }
  }

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
  RecordedCall call_;
};

// An option of `p` by its own name.
#define FA3_OPTION(field) option(#field, p.field, standard.field)

void add_options(Words* words, const fa3_options& p) {
  const fa3_options standard = defaults<fa3_forward_params>().options;
  words->FA3_OPTION(causal)
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

void add_options(Words* words, const fa3_quantize_params& p) {
  words->option("max_seqlen", p.max_seqlen)
      .option("hadamard", p.hadamard)
      .option("seed", p.seed)
      .option("transposed", p.transposed)
      .option("engine", p.engine);
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
  Words words("forward", tensors_of(p));
  add_options(&words, p.options);
  return words.FA3_OPTION(num_splits)
      .FA3_OPTION(v_transposed)
      .can_be_kept(p.options.score == nullptr &&
                   (p.o_partial.rank == 0 || p.o_partial.data != p.o.data));
}

RecordedCall recorded(const fa3_backward_params& p) {
  const auto standard = defaults<fa3_backward_params>();
  Words words("backward", tensors_of(p));
  add_options(&words, p.options);
  return words.FA3_OPTION(accumulate_dq)
      .FA3_OPTION(accumulate_dkv)
      .can_be_kept(p.options.score == nullptr && p.accumulate_dq == 0 && p.accumulate_dkv == 0);
}

RecordedCall recorded(const fa3_quantize_params& p) {
  Words words("quantize", tensors_of(p, p.y));
  add_options(&words, p);
  return words;
}

RecordedCall recorded(const DequantizeParams& p) {
  Words words("dequantize", tensors_of(p));
  add_options(&words, p);
  return words;
}

RecordedCall recorded(const fa3_merge_params& p) {
  return Words("merge", tensors_of(p));
}

RecordedCall recorded(const fa3_append_params& p) {
  return Words("append", tensors_of(p))
      .option("rotary_interleaved", p.rotary_interleaved)
      .option("queries_share_position", p.queries_share_position);
}

RecordedCall recorded(const fa3_mla_forward_params& p) {
  const auto standard = defaults<fa3_mla_forward_params>();
  return Words("mla", tensors_of(p))
      .option("format", p.cache.format)
      .option("format", p.extra_cache.format)
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
  return Words("mla_backward", tensors_of(p))
      .FA3_OPTION(scale)
      .FA3_OPTION(lse_with_sink)
      .FA3_OPTION(deterministic)
      .FA3_OPTION(engine);
}

RecordedCall recorded(const fa3_mla_append_params& p) {
  return Words("mla_append", tensors_of(p))
      .option("format", p.cache.format)
      .option("rotary_interleaved", p.rotary_interleaved)
      .option("scaling", p.scaling);
}

RecordedCall recorded(const fa3_mla_gather_params& p) {
  return Words("mla_gather", tensors_of(p)).option("format", p.cache.format);
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
