// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/score_program.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {
namespace {

const char* truth(bool x) {
  return x ? "true" : "false";
}

// A ForwardConfig as a constant of the program: all that rows of kScoreTable differ in.
std::string text_of(const ForwardConfig& c) {
  return concat("ForwardConfig{.element = Element(", int(c.element), "), .head_dim = ", c.head_dim,
                ", .head_dim_v = ", c.head_dim_v, ", .block_m = ", c.block_m,
                ", .block_n = ", c.block_n, ", .q_stages = ", c.q_stages,
                ", .kv_stages = ", c.kv_stages, ", .ping_pong = ", truth(c.ping_pong),
                ", .ctas_per_sm = ", c.ctas_per_sm, ", .guarded = ", truth(c.guarded),
                ", .block_mask = ", truth(c.block_mask), ", .variant = Variant(", int(c.variant),
                ")}");
}

const char* scheduler_of(const ForwardConfig& c) {
  if (c.block_mask) return "listed_tiles.cuh";
  return c.scheduler() == SchedulerKind::kDense ? "dense_tiles.cuh" : "varlen_tiles.cuh";
}

const char* loader_of(const ForwardConfig& c) {
  if (c.block_mask) return "load_tma_listed.cuh";
  return c.kv_loader() == KvLoaderKind::kDense ? "load_tma.cuh" : "load_tma_pages.cuh";
}

// The same of a BackwardConfig. No kernel with a score function has dropout.
std::string text_of(const BackwardConfig& c) {
  return concat(
      "BackwardConfig{.element = Element(", int(c.element), "), .head_dim = ", c.head_dim,
      ", .head_dim_v = ", c.head_dim_v, ", .block_m = ", c.block_m, ", .block_n = ", c.block_n,
      ", .stages = ", c.stages, ", .ds_stages = ", c.ds_stages, ", .helpers = ", truth(c.helpers),
      ", .variant = Variant(", int(c.variant), "), .splits_heads = ", truth(c.splits_heads),
      ", .block_mask = ", truth(c.block_mask), "}");
}

// A function of a class of score_function.cuh.
std::string definition(const char* declaration, const char* body) {
  return concat("__device__ __forceinline__ ", declaration, " {\n#line 1 \"score function\"\n",
                body, "\n}\n");
}

std::string definition_of_score(const fa3_score_function& score) {
  return definition(
      "float ScoreFunction::of(float score, int b, int h, int q_idx, int kv_idx) const",
      score.text);
}

// Functions that load would load twice.
bool looks_at_tangents(const fa3_score_function& score) {
  return score.num_tensors == 0 && std::strstr(score.text, "tangent(") != nullptr;
}

// The tensor from which load_of_key() loads ahead, if the text has it once: registers do not last
// for more.
std::string definition_of_pairs(const fa3_score_function& score) {
  constexpr char kLoad[] = "load_of_key<";
  const char* const load = std::strstr(score.text, kLoad);
  if (load == nullptr || std::strstr(load + 1, kLoad) != nullptr) return "";
  const char* const number = std::strchr(load, ',');
  return number == nullptr ? "" : concat("#define FA3_SCORE_PAIRS ", std::atoi(number + 1), "\n");
}

cuda::Program program_of(const fa3_score_function& score, const std::string& includes,
                         const std::string& functions, const std::string& kernel) {
  return {.text = concat("#define FA3_SCORE_FUNCTION\n",
                         looks_at_tangents(score) ? "#define FA3_SCORE_HAS_TANGENT\n" : "",
                         includes, "namespace fa3::cuda {\n", functions,
                         "}\n#line 1 \"kernel\"\nnamespace fa3::hopper {\n", kernel, "}\n"),
          .architecture = "sm_90a",
          .options = {"-std=c++20", "-default-device"},
          .headers = cuda::hopper_headers()};
}

// Whether each two neighbours along the last dimension lie in one word, if they have 16 bits each.
bool has_pairs(const fa3_captured_tensor& t) {
  if (t.rank == 0 || t.stride[t.rank - 1] != 1 || reinterpret_cast<uintptr_t>(t.data) % 4 != 0) {
    return false;
  }
  for (int dim = 0; dim + 1 < t.rank; ++dim) {
    if (t.stride[dim] % 2 != 0) return false;
  }
  return true;
}

// Under a block mask the place of a step stands in its record, wherever lists lead.
constexpr const char* kPlaceOfListedStep =
    "template <>\n"
    "__device__ __forceinline__ TilePlace KeyGradients<kConfig>::place_of(Block block) const {\n"
    "  const ListedStep& step = work_.at(block);\n"
    "  return {work_.sequence(), step.head, first_key_, step.m_block * kConfig.block_m};\n"
    "}\n";

}  // namespace

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& config) {
  const std::string pairs = definition_of_pairs(score);
  ForwardConfig c = config;
  // Beside pairs, registers do not last for guarded steps that may find no reference: 0.8 of the
  // speed of online steps (docs/lab/flex.md). Without pairs they gain.
  if (!pairs.empty() && score.may_hide != 0) c.guarded = false;
  return program_of(
      score,
      concat(pairs, score.may_hide != 0 ? "#define FA3_SCORE_MAY_HIDE\n" : "",
             "#include \"engine/hopper/forward/forward_kernel.cuh\"\n"
             "#include \"engine/hopper/forward/producer/",
             loader_of(c), "\"\n#include \"engine/hopper/forward/producer/", scheduler_of(c),
             "\"\n"),
      definition_of_score(score),
      concat("constexpr ForwardConfig kConfig = ", text_of(c),
             ";\nstatic_assert(sizeof(ForwardParams) == ", sizeof(ScoredForwardParams),
             " && smem_bytes<kConfig>() <= kMaxSmemBytes);\n"
             "template __global__ void forward_kernel<kConfig>("
             "const __grid_constant__ ForwardParams);\n"));
}

cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& c) {
  const char* const slope = score.slope == nullptr ? "return 1.0f;" : score.slope;
  return program_of(
      score, "#include \"engine/hopper/backward/backward_kernel.cuh\"\n",
      definition_of_score(score) +
          definition("float ScoreFunction::slope(float score, int b, int h, int q_idx, int kv_idx) "
                     "const",
                     slope) +
          definition("void ScoreGradient::of(float gradient, int b, int h, int q_idx, int kv_idx)",
                     score.gradients == nullptr ? "" : score.gradients),
      concat("constexpr BackwardConfig kConfig = ", text_of(c), ";\n",
             c.block_mask ? kPlaceOfListedStep : "",
             "static_assert(sizeof(BackwardParams) == ", sizeof(ScoredBackwardParams),
             " && backward_smem_bytes<kConfig>() <= kMaxSmemBytes);\n"
             "template __global__ void backward_kernel<kConfig>("
             "const __grid_constant__ BackwardParams);\n"));
}

cuda::ScoreCaptures captures_of(const fa3_score_function& score) {
  cuda::ScoreCaptures captures{};
  for (int i = 0; i < score.num_tensors; ++i) {
    const fa3_captured_tensor& from = score.tensors[i];
    cuda::ScoreCaptures::Tensor& to = captures.tensors[i];
    to.data = from.data;
    for (int dim = 0; dim < from.rank; ++dim) {
      to.extent[dim] = int(from.shape[dim]);
      to.stride[dim] = int(from.stride[dim]);
    }
    to.extent_of_pairs = has_pairs(from) ? to.extent[from.rank - 1] : 0;
  }
  return captures;
}

cuda::ScoreGradientParams gradients_of(const fa3_score_function& score, float scale) {
  cuda::ScoreGradientParams params{.captures = captures_of(score), .gradients = {}, .scale = scale};
  for (int i = 0; i < score.num_tensors; ++i) {
    const fa3_captured_tensor& from = score.tensors[i];
    params.gradients[i].data = from.gradient;
    int stride = 1;
    for (int dim = from.rank - 1; dim >= 0; --dim) {
      params.gradients[i].stride[dim] = stride;
      stride *= int(from.shape[dim]);
    }
  }
  return params;
}

}  // namespace fa3::hopper
