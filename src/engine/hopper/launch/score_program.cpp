// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/score_program.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/error.h"
#include "engine/cuda/softmax/added_lines.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/config/key_term.h"
#include "engine/hopper/launch/kernel_text.h"
#include "engine/hopper/launch/launch_forward.h"

namespace fa3::hopper {
namespace {

cuda::ScoreKernel kernel_of(std::string includes, std::string text) {
  return {.includes = std::move(includes),
          .text = std::move(text),
          .engine = "hopper",
          .architecture = kArchitecture,
          .headers = cuda::hopper_headers()};
}

// Under a block mask the place of a step stands in its record, wherever lists lead.
constexpr const char* kPlaceOfListedStep =
    "template <>\n"
    "__device__ __forceinline__ TilePlace KeyGradients<kConfig>::place_of(Block block) const {\n"
    "  const ListedStep& step = work_.at(block);\n"
    "  return {work_.sequence(), step.head, first_key_, step.m_block * kConfig.shape.block_m};\n"
    "}\n";

// Decode kernels load what a function captures element by element.
cuda::Program decode_program(const fa3_score_function& score, const Kernel& c) {
  return cuda::forward_program(
      score, cuda::traits_of(score),
      kernel_of(includes_of(c), instance_of(c, sizeof(ScoredForwardParams))));
}

// Tiles of a captured tensor, lines of a tile's rows, or terms of keys take shared memory from Q
// and from K and V, of which two of each stay.
constexpr int kFewestStages = 4, kOtherSmemBytes = 2048;

int smem_bytes_beside(const Kernel& c, int more) {
  const int bits = c.block_mask() ? kMaskBlock * kMaskBlock / 8 : 0;
  return c.shape.q_stages * c.tiles_in_smem().q_bytes() +
         c.shape.kv_stages * (c.tiles_in_smem().stage_bytes() + bits) + more + kOtherSmemBytes;
}

int captured_bytes(const Kernel& c) {
  return c.captured_stages() * c.captured_tile().bytes();
}

bool fits_captured_tiles(const Kernel& c) {
  return smem_bytes_beside(c, captured_bytes(c)) <= kMaxSmemBytes;
}

// Gives up a stage of Q and stages of keys and values for what else lies in shared memory.
Kernel with_room_for(int bytes, Kernel c) {
  const auto fits = [&] { return smem_bytes_beside(c, bytes) <= kMaxSmemBytes; };
  if (!fits()) c.shape.q_stages = 1;
  while (!fits() && c.shape.kv_stages > kFewestStages) --c.shape.kv_stages;
  return c;
}

Kernel with_captured_tiles(const Kernel& c) {
  return with_room_for(captured_bytes(c), c);
}

int bytes_of_lines(const Kernel& c, bool has_two) {
  const size_t line = has_two ? sizeof(AddedLines) : sizeof(AddedLine);
  return c.shape.block_m * int(line + kAddedReferences * sizeof(float));
}

bool loads_pairs(const fa3_score_function& score) {
  return cuda::has_element(score, FA3_ELEMENT_OF_SCORE) ||
         cuda::has_element(score, FA3_ELEMENT_OF_KEY);
}

// What a forward kernel knows of its function. Elements that come in pairs are loaded ahead of the
// scores, to which the function is applied then.
cuda::ScoreTraits traits_of(const fa3_score_function& score, const Kernel& c, int captured) {
  cuda::ScoreTraits traits = cuda::traits_of(score);
  if (c.is_decode()) return traits;
  traits.loads_tile = captured != kNoTile;
  traits.starts_products =
      score.kind != FA3_SCORE_ANY && (traits.loads_tile || !loads_pairs(score));
  return traits;
}

cuda::ScoreTraits traits_of(const fa3_score_function& score, const BackwardConfig&, int captured) {
  cuda::ScoreTraits traits = cuda::traits_of(score);
  traits.loads_tile = captured != kNoTile;
  traits.stores_gradient = cuda::tensor_with_stored_gradient(score) != nullptr;
  return traits;
}

// The kernel, with room for what its function keeps in shared memory.
Kernel with_score(const fa3_score_function& score, Kernel c, int captured) {
  if (c.is_decode()) return c;
  c.captured.may_hide = score.may_hide != 0;
  if (captured != kNoTile) {
    const bool once = captured < score.num_tensors && is_read_once(score.tensors[captured]);
    c.captured.ahead = once ? Ahead::kTileReadOnce : Ahead::kTile;
    return with_captured_tiles(c);
  }
  if (loads_pairs(score)) c.captured.ahead = Ahead::kPairs;
  switch (score.kind) {
    case FA3_SCORE_ROW_LINE:
      return with_room_for(bytes_of_lines(c, false), c);
    case FA3_SCORE_ROW_LINES:
      return with_room_for(bytes_of_lines(c, true), c);
    case FA3_SCORE_KEY_TERM:
      return with_room_for(key_term_bytes(c.shape.block_n), c);
    default:
      return c;
  }
}

}  // namespace

bool takes_captured_tile(const Kernel& c) {
  if (c.is_decode()) return false;
  return c.captured_tile().row_bytes() == 128 && fits_captured_tiles(with_captured_tiles(c));
}

// Elsewhere one warpgroup computes P and another writes dS.
bool takes_captured_tile(const BackwardConfig& c) {
  return !c.splits_dkv();
}

cuda::Program score_program(const fa3_score_function& score, const Kernel& config, int captured) {
  if (config.is_decode()) return decode_program(score, config);
  const Kernel c = with_score(score, config, captured);
  return cuda::forward_program(
      score, traits_of(score, config, captured),
      kernel_of(
          "#include \"engine/hopper/forward/policies/scores_function.cuh\"\n" + includes_of(c),
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

cuda::ProgramKey score_key(const fa3_score_function& score, const Kernel& config, int captured) {
  return cuda::key_of("hopper forward", with_score(score, config, captured), score,
                      traits_of(score, config, captured));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           int captured) {
  return cuda::key_of("hopper backward", config, score, traits_of(score, config, captured));
}

}  // namespace fa3::hopper
