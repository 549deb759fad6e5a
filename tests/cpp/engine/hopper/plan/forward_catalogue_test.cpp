// SPDX-License-Identifier: Apache-2.0
// The catalogue of forward kernels: registers and stages of every row, its name and its entry.
#include <gtest/gtest.h>

#include <string>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {
namespace {

std::string name_of(const Row& row) {
  return std::string(name_of(row.kernel).view());
}

// Register files and stages have no static_assert of their own; shared memory has.
TEST(ForwardCatalogue, every_row_fits_the_register_file_and_keeps_a_stage_to_load_into) {
  constexpr int kRegistersPerLaunchThreadQuad = 512;  // 64 K registers over 128 threads
  for (const Row& row : rows_with([](const Row& row) { return !row.kernel.is_decode(); })) {
    const Kernel& c = row.kernel;
    const RegisterBudget budget = register_budget(c);
    EXPECT_LE(c.shape.ctas_per_sm * (budget.producer + c.consumers() * budget.consumer),
              kRegistersPerLaunchThreadQuad)
        << name_of(row);
    EXPECT_LE(consumer_registers_used(c), budget.consumer) << name_of(row);
    // K of the next block beside V of this one, and one to load into.
    EXPECT_GE(c.shape.kv_stages, 3) << name_of(row);
  }
}

TEST(ForwardCatalogue, split_tiles_have_one_q_and_its_room_in_the_pipeline) {
  int moved = 0;
  const auto may_move = [](const Row& row) {
    return is_plain(row) && row.kernel.general() && !row.kernel.capped();
  };
  for (const Row& row : rows_with(may_move)) {
    const Kernel& general = row.kernel;
    const auto is_dense_form = [&](const Row& other) {
      const Kernel& c = other.kernel;
      return is_plain(other) && c.tiles == Tiles::kDense &&
             c.shape.head_dim == general.shape.head_dim &&
             c.shape.head_dim_v == general.shape.head_dim_v &&
             c.shape.block_m == general.shape.block_m && c.shape.block_n == general.shape.block_n;
    };
    for (const Row& other : rows_with(is_dense_form)) {
      const Kernel& dense = other.kernel;
      const auto bytes = [](const Kernel& c) {
        return c.shape.q_stages * c.tiles_in_smem().q_bytes() +
               c.shape.kv_stages * c.tiles_in_smem().stage_bytes();
      };
      EXPECT_EQ(bytes(general), bytes(dense)) << name_of(row);
      EXPECT_EQ(general.shape.q_stages, general.can_split() ? 1 : dense.shape.q_stages)
          << name_of(row);
      moved += general.shape.q_stages != dense.shape.q_stages;
    }
  }
  EXPECT_EQ(moved, 2);
}

TEST(ForwardCatalogue, a_name_says_what_differs_from_most_kernels) {
  for (const char* name : {"d64/64 192x128", "d128/128 192x80 continued varlen",
                           "e4m3 d128/128 128x128 rows of V", "d64/64 64x128 stream-K",
                           "cache d128/128 64x80 split capped", "d256/256 16x128 decode single"}) {
    EXPECT_EQ(name_of(row_named(name)), name);
  }
}

// Entries are found by the row's place in the array.
TEST(ForwardCatalogue, every_row_has_its_own_kernel) {
  for (const Row& row : kForward) {
    for (const Element element : {Element::kFp16, Element::kBf16}) {
      const ForwardKernel kernel = forward_kernel_at(row, element);
      EXPECT_TRUE(kernel.config == kernel_of(row, element)) << name_of(row);
      EXPECT_EQ(kernel.function != nullptr, row.built) << name_of(row);
      EXPECT_GT(kernel.smem_bytes, 0) << name_of(row);
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
