// SPDX-License-Identifier: Apache-2.0
// The catalogue of forward kernels: registers and stages of every row, its name and its entry.
#include <gtest/gtest.h>

#include <string>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/config/register_budget.h"
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
    const ForwardConfig& c = row.kernel;
    const RegisterBudget budget = register_budget(c);
    EXPECT_LE(c.ctas_per_sm * (budget.producer + c.consumers() * budget.consumer),
              kRegistersPerLaunchThreadQuad)
        << name_of(row);
    EXPECT_LE(consumer_registers_used(c), budget.consumer) << name_of(row);
    // K of the next block beside V of this one, and one to load into.
    EXPECT_GE(c.kv_stages, 3) << name_of(row);
  }
}

TEST(ForwardCatalogue, split_tiles_have_one_q_and_its_room_in_the_pipeline) {
  int moved = 0;
  const auto may_move = [](const Row& row) {
    return is_plain(row) && row.kernel.general() && !row.kernel.capped();
  };
  for (const Row& row : rows_with(may_move)) {
    const ForwardConfig& general = row.kernel;
    const auto is_dense_form = [&](const Row& other) {
      const ForwardConfig& c = other.kernel;
      return is_plain(other) && c.variant == Variant::kDense && c.head_dim == general.head_dim &&
             c.head_dim_v == general.head_dim_v && c.block_m == general.block_m &&
             c.block_n == general.block_n;
    };
    for (const Row& other : rows_with(is_dense_form)) {
      const ForwardConfig& dense = other.kernel;
      const auto bytes = [](const ForwardConfig& c) {
        return c.q_stages * c.tiles().q_bytes() + c.kv_stages * c.tiles().stage_bytes();
      };
      EXPECT_EQ(bytes(general), bytes(dense)) << name_of(row);
      EXPECT_EQ(general.q_stages, general.can_split() ? 1 : dense.q_stages) << name_of(row);
      moved += general.q_stages != dense.q_stages;
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
      EXPECT_EQ(fields_of(kernel.config), fields_of(kernel_of(row, element))) << name_of(row);
      EXPECT_EQ(kernel.function != nullptr, row.built) << name_of(row);
      EXPECT_GT(kernel.smem_bytes, 0) << name_of(row);
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
