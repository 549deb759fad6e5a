// SPDX-License-Identifier: Apache-2.0
//
// A forward kernel, planned and launched as in the library over tensors that are addresses alone,
// but for what the model's lanes store: what the kernel is given, and how many CTAs. Next:
// forward_work.h.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "forward/kernel_on_trial.h"
#include "launch/host_runtime.h"
#include "launch/random_map.h"
#include "launch/shape.h"
#include "machine.h"

namespace fa3::hopper {

using machine::Fault;
using machine::Pace;

struct Trial {
  CallShape shape;
  unsigned seed = 0;
  Pace pace;
  Fault fault = Fault::kNone;
  int barrier = 0;             // that the fault is about, by its number
  bool heads_in_work = false;  // e4m3: tiles wait for what the kernel before makes of their heads
  // Where CTAs wait for each other all of them run, side by side, or one after the other in this
  // order, as where only one has room.
  std::vector<int> order{};
  int replays = 0;  // of the launch, on the workspace as it left it
};

class LaunchedForward {
 public:
  LaunchedForward(const KernelOnTrial& of, const Trial& given)
      : kernel(of),
        trial(given),
        o(size_t(lse_count()) * config.shape.head_dim_v * bytes_of(config.element)),
        lse(size_t(lse_count()), std::nanf("")) {
    ForwardCall a = call();
    LaunchOperands operands;
    if (config.e4m3()) give_scales_and_transpose(&a, &operands);
    const Tiling tiling = shape.finds_own_tiles() ? Tiling{{}, shape.scheduler, shape.split}
                                                  : whole_tiles(config, a, {}, machine::kSms);
    ForwardPlan plan = plan_launch({config, nullptr, kernel.smem_bytes}, a, tiling, machine::kSms);
    operands.v = plan.call.v;
    operands.o = plan.call.o;
    workspace_.resize(size_t(plan.workspace.bytes), 0xcd);
    if (config.e4m3()) follow_preparation(&plan);
    machine::on_launch = [this](const void*, dim3 grid, const void* launched, bool may_overlap) {
      blocks = int(grid.x), pdl = may_overlap;
      params = *static_cast<const ForwardParams*>(launched);
    };
    EXPECT_EQ(launch_forward(plan, operands, workspace_.data(), nullptr), cudaSuccess);
    machine::on_launch = {};
    opener_combines = plan.combine == Combine::kOpener;
    tell_where_keys_lie();
  }

  LaunchedForward(const LaunchedForward&) = delete;

  // CTAs that run: the first of the grid.
  int ctas() const { return opener_combines ? blocks : 1; }
  int first_consumer() const { return config.threads() / kWarpSize - config.consumer_warps(); }
  bool is_e5m2() const { return (trial.seed + unsigned(shape.heads)) % 2 == 1; }

  // K and V, for threads that copy them.
  std::vector<machine::GlobalTensor> copied_tensors() const {
    const int64_t in_pages = int64_t{shape.batches} * shape.page_size * shape.num_pages();
    const int64_t rows = shape.page_size > 0 ? in_pages : int64_t{shape.entries()} * shape.k_rows();
    const int64_t rows_of_entry = shape.page_size > 0 ? in_pages : shape.k_rows();
    return {{&k, kAddressOfK, rows, shape.kv_heads, config.shape.head_dim, 2, rows_of_entry},
            {&v, kAddressOfV, rows, shape.kv_heads, config.shape.head_dim_v, 2, rows_of_entry}};
  }

  // Counts what the kernel before makes of a head: V^T and scales of keys.
  const int* counter_of(const machine::Content& read) const {
    const E4m3Params& e4m3 = params.e4m3;
    if (read.tensor == &v) return &parts_done_[size_t(e4m3.head_at(read.batch, read.head))];
    const auto* const scales = static_cast<const KeyScales*>(read.tensor);
    const ptrdiff_t head = (scales - e4m3.keys) / e4m3.blocks;
    return scales >= e4m3.keys && size_t(head) < parts_done_.size() ? &parts_done_[size_t(head)]
                                                                    : nullptr;
  }
  static constexpr int kParts = 3;  // that the kernel before makes of a head

  const KernelOnTrial& kernel;
  const Kernel& config = kernel.config;
  const Trial trial;
  const CallShape& shape = trial.shape;
  ForwardParams params{};
  int blocks = 0;  // of the grid
  bool pdl = false;
  bool opener_combines = false;
  char q = 0, k = 0, v = 0;  // stand for tensors
  std::vector<unsigned char> o;
  std::vector<float> lse;

 private:
  ForwardCall call() {
    const CallShape& s = shape;
    ForwardCall a;
    a.q = dense_span(&q, s.entries(), s.q_rows(), s.heads, config.shape.head_dim);
    a.k = dense_span(&k, s.entries(), s.k_rows(), s.kv_heads, config.shape.head_dim);
    a.v = dense_span(&v, s.entries(), s.k_rows(), s.kv_heads, config.shape.head_dim_v);
    a.o = dense_span(o.data(), s.entries(), s.q_rows(), s.heads, config.shape.head_dim_v);
    if (s.page_size > 0) put_into_pages(&a);
    a.lse = {lse.data(), {int64_t{s.heads} * s.q_rows(), s.q_rows(), 1}};
    a.scale = 1;
    s.describe(a);
    a.heads_per_kv_head = s.heads / s.kv_heads;
    if (config.block_mask()) a.block_mask = map_.make(s, trial.seed);
    a.cache_is_e5m2 = is_e5m2();
    return a;
  }
  void put_into_pages(ForwardCall* a) {
    const CallShape& s = shape;
    for (int i = 0; i < s.batches * s.num_pages(); ++i) pages_.push_back(i);
    a->places = {.page_table = pages_.data(),
                 .table_stride = s.num_pages(),
                 .page_size = s.page_size,
                 .entries = s.batches,
                 .pages = s.batches * s.num_pages(),
                 .elsewhere = true};
    for (TensorSpan* t : {&a->k, &a->v}) {
      t->rows = s.page_size;
      t->batches = a->places.pages;
      t->batch_stride = s.page_size * t->row_stride;
    }
  }

  // V^T has a row for each column, all of whose keys lie side by side.
  void give_scales_and_transpose(ForwardCall* a, LaunchOperands* operands) {
    const CallShape& s = shape;
    if (!config.transposes_v())
      a->v = {&v, s.batches, config.shape.head_dim_v, s.kv_heads, s.seqlen_k};
    scales_.assign(size_t(s.batches) * size_t(s.kv_heads), 1.0f);
    operands->e4m3 = {.keys = &key_scales_,
                      .value_scales = scales_.data(),
                      .sequences = s.batches,
                      .kv_heads = s.kv_heads,
                      .blocks = s.seqlen_k / FA3_DESCALE_ROWS + 1};
    if (!trial.heads_in_work) return;
    parts_done_.assign(scales_.size(), kParts);
    operands->heads_in_work = {parts_done_.data(), kParts};
  }
  // As plan_e4m3.cpp and prepare_e4m3.cu do.
  void follow_preparation(ForwardPlan* plan) {
    plan->pdl = plan->tiling.scheduler != Scheduler::kVarlenMetadata;
    if (plan->tiling.scheduler != Scheduler::kDynamicPersistent) return;
    *reinterpret_cast<int*>(workspace_.data() + plan->workspace.tile_counter) = 0;
  }

  void tell_where_keys_lie() {
    for (CUtensorMap* map : {&params.k_map, &params.v_map}) {
      machine::TensorMap known = machine::decoded(*map);
      known.page_rows = shape.page_size;
      known.transposed_later = config.transposes_v() && map == &params.v_map;
      *map = machine::encoded(known);
    }
    if (shape.page_size == 0 && !shape.by_cp_async) params.cp_async.active = false;
    params.cp_async.k.data = reinterpret_cast<const unsigned char*>(kAddressOfK);
    params.cp_async.v.data = reinterpret_cast<const unsigned char*>(kAddressOfV);
  }

  int64_t lse_count() const { return int64_t{shape.entries()} * shape.heads * shape.q_rows(); }

  std::vector<float> scales_;    // of e4m3 values
  std::vector<int> parts_done_;  // of heads
  KeyScales key_scales_{};       // stands for all
  std::vector<unsigned char> workspace_;
  std::vector<int32_t> pages_;
  RandomMap map_;
};

}  // namespace fa3::hopper
