// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/score_program.h"

#include <array>
#include <utility>

#include "core/error.h"
#include "engine/ampere/backward_params.h"
#include "engine/ampere/forward_params.h"

namespace fa3::ampere {
namespace {

// No kernel with a score function has dropout.
std::array<cuda::ConfigField, 11> fields_of(const ForwardConfig& c) {
  return {{{"element", "Element", int(c.element)},
           {"head_dim", "int", c.head_dim},
           {"head_dim_v", "int", c.head_dim_v},
           {"block_m", "int", c.block_m},
           {"block_n", "int", c.block_n},
           {"stages", "int", c.stages},
           {"warps", "int", c.warps},
           {"ctas_per_sm", "int", c.ctas_per_sm},
           {"q_columns", "int", c.q_columns},
           {"quantized", "bool", c.quantized},
           {"block_mask", "bool", c.block_mask}}};
}

std::array<cuda::ConfigField, 9> fields_of(const BackwardConfig& c) {
  return {{{"element", "Element", int(c.element)},
           {"head_dim", "int", c.head_dim},
           {"head_dim_v", "int", c.head_dim_v},
           {"block_m", "int", c.block_m},
           {"block_n", "int", c.block_n},
           {"stages", "int", c.stages},
           {"smem_class", "int", c.smem_class},
           {"block_mask", "bool", c.block_mask},
           {"keeps_slopes", "bool", c.keeps_slopes}}};
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
      kernel_of(
          "#include \"engine/ampere/forward/forward_kernel.cuh\"\n",
          concat("constexpr ForwardConfig kConfig = ", cuda::text_of("ForwardConfig", fields_of(c)),
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
                concat("constexpr BackwardConfig kConfig = ",
                       cuda::text_of("BackwardConfig", fields_of(c)),
                       ";\nstatic_assert(sizeof(BackwardParams) == ", sizeof(ScoredBackwardParams),
                       " && BackwardSmem<kConfig>::kBytes <= kConfig.smem_class);\n"
                       "template __global__ void backward_kernel<kConfig>("
                       "const __grid_constant__ BackwardParams);\n"),
                gpu));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const ForwardConfig& config,
                           const cuda::Capability& gpu) {
  return cuda::key_of("ampere forward", fields_of(config), score).add(gpu.major).add(gpu.minor);
}

cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           const cuda::Capability& gpu) {
  return cuda::key_of("ampere backward", fields_of(config), score).add(gpu.major).add(gpu.minor);
}

}  // namespace fa3::ampere
