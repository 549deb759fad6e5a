// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/plan/forward_plan.h"

#include <algorithm>

#include "engine/ampere/kernels/forward.h"
#include "engine/cuda/host/forward_call.h"

namespace fa3::ampere {

namespace {

// As many heads as a tile has rows for, and a fragment: each of its rows must find its query by
// itself. A thread's draws are those of one head; batch-invariant tiles must not go by the longest
// sequence.
cuda::PackGqa pack_for(const Problem& p, int block_m) {
  cuda::PackGqa pack;
  if (p.dropout.on() || p.batch_invariant || p.heads_k == 0) return pack;
  // A tile has queries of one row of a map, and heads that share it.
  const BlockMask& mask = p.block_mask;
  if (mask.on && (mask.heads > 1 || p.lengths_q.max > kMaskBlock)) return pack;
  const auto divides = [&](int log2) { return p.group() % (int64_t{1} << log2) == 0; };
  while (p.lengths_q.max << pack.log2 < block_m && pack.heads() < kRowsPerWarp &&
         divides(pack.log2 + 1)) {
    ++pack.log2;
  }
  return pack;
}

// Whether a warp has all rows that may share keys; others' keys would be read once more.
bool are_few_rows(const Problem& p) {
  if (p.dropout.on() || p.batch_invariant) return false;
  return pack_for(p, 2 * kRowsPerWarp).rows(p.lengths_q.max) <= kRowsPerWarp;
}

// Keys that a row sees, as far as lengths and mask tell; of a batch-invariant call, none.
int64_t average_keys(const Problem& p) {
  if (p.batch_invariant) return 0;
  const int64_t last = std::max<int64_t>(p.lengths_q.max - 1, 0);
  int64_t keys = 0;
  for (int64_t row : {int64_t{0}, last / 2, last}) {
    const KeyRange range = p.mask.keys_of(row, p.lengths_q.max, p.lengths_k.max);
    keys += std::max<int64_t>(range.end - range.begin, 0);
  }
  return keys / 3;
}

}  // namespace

const Row* select_kernel(const Problem& p, int smem_bytes_of_sm) {
  const bool few_rows = are_few_rows(p);
  const int64_t columns_v = std::min(p.head_dim_v, cuda::kMaxColumnsV);  // of a launch
  const int64_t keys = average_keys(p);
  const Row* best = nullptr;
  for (const Row& row : kForward) {
    const ForwardConfig& c = row.kernel;
    const bool fits = c.head_dim >= p.head_dim && c.head_dim_v >= columns_v;
    if (!fits || c.dropout != p.dropout.on() || c.block_mask != p.block_mask.on) continue;
    if (keys < row.least_keys) continue;
    if (c.quantized != p.has_float8()) continue;
    if (!c.quantized && few_rows != (c.block_m == kRowsPerWarp)) continue;
    const bool has_other_columns =
        best && (c.head_dim != best->kernel.head_dim || c.head_dim_v != best->kernel.head_dim_v);
    if (has_other_columns) break;
    best = &row;
    if (c.smem_bytes_of_sm() <= smem_bytes_of_sm) break;
  }
  return best;
}

cuda::PackGqa select_pack(const Problem& p, const ForwardConfig& c) {
  return pack_for(p, c.block_m);
}

}  // namespace fa3::ampere
