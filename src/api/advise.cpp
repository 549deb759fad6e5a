// SPDX-License-Identifier: Apache-2.0
#include "api/advise.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "api/describe/describe.h"
#include "api/precision_table.h"
#include "api/work.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/scales.h"
#include "plan/choose.h"

namespace fa3::api {
namespace {

// FLOP/s at `keys`, between the measured ones by their logarithm.
double rate_at(const double (&rates)[std::size(kRateKeys)], double keys) {
  const double step = std::log2(std::max(keys, 1.0) / static_cast<double>(kRateKeys[0]));
  const double at = std::clamp(step, 0.0, static_cast<double>(std::size(kRateKeys) - 1));
  const auto below = std::min(static_cast<size_t>(at), std::size(kRateKeys) - 2);
  const double share = at - static_cast<double>(below);
  return 1e12 * ((1 - share) * rates[below] + share * rates[below + 1]);
}

const AttentionRates* rates_of(const Problem& p) {
  for (const AttentionRates& rates : kAttentionRates) {
    const bool is_causal = p.mask.right == 0;
    if (std::max(p.head_dim, p.head_dim_v) <= rates.head_dim && rates.causal == is_causal) {
      return &rates;
    }
  }
  return nullptr;
}

double numbers_of(const fa3_tensor& tensor) {
  double count = 1;
  for (int dim = 0; dim < tensor.rank; ++dim) count *= static_cast<double>(tensor.shape[dim]);
  return count;
}

double size_of_item(const fa3_tensor& tensor) {
  return static_cast<double>(size_of(static_cast<DType>(tensor.dtype)));
}

// The call that attends to the quantized tensors.
fa3_forward_params in_fp8(const fa3_forward_params& wide, const Problem& p) {
  fa3_forward_params params = wide;
  const auto scales = [&](int64_t heads, int64_t rows) {
    const int64_t blocks = descale_blocks(rows);
    return fa3_tensor{.data = nullptr,
                      .dtype = FA3_FLOAT32,
                      .device_type = wide.q.device_type,
                      .device_index = wide.q.device_index,
                      .rank = 3,
                      .shape = {p.batch, heads, blocks},
                      .stride = {heads * blocks, blocks, 1}};
  };
  for (fa3_tensor* x : {&params.q, &params.k, &params.v}) {
    x->data = nullptr;
    x->dtype = FA3_FLOAT8_E4M3;
  }
  const auto heads_of = [](const fa3_tensor& x) { return x.shape[x.rank - 2]; };
  params.q_descale = scales(heads_of(wide.q), p.lengths_q.max);
  params.k_descale = scales(heads_of(wide.k), p.lengths_k.max);  // a problem without keys has one
  params.v_descale = params.k_descale;
  return params;
}

// OK and the workspace; or why no engine takes the call.
Status bytes_of_call(const fa3_forward_params& params, Problem* problem, int64_t* workspace) {
  Choice choice;
  choice.plan.wants_words = false;
  FA3_TRY(describe(params, Purpose::query, problem));
  FA3_TRY(choose(*problem, &choice));
  *workspace = choice.plan.workspace_bytes;
  return {};
}

bool has_engine(fa3_device_type memory) {
  return std::ranges::any_of(engines(), [&](const Engine* engine) {
    return engine->memory == memory && engine->automatic && probe(*engine).available;
  });
}

double error_of(DType dtype) {
  if (dtype == DType::float16) return kErrorFloat16;
  return dtype == DType::bfloat16 ? kErrorBfloat16 : 0.0;
}

}  // namespace

Status advise(const fa3_forward_params& params, fa3_advice* advice) {
  if (advice == nullptr) return invalid("advice: expected a struct, got a null pointer");
  Problem p, small;
  FA3_TRY(describe(params, Purpose::query, &p));
  if (is_float8(p.dtype) || p.kv_dtype != p.dtype) {
    return invalid("q, k, v: expected the tensors before they are quantized, got ",
                   name_of(p.kv_dtype));
  }
  *advice = {.precision = params.q.dtype, .error = error_of(p.dtype), .error_fp8 = kErrorFp8};
  const auto say = [&](const std::string& reason) {
    const size_t length = reason.copy(advice->reason, sizeof(advice->reason) - 1);
    advice->reason[length] = '\0';
    return Status{};
  };
  const double inputs = numbers_of(params.q) + numbers_of(params.k) + numbers_of(params.v);
  const double tensors =
      inputs * size_of_item(params.q) + numbers_of(params.o) * size_of_item(params.o);
  int64_t workspace = 0;
  const Status wide = bytes_of_call(params, &p, &workspace);
  if (wide.ok()) advice->bytes = static_cast<int64_t>(tensors) + workspace;
  const Status fp8 = bytes_of_call(in_fp8(params, p), &small, &workspace);
  if (fp8.ok()) advice->bytes_fp8 = static_cast<int64_t>(tensors + inputs) + workspace;
  const bool can_ask = has_engine(p.device);
  if (can_ask && !fp8.ok()) return say(concat("FP8 cannot run: ", fp8.message()));
  if (p.device == FA3_CPU) return say("FP8 saves no time on a CPU");
  if (can_ask && !wide.ok()) {
    advice->precision = FA3_FLOAT8_E4M3;
    return say(concat("no engine takes ", name_of(p.dtype), ": ", wide.message()));
  }
  const Work work = work_of(p);
  const AttentionRates* const rates = rates_of(p);
  const double rows = numbers_of(params.q) / static_cast<double>(std::max<int64_t>(p.head_dim, 1));
  const std::string unknown = "no measurement of such a call; FP8 is not known to pay";
  const bool is_hopper = p.engine == FA3_ENGINE_AUTO || p.engine == FA3_ENGINE_HOPPER;
  const bool has_kernels = is_hopper && p.head_dim % 16 == 0 && p.head_dim_v % 16 == 0;
  const bool is_plain = size_of(p.dtype) == 2 && !p.key_places.paged() && p.softcap == 0 &&
                        !p.dropout.on() && !p.gate.on && !p.max_logit.on && !p.block_mask.on &&
                        p.score == nullptr;
  const bool was_measured = has_kernels && is_plain;
  if (rates == nullptr || !was_measured || !work.known || rows == 0) return say(unknown);
  // Keys of a row, as a call with this mask and as many queries would have them. A causal mask
  // alone hides half of them.
  const bool is_triangle = rates->causal && p.mask.left == decltype(p.mask)::kUnbounded;
  const double seen = work.flops / (2 * static_cast<double>(p.head_dim + p.head_dim_v) * rows) *
                      (is_triangle ? 2 : 1);
  const double keys = std::min(std::round(seen), static_cast<double>(p.lengths_k.max));
  const double seconds = work.flops / rate_at(rates->wide, keys);
  if (keys < static_cast<double>(kRateKeys[0]) || seconds < kLeastSeconds) return say(unknown);
  advice->seconds = seconds;
  advice->seconds_fp8 = work.flops / rate_at(rates->fp8, keys) +
                        inputs * (size_of_item(params.q) + 1) / (1e12 * rates->quantizer);
  const bool pays = advice->seconds_fp8 < kMostOfWide * advice->seconds;
  if (pays) advice->precision = FA3_FLOAT8_E4M3;
  const double share = std::round(100 * advice->seconds_fp8 / advice->seconds);
  return say(concat("FP8 with its quantizer is expected to take ", static_cast<int64_t>(share),
                    "% of the time of ", name_of(p.dtype), " (head dim ", p.head_dim,
                    rates->causal ? ", causal, " : ", ", static_cast<int64_t>(keys),
                    " keys a row)"));
}

}  // namespace fa3::api
