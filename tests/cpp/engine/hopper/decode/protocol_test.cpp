// SPDX-License-Identifier: Apache-2.0
//
// The decode kernels as they stand, on a machine that schedules all their lanes at random
// (machine/machine.h): stages that a warp's lanes fill and free, rows that CTAs of a cluster send
// to each other, splits that the last CTA combines. Broken protocols must be found out.
#include <span>

#include "decode/decode_run.h"
#include "engine/hopper/catalogue.h"
#include "launch/table_rows.h"
#include "many_orders.h"

namespace fa3::hopper {
namespace {

using machine::slow;

const Pace kPaces[] = {
    {},
    {.name = "slow copies", .engines = 0.02},
    {.name = "one slow warp", .weight = slow<5, 5>},
    {.name = "a slow CTA", .weight = slow<0, 7>},
    {.name = "another slow CTA", .engines = 10, .weight = slow<8, 15>, .interruption = 0.5},
};

// Every way through the kernel for one sequence: a cluster, parts of a tile that the last warp
// combines, both; several heads and packs. More keys than stages hold, and fewer than there are
// warps; pages of one box, of several, and of none that TMA copies.
const DecodeCase kSingle[] = {
    {"a cluster", 1, 4, 1, {3000}, {.ctas = 1, .cluster_log2 = 2}},
    {"parts", 2, 2, 1, {1900}, {.ctas = 4}},
    {"parts in clusters", 1, 8, 1, {2777}, {.ctas = 2, .cluster_log2 = 1}},
    {"heads in clusters", 1, 2, 2, {1333}, {.ctas = 2, .cluster_log2 = 1}},
    {"few keys", 3, 2, 1, {77}, {.ctas = 2, .cluster_log2 = 1}},
    {"large pages", 1, 2, 1, {2100}, {.ctas = 2, .cluster_log2 = 1}, 256},
    {"small pages", 1, 2, 1, {1500}, {.ctas = 1, .cluster_log2 = 1}, 16},
    {"odd pages", 1, 2, 1, {2050}, {.ctas = 2, .cluster_log2 = 1}, 24},
    {"earlier keys", 3, 2, 1, {1900}, {.ctas = 2, .cluster_log2 = 1}, 0, -700},
};

// Ranges of key blocks of several sequences, some of them empty: tiles that begin in one range and
// end in another, more sequences than lanes, clusters for each range or none.
std::vector<int32_t> many_sequences() {
  std::vector<int32_t> keys(40);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = int32_t(i * 37 % 300);
  return keys;
}
const DecodeCase kSeveral[] = {
    {"ranges", 1, 2, 1, {900, 0, 300, 1711}, {.ctas = 4}},
    {"ranges in clusters", 2, 2, 1, {1200, 5, 1711}, {.ctas = 2, .cluster_log2 = 1}},
    {"one cluster", 1, 2, 2, {900, 700}, {.ctas = 1, .cluster_log2 = 1}},
    {"groups of heads", 1, 4, 4, {700, 400}, {.ctas = 4, .groups_log2 = 1}},
    {"many sequences", 1, 1, 1, many_sequences(), {.ctas = 3}},
    {"large pages", 1, 2, 1, {1100, 900}, {.ctas = 2, .cluster_log2 = 1}, 256},
    {"odd pages", 1, 2, 1, {1100, 40, 900}, {.ctas = 2, .cluster_log2 = 1}, 24},
    // A range has no blocks that a band hides: here it hides keys of the last ones alone.
    {"earlier keys", 2, 2, 1, {960, 120, 1790}, {.ctas = 4}, 0, -20},
};

// Pages whose boxes TMA does not copy, or a kernel that does without TMA.
bool uses_cp_async(const Kernel& c, const DecodeCase& shape) {
  const DecodeShape stages = decode_shape(c);
  const bool small = shape.page_size % stages.stage_keys != 0;
  const bool in_boxes = shape.page_size % 16 == 0 && c.tiles_in_smem().loaded_k.slabs() == 1;
  return !stages.may_use_tma || (small && !in_boxes);
}

template <class Number>
class DecodeProtocol : public testing::Test {};
constexpr auto kDecodes = [](const Row& row) { return row.built && row.kernel.is_decode(); };
TYPED_TEST_SUITE(DecodeProtocol, RowsWith<kDecodes>);

// A kernel takes every third case, each at another pace, in quick runs every sixth; or every case
// at every pace.
template <size_t Row, size_t Count>
void expect_all_work_done(const DecodeCase (&cases)[Count]) {
  constexpr Kernel kKernel = kForward[Row].kernel;
  const unsigned step = machine::by_effort(6, 3, 1);
  for (unsigned i = Row % step; i < Count; i += step) {
    const unsigned paces = machine::by_effort(1, 1, std::size(kPaces));
    for (unsigned n = 0; n < paces; ++n) {
      const Pace& pace = kPaces[(Row + i + n) % std::size(kPaces)];
      const DecodeRun<kKernel> run({cases[i], unsigned(Row), pace});
      ASSERT_EQ(run.problem(), "") << cases[i].name << ", " << pace.name;
      ASSERT_EQ(run.by_cp_async(), uses_cp_async(kKernel, cases[i])) << cases[i].name;
    }
  }
}

TYPED_TEST(DecodeProtocol, every_key_counts_once) {
  if constexpr (kForward[TypeParam::kRow].kernel.is_single_sequence()) {
    expect_all_work_done<TypeParam::kRow>(kSingle);
  } else {
    expect_all_work_done<TypeParam::kRow>(kSeveral);
  }
}

// ---- Broken protocols ----

constexpr Kernel kBroken = row_named("d64/64 8x256 decode single").kernel;
const DecodeCase &kInCluster = kSingle[0], &kInParts = kSingle[2], &kInSmallPages = kSingle[6],
                 &kInOddPages = kSingle[7], &kInManyRanges = kSeveral[4];
const std::string kLeft = "sent to a CTA that has left";  // because it did not wait for its rows

// Every run must be found out with one of these complaints.
template <Tiles T>
void expect_found(DecodeTrial trial, const std::vector<std::string>& complaints,
                  std::span<const Pace> paces = kPaces) {
  for (const Pace& pace : paces) {
    trial.pace = pace;
    constexpr Kernel kKernel{.shape = kBroken.shape, .operands = kBroken.operands, .tiles = T};
    const DecodeRun<kKernel> run(trial);
    const auto fits = [&](const std::string& c) { return run.problem().starts_with(c); };
    ASSERT_TRUE(std::any_of(complaints.begin(), complaints.end(), fits))
        << pace.name << ", said: '" << run.problem() << "'";
  }
}
void expect_found(const DecodeTrial& trial, const std::vector<std::string>& complaints,
                  std::span<const Pace> paces = kPaces) {
  expect_found<Tiles::kDecodeSingle>(trial, complaints, paces);
}

TEST(BrokenDecode, a_stage_is_refilled_before_all_lanes_have_read_it) {
  expect_found({.shape = kInCluster, .fault = Fault::kNoSyncwarp},
               {"overwritten while it is read", "read before it was filled"});
}
TEST(BrokenDecode, lanes_read_what_others_have_copied_without_a_barrier) {
  expect_found({.shape = kInOddPages, .fault = Fault::kNoSyncwarp},
               {"read before it was filled", "no barrier between the store of warp",
                "overwritten while it is read"});
}
TEST(BrokenDecode, lanes_do_not_wait_for_their_copies) {
  expect_found({.shape = kInOddPages, .fault = Fault::kNoCopyWait}, {"read before it was filled"});
}
TEST(BrokenDecode, a_stage_is_full_before_its_last_box) {
  expect_found({.shape = kInSmallPages, .fault = Fault::kTooFewBytes},
               {"read before it was filled"});
}
TEST(BrokenDecode, a_warp_is_in_the_wrong_phase_of_its_stages) {
  expect_found({.shape = kInCluster, .fault = Fault::kConsumerPhase},
               {"read before it was filled", "deadlock"});
}
TEST(BrokenDecode, cleared_values_are_overwritten_by_tma_without_a_fence) {
  expect_found<Tiles::kDecode>({.shape = kInManyRanges, .fault = Fault::kNoFence},
                               {"no fence.proxy.async between the store of warp"});
}
TEST(BrokenDecode, rows_are_sent_to_a_cta_that_has_not_begun) {
  expect_found({.shape = kInCluster, .fault = Fault::kNoClusterWait}, {"barrier"},
               std::span(kPaces).last(2));  // of a slow CTA
}
TEST(BrokenDecode, rows_are_reduced_before_they_have_arrived) {
  expect_found({.shape = kInCluster, .fault = Fault::kConsumerPhase, .fault_is_in_cluster = true},
               {"wrong keys", kLeft});
}
TEST(BrokenDecode, fewer_bytes_of_rows_are_awaited_than_sent) {
  expect_found({.shape = kInCluster, .fault = Fault::kTooFewBytes, .fault_is_in_cluster = true},
               {"wrong keys", "deadlock", "barrier", kLeft});
}
TEST(BrokenDecode, a_split_is_counted_twice) {
  expect_found({.shape = kInParts, .fault = Fault::kSplitCountedTwice},
               {"stored 0 times: the LSE"});
}

}  // namespace
}  // namespace fa3::hopper
