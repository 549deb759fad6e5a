// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/launch.h"

#include "core/macros.h"
#include "engine/ampere/launch/score_program.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/cuda/kernels/kernels.h"

namespace fa3::ampere {
namespace {

MergeProblem merge_of(const Problem& problem, const PartialResults& partials, void* workspace) {
  WorkspaceAllocator allocator(workspace);
  const auto [o, lse] = partials.carve(allocator);
  const int64_t row = partials.heads * partials.pitch;
  return {.num_partials = partials.num_splits,
          .batch = partials.batches,
          .rows = partials.rows,
          .heads = partials.heads,
          .head_dim_v = problem.head_dim_v,
          .o_partial = {.data = o,
                        .dtype = DType::float32,
                        .batch_stride = partials.rows * row,
                        .row_stride = row,
                        .head_stride = partials.pitch},
          .lse_partial = {lse, partials.heads * partials.rows, partials.rows, 1},
          .o_partial_stride = partials.o_stride(),
          .lse_partial_stride = partials.lse_stride(),
          .o = problem.o,
          .lse = problem.lse,
          .device = problem.device,
          .device_index = problem.device_index};
}

// The kernel of a score function, or of one with outputs, is found or made here.
Status find_kernel(const fa3_score_function* score, int device, ForwardKernel* kernel) {
  const ForwardConfig& c = kernel->config;
  if (score == nullptr && !c.outputs.any()) return {};
  cuda::Capability gpu;
  FA3_TRY(cuda::find_capability(device, &gpu));
  if (score == nullptr) {
    return cuda::find_kernel(output_key(c, gpu), nullptr, &kernel->function,
                             [&] { return output_program(c, gpu); });
  }
  return cuda::find_kernel(score_key(*score, c, gpu), score->compiler, &kernel->function,
                           [&] { return score_program(*score, c, gpu); });
}

}  // namespace

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  auto decided = plan.decided.load<ForwardPlan>();
  const cuda::DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const fa3_score_function* const score = problem.score;
  cuda::ScoreCaptures captures{};
  if (error == cudaSuccess && decided.has_work()) {
    FA3_TRY(find_kernel(score, problem.device_index, &decided.kernel));
    if (score != nullptr) {
      if (score->only_compiles != 0) return {};
      captures = cuda::captures_of(*score);
    }
  }
  if (error == cudaSuccess && problem.max_logit.on) {
    error = cuda::clear_max_logits(decided.call.max_logit, problem.batch, int(problem.heads_q),
                                   static_cast<cudaStream_t>(stream));
  }
  if (!decided.has_work()) return cuda::finish(error, "ampere forward");
  if (error == cudaSuccess) {
    error = launch_forward(decided, score ? &captures : nullptr, workspace,
                           static_cast<cudaStream_t>(stream));
  }
  if (error != cudaSuccess || !decided.partials.any()) {
    return cuda::finish(error, "ampere forward");
  }
  return cuda::run_merge(merge_of(problem, decided.partials, workspace), stream,
                         cuda::gate_of(problem, problem.head_dim_v));
}

}  // namespace fa3::ampere
