// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/launch/score_program.h"

#include <utility>

#include "core/error.h"
#include "engine/ampere/backward_params.h"
#include "engine/ampere/config/config_text.h"
#include "engine/ampere/forward_params.h"

namespace fa3::ampere {
namespace {

constexpr char kForwardInclude[] = "#include \"engine/ampere/forward/forward_kernel.cuh\"\n";

// A kernel with ForwardParams of that many bytes, in the engine's namespace.
std::string forward_instance(const ForwardConfig& c, size_t params_bytes) {
  return concat("constexpr ForwardConfig kConfig = ", cuda::text_of(c),
                ";\nstatic_assert(sizeof(ForwardParams) == ", params_bytes,
                ");\ntemplate __global__ void forward_kernel<kConfig>("
                "const __grid_constant__ ForwardParams);\n");
}

cuda::EngineKernel kernel_of(std::string includes, std::string text, const cuda::Capability& gpu) {
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
      score, cuda::traits_of(score),
      kernel_of(kForwardInclude, forward_instance(c, sizeof(ScoredForwardParams)), gpu));
}

cuda::Program output_program(const ForwardConfig& c, const cuda::Capability& gpu) {
  return cuda::output_program(
      kernel_of(kForwardInclude, forward_instance(c, sizeof(ForwardParams)), gpu));
}

cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& c,
                            const cuda::Capability& gpu) {
  return cuda::backward_program(
      score, cuda::traits_of(score),
      kernel_of("#include \"engine/ampere/backward/backward_kernel.cuh\"\n",
                concat("constexpr BackwardConfig kConfig = ", cuda::text_of(c),
                       ";\nstatic_assert(sizeof(BackwardParams) == ", sizeof(ScoredBackwardParams),
                       " && BackwardSmem<kConfig>::kBytes <= kConfig.smem_class);\n"
                       "template __global__ void backward_kernel<kConfig>("
                       "const __grid_constant__ BackwardParams);\n"),
                gpu));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const ForwardConfig& config,
                           const cuda::Capability& gpu) {
  return cuda::key_of("ampere forward", config, score, cuda::traits_of(score))
      .add(gpu.major)
      .add(gpu.minor);
}

cuda::ProgramKey output_key(const ForwardConfig& config, const cuda::Capability& gpu) {
  return cuda::key_of("ampere outputs", config).add(gpu.major).add(gpu.minor);
}

cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           const cuda::Capability& gpu) {
  return cuda::key_of("ampere backward", config, score, cuda::traits_of(score))
      .add(gpu.major)
      .add(gpu.minor);
}

}  // namespace fa3::ampere
