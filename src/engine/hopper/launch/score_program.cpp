// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/score_program.h"

#include <cuda_runtime_api.h>

#include "core/error.h"
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
                ", .variant = Variant(", int(c.variant), ")}");
}

const char* scheduler_of(const ForwardConfig& c) {
  return c.scheduler() == SchedulerKind::kDense ? "dense_tiles.cuh" : "varlen_tiles.cuh";
}

}  // namespace

cuda::Program score_program(const fa3_score_function& score, const ForwardConfig& c) {
  const char* loader =
      c.kv_loader() == KvLoaderKind::kDense ? "load_tma.cuh" : "load_tma_pages.cuh";
  return {.text = concat("#define FA3_SCORE_FUNCTION\n"
                         "#include \"engine/hopper/forward/forward_kernel.cuh\"\n"
                         "#include \"engine/hopper/forward/producer/",
                         loader,
                         "\"\n"
                         "#include \"engine/hopper/forward/producer/",
                         scheduler_of(c),
                         "\"\n"
                         "namespace fa3::cuda {\n"
                         "__device__ __forceinline__ float ScoreFunction::of(\n"
                         "    float score, int b, int h, int q_idx, int kv_idx) const {\n"
                         "#line 1 \"score function\"\n",
                         score.text,
                         "\n}\n}\n#line 1 \"kernel\"\n"
                         "namespace fa3::hopper {\n"
                         "constexpr ForwardConfig kConfig = ",
                         text_of(c),
                         ";\nstatic_assert(sizeof(ForwardParams) == ", sizeof(ScoredForwardParams),
                         " && smem_bytes<kConfig>() <= kMaxSmemBytes);\n"
                         "template __global__ void forward_kernel<kConfig>("
                         "const __grid_constant__ ForwardParams);\n}\n"),
          .architecture = "sm_90a",
          .options = {"-std=c++20", "-default-device"},
          .headers = cuda::hopper_headers()};
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
  }
  return captures;
}

}  // namespace fa3::hopper
