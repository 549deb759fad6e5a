// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/select.h"

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/choose_split.h"

namespace fa3::hopper {
namespace {

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
bool leaves_sms_idle(const Problem& p, const Kernel& c, const ForwardCall& call, int num_sms) {
  constexpr int64_t kLeastKeys = 1024;
  constexpr double kTheirStart = 0.3;
  if (p.block_mask.on || p.dropout.on() || p.batch_invariant || call.seqlen_k < kLeastKeys)
    return false;
  const int64_t waves = ceil_div(num_split_tiles(c, call, {}), int64_t{num_sms});
  const double of_their_wave = c.shape.head_dim <= 64 ? 1.4 : 1.8;
  const double theirs = of_their_wave * double(num_tiles_elsewhere(call)) / num_sms;
  return kTheirStart + theirs < double(waves);
}

}  // namespace

Status check_score(const Request& r, const Row& row) {
  const Problem& p = r.problem;
  if (p.score == nullptr || row.kernel.is_decode() || p.engine != FA3_ENGINE_AUTO) return {};
  if (leaves_sms_idle(p, row.kernel, r.call, r.num_sms)) {
    return unsupported("a score function of few queries: tiles are not split along the keys");
  }
  return {};
}

}  // namespace fa3::hopper
