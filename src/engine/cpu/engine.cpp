// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/engine.h"

#include "core/error.h"
#include "core/threads.h"
#include "engine/cpu/caches/caches.h"
#include "engine/cpu/kernels/isa.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/latent/latent.h"
#include "engine/cpu/latent/rows.h"
#include "engine/cpu/oracle/oracle.h"
#include "engine/cpu/tiled/tiled.h"
#include "process/first_use.h"

namespace fa3::cpu {
namespace {

// Measured once for each type: 10 ms of all cores. Float8 is computed in float32.
EngineLimits limits(DType dtype, int) {
  static constinit FirstUse<double> known[FA3_BFLOAT16 + 1];
  const DType computed = is_float8(dtype) ? DType::float32 : dtype;
  return {.flops = known[static_cast<size_t>(computed)].get(
              [&] { return measure_peak_flops(computed, available_threads()); })};
}

}  // namespace

const Engine kCpuEngine = {
    .name = "cpu",
    .id = FA3_ENGINE_CPU,
    .memory = FA3_CPU,
    .automatic = true,
    .probe =
        [] {
          return Availability{true, concat("tiled attention with ", isa_name(), " code")};
        },
    .plan_forward = plan_forward,
    .run_forward = run_forward,
    .plan_backward = plan_backward,
    .run_backward = run_backward,
    .run_merge = run_merge,
    .run_append = run_append,
    .plan_quantize = plan_quantize,
    .run_quantize = run_quantize,
    .run_dequantize = run_dequantize,
    .continues = [](const Problem&) { return true; },
    .plan_mla = plan_mla,
    .run_mla = run_mla,
    .plan_mla_backward = plan_mla_backward,
    .run_mla_backward = run_mla_backward,
    .run_mla_append = run_mla_append,
    .run_mla_gather = run_mla_gather,
    .limits = limits,
};

const Engine kReferenceEngine = {
    .name = "reference",
    .id = FA3_ENGINE_REFERENCE,
    .memory = FA3_CPU,
    .automatic = false,
    .probe =
        [] {
          return Availability{true, "textbook attention in double precision, the oracle"};
        },
    .plan_forward = plan_reference_forward,
    .run_forward = run_reference_forward,
    .plan_backward = plan_reference_backward,
    .run_backward = run_reference_backward,
    .run_merge = nullptr,
    .plan_quantize = plan_reference_quantize,
    .run_quantize = run_reference_quantize,
    .plan_mla = plan_reference_mla,
    .run_mla = run_reference_mla,
};

const Engine kStandardEngine = {
    .name = "standard",
    .id = FA3_ENGINE_STANDARD,
    .memory = FA3_CPU,
    .automatic = false,
    .probe =
        [] {
          return Availability{true, "standard attention, S and P stored, the baseline"};
        },
    .plan_forward = plan_standard_forward,
    .run_forward = run_standard_forward,
    .plan_backward = plan_standard_backward,
    .run_backward = run_standard_backward,
    .run_merge = nullptr,
    .plan_quantize = nullptr,
    .run_quantize = nullptr,
};

}  // namespace fa3::cpu
