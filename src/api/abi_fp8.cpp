// SPDX-License-Identifier: Apache-2.0
// fa3/fp8.h.
#include <fa3/fp8.h>

#include <vector>

#include "api/advise.h"
#include "api/attention.h"
#include "api/boundary.h"

using namespace fa3::api;

extern "C" {

fa3_status fa3_quantize_together_with_allocator(const fa3_quantize_params* const* params,
                                                int32_t count, fa3_workspace_allocator allocate,
                                                void* context, void* stream) {
  return at_boundary([&]() -> fa3::Status {
    if (params == nullptr) return fa3::invalid("params: expected structs, got a null pointer");
    if (count < 1 || count > FA3_MOST_TOGETHER) {
      return fa3::invalid("count: expected 1 to ", FA3_MOST_TOGETHER, ", got ", count);
    }
    if (allocate == nullptr) {
      return fa3::invalid("allocate: expected a function, got a null pointer");
    }
    std::vector<fa3_quantize_params> newest;
    for (int32_t i = 0; i < count; ++i) {
      const auto keep = [&](const fa3_quantize_params& p) -> fa3::Status {
        newest.push_back(p);
        return {};
      };
      FA3_TRY(with_newest("params", params[i], keep));
    }
    return run(std::span<const fa3_quantize_params>(newest),
               {.allocate = allocate, .context = context}, stream);
  });
}

fa3_status fa3_forward_advise(const fa3_forward_params* params, fa3_advice* advice) {
  return with_params(params, [&](const fa3_forward_params& p) { return advise(p, advice); });
}

}  // extern "C"
