// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/engine.h"

#include "core/macros.h"
#include "engine/cuda/engine_parts.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/hopper/latent/plan_latent.h"
#include "engine/hopper/latent_view.h"
#include "engine/hopper/launch/run.h"
#include "engine/hopper/plan/backward/plan_backward.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {

using Parts = cuda::EngineParts<kCapability>;

const Engine kHopperEngine = {
    .name = "hopper",
    .id = FA3_ENGINE_HOPPER,
    .memory = FA3_CUDA,
    .automatic = true,
    .probe = Parts::probe,
    .plan_forward = plan_any_forward,
    .run_forward = run_any_forward,
    .plan_backward = plan_backward,
    .run_backward = run_backward,
    .run_merge = Parts::run_merge,
    .run_append = Parts::run_append,
    .read_back = cuda::read_back,
    .follow = cuda::follow,
    .clear = cuda::clear,
    .write = cuda::write,
    .plan_quantize = [](const QuantizeProblem& problem, Plan* plan) -> Status {
      FA3_TRY(cuda::check_device(problem.device_index, kCapability));
      return cuda::plan_quantize(problem, plan);
    },
    .run_quantize = cuda::run_quantize,
    .plan_quantize_together = cuda::plan_quantize_together,
    .run_quantize_together = cuda::run_quantize_together,
    .run_dequantize = [](const DequantizeProblem& problem, void* stream) -> Status {
      FA3_TRY(cuda::check_device(problem.device_index, kCapability));
      return cuda::run_dequantize(problem, stream);
    },
    .continues = continues,
    .has_score_functions = true,
    .make_forward_lists = make_forward_lists,
    .make_backward_lists = make_backward_lists,
    .plan_mla = plan_mla,
    .run_mla = run_mla,
    .plan_mla_backward = plan_mla_backward,
    .run_mla_backward = run_mla_backward,
    .run_mla_append = Parts::run_mla_append,
    .run_mla_gather = Parts::run_mla_gather,
    .clock = &cuda::kClock,
    .limits = cuda::limits,
};

}  // namespace fa3::hopper
