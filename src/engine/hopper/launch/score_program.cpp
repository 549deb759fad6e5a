// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/score_program.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/error.h"
#include "engine/cuda/softmax/added_lines.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/config/key_term.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/kernels/headers_of.h"

namespace fa3::hopper {
namespace {

std::string includes_of(const Kernel& c) {
  std::string includes;
  for (const std::string_view header : headers_of(c)) {
    if (!header.empty()) includes += concat("#include \"", header, "\"\n");
  }
  return includes;
}

cuda::ScoreKernel kernel_of(std::string includes, std::string text) {
  return {.includes = std::move(includes),
          .text = std::move(text),
          .engine = "hopper",
          .architecture = "sm_90a",
          .headers = cuda::hopper_headers()};
}

// Under a block mask the place of a step stands in its record, wherever lists lead.
constexpr const char* kPlaceOfListedStep =
    "template <>\n"
    "__device__ __forceinline__ TilePlace KeyGradients<kConfig>::place_of(Block block) const {\n"
    "  const ListedStep& step = work_.at(block);\n"
    "  return {work_.sequence(), step.head, first_key_, step.m_block * kConfig.block_m};\n"
    "}\n";

// Decode kernels load what a function captures element by element.
cuda::Program decode_program(const fa3_score_function& score, const Kernel& c) {
  return cuda::forward_program(
      score,
      kernel_of(includes_of(c),
                concat("constexpr Kernel kConfig = ", cuda::text_of(c),
                       ";\nstatic_assert(sizeof(ForwardParams) == ", sizeof(ScoredForwardParams),
                       " && sizeof(DecodeSmem<kConfig>) <= "
                       "smem_bytes_of_each(decode_shape(kConfig).ctas_per_sm));\n"
                       "template __global__ void decode_kernel<kConfig>("
                       "const __grid_constant__ ForwardParams);\n")));
}

// Tiles of a captured tensor, lines of a tile's rows, or terms of keys take shared memory from Q
// and from K and V, of which two of each stay.
constexpr int kFewestStages = 4, kOtherSmemBytes = 2048;

int smem_bytes_beside(const Kernel& c, int more) {
  const int bits = c.block_mask() ? kMaskBlock * kMaskBlock / 8 : 0;
  return c.shape.q_stages * c.tiles_in_smem().q_bytes() +
         c.shape.kv_stages * (c.tiles_in_smem().stage_bytes() + bits) + more + kOtherSmemBytes;
}

bool fits_captured_tiles(const Kernel& c) {
  return smem_bytes_beside(c, c.captured_stages() * c.captured_tile().bytes()) <= kMaxSmemBytes;
}

Kernel with_captured_tiles(Kernel c) {
  if (!fits_captured_tiles(c)) c.shape.q_stages = 1;
  while (!fits_captured_tiles(c) && c.shape.kv_stages > kFewestStages) --c.shape.kv_stages;
  return c;
}

// Gives up a stage of Q and stages of keys and values for what else lies in shared memory.
Kernel with_room_for(int bytes, Kernel c) {
  const auto fits = [&] { return smem_bytes_beside(c, bytes) <= kMaxSmemBytes; };
  if (!fits()) c.shape.q_stages = 1;
  while (!fits() && c.shape.kv_stages > kFewestStages) --c.shape.kv_stages;
  return c;
}

int bytes_of_lines(const Kernel& c, bool has_two) {
  const size_t line = has_two ? sizeof(AddedLines) : sizeof(AddedLine);
  return c.shape.block_m * int(line + kAddedReferences * sizeof(float));
}

std::string definition_of_tile(int captured) {
  return captured == kNoTile ? "" : concat("#define FA3_SCORE_TILE ", captured, "\n");
}

bool is_tile_read_once(const fa3_score_function& score, int captured) {
  return captured != kNoTile && captured < score.num_tensors &&
         is_read_once(score.tensors[captured]);
}

// A forward kernel with a score function, and what it finds of that before there are scores.
struct AheadOfScores {
  Kernel config;
  std::string definitions;
};

AheadOfScores by_tile(const fa3_score_function& score, Kernel c, int captured) {
  const bool once = is_tile_read_once(score, captured);
  c.captured.ahead = once ? Ahead::kTileReadOnce : Ahead::kTile;
  return {with_captured_tiles(c),
          concat(definition_of_tile(captured),
                 cuda::added_to_score(score) == cuda::AddedToScore::kNotAlone
                     ? ""
                     : "#define FA3_SCORE_ADDS\n",
                 once ? "#define FA3_SCORE_TILE_ONCE\n" : "")};
}

AheadOfScores by_added(cuda::AddedToScore added, const Kernel& c) {
  const auto defining = [](const char* name, const Kernel& config) {
    return AheadOfScores{config, concat("#define FA3_SCORE_ADDS\n#define ", name, "\n")};
  };
  using enum cuda::AddedToScore;
  switch (added) {
    case kLinear:
      return defining("FA3_SCORE_LINEAR", with_room_for(bytes_of_lines(c, false), c));
    case kPiecewiseLinear:
      return defining("FA3_SCORE_PIECEWISE_LINEAR", with_room_for(bytes_of_lines(c, true), c));
    case kKeyTerm:
      return defining("FA3_SCORE_KEY_TERM", with_room_for(key_term_bytes(c.shape.block_n), c));
    case kRun:
      return defining("FA3_SCORE_RUN", c);
    case kClampedRun:
      return defining("FA3_SCORE_CLAMPED_RUN", c);
    default:
      return {c, "#define FA3_SCORE_ADDS\n"};
  }
}

AheadOfScores ahead_of_scores(const fa3_score_function& score, Kernel c, int captured) {
  c.captured.may_hide = score.may_hide != 0;
  if (captured != kNoTile) return by_tile(score, c, captured);
  const std::string pairs = cuda::definition_of_pairs(score);
  const cuda::AddedToScore added = cuda::added_to_score(score);
  if (pairs.empty() && added != cuda::AddedToScore::kNotAlone) return by_added(added, c);
  if (!pairs.empty()) c.captured.ahead = Ahead::kPairs;
  return {c, pairs};
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
  const auto [c, definitions] = ahead_of_scores(score, config, captured);
  return cuda::forward_program(
      score,
      kernel_of(concat(definitions, score.may_hide != 0 ? "#define FA3_SCORE_MAY_HIDE\n" : "",
                       "#include \"engine/hopper/forward/forward_kernel.cuh\"\n", includes_of(c)),
                concat("constexpr Kernel kConfig = ", cuda::text_of(c),
                       ";\nstatic_assert(sizeof(ForwardParams) == ", sizeof(ScoredForwardParams),
                       " && smem_bytes<kConfig>() <= kMaxSmemBytes);\n"
                       "template __global__ void forward_kernel<kConfig>("
                       "const __grid_constant__ ForwardParams);\n")));
}

cuda::Program score_program(const fa3_score_function& score, const BackwardConfig& c,
                            int captured) {
  return cuda::backward_program(
      score,
      kernel_of(definition_of_tile(captured) +
                    (find_stored_gradient(score) != kNoTile ? "#define FA3_SCORE_STORES\n" : "") +
                    "#include \"engine/hopper/backward/backward_kernel.cuh\"\n",
                concat("constexpr BackwardConfig kConfig = ", cuda::text_of(c), ";\n",
                       c.block_mask ? kPlaceOfListedStep : "",
                       "static_assert(sizeof(BackwardParams) == ", sizeof(ScoredBackwardParams),
                       " && backward_smem_bytes<kConfig>() <= kMaxSmemBytes);\n"
                       "template __global__ void backward_kernel<kConfig>("
                       "const __grid_constant__ BackwardParams);\n")));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const Kernel& config, int captured) {
  return cuda::key_of("hopper forward", config, score)
      .add(captured)
      .add(is_tile_read_once(score, captured));
}

cuda::ProgramKey score_key(const fa3_score_function& score, const BackwardConfig& config,
                           int captured) {
  const bool stores = find_stored_gradient(score) != kNoTile;
  return cuda::key_of("hopper backward", config, score).add(captured).add(stores);
}

}  // namespace fa3::hopper
