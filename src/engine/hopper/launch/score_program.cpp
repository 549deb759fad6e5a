// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/score_program.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/error.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/kernels/headers_of.h"
#include "engine/hopper/launch/launch_forward.h"

namespace fa3::hopper {
namespace {

cuda::EngineKernel kernel_of(std::string includes, std::string text) {
  return {.includes = std::move(includes),
          .text = std::move(text),
          .engine = "hopper",
          .architecture = "sm_90a",
          .headers = cuda::hopper_headers()};
}

std::string includes_of(const Kernel& c) {
  std::string includes;
  for (const std::string_view header : headers_of(c)) {
    if (!header.empty()) includes += concat("#include \"", header, "\"\n");
  }
  return includes;
}

// A kernel with ForwardParams of that many bytes.
std::string instance_of(const Kernel& c, size_t params_bytes) {
  const char* const fits =
      c.is_decode()
          ? "sizeof(DecodeSmem<kConfig>) <= smem_bytes_of_each(decode_shape(kConfig).ctas_per_sm)"
          : "smem_bytes<kConfig>() <= smem_bytes_of_each(kConfig.shape.ctas_per_sm)";
  return concat("constexpr Kernel kConfig = ", cuda::text_of(c),
                ";\nstatic_assert(sizeof(ForwardParams) == ", params_bytes, " && ", fits,
                ");\ntemplate __global__ void ", c.is_decode() ? "decode" : "forward",
                "_kernel<kConfig>(const __grid_constant__ ForwardParams);\n");
}

// Under a block mask the place of a step stands in its record, wherever lists lead.
constexpr const char* kPlaceOfListedStep =
    "template <>\n"
    "__device__ __forceinline__ TilePlace KeyGradients<kConfig>::place_of(Block block) const {\n"
    "  const ListedStep& step = work_.at(block);\n"
    "  return {work_.sequence(), step.head, first_key_, step.m_block * kConfig.shape.block_m};\n"
    "}\n";

// What a forward kernel knows of its function. Elements that come in pairs are loaded ahead of the
// scores, to which the function is applied then.
cuda::ScoreTraits traits_of(const fa3_score_function& score, const Kernel& c) {
  cuda::ScoreTraits traits = cuda::traits_of(score);
  if (c.is_decode()) return traits;
  traits.loads_tile = c.captured.loads_tile();
  traits.starts_products = score.kind != FA3_SCORE_ANY && c.captured.ahead != Ahead::kPairs;
  return traits;
}

cuda::ScoreTraits traits_of(const fa3_score_function& score, const BackwardConfig&, int captured) {
  cuda::ScoreTraits traits = cuda::traits_of(score);
  traits.loads_tile = captured != kNoTile;
  traits.stores_gradient = cuda::tensor_with_stored_gradient(score) != nullptr;
  return traits;
}

}  // namespace

cuda::Program score_program(const fa3_score_function& score, const Kernel& c) {
  const char* const policy = "#include \"engine/hopper/forward/policies/scores_function.cuh\"\n";
  return cuda::forward_program(score, traits_of(score, c),
                               kernel_of((c.is_decode() ? "" : policy) + includes_of(c),
                                         instance_of(c, sizeof(ScoredForwardParams))));
}

cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& c,
                            int captured) {
  return cuda::backward_program(
      score, traits_of(score, c, captured),
      kernel_of("#include \"engine/hopper/backward/backward_kernel.cuh\"\n",
                concat("constexpr BackwardConfig kConfig = ", cuda::text_of(c), ";\n",
                       c.block_mask() ? kPlaceOfListedStep : "",
                       "static_assert(sizeof(BackwardParams) == ", sizeof(ScoredBackwardParams),
                       " && backward_smem_bytes<kConfig>() <= kMaxSmemBytes);\n"
                       "template __global__ void backward_kernel<kConfig>("
                       "const __grid_constant__ BackwardParams);\n")));
}

cuda::Program output_program(const Kernel& c) {
  return cuda::output_program(kernel_of(includes_of(c), instance_of(c, sizeof(ForwardParams))));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const Kernel& c) {
  return cuda::key_of("hopper forward", c, score, traits_of(score, c));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           int captured) {
  return cuda::key_of("hopper backward", config, score, traits_of(score, config, captured));
}

cuda::ProgramKey output_key(const Kernel& c) {
  return cuda::key_of("hopper outputs", c);
}

}  // namespace fa3::hopper
