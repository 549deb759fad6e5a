// SPDX-License-Identifier: Apache-2.0
//
// The backward kernels' own sources, through plan and launch, with numbers on the host: every
// feature against double precision, and their barriers in many orders.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "numeric/backward_run.h"
#include "numeric/orders.h"

namespace fa3::ampere {
namespace {

constexpr Element kBf16 = Element::kBf16, kFp16 = Element::kFp16;

using testing::ragged_case;

BackwardCase with(BackwardCase c, const std::function<void(BackwardCase&)>& change) {
  change(c);
  return c;
}

const auto kDeterministic = [](BackwardCase& c) { c.deterministic = true; };

// Blocks of keys and steps with a tail of each, heads that share keys; then with P's other form.
const std::vector<BackwardCase> kPlain{
    {1, 2, 1, 100, 200, true},
    with({1, 1, 1, 70, 140}, kDeterministic),
};
const std::vector<BackwardCase> kScored{
    with({1, 2, 1, 70, 140, true},
         [](BackwardCase& c) { c.dropout = 0.3f, c.softcap = 8, c.q_sigma = 8; }),
};

// What kernels know, for one of them.
std::vector<BackwardCase> all_plain_cases() {
  const testing::Side q{.owned = {70, 0, 1, 150}, .spare = 3};
  const testing::Side k{.owned = {140, 5, 0, 33}, .spare = 200};
  const testing::Side q_used{.owned = {70, 0, 7, 150}, .used = {41, 0, 7, 64}};
  const testing::Side k_used{.owned = {140, 5, 10, 150}, .used = {90, 5, 0, 149}};
  const auto window = [](int left, int right, int shift = 0) {
    return [=](BackwardCase& c) { c.left = left, c.right = right, c.shift = shift; };
  };
  return {
      {1, 1, 1, 64, 128},
      {1, 1, 1, 1, 1},
      {2, 2, 1, 150, 200},
      {1, 2, 1, 200, 150, true},  // rows without keys
      with({1, 2, 1, 70, 40}, [](BackwardCase& c) { c.d_lse = c.sink = true; }),
      with({1, 1, 1, 150, 200}, window(60, 20)),
      with({1, 1, 1, 200, 200}, window(-1, 0, -1)),
      with({1, 1, 1, 60, 60}, window(5, 5, 400)),  // nobody sees anything
      with({1, 2, 1, 150, 300, true}, kDeterministic),
      ragged_case(" packed", 2, 1, q, k),
      with(ragged_case(" packed-used", 2, 2, q_used, k_used),
           [](BackwardCase& c) { c.causal = c.deterministic = true; }),
      with(ragged_case(" packed-unused", 2, 1, {.owned = {100, 9, 70}, .used = {64, 9, 5}},
                       {.owned = {64, 90, 330}, .used = {60, 0, 64}}),
           [](BackwardCase& c) { c.seqlen_q = c.seqlen_k = 64; }),
      with(ragged_case(" used", 1, 1, {.owned = {90, 90}, .used = {0, 65}, .packed = false},
                       {.owned = {150, 150}, .used = {140, 128}, .packed = false}),
           [](BackwardCase& c) { c.sink = true; }),
  };
}
std::vector<BackwardCase> all_scored_cases() {
  return {
      with({1, 2, 1, 100, 200, true}, [](BackwardCase& c) { c.softcap = 8, c.q_sigma = 8; }),
      with({1, 1, 1, 100, 150}, [](BackwardCase& c) { c.softcap = 50, c.q_sigma = 0.1f; }),
      with({2, 2, 1, 90, 150, true}, [](BackwardCase& c) { c.dropout = 0.3f; }),
      with({1, 1, 1, 70, 150},
           [](BackwardCase& c) { c.dropout = 0.3f, c.softcap = 15, c.left = 50, c.sink = true; }),
  };
}

template <int TableRow, Element E>
void check_row(const std::vector<BackwardCase>& plain, const std::vector<BackwardCase>& scored) {
  const BackwardKernel kernel = emulated<TableRow, E, false>();
  for (const BackwardCase& c : plain) EXPECT_EQ(run<E>(kernel, c), "");
  const BackwardKernel other = emulated<TableRow, E, true>();
  for (const BackwardCase& c : scored) EXPECT_EQ(run<E>(other, c), "");
}

// A test for each row: 0 to 8 of the table.
TEST(BackwardNumeric, of_64_columns_agrees_with_double_precision) {
  check_row<0, kBf16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_64_columns_small_agrees_in_every_feature) {
  check_row<1, kFp16>(all_plain_cases(), all_scored_cases());
}
TEST(BackwardNumeric, of_128_columns_agrees_with_double_precision) {
  check_row<2, kBf16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_128_columns_small_agrees_with_double_precision) {
  check_row<3, kBf16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_192_columns_agrees_with_double_precision) {
  check_row<4, kBf16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_192_columns_small_agrees_with_double_precision) {
  check_row<5, kBf16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_256_columns_in_two_stages_agrees_with_double_precision) {
  check_row<6, kBf16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_256_columns_agrees_with_double_precision) {
  check_row<7, kFp16>(kPlain, kScored);
}
TEST(BackwardNumeric, of_256_columns_small_agrees_with_double_precision) {
  check_row<8, kBf16>(kPlain, kScored);
}

// Under block masks, with and without what P's other form is for. A row of the table each.
template <int TableRow, Element E>
void check_mask_row(std::vector<BackwardCase> cases) {
  const BackwardKernel kernel = emulated<kernel_of(kMaskedRows[TableRow], E)>();
  for (const BackwardCase& c : cases) EXPECT_EQ(run<E>(kernel, c), "");
}
const std::vector<BackwardCase> kMasked{
    {1, 2, 1, 200, 300, true},
    with({1, 1, 1, 140, 400}, kDeterministic),
    with({1, 1, 1, 140, 300}, [](BackwardCase& c) { c.dropout = 0.3f, c.softcap = 8; }),
};
TEST(BackwardNumeric, of_64_columns_under_a_block_mask_agrees_in_every_feature) {
  check_mask_row<0, kFp16>(all_plain_cases());
  // But not causal with dropout: a row that sees one key has gradients of 0 but for O's rounding.
  std::vector<BackwardCase> scored = all_scored_cases();
  std::erase_if(scored, [](const BackwardCase& c) { return c.causal && c.dropout > 0; });
  check_mask_row<0, kBf16>(scored);
  check_mask_row<0, kBf16>(kMasked);
}
TEST(BackwardNumeric, of_128_columns_under_a_block_mask_agrees) {
  check_mask_row<1, kBf16>(kMasked);
}
TEST(BackwardNumeric, of_128_columns_small_under_a_block_mask_agrees) {
  check_mask_row<2, kBf16>(kMasked);
}
TEST(BackwardNumeric, of_256_columns_under_a_block_mask_agrees) {
  check_mask_row<3, kBf16>(kMasked);
}
TEST(BackwardNumeric, of_256_columns_small_under_a_block_mask_agrees) {
  check_mask_row<4, kBf16>(kMasked);
}

TEST(BackwardNumeric, rows_may_begin_and_end_at_any_address) {
  const BackwardKernel kernel = emulated<1, kBf16, false>();
  for (const Layout& layout : {Layout{.columns_less = 8}, Layout{.columns_less = 13},
                               Layout{.row_gap = 3}, Layout{.row_gap = 8}, Layout{.shift = 1}}) {
    EXPECT_EQ(run<kBf16>(kernel, {1, 2, 1, 40, 70, true}, layout), "");
  }
}

TEST(BackwardNumeric, passes_through_an_output_gate_in_any_layout) {
  const BackwardKernel kernel = emulated<1, kBf16, false>();
  for (const cuda::Gate gate : {cuda::Gate::kColumns, cuda::Gate::kRows}) {
    for (Layout layout : {Layout{}, Layout{.columns_less = 13}, Layout{.shift = 1}}) {
      layout.gate = gate;
      EXPECT_EQ(run<kBf16>(kernel, {1, 2, 1, 40, 70, true}, layout), "");
    }
  }
}

// Rows behind a sequence's used ones, and more rows that no sequence owns than a block has.
TEST(BackwardNumeric, has_no_gradient_of_the_gate_of_rows_that_are_not_used) {
  const BackwardKernel kernel = emulated<1, kBf16, false>();
  const std::vector<BackwardCase> cases{
      with(ragged_case(" packed-used", 2, 1,
                       {.owned = {70, 3, 0, 97}, .used = {41, 3, 0, 64}, .spare = 300},
                       {.owned = {140, 5, 10, 60}, .used = {90, 0, 0, 60}}),
           [](BackwardCase& c) { c.sink = c.d_lse = true, c.left = 50; }),
      with(ragged_case(" packed-unused", 1, 1, {.owned = {100, 9}, .used = {64, 5}},
                       {.owned = {64, 90}}),
           [](BackwardCase& c) { c.seqlen_q = 64; }),
      ragged_case(" used", 1, 1, {.owned = {90, 90}, .used = {0, 65}, .packed = false},
                  {.owned = {70, 70}, .packed = false}),
  };
  for (const BackwardCase& c : cases) {
    for (const cuda::Gate gate : {cuda::Gate::kColumns, cuda::Gate::kRows}) {
      EXPECT_EQ(run<kBf16>(kernel, c, {.gate = gate}), "") << c.name();
    }
  }
}

// Two stages, five steps.
std::string run_many_steps() {
  return run<kBf16>(emulated<1, kBf16, false>(), {1, 1, 1, 300, 40});
}
// One stage, three steps.
std::string run_in_one_stage() {
  return run<kBf16>(emulated<3, kBf16, false>(), {1, 1, 1, 70, 40});
}

TEST(BackwardOrder, warps_may_run_in_any_order) {
  expect_right_in_any_order(run_many_steps);
  expect_right_in_any_order(run_in_one_stage);
}
TEST(BackwardOrder, copies_are_not_awaited) {
  expect_found_in_any_order(machine::Fault::kNoCopyWait, 0, run_many_steps);
  expect_found_in_any_order(machine::Fault::kNoCopyWait, 0, run_in_one_stage);
}

class BackwardBarriers : public ::testing::TestWithParam<BackwardBarrier> {};
TEST_P(BackwardBarriers, each_is_missed) {
  expect_found_in_any_order(machine::Fault::kNoNamedBarrier, int(GetParam()), run_many_steps);
  const bool apart =
      GetParam() == BackwardBarrier::kPEmpty || GetParam() == BackwardBarrier::kDsRead;
  if (apart) return;  // not there where there is one stage
  expect_found_in_any_order(machine::Fault::kNoNamedBarrier, int(GetParam()), run_in_one_stage);
}
INSTANTIATE_TEST_SUITE_P(all, BackwardBarriers,
                         ::testing::Values(BackwardBarrier::kValues, BackwardBarrier::kKeys,
                                           BackwardBarrier::kKeysThere, BackwardBarrier::kPFull,
                                           BackwardBarrier::kPEmpty, BackwardBarrier::kDsRead,
                                           BackwardBarrier::kLoaded, BackwardBarrier::kSpent));

}  // namespace
}  // namespace fa3::ampere
