// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/score_program.h"

#include <utility>

#include "core/error.h"
#include "engine/ampere/backward_params.h"
#include "engine/ampere/forward_params.h"

namespace fa3::ampere {
namespace {

// Configs as constants of the program. No kernel with a score function has dropout.
std::string text_of(const ForwardConfig& c) {
  return concat("ForwardConfig{.element = Element(", int(c.element), "), .head_dim = ", c.head_dim,
                ", .head_dim_v = ", c.head_dim_v, ", .block_m = ", c.block_m,
                ", .block_n = ", c.block_n, ", .stages = ", c.stages, ", .warps = ", c.warps,
                ", .ctas_per_sm = ", c.ctas_per_sm, ", .q_columns = ", c.q_columns,
                ", .quantized = ", cuda::bool_literal(c.quantized),
                ", .block_mask = ", cuda::bool_literal(c.block_mask), "}");
}

std::string text_of(const BackwardConfig& c) {
  return concat("BackwardConfig{.element = Element(", int(c.element), "), .head_dim = ", c.head_dim,
                ", .head_dim_v = ", c.head_dim_v, ", .block_m = ", c.block_m,
                ", .block_n = ", c.block_n, ", .stages = ", c.stages,
                ", .smem_class = ", c.smem_class,
                ", .block_mask = ", cuda::bool_literal(c.block_mask),
                ", .keeps_slopes = ", cuda::bool_literal(c.keeps_slopes), "}");
}

cuda::ScoreKernel kernel_of(std::string includes, std::string text, const cuda::Capability& gpu) {
  return {.includes = std::move(includes),
          .text = std::move(text),
          .engine = "ampere",
          .architecture = concat("sm_", gpu.major, gpu.minor),
          .headers = cuda::ampere_headers()};
}

}  // namespace

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& c,
                            const cuda::Capability& gpu) {
  return cuda::forward_program(
      score,
      kernel_of("#include \"engine/ampere/forward/forward_kernel.cuh\"\n",
                concat("constexpr ForwardConfig kConfig = ", text_of(c),
                       ";\nstatic_assert(sizeof(ForwardParams) == ", sizeof(ScoredForwardParams),
                       ");\ntemplate __global__ void forward_kernel<kConfig>("
                       "const __grid_constant__ ForwardParams);\n"),
                gpu));
}

cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& c,
                            const cuda::Capability& gpu) {
  return cuda::backward_program(
      score,
      kernel_of("#include \"engine/ampere/backward/backward_kernel.cuh\"\n",
                concat("constexpr BackwardConfig kConfig = ", text_of(c),
                       ";\nstatic_assert(sizeof(BackwardParams) == ", sizeof(ScoredBackwardParams),
                       " && BackwardSmem<kConfig>::kBytes <= kConfig.smem_class);\n"
                       "template __global__ void backward_kernel<kConfig>("
                       "const __grid_constant__ BackwardParams);\n"),
                gpu));
}

}  // namespace fa3::ampere
