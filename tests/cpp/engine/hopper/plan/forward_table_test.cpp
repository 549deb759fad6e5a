// SPDX-License-Identifier: Apache-2.0
// The forward's tables of kernels: registers and stages of every row.
#include <gtest/gtest.h>

#include <vector>

#include "engine/hopper/config/register_budget.h"
#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/e4m3_table.h"
#include "engine/hopper/tables/forward_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/stream_k_table.h"

namespace fa3::hopper {
namespace {

// Register files and stages have no static_assert of their own; shared memory has.
TEST(ForwardTable, every_row_fits_the_register_file_and_keeps_a_stage_to_load_into) {
  constexpr int kRegistersPerLaunchThreadQuad = 512;  // 64 K registers over 128 threads
  std::vector<KernelInstance> rows;
  for (const KernelInstance& row : kForwardTable) {
    for (const Variant variant : {Variant::kDense, Variant::kGeneral, Variant::kCapped}) {
      rows.push_back(row);
      rows.back().config = row.config.with(Element::kBf16, variant);
    }
  }
  rows.insert(rows.end(), kE4m3Table.begin(), kE4m3Table.end());
  rows.insert(rows.end(), kStreamKTable.begin(), kStreamKTable.end());
  rows.insert(rows.end(), kMaskTable.begin(), kMaskTable.end());
  rows.insert(rows.end(), kContinuedTable.begin(), kContinuedTable.end());
  for (const KernelInstance& row : kCacheTable) {
    rows.push_back(row);
    rows.back().config.variant = Variant::kGeneral;
  }
  for (const KernelInstance& row : rows) {
    const ForwardConfig& c = row.config;
    EXPECT_LE(
        c.ctas_per_sm * (register_budget(c).producer + c.consumers() * register_budget(c).consumer),
        kRegistersPerLaunchThreadQuad);
    EXPECT_LE(consumer_registers_used(c), register_budget(c).consumer);
    EXPECT_GE(c.kv_stages, 3);  // K of the next block beside V of this one, and one to load into
  }
}

TEST(ForwardTable, split_tiles_have_one_q_and_its_room_in_the_pipeline) {
  int moved = 0;
  for (const auto& [dense, max_keys, max_rows, why] : kForwardTable) {
    const ForwardConfig general = dense.with(Element::kBf16, Variant::kGeneral);
    EXPECT_EQ(dense.with(Element::kBf16, Variant::kDense).q_stages, dense.q_stages);
    if (!general.can_split() || dense.q_stages == 1) {
      EXPECT_EQ(general.q_stages, dense.q_stages);
      EXPECT_EQ(general.kv_stages, dense.kv_stages);
      continue;
    }
    ++moved;
    EXPECT_EQ(general.q_stages, 1);
    EXPECT_EQ(
        general.tiles().q_bytes() + general.kv_stages * general.tiles().stage_bytes(),
        dense.q_stages * dense.tiles().q_bytes() + dense.kv_stages * dense.tiles().stage_bytes());
  }
  EXPECT_EQ(moved, 2);
}

}  // namespace
}  // namespace fa3::hopper
