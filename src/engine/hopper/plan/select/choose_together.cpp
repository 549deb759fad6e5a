// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/choose_together.h"

#include "engine/hopper/host/captured_tile.h"

namespace fa3::hopper {
namespace {

// Two, or three, of a number that they divide. More gain little beyond that (docs/lab/flex.md), and
// have more keys and values in the L2 at a time.
int few_of(int64_t number) {
  return number % 2 == 0 ? 2 : number % 3 == 0 ? 3 : 1;
}

}  // namespace

// Which index is the head's is the text's own affair. Numbers of parts say it, and where there are
// as many sequences as heads, sequences are taken to share: the order is right whatever is
// together.
TilesTogether choose_together(const fa3_score_function& score, int64_t heads, int64_t batches) {
  const int64_t parts = num_captured_parts(score);
  const bool sequences_share = parts == 1 || parts == heads;
  const bool heads_share = parts == 1 || parts == batches;
  TilesTogether together;
  if (sequences_share) together.batches = few_of(batches);
  if (heads_share && together.batches == 1) together.packs = few_of(heads);
  return together;
}

}  // namespace fa3::hopper
