// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/plan/select_kernel.h"

#include <algorithm>

#include "engine/ampere/instances/forward_table.h"
#include "engine/cuda/host/forward_call.h"

namespace fa3::ampere {

int select_kernel(const Problem& p, int smem_bytes_of_sm) {
  const int64_t columns_v = std::min(p.head_dim_v, cuda::kMaxColumnsV);  // of a launch
  int best = kNoKernel;
  for (int row = 0; row < int(kForwardTable.size()); ++row) {
    const ForwardConfig& c = kForwardTable[size_t(row)].config;
    const bool fits = c.head_dim >= p.head_dim && c.head_dim_v >= columns_v;
    if (!fits || c.dropout != p.dropout.on()) continue;
    if (best != kNoKernel) {
      const ForwardConfig& group = kForwardTable[size_t(best)].config;
      if (c.head_dim != group.head_dim || c.head_dim_v != group.head_dim_v) break;
    }
    best = row;
    if (c.smem_bytes_of_sm() <= smem_bytes_of_sm) break;
  }
  return best;
}

// As many heads as a tile has rows for, and a fragment: each of its rows must find its query by
// itself. A thread's draws are those of one head; batch-invariant tiles must not go by the longest
// sequence.
cuda::PackGqa select_pack(const Problem& p, const ForwardConfig& c) {
  cuda::PackGqa pack;
  if (p.dropout.on() || p.batch_invariant || p.heads_k == 0) return pack;
  const auto divides = [&](int log2) { return p.group() % (int64_t{1} << log2) == 0; };
  while (p.lengths_q.max << pack.log2 < c.block_m && pack.heads() < kRowsPerWarp &&
         divides(pack.log2 + 1)) {
    ++pack.log2;
  }
  return pack;
}

}  // namespace fa3::ampere
