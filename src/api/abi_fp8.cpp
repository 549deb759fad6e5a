// SPDX-License-Identifier: Apache-2.0
// fa3/fp8.h.
#include <fa3/fp8.h>

#include <vector>

#include "api/advise.h"
#include "api/attention.h"
#include "api/boundary.h"
#include "core/macros.h"

using namespace fa3::api;

namespace {

// Calls of any struct_size as this version's; Params is fa3_quantize_params or DequantizeParams.
template <class Params>
fa3::Status read_calls(const fa3_quantize_params* const* params, int32_t count,
                       std::vector<Params>* calls) {
  if (params == nullptr) return fa3::invalid("params: expected structs, got a null pointer");
  if (count < 1 || count > FA3_MOST_TOGETHER) {
    return fa3::invalid("count: expected 1 to ", FA3_MOST_TOGETHER, ", got ", count);
  }
  for (int32_t i = 0; i < count; ++i) {
    const auto keep = [&](const fa3_quantize_params& p) -> fa3::Status {
      calls->push_back(Params{p});
      return {};
    };
    FA3_TRY(with_newest("params", params[i], keep));
  }
  return {};
}

}  // namespace

extern "C" {

fa3_status fa3_quantize_together_with_allocator(const fa3_quantize_params* const* params,
                                                int32_t count, fa3_workspace_allocator allocate,
                                                void* context, void* stream) {
  return at_boundary([&]() -> fa3::Status {
    if (allocate == nullptr) {
      return fa3::invalid("allocate: expected a function, got a null pointer");
    }
    std::vector<fa3_quantize_params> calls;
    FA3_TRY(read_calls(params, count, &calls));
    return run(std::span<const fa3_quantize_params>(calls),
               {.allocate = allocate, .context = context}, stream);
  });
}

fa3_status fa3_dequantize_together(const fa3_quantize_params* const* params, int32_t count,
                                   void* stream) {
  return at_boundary([&]() -> fa3::Status {
    std::vector<DequantizeParams> calls;
    FA3_TRY(read_calls(params, count, &calls));
    return run(std::span<const DequantizeParams>(calls), stream);
  });
}

fa3_status fa3_forward_advise(const fa3_forward_params* params, fa3_advice* advice) {
  return with_params(params, [&](const fa3_forward_params& p) { return advise(p, advice); });
}

}  // extern "C"
