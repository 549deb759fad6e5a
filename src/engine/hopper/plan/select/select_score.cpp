// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/select_score.h"

#include "core/ceil_div.h"
#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/tables/score_table.h"

namespace fa3::hopper {
namespace {

// Measured: docs/lab/flex.md.
constexpr int64_t kManyKeys = 12288;

// Enough for three warpgroups to gain at 128 columns. The most of a batch may not decide bits that
// are to be the same in each.
bool has_many_keys(const Problem& p) {
  return p.lengths_k.max >= kManyKeys && !p.batch_invariant;
}

// A captured tensor as large as the scores, and many keys.
bool streams_captured_tiles(const Problem& p, const ForwardShape& shape) {
  return shape.head_dim > 64 && has_many_keys(p) &&
         find_captured_tile(*p.score, p.lengths_q.max, p.lengths_k.max) != kNoTile;
}

// Whether three warpgroups, which have fewer registers, are faster than two. Measured:
// docs/lab/flex.md.
bool is_for_three_warpgroups(const Problem& p, const ForwardShape& shape) {
  using enum cuda::AddedToScore;
  const cuda::AddedToScore added = cuda::added_to_score(*p.score);
  if (p.score->num_tensors == 0 || added == kLinear || added == kKeyTerm) return true;
  const bool gains = shape.head_dim <= 64 || has_many_keys(p);
  return gains && added != kOther && added != kNotAlone;
}

// Tiles of kernels of any GPU: 128 rows of heads that share keys.
constexpr int64_t kTheirRows = 128;

int64_t num_tiles_elsewhere(const ForwardCall& call) {
  const PackGqa most = most_packed(call.heads_per_kv_head);
  PackGqa pack;
  while (pack.rows(call.seqlen_q) < kTheirRows && pack.log2 < most.log2) ++pack.log2;
  const int64_t m_blocks = ceil_div(pack.rows(int64_t{call.seqlen_q}), kTheirRows);
  return call.sequences * num_packs(call, pack) * m_blocks;
}

// Whether those kernels, which split tiles along the keys, are sooner done than whole tiles of this
// engine's are. Time is counted in waves of these, measured on an H100 (docs/lab/flex.md).
bool leaves_sms_idle(const Problem& p, const ForwardConfig& c, const ForwardCall& call,
                     int num_sms) {
  constexpr int64_t kLeastKeys = 1024;
  constexpr double kTheirStart = 0.3;
  if (p.block_mask.on || p.batch_invariant || call.seqlen_k < kLeastKeys) return false;
  const int64_t waves = ceil_div(num_split_tiles(c, call, {}), int64_t{num_sms});
  const double of_their_wave = c.head_dim <= 64 ? 1.4 : 1.8;
  const double theirs = of_their_wave * double(num_tiles_elsewhere(call)) / num_sms;
  return kTheirStart + theirs < double(waves);
}

}  // namespace

// Decode kernels take functions, too, but no lists.
DecodeChoice select_score_decode(const Problem& problem, const ForwardCall& call, int num_sms) {
  return problem.block_mask.on ? DecodeChoice{} : select_decode(problem, call, num_sms);
}

const KernelInstance* select_score_kernel(const Problem& problem) {
  const ForwardShape shape = shape_of(problem);
  if (problem.block_mask.on) {
    const int row = select_kernel(shape, kListedScoreTable);
    return row == kNoKernel ? nullptr : &kListedScoreTable[size_t(row)];
  }
  if (is_for_three_warpgroups(problem, shape)) {
    const int row = select_kernel(shape, kPureScoreTable);
    if (row != kNoKernel) return &kPureScoreTable[size_t(row)];
  }
  if (streams_captured_tiles(problem, shape)) {
    const int row = select_kernel(shape, kTileScoreTable);
    if (row != kNoKernel) return &kTileScoreTable[size_t(row)];
  }
  const int row = select_kernel(shape, kScoreTable);
  return row == kNoKernel ? nullptr : &kScoreTable[size_t(row)];
}

// Kernels that take a score function, but for those that decode, have dense keys in tiles of their
// own for each query head, which are whole.
Status check_score(const Problem& p, const ForwardCall& call, int num_sms) {
  if (select_score_decode(p, call, num_sms).row != kNoKernel) return {};
  if (p.has_float8() || p.key_places.elsewhere || p.lengths_k.padded_left) {
    return unsupported(
        "a score function with FP8, page_table, batch_index or left_padding, where "
        "no kernel that decodes takes the call");
  }
  const KernelInstance* const instance = select_score_kernel(p);
  if (instance == nullptr) {
    return unsupported("no kernel with a score function for head dims ", p.head_dim, " and ",
                       p.head_dim_v);
  }
  if (p.engine == FA3_ENGINE_AUTO && leaves_sms_idle(p, instance->config, call, num_sms)) {
    return unsupported("a score function of few queries: tiles are not split along the keys");
  }
  return {};
}

}  // namespace fa3::hopper
