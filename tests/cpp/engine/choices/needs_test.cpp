// SPDX-License-Identifier: Apache-2.0
// Kernels are chosen for calls whose needs they cover, planned as they are compiled, and a call is
// refused for its needs only if no kernel covers them: for random problems, on a machine without a
// GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/choices/random_call.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/kernels/kernel_name.h"
#include "engine/hopper/kernels/offers.h"
#include "engine/hopper/launch/counting_runtime.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/select/serving.h"

namespace fa3::hopper {
namespace {

constexpr int kProblems = 20000;

bool has_columns(const Kernel& c, const Problem& p) {
  const int64_t columns_v = c.e4m3() ? p.head_dim_v : std::min(p.head_dim_v, kMaxColumnsV);
  return c.shape.head_dim >= p.head_dim && c.shape.head_dim_v >= columns_v;
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
  Kernel config;
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
  std::set<const Row*> chosen;
  for (int number = 0; number < kProblems; ++number) {
    const test::RandomCall call{uint64_t(number)};
    test::g_cuda = {};
    Problem p = call.problem();
    if (p.partial.on && !kHopperEngine.continues(p)) p.partial = {};
    const auto [status, c, tiling] = plan(p);
    const Request request = request_of(p);
    Needs needs = request.needs;
    const auto serves = [&](const Row& row) {
      return has_columns(row.kernel, p) && offers_of(row).covers(needs) &&
             needs.covers(requires_of(row));
    };
    if (!status.ok()) {
      // Kernels that decode take few rows alone.
      const bool is_served = std::ranges::any_of(
          kForward, [&](const Row& row) { return !row.kernel.is_decode() && serves(row); });
      EXPECT_FALSE(is_served && !is_about_tensors(status.message()))
          << number << " " << describe(call) << ": " << status.message();
      continue;
    }
    needs.set(Need::kFindsTiles, tiling.finds_own_tiles());
    needs.set(Need::kFixedSplits, tiling.scheduler == Scheduler::kFixedSplit);
    const auto row = std::ranges::find_if(kForward, [&, planned = c](const Row& row) {
      Kernel kernel = kernel_of(row, planned.element);
      if (p.score != nullptr) kernel = with_score(kernel, *p.score, request.captured_tile);
      return kernel == planned && serves(row);
    });
    EXPECT_NE(row, kForward.end())
        << number << " " << describe(call) << ": d" << c.shape.head_dim << " " << c.shape.block_m
        << "x" << c.shape.block_n << " tiles " << int(c.tiles);
    if (row != kForward.end()) chosen.insert(&*row);
  }
  // Calls for some of the decode kernels are rare.
  for (const Row& row : kForward) {
    if (row.kernel.is_decode()) continue;
    EXPECT_TRUE(chosen.contains(&row)) << "nothing chooses " << name_of(row.kernel).view()
                                       << (row.built ? "" : " of a score function");
  }
}

}  // namespace
}  // namespace fa3::hopper
