// SPDX-License-Identifier: Apache-2.0
// What a forward kernel offers and what it requires of a call, both computed from its config. Next:
// plan/request.h.
#pragma once

#include "engine/cuda/host/needs.h"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/kernels/row.h"

namespace fa3::hopper {

// Only calls with these are for the kernel.
constexpr Needs requires_of(const Kernel& c) {
  Needs needs;
  needs.set(Need::kE4m3, c.e4m3());
  needs.set(Need::kQuantizedKeys, c.dequantizes());
  needs.set(Need::kBlockMask, c.block_mask());
  needs.set(Need::kDropout, c.dropout());
  return needs;
}

// TMA writes rows to multiples of 128 bytes.
constexpr bool copies_single_rows(const Kernel& c) {
  const int bytes = bytes_of(c.types().stored);
  return c.is_decode() || (tile::TileLayout{1, c.shape.head_dim, bytes}.row_bytes() % 128 == 0 &&
                           tile::TileLayout{1, c.shape.head_dim_v, bytes}.row_bytes() % 128 == 0);
}

// Masks and lengths.
constexpr Needs offers_of_tiles(const Kernel& c) {
  using enum Need;
  constexpr Needs kPlaces{kElsewhere, kIndexed, kLeftPadding};
  constexpr Needs kLengths{kVarlenQueries, kVarlenKeys, kPackedKeys};
  constexpr Needs kWindows{kMasked, kRightWindow, kLeftWindow};
  switch (c.scheduler()) {
    case SchedulerKind::kDense:
      return {kMasked};
    case SchedulerKind::kListed:
      return c.general() ? kWindows | kLengths : kWindows;
    case SchedulerKind::kStreamK:
      return {kMasked, kRightWindow, kSink, kVarlenKeys, kElsewhere, kFindsTiles};
    case SchedulerKind::kSplit:
      return kWindows | kLengths | kPlaces | Needs{kChunks, kSink, kFindsTiles, kFixedSplits};
    case SchedulerKind::kVarlen:
      return kWindows | kLengths | kPlaces | Needs{kChunks, kSink};
  }
  return {};
}

constexpr Needs offers_of(const Kernel& c) {
  using enum Need;
  Needs offers = requires_of(c) | offers_of_tiles(c);
  offers.set(kSoftcap, c.capped());
  offers.set(kSingleRows, copies_single_rows(c));
  // What leaves or enters shared memory.
  const bool any_rows = stores_any_rows(c) && !c.e4m3();
  offers.set(kFloat32Out, any_rows || c.continued());
  offers.set(kRowsNot8, any_rows && !c.continued());
  offers.set(kRowsNot16, !c.e4m3() && !c.dequantizes());
  offers.set(kNoCpAsync, !c.is_stream_k() || c.is_decode() || c.dequantizes());
  if (!c.transposes_v()) offers = offers | Needs{kValuesNotByTma, kTransposedValues, kNoKeys};
  // Splits and batches.
  const bool is_dense = c.scheduler() == SchedulerKind::kDense && !c.e4m3() && !c.continued();
  offers.set(kManySplits, !is_dense && !c.is_decode());
  offers.set(kAnySplits, !c.is_decode());
  offers.set(kBatchInvariant, !c.is_stream_k());
  offers.set(kFewRowsOfGroup);
  // Compiled at run time (config/kernel.h).
  offers.set(kGate, !c.continued());
  offers.set(kMaxLogit);
  if (!c.continued()) return offers;
  const Needs not_continued{kSink,        kSoftcap,    kElsewhere,      kIndexed,
                            kLeftPadding, kSingleRows, kBatchInvariant, kFewRowsOfGroup};
  return (offers - not_continued) | Needs{kPartial};
}

// A kernel with a score function has none over float8 keys or in places of their own, but for
// decode kernels.
constexpr Needs offers_of(const Row& row) {
  if (row.built) return offers_of(row.kernel);
  using enum Need;
  const Needs not_scored{kQuantizedKeys, kElsewhere, kIndexed, kLeftPadding, kSingleRows};
  const Needs offers = offers_of(row.kernel) - Needs{kGate, kMaxLogit};
  return (row.kernel.is_decode() ? offers : offers - not_scored) | row.score_kinds;
}
constexpr Needs requires_of(const Row& row) {
  Needs needs = requires_of(row.kernel);
  needs.set(Need::kScoreFunction, !row.built);
  return needs;
}

}  // namespace fa3::hopper
