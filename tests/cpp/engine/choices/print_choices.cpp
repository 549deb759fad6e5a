// SPDX-License-Identifier: Apache-2.0
// Prints what the engines for GPUs choose for random problems, a line for each problem, engine and
// pass: before and after a change of the planners, compared by diff. Needs no GPU.
//
//     fa3_print_choices [first] [number]
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "engine/ampere/engine.h"
#include "engine/ampere/plan/backward_plan.h"
#include "engine/ampere/plan/forward_plan.h"
#include "engine/choices/random_call.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/plan/backward/backward_plan.h"
#include "engine/hopper/plan/plan_e4m3.h"

namespace fa3 {
namespace {

constexpr int kProblems = 20000;

std::string words(const hopper::Kernel& c) {
  const char* const operands = c.transposes_v()  ? "e4m3 rows of V "
                               : c.e4m3()        ? "e4m3 "
                               : c.dequantizes() ? "cache "
                                                 : "";
  const char* const tiles = c.is_single_sequence()                            ? "decode single"
                            : c.is_decode()                                   ? "decode"
                            : c.block_mask() && c.general()                   ? "listed varlen"
                            : c.block_mask()                                  ? "listed"
                            : c.is_stream_k()                                 ? "stream-K"
                            : c.scheduler() == hopper::SchedulerKind::kSplit  ? "split"
                            : c.scheduler() == hopper::SchedulerKind::kVarlen ? "varlen"
                                                                              : "dense";
  return concat(
      operands, "d", c.shape.head_dim, "/", c.shape.head_dim_v, " ", c.shape.block_m, "x",
      c.shape.block_n, " ", tiles, c.capped() ? " capped" : "", c.dropout() ? " dropout" : "",
      c.continued() ? " continued" : "", " q", c.shape.q_stages, " kv", c.shape.kv_stages, " l",
      c.shape.loaded_stages, " x", c.shape.ctas_per_sm, c.shape.overlaps ? " overlaps" : "",
      c.shape.ping_pong ? " turns" : "", c.guarded() ? " guarded" : "", " e", int(c.element));
}

std::string words(const hopper::BackwardConfig& c) {
  const hopper::BackwardShape& s = c.shape;
  return concat("d", s.head_dim, "/", s.head_dim_v, " ", s.block_m, "x", s.block_n, " variant",
                c.capped() ? 2 : int(c.general()), " s", s.stages, " ds", s.ds_stages,
                s.helpers ? " helpers" : "", c.dropout() ? " dropout" : "",
                c.block_mask() ? " listed" : "", c.wide() ? " wide" : "",
                c.persistent() ? " persistent" : "", c.in_pairs() ? " pairs" : "", " e",
                int(c.element));
}

std::string words(const hopper::ForwardPlan& plan) {
  const hopper::Tiling& t = plan.tiling;
  return concat(
      words(plan.kernel.config), plan.kernel.function == nullptr ? " none" : "", " smem",
      plan.kernel.smem_bytes, " | pack", t.pack.log2, " scheduler", int(t.scheduler), " splits",
      t.split.num_splits, " ctas", t.split.ctas, t.split.in_pairs, " groups", t.split.groups_log2,
      " cluster", t.split.cluster_log2, t.split.opener_combines, " path", int(plan.kv_loader),
      " combine", int(plan.combine), plan.q_is_clipped, plan.pdl, " grid", plan.grid.x, ",",
      plan.grid.y, ",", plan.grid.z, " box", plan.kv_box_rows, " parts", plan.tile_parts_log2,
      " pairs", plan.pair_blocks, " async", plan.cp_async.active, " combines", plan.num_combines,
      ",", plan.most_splits, ",", plan.partial_rows, " launches", plan.num_launches, " together",
      plan.together.batches, ",", plan.together.packs, " bytes", plan.workspace.bytes);
}

std::string words(const hopper::BackwardPlan& plan) {
  const auto one_of = [](const void* function) { return function == nullptr ? "-" : "+"; };
  const hopper::BackwardKernel& kernel = plan.kernel;
  return concat(words(kernel.config), " / ", words(plan.main_config), " smem", kernel.smem_bytes,
                " ", one_of(kernel.preprocess), one_of(kernel.main), one_of(kernel.postprocess),
                one_of(kernel.main_deterministic), one_of(kernel.splits.main),
                one_of(kernel.short_sequences), " | ", plan.short_sequences, " pack",
                plan.short_pack.log2, " splits", plan.step_splits(), " grids",
                plan.grids.short_sequences, ",", plan.grids.preprocess, ",", plan.grids.main, ",",
                plan.grids.postprocess, ",", plan.grids.postprocess_dk, ",",
                plan.grids.postprocess_dv, " bytes", plan.workspace.bytes);
}

std::string words(const ampere::ForwardPlan& plan) {
  return concat("splits", plan.schedule.num_splits, " pack", plan.schedule.pack.log2, " tiles",
                plan.num_tiles, " widths", plan.q_width, ",", plan.k_width, ",", plan.v_width, ",",
                plan.o_width);
}

std::string words(const ampere::BackwardPlan& plan) {
  return concat("blocks", plan.preprocess_blocks, ",", plan.key_blocks, ",", plan.query_blocks,
                " grids", plan.grids.preprocess, ",", plan.grids.main, ",", plan.grids.postprocess);
}

std::string words(const hopper::E4m3Plan& plan) {
  return concat(words(plan.forward), " | padded", plan.padded_keys, ",", plan.key_step, " late",
                plan.order.late_ctas, ",", plan.order.first_heads, ",", plan.order.ctas);
}

template <class Decided>
std::string words(const Plan& plan) {
  return concat(plan.kernel, ": ", words(plan.decided.load<Decided>()), " | ", plan.block_q, "x",
                plan.block_k, " packed", plan.packed_heads, " splits", plan.num_splits, " tasks",
                plan.num_tasks, " bytes", plan.workspace_bytes, ",", plan.block_list_bytes, " | ",
                plan.why);
}

template <class Decided, class Problem>
void print(const Engine& engine, const char* pass, int number,
           Status (*plan_pass)(const Problem&, Plan*), const Problem& problem) {
  Plan plan;
  const Status status = plan_pass(problem, &plan);
  const std::string text =
      !status.ok() ? concat("refused: ", status.message()) : words<Decided>(plan);
  std::printf("%d %s%s: %s\n", number, engine.name, pass, text.c_str());
}

void print_choices(int number) {
  const test::RandomCall call{uint64_t(number)};
  const Engine &hopper = hopper::kHopperEngine, &ampere = ampere::kAmpereEngine;
  std::printf("%d %s\n", number, describe(call).c_str());
  BackwardProblem problem = call.problem();
  if (problem.partial.on) {
    const bool continues = hopper.continues(problem);
    std::printf("%d continues: %d\n", number, continues);
    if (!continues) problem.partial = {};  // the result is merged afterwards (plan/merge_apart.h)
  }
  const Problem& forward = problem;
  if (problem.dtype == DType::float8_e4m3) {
    print<hopper::E4m3Plan>(hopper, "", number, hopper.plan_forward, forward);
  } else {
    print<hopper::ForwardPlan>(hopper, "", number, hopper.plan_forward, forward);
  }
  problem.partial = {};
  print<ampere::ForwardPlan>(ampere, "", number, ampere.plan_forward, forward);
  print<hopper::BackwardPlan>(hopper, " backward", number, hopper.plan_backward, problem);
  print<ampere::BackwardPlan>(ampere, " backward", number, ampere.plan_backward, problem);
}

}  // namespace
}  // namespace fa3

int main(int argc, char** argv) {
  const int first = argc > 1 ? std::atoi(argv[1]) : 0;
  const int number = argc > 2 ? std::atoi(argv[2]) : fa3::kProblems;
  for (int i = first; i < first + number; ++i) fa3::print_choices(i);
  return 0;
}
