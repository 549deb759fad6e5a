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

TilesTogether choose_together(const fa3_score_function& score, int64_t heads, int64_t batches) {
  const CapturedParts parts = parts_of_captured(score);
  TilesTogether together;
  if (parts.of_others == 1) together.batches = few_of(batches);
  if (parts.of_heads == 1 && together.batches == 1) together.packs = few_of(heads);
  return together;
}

}  // namespace fa3::hopper
