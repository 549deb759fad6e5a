// SPDX-License-Identifier: Apache-2.0
// A call whose tiles may be split, and what splits would take. Next: choose_pairs.cpp,
// choose_split.cpp.
#pragma once

#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {

// A call whose tiles would be split for `most_ctas` resident CTAs, with these heads in each. Times
// are microseconds.
struct SplitCase {
  const Kernel& c;
  const ForwardCall& call;
  PackGqa pack;
  int64_t most_ctas;
  int64_t tiles;      // where queries are varlen, the most that there can be
  int visible_keys;   // of the longest sequence, that a tile visits at most: few under a window
  bool starts_whole;  // a kernel that does nothing but decode would take whole tiles

  double block_time() const;
  double tile_time() const;  // the longest sequence's
  // Microseconds until this number of partial results is combined.
  double combine_time(int64_t partials) const;
  double combine_time() const { return combine_time(most_ctas); }
};

SplitCase split_case(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms);

// How many rows of KV blocks lie side by side.
int choose_groups_log2(const SplitCase& s);

// Whether tiles have not many more columns than tensors.
bool fits_columns(const Kernel& c, const ForwardCall& call);

// Whether a kernel that does nothing but decode may take tiles of more than 64 rows, and whether
// they are few enough for it.
bool may_decode(const Kernel& c, const ForwardCall& call);
bool fits_few_waves(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms);

// The least share of the resident CTAs that must get a range.
inline constexpr double kBusyRanges = 0.96;
// What a split saves must be worth the trouble.
inline constexpr double kWorthSplitting = 0.9;

}  // namespace fa3::hopper
