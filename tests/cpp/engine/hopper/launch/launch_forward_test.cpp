// SPDX-License-Identifier: Apache-2.0
// A launch does what its plan says, also where nobody would plan so: it derives nothing again.
#include "engine/hopper/launch/launch_forward.h"

#include <gtest/gtest.h>

#include <vector>

#include "counting_runtime.h"
#include "engine/hopper/catalogue.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/scheduler/side_kernels.h"

namespace fa3::hopper {
namespace {

using test::g_cuda;

constexpr Kernel kConfig = Kernel{.tiles = Tiles::kSplit};
constexpr int kSms = 132;

void* address(int number) {
  return reinterpret_cast<void*>(uintptr_t{0x100000000} * uintptr_t(number + 1));
}

// 16 heads of 300 queries over 4096 keys.
ForwardCall call() {
  const auto span = [](int number, int64_t rows) -> TensorSpan {
    return {address(number), 2, rows, 16, 128, rows * 16 * 128, 16 * 128, 128};
  };
  ForwardCall call{.q = span(0, 300),
                   .k = span(1, 4096),
                   .v = span(2, 4096),
                   .o = span(3, 300),
                   .head_dim_v = 128,
                   .scale = 1};
  call.mask.right = 0;
  call.seqlen_q = 300;
  call.seqlen_k = 4096;
  call.sequences = 2;
  call.lengths_q = {.max = 300, .total = 600};
  call.lengths_k = {.max = 4096, .total = 8192};
  return call;
}

struct Launched {
  dim3 grid;
  bool pdl = false;
  int cluster = 1;
  ForwardParams params;
};

// The forward kernel's launch; it alone asks for shared memory.
Launched launched(const ForwardPlan& plan) {
  Launched result;
  test::g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
    if (config.dynamicSmemBytes == 0) return;
    result.grid = config.gridDim;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      const cudaLaunchAttribute& a = config.attrs[i];
      if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization) result.pdl = true;
      if (a.id == cudaLaunchAttributeClusterDimension) result.cluster = int(a.val.clusterDim.x);
    }
    result.params = *static_cast<const ForwardParams*>(params);
  };
  g_cuda = {};
  EXPECT_EQ(launch_forward(plan, nullptr, address(9), nullptr), cudaSuccess);
  test::g_on_launch = nullptr;
  return result;
}

ForwardPlan planned(const Tiling& tiling) {
  return plan_launch({kConfig, address(8), 1024}, call(), tiling, kSms);
}

TEST(LaunchForward, of_one_call_follows_the_scheduler_of_its_plan) {
  struct Expected {
    Scheduler scheduler;
    SplitKv split;
    unsigned grid;
    int num_splits;         // as the device has it
    int launches, memsets;  // with the combine; clears a tile counter
    bool finds_own_tiles;
  };
  for (const Expected& e : {Expected{Scheduler::kStaticPersistent, {}, 96, 0, 1, 0, false},
                            {Scheduler::kDynamicPersistent, {}, 96, 0, 1, 1, false},
                            {Scheduler::kVarlenMetadata, {}, 96, 0, 2, 0, false},
                            {Scheduler::kDirect, {}, 96, 1, 1, 0, true},
                            {Scheduler::kFixedSplit, {.num_splits = 3}, 132, 3, 2, 0, true},
                            {Scheduler::kStreamK, {.ctas = 7}, 7, 0, 2, 0, true}}) {
    const Launched done = launched(planned({{}, e.scheduler, e.split}));
    const int scheduler = int(e.scheduler);
    EXPECT_EQ(done.grid.x, e.grid) << scheduler;
    EXPECT_EQ(done.params.schedule.num_splits, e.num_splits) << scheduler;
    EXPECT_EQ(done.params.schedule.block_n > 0, e.finds_own_tiles) << scheduler;
    EXPECT_EQ(done.params.tile_counter != nullptr, e.scheduler == Scheduler::kDynamicPersistent ||
                                                       e.scheduler == Scheduler::kVarlenMetadata);
    EXPECT_EQ(done.params.sequences != nullptr, e.scheduler == Scheduler::kVarlenMetadata);
    EXPECT_EQ(g_cuda.launches, e.launches) << scheduler;
    EXPECT_EQ(g_cuda.memsets, e.memsets) << scheduler;
  }
}

TEST(LaunchForward, leaves_a_combine_to_the_cta_that_opens_a_tile_or_to_a_kernel) {
  constexpr Kernel kOpener = row_named("d128/128 128x128 stream-K").kernel;
  static_assert(kOpener.combine() == CombineKind::kOpener && kOpener.shape.block_m == 128);
  ForwardCall few = call();
  few.q.rows = few.o.rows = few.seqlen_q = 128;
  few.lengths_q = {.max = 128, .total = 256};
  for (const bool opens : {true, false}) {
    const Tiling tiling{{}, Scheduler::kStreamK, {.ctas = 17, .opener_combines = opens}};
    const ForwardPlan plan = plan_launch({kOpener, address(8), 1024}, few, tiling, kSms);
    const Launched done = launched(plan);
    EXPECT_EQ(g_cuda.launches, opens ? 1 : 2);
    EXPECT_EQ(plan.combine, opens ? Combine::kOpener : Combine::kKernel);
    EXPECT_EQ(done.params.counts.cells != nullptr, opens);
    EXPECT_EQ(done.params.combines != nullptr, !opens);
    if (!opens) continue;
    // A split of each range, and a flag for each of its warps.
    EXPECT_EQ(plan.workspace.partial_sums - plan.workspace.partial_o,
              int64_t{17} * 128 * 128 * int64_t{sizeof(float)});
    EXPECT_EQ(plan.workspace.bytes - plan.workspace.counters, 17 * 8 * 8);
    EXPECT_NE(launched(plan).params.counts.launch, done.params.counts.launch);
  }
}

// The kernel that prepares values clears the counter before this launch, which may then start under
// its end.
TEST(LaunchForward, of_e4m3_leaves_the_tile_counter_to_the_kernel_that_prepares_values) {
  ForwardPlan plan = planned({{}, Scheduler::kDynamicPersistent, {}});
  plan.kernel.config.operands = Operands::kE4m3;
  EXPECT_NE(launched(plan).params.tile_counter, nullptr);
  EXPECT_EQ(g_cuda.memsets, 0);
}

TEST(LaunchForward, takes_every_part_of_a_plan_as_it_is) {
  ForwardPlan plan = planned({{}, Scheduler::kStreamK, {.ctas = 7}});
  EXPECT_TRUE(launched(plan).pdl);
  plan.grid = {5, 4, 3};
  plan.cluster = 4;
  plan.pdl = false;
  plan.combine = Combine::kNone;
  plan.q_is_clipped = true;
  plan.kv_box_rows = 8;
  plan.tiling.pack = {2};
  plan.tiling.split.cluster_log2 = 3;
  plan.tile_parts_log2 = 5;
  plan.order.tail_heads = 77;
  plan.schedule.groups_log2 = 1;
  plan.cp_async.active = !plan.cp_async.active;
  plan.partial_rows = 99;
  plan.workspace.partial_o = 1 << 20;
  plan.workspace.partial_sums = 1 << 21;
  plan.workspace.combines = cuda::kNoArray;
  const Launched done = launched(plan);
  const ForwardParams& params = done.params;
  const auto offset = [](const void* array) {
    return static_cast<const char*>(array) - static_cast<const char*>(address(9));
  };
  EXPECT_EQ((std::vector{done.grid.x, done.grid.y, done.grid.z}), (std::vector{5u, 4u, 3u}));
  EXPECT_EQ(done.cluster, 4);
  EXPECT_FALSE(done.pdl);
  EXPECT_EQ(g_cuda.launches, 1) << "no combine kernel";
  EXPECT_TRUE(params.q_is_clipped);
  EXPECT_EQ(g_cuda.box_rows, 8u) << "V's box";
  EXPECT_EQ(params.paged.box_rows, 8);
  EXPECT_EQ(params.output.pack.log2, 2);
  EXPECT_EQ(params.clusters.size_log2, 3);
  EXPECT_EQ(params.clusters.parts_log2, 5);
  EXPECT_EQ(params.order.tail_heads, 77);
  EXPECT_EQ(params.schedule.groups_log2, 1);
  EXPECT_EQ(params.cp_async.active, plan.cp_async.active);
  EXPECT_EQ(params.partials.rows, 99);
  EXPECT_EQ(offset(params.partials.o), 1 << 20);
  EXPECT_EQ(offset(params.partials.sums), 1 << 21);
  EXPECT_EQ(params.combines, nullptr);
}

TEST(LaunchForward, of_wide_values_repeats_one_plan_over_their_columns) {
  ForwardCall wide = call();
  wide.head_dim_v = 600;
  wide.v.columns = wide.o.columns = kMaxColumnsV;
  const ForwardPlan plan = plan_launch({kConfig, address(8), 1024}, wide, {}, kSms);
  EXPECT_EQ(plan.num_launches, 3);
  std::vector<std::pair<int64_t, int>> columns;
  test::g_on_launch = [&](const cudaLaunchConfig_t&, const void* params) {
    const cuda::RowTensor& o = static_cast<const ForwardParams*>(params)->output.o;
    columns.emplace_back((static_cast<char*>(o.data) - static_cast<char*>(address(3))) / 2,
                         o.columns);
  };
  EXPECT_EQ(launch_forward(plan, nullptr, nullptr, nullptr), cudaSuccess);
  test::g_on_launch = nullptr;
  EXPECT_EQ(columns, (std::vector<std::pair<int64_t, int>>{{0, 256}, {256, 256}, {512, 88}}));
}

TEST(LaunchForward, moves_a_gate_with_the_columns_of_wide_values) {
  ForwardCall wide = call();
  wide.head_dim_v = 600;
  wide.v.columns = wide.o.columns = kMaxColumnsV;
  wide.gate = {
      .logits = {address(7), {}, int(kMaxColumnsV)}, .kind = Gate::kPairs, .type = GateType::kFp32};
  std::vector<std::pair<int64_t, int>> columns;
  test::g_on_launch = [&](const cudaLaunchConfig_t&, const void* params) {
    const cuda::RowTensor& logits = static_cast<const ForwardParams*>(params)->outputs.gate.logits;
    columns.emplace_back(static_cast<float*>(logits.data) - static_cast<float*>(address(7)),
                         logits.columns);
  };
  const auto launch = [&] {
    columns.clear();
    const ForwardPlan plan = plan_launch({kConfig, address(8), 1024}, wide, {}, kSms);
    EXPECT_EQ(launch_forward(plan, nullptr, nullptr, nullptr), cudaSuccess);
    return columns;
  };
  EXPECT_EQ(launch(), (std::vector<std::pair<int64_t, int>>{{0, 256}, {256, 256}, {512, 88}}));
  wide.gate.kind = Gate::kRows;
  wide.gate.logits.columns = 1;
  EXPECT_EQ(launch(), (std::vector<std::pair<int64_t, int>>{{0, 1}, {0, 1}, {0, 1}}));
  test::g_on_launch = nullptr;
}

TEST(LaunchForward, gives_the_gate_of_split_tiles_to_the_combine) {
  ForwardCall gated = call();
  gated.gate = {.logits = {address(7), {}, 128}, .kind = Gate::kColumns, .type = GateType::kBf16};
  const ForwardPlan plan = plan_launch({kConfig, address(8), 1024}, gated,
                                       {{}, Scheduler::kFixedSplit, {.num_splits = 3}}, kSms);
  cuda::GateParams combined{};
  test::g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
    if (config.dynamicSmemBytes == 0) combined = static_cast<const CombineParams*>(params)->gate;
  };
  EXPECT_EQ(launch_forward(plan, nullptr, address(9), nullptr), cudaSuccess);
  test::g_on_launch = nullptr;
  EXPECT_EQ(combined.logits.data, address(7));
  EXPECT_EQ(combined.kind, Gate::kColumns);
  EXPECT_EQ(combined.type, GateType::kBf16);
}

}  // namespace
}  // namespace fa3::hopper
