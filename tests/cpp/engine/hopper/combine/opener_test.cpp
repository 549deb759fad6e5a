// SPDX-License-Identifier: Apache-2.0
//
// What the CTA that opens a tile makes of later splits' rows (combine/combine_opener.cuh), with all
// lanes and numbers, against sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/combine/combine_opener.cuh"
#include "machine.h"

namespace fa3::hopper {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kLaterSplits = 3, kRanges = 16, kOpener = 2, kGroupsLog2 = 1;
constexpr int kFirstConsumer = kWarpsPerWarpgroup;
constexpr uint64_t kLaunch = 0x123456789abc;

// A row of a split: O, normalised, and its log-sum-exp to base 2.
struct SplitRow {
  std::vector<float> o;
  float lse = 0;
};

// Rows of a tile that fills neither its last warp nor its tensor's columns.
template <Kernel C>
class OpenerRun {
  static constexpr int kRows = 20, kColumns = C.shape.head_dim_v - 16, kWarps = 2;

 public:
  explicit OpenerRun(unsigned seed) : random_(seed), rows_(size_t(kRows)) {
    for (auto& splits : rows_) {
      for (int s = 0; s <= kLaterSplits; ++s) splits.push_back(random_row());
    }
  }

  std::vector<SplitRow>& row(int number) { return rows_[size_t(number)]; }

  void run() {
    o_.assign(size_t(kRanges * kRows * kColumns), kNan);
    sums_.assign(size_t(kRanges * kRows), {kNan, kNan});
    cells_.assign(size_t(kRanges * C.consumer_warps()), 0xcdcdcdcdcdcdcdcd);
    for (int s = 1; s <= kLaterSplits; ++s) {
      for (int row = 0; row < kRows; ++row) {
        const SplitRow& split = rows_[size_t(row)][size_t(s)];
        const size_t at = size_t(partial(s) * kRows + row);
        std::ranges::copy(split.o, o_.begin() + ptrdiff_t(at) * kColumns);
        // NaN is the sum's, and keys that are not there have none.
        const bool counts = split.lse != -kInfinity, is_nan = std::isnan(split.lse);
        sums_[at] = {is_nan ? 0 : split.lse - 1, is_nan ? kNan : counts ? 2.0f : 0.0f};
      }
      for (int warp = 0; warp < kWarps; ++warp) cell(s, warp) = kLaunch << 16 | 1;
    }
    ForwardParams params{};
    params.partials = {.o = o_.data(), .sums = sums_.data(), .rows = kRows, .columns = kColumns};
    params.counts = {cells_.data(), kLaunch};
    params.schedule.groups_log2 = kGroupsLog2;
    machine::Setting setting{.seed = unsigned(random_())};
    for (const float& number : o_) setting.stored_before.insert(&number);
    const machine::Outcome outcome =
        machine::run_ctas(setting, kFirstConsumer + kWarps, {.grid = {kRanges, 1, 1}}, [&] {
          const int warp = int(threadIdx.x) / kWarpSize - kFirstConsumer;
          if (warp >= 0) add(params, warp);
        });
    ASSERT_EQ(outcome.error, "");
    for (int s = 1; s <= kLaterSplits; ++s) {
      for (int warp = 0; warp < kWarps; ++warp) EXPECT_EQ(cell(s, warp), kLaunch << 16);
    }
  }

  float lse(int row) const { return found_lse_[size_t(row)]; }
  float o(int row, int column) const { return found_[size_t(row)][size_t(column)]; }

  void expect_sum_of_splits(int row) const {
    double largest = -kInfinity, sum = 0;
    const auto& splits = rows_[size_t(row)];
    for (const SplitRow& split : splits) largest = std::max<double>(largest, split.lse);
    for (const SplitRow& split : splits) sum += std::exp2(split.lse - largest);
    EXPECT_NEAR(lse(row), largest + std::log2(sum), 1e-5 * std::abs(largest) + 1e-5) << row;
    for (int column = 0; column < kColumns; ++column) {
      double expected = 0;
      for (const SplitRow& split : splits) {
        const double weight = std::exp2(split.lse - largest);
        if (weight != 0) expected += weight * split.o[size_t(column)] / sum;
      }
      ASSERT_NEAR(o(row, column), expected, 1e-5) << "row " << row << ", column " << column;
    }
  }

  void expect_zeros(int row) const {
    for (int column = 0; column < kColumns; ++column) ASSERT_EQ(o(row, column), 0) << row;
  }

 private:
  static int partial(int split) { return kOpener + (split << kGroupsLog2); }
  uint64_t& cell(int split, int warp) {
    return cells_[size_t(partial(split) * C.consumer_warps() + warp)];
  }

  SplitRow random_row() {
    SplitRow row{.lse = 8 * uniform_(random_)};
    for (int column = 0; column < kColumns; ++column) row.o.push_back(uniform_(random_));
    return row;
  }

  // The opener's own split is not normalised, and its sum lies in four lanes.
  void add(const ForwardParams& params, int warp) {
    constexpr float kRefAbove = 5;  // a reference is no maximum
    WorkTileOf<C> work{};
    work.queries.count = work.queries.used = kRows;
    work.place.partial = kOpener + kRanges;
    work.place.later_splits = kLaterSplits;
    const int lane = machine::own_lane();
    float output[C.shape.head_dim_v / 2] = {};
    RowState rows;
    const auto row_of = [&](int r) {
      return warp * kRowsPerWarp + lane / kQuadLanes + r * kRowDistance;
    };
    const auto column_of = [&](int i) { return fragment_column(i) + fragment_lane_column(lane); };
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (row_of(r) >= kRows) continue;
      const float lse = rows_[size_t(row_of(r))][0].lse;
      if (lse == -kInfinity) continue;
      const bool is_nan = std::isnan(lse);
      rows.ref[r] = is_nan ? 0 : lse + kRefAbove;
      rows.sum[r] = is_nan ? kNan : std::exp2(-kRefAbove) * float(1 + lane % kQuadLanes) / 10;
    }
    for (int i = 0; i < C.shape.head_dim_v / 2; ++i) {
      const int row = row_of(fragment_row_index(i));
      if (row >= kRows || column_of(i) >= kColumns) continue;
      output[i] = rows_[size_t(row)][0].o[size_t(column_of(i))] * std::exp2(-kRefAbove);
    }
    add_later_splits<C>(params, work, warp * kRowsPerWarp, output, rows);
    float sum[kRowsPerThread] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (row_of(r) < kRows) found_lse_[size_t(row_of(r))] = rows.ref[r] + std::log2(sum[r]);
      if (sum[r] == 0) sum[r] = 1;
    }
    for (int i = 0; i < C.shape.head_dim_v / 2; ++i) {
      const int row = row_of(fragment_row_index(i));
      if (row >= kRows || column_of(i) >= kColumns) continue;
      found_[size_t(row)][size_t(column_of(i))] = output[i] / sum[fragment_row_index(i)];
    }
  }

  std::mt19937 random_;
  std::uniform_real_distribution<float> uniform_{-1, 1};
  std::vector<std::vector<SplitRow>> rows_;
  std::vector<float> o_;
  std::vector<PartialSum> sums_;
  std::vector<uint64_t> cells_;
  std::vector<float> found_lse_ = std::vector<float>(kRows, kNan);
  std::vector<std::vector<float>> found_{kRows, std::vector<float>(kColumns, kNan)};
};

template <Kernel C>
void expect_right_sums() {
  static_assert(C.combine() == CombineKind::kOpener);
  enum {
    kOwnEmpty = 3,
    kLaterEmpty,
    kAllEmpty,
    kOneOfLater,
    kOwnRules,
    kLaterRules,
    kNanLater,
    kNanOwn,
    kFarApart
  };
  OpenerRun<C> run(1);
  // What a split without keys has stored may be anything.
  const auto make_empty = [](SplitRow& split) {
    split.lse = -kInfinity;
    std::ranges::fill(split.o, kNan);
  };
  make_empty(run.row(kOwnEmpty)[0]);
  make_empty(run.row(kLaterEmpty)[2]);
  for (SplitRow& split : run.row(kAllEmpty)) make_empty(split);
  for (const int split : {0, 1, 3}) make_empty(run.row(kOneOfLater)[size_t(split)]);
  run.row(kOwnRules)[0].lse = 300;
  run.row(kLaterRules)[3].lse = 300;
  run.row(kNanLater)[1].lse = kNan;
  run.row(kNanOwn)[0].lse = kNan;
  std::ranges::fill(run.row(kNanOwn)[0].o, kNan);
  run.row(kFarApart)[0].lse = -1000, run.row(kFarApart)[2].lse = 1000;
  run.run();
  for (int row = 0; row < 20; ++row) {
    if (row == kAllEmpty || row == kNanLater || row == kNanOwn) continue;
    run.expect_sum_of_splits(row);
  }
  run.expect_zeros(kAllEmpty);
  EXPECT_EQ(run.lse(kAllEmpty), -kInfinity);
  for (const int row : {int(kNanLater), int(kNanOwn)}) EXPECT_TRUE(std::isnan(run.lse(row))) << row;
  EXPECT_TRUE(std::isnan(run.o(kNanLater, 5)));
  // The only split with keys is the result, bit for bit.
  const SplitRow& alone = run.row(kOneOfLater)[2];
  EXPECT_EQ(run.lse(kOneOfLater), alone.lse);
  for (size_t column = 0; column < alone.o.size(); ++column) {
    ASSERT_EQ(run.o(kOneOfLater, int(column)), alone.o[column]);
  }
}

TEST(Opener, adds_later_splits_of_128_columns) {
  expect_right_sums<row_named("d128/128 128x128 stream-K").kernel>();
}

TEST(Opener, adds_later_splits_of_256_columns) {
  expect_right_sums<row_named("d256/256 128x64 stream-K").kernel>();
}

}  // namespace
}  // namespace fa3::hopper
