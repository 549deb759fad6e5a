// SPDX-License-Identifier: Apache-2.0
// Kernels are chosen for calls whose needs they cover, and a call is refused for its needs only if
// no kernel covers them: for random problems, on a machine without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/choices/random_call.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/kernels/offers.h"
#include "engine/hopper/launch/counting_runtime.h"
#include "engine/hopper/plan/needs_of.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/decode_table.h"
#include "engine/hopper/tables/dropout_table.h"
#include "engine/hopper/tables/e4m3_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/score_table.h"

namespace fa3::hopper {
namespace {

constexpr int kProblems = 20000;

// Of kernels that are compiled with a score function.
Needs offers_with_function(const ForwardConfig& c) {
  using enum Need;
  Needs kinds{kScoreFunction, kScorePure, kScoreLine,       kScoreTwoLines, kScoreKeyTerm,
              kScoreRun,      kScoreTile, kScoreClampedRun, kScoreOther};
  const Needs not_served{kE4m3, kQuantizedKeys, kElsewhere, kIndexed, kLeftPadding, kSingleRows};
  return (c.is_decode() ? offers_of(c) : offers_of(c) - not_served) | kinds;
}

struct Offer {
  ForwardConfig config;
  Needs needs;
};

std::vector<Offer> offers_of_tables() {
  std::vector<Offer> offers;
  const auto add = [&](const auto& table, std::initializer_list<Variant> variants, bool scored) {
    for (const KernelInstance& row : table) {
      for (const Variant variant : variants) {
        const ForwardConfig c = row.config.with(Element::kBf16, variant);
        offers.push_back({c, scored ? offers_with_function(c) : offers_of(c)});
      }
    }
  };
  const auto add_rows = [&](const auto& table) {
    for (const KernelInstance& row : table) add(std::array{row}, {row.config.variant}, false);
  };
  using enum Variant;
  for (const bool scored : {false, true}) add(kDecodeTable, {kDecode, kDecodeSingle}, scored);
  add(kForwardTable, {kDense, kGeneral, kCapped}, false);
  add(kCacheTable, {kGeneral, kCapped}, false);
  add(kMaskTable, {kDense, kGeneral}, false);
  add_rows(kE4m3Table), add_rows(kDropoutTable), add_rows(kContinuedTable);
  add(kScoreTable, {kDense, kGeneral}, true);
  add(kListedScoreTable, {kDense, kGeneral}, true);
  return offers;
}

bool has_columns(const ForwardConfig& c, const Problem& p) {
  const int64_t columns_v = c.e4m3 ? p.head_dim_v : std::min(p.head_dim_v, kMaxColumnsV);
  return c.head_dim >= p.head_dim && c.head_dim_v >= columns_v;
}

// No kernel could lift these.
bool is_about_tensors(const std::string& refusal) {
  const auto names = [&](const char* text) { return refusal.find(text) != std::string::npos; };
  return names("address") || names("strides") || names("2^30") || names("_mean beside") ||
         names("_descale of") || names("element types") || names("sm_margin") ||
         names("an output of") || names("tiles are not split along the keys");
}

struct Planned {
  Status status;
  ForwardConfig config;
  Tiling tiling;
};

Planned plan(const Problem& p) {
  Plan plan;
  plan.wants_words = false;
  const Status status = kHopperEngine.plan_forward(p, &plan);
  if (!status.ok()) return {status, {}, {}};
  const auto decided = p.dtype == DType::float8_e4m3 ? plan.decided.load<E4m3Plan>().forward
                                                     : plan.decided.load<ForwardPlan>();
  return {status, decided.kernel.config, decided.tiling};
}

TEST(Needs, are_what_decides_whether_a_kernel_serves_a_call) {
  const std::vector<Offer> offers = offers_of_tables();
  for (int number = 0; number < kProblems; ++number) {
    const test::RandomCall call{uint64_t(number)};
    test::g_cuda = {};
    Problem p = call.problem();
    if (p.partial.on && !kHopperEngine.continues(p)) p.partial = {};
    const auto [status, c, tiling] = plan(p);
    Needs needs = needs_of(p, call_of(p));
    const auto is_served_by = [&](const Offer& offer) {
      return has_columns(offer.config, p) && offer.needs.covers(needs) &&
             needs.covers(requires_of(offer.config));
    };
    if (!status.ok()) {
      // Kernels that decode take few rows alone.
      const bool is_served = std::ranges::any_of(offers, [&](const Offer& offer) {
        return !offer.config.is_decode() && is_served_by(offer);
      });
      EXPECT_FALSE(is_served && !is_about_tensors(status.message()))
          << number << " " << describe(call) << ": " << status.message();
      continue;
    }
    needs.set(Need::kFindsTiles, tiling.finds_own_tiles());
    needs.set(Need::kFixedSplits, tiling.scheduler == Scheduler::kFixedSplit);
    const Needs offered = p.score != nullptr ? offers_with_function(c) : offers_of(c);
    const Needs missing = needs - offered;
    EXPECT_TRUE(is_served_by({c, offered}))
        << number << " " << describe(call) << ": need "
        << (missing.empty() ? -1 : int(missing.first())) << " is missing, d" << c.head_dim << " "
        << c.block_m << "x" << c.block_n << " variant " << int(c.variant);
  }
}

}  // namespace
}  // namespace fa3::hopper
