// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/split_case.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "engine/hopper/kernels/forward.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

// Microseconds on an H200, measured (docs/lab/decoding.md): for a key of a tile and for
// each of its columns, for a combine until it ends, for a byte of a split's result, written and
// read.
constexpr double kKeyTime = 0.0035, kColumnTime = 36e-6;
constexpr double kCombineTime = 6.5;
constexpr double kPartialByteTime = 0.2e-6;

double key_time(const Kernel& c) {
  return kKeyTime + kColumnTime * (c.shape.head_dim + c.shape.head_dim_v);
}

// As many rows of KV blocks side by side as leave at least this share of the CTAs with a range.
int groups_log2(int64_t packs, int64_t ctas, double least_busy) {
  int log2 = std::countr_zero(uint64_t(packs));
  while (log2 > 0 && double(ctas >> log2 << log2) < least_busy * double(ctas)) --log2;
  return log2;
}

}  // namespace

double SplitCase::block_time() const {
  return c.shape.block_n * key_time(c);
}
double SplitCase::tile_time() const {
  return visible_keys * key_time(c);
}
double SplitCase::combine_time(int64_t partials) const {
  const int64_t rows = std::min<int64_t>(c.shape.block_m, pack.rows(call.seqlen_q));
  const double partial_bytes = double(partials * rows * call.o.columns) * 2 * sizeof(float);
  return kCombineTime + partial_bytes * kPartialByteTime;
}

SplitCase split_case(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  const SequenceTiles longest{.keys = {.count = call.seqlen_k}};
  const SplitKvSchedule schedule = split_kv_schedule(c, call, {.pack = pack});
  const int blocks = schedule.most_blocks(longest);
  const int64_t most_ctas = int64_t{num_sms} * c.shape.ctas_per_sm;
  const int64_t tiles = std::min(num_tiles(c, call, pack), num_split_tiles(c, call, pack));
  return {c,
          call,
          pack,
          most_ctas,
          tiles,
          std::min(call.seqlen_k, blocks * c.shape.block_n),
          may_decode(c, call) && fits_few_waves(c, call, pack, num_sms)};
}

// Where packs share keys, products take the time, and a CTA without a range is missed: all get one
// if what they spare is worth a combine, and the packs that share keys still lie side by side.
int choose_groups_log2(const SplitCase& s) {
  const int64_t packs = num_packs(s.call, s.pack);
  const int most = groups_log2(packs, s.most_ctas, kBusyRanges);
  const int64_t sharing = s.call.heads_per_kv_head / s.pack.heads();
  if (sharing == 1) return most;
  const int all_busy = groups_log2(packs, s.most_ctas, 1);
  const int64_t busy = s.most_ctas >> most << most;
  const double keys_time = double(s.tiles) * s.tile_time();
  const double spared = keys_time / double(busy) - keys_time / double(s.most_ctas);
  const bool together = all_busy >= std::countr_zero(uint64_t(sharing));
  return together && spared > s.combine_time() ? all_busy : most;
}

bool fits_columns(const Kernel& c, const ForwardCall& call) {
  // A few hundred columns. NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result)
  return 2 * (c.shape.head_dim + c.shape.head_dim_v) <= 3 * (call.q.columns + call.o.columns);
}

bool may_decode(const Kernel& c, const ForwardCall& call) {
  const SplitKvSchedule schedule = split_kv_schedule(c, call, {});
  return c.consumers() > 1 && has_stream_k(c) && fits_columns(c, call) &&
         call.sequences <= kFewSequences && call.seqlen_q <= c.shape.block_m && call.softcap == 0 &&
         schedule.is_simple() && hides_right_only(call.mask);
}

bool fits_few_waves(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  return num_split_tiles(c, call, pack) <= kFewWaves * num_sms * c.shape.ctas_per_sm;
}

}  // namespace fa3::hopper
