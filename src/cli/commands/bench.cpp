// SPDX-License-Identifier: Apache-2.0
//
// fa3 bench: times engines over a sweep of shapes, as a table and as JSON lines. Each number stands
// beside the peak that the same cores reached between the calls.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <vector>

#include "cli/bench/bench_cases.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/machine.h"
#include "cli/bench/timing.h"
#include "cli/call/calls.h"
#include "cli/call/execution.h"
#include "cli/call/gpu.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

// The first calls load kernels and find the GPU's clocks asleep: neither is a short call's own
// time.
void warm_up(const std::function<double()>& call) {
  constexpr double kEnough = 0.1;  // seconds
  constexpr int kMostCalls = 1000;
  double seconds = 0;
  for (int i = 0; i < kMostCalls && seconds < kEnough; ++i) seconds += call();
}

// Before any memory is touched: a shape that does not fit is skipped, not killed for.
void require_room(const BenchCase& bench, const Operands& asked, bool on_gpu, size_t workspace) {
  const Shape& shape = bench.shape;
  const std::string what = fmt::format("b{} h{} s{}x{} d{}", shape.batch, shape.heads,
                                       shape.seqlen_q, shape.seqlen_k, shape.head_dim);
  const auto extra = static_cast<int64_t>(workspace);
  const int64_t tensors = sum_of_bytes(std::array{input_bytes(asked), output_bytes(asked)});
  const int64_t all = sum_of_bytes(std::array{tensors, extra});
  require_memory(what, on_gpu ? tensors : all);  // the GPU's tensors are copies of the host's
  if (on_gpu) gpu::require_memory(what, all);
}

Measured measure(const BenchCase& bench, const BenchFlags& flags) {
  require_engine(bench.engine);
  if (bench.backward && bench.dtype == FA3_FLOAT8_E4M3) {
    throw CommandError(kExitUnsupported, "--dtype e4m3: expected --pass fwd, got bwd");
  }
  const Layout layout = flags.layout == "bshd" ? Layout::bshd : Layout::bhsd;
  fa3_options options = default_options();
  options.engine = engine_id(bench.engine);
  options.causal = bench.causal ? 1 : 0;
  options.num_threads = bench.threads;
  const Wanted shapes{.backward = bench.backward, .memory = Memory::shapes_only};
  const Operands asked = make_operands(bench.shape, bench.dtype, layout, shapes);
  const ForwardArgs forward = forward_question(asked, options);
  const BackwardArgs backward = backward_question(asked, options);
  // Ask before any memory is touched: the answer may be no.
  const std::string plan = bench.backward ? plan_text(backward) : plan_text(forward);
  const bool on_gpu = device_of(options.engine).type == FA3_CUDA;
  const size_t workspace = bench.backward ? workspace_bytes(backward) : workspace_bytes(forward);
  require_room(bench, asked, on_gpu, workspace);

  Operands operands = make_operands(bench.shape, bench.dtype, layout, {.backward = bench.backward});
  fill_inputs(&operands, 0);
  Execution execution(&operands, options);
  const auto call = [&] { return bench.backward ? execution.backward() : execution.forward(); };
  if (bench.backward) execution.forward();  // O and LSE are backward's inputs
  Measured measured{.engine = plan_line(plan, "engine"),
                    .kernel = plan_line(plan, "kernel"),
                    .on_gpu = on_gpu,
                    .workspace_bytes = workspace};
  measured.layout = flags.layout;
  measured.machine = measured.on_gpu ? gpu::name() : machine_text();
  if (measured.on_gpu) {
    warm_up(call);
    measured.timing = time_call(call, flags.repeats);
  } else {
    measured.timing = time_call(
        [&] {
          measured.peaks.sample(bench);
          return call();
        },
        flags.repeats);
    measured.peaks.sample(bench);
  }
  const double work = bench.backward ? backward_flops(bench.shape, bench.causal)
                                     : forward_flops(bench.shape, bench.causal);
  measured.flops = work / measured.timing.median;
  return measured;
}

// The table, on stdout unless JSON has it.
class Report {
 public:
  Report(const std::string& json, const std::string& machines) : json_(json) {
    if (json_.on_stdout()) return;
    fmt::print("{}\n{}, commit {}\n\n", machines, today(), commit());
    table_.print_header();
  }

  void add(const BenchCase& bench, const Measured& measured) {
    json_.add(bench, measured);
    if (!json_.on_stdout()) print_row(bench, measured);
    if (measured.peaks.disturbed()) {
      warn(fmt::format("disturbed: the peak was between {} and {}; is other work running?",
                       flops_text(measured.peaks.lowest()), flops_text(measured.peaks.highest())));
    }
  }

 private:
  void print_row(const BenchCase& bench, const Measured& measured) const {
    const Shape& shape = bench.shape;
    const double peak = measured.peaks.median();
    table_.print_row(
        {measured.engine, measured.kernel, bench.backward ? "bwd" : "fwd", short_name(bench.dtype),
         fmt::format("{}", shape.batch),
         shape.heads == shape.kv_heads ? fmt::format("{}", shape.heads)
                                       : fmt::format("{}/{}", shape.heads, shape.kv_heads),
         shape.seqlen_q == shape.seqlen_k ? fmt::format("{}", shape.seqlen_q)
                                          : fmt::format("{}x{}", shape.seqlen_q, shape.seqlen_k),
         shape.head_dim == shape.head_dim_v
             ? fmt::format("{}", shape.head_dim)
             : fmt::format("{}/{}", shape.head_dim, shape.head_dim_v),
         bench.causal ? "yes" : "no", measured.on_gpu ? "-" : fmt::format("{}", bench.threads),
         fmt::format("{:.3f}", measured.timing.median * 1e3),
         fmt::format("{}", measured.timing.repeats), fmt::format("{:.1f}", measured.flops * 1e-9),
         peak > 0 ? fmt::format("{:.1f}", peak * 1e-9) : "-",
         peak > 0 ? fmt::format("{:.1f}", 100 * measured.flops / peak) : "-"});
  }

  JsonLines json_;
  Table table_{{{"engine", 9, false},
                {"kernel", 18, false},
                {"pass", 4, false},
                {"dtype", 5, false},
                {"b", 2},
                {"h", 4},
                {"seqlen", 6},
                {"d", 4},
                {"causal", 6, false},
                {"thr", 3},
                {"median ms", 10},
                {"runs", 4},
                {"GFLOP/s", 8},
                {"peak", 7},
                {"% peak", 6}}};
};

// The machine, and its GPU if some case can run there.
std::string machines_text(const std::vector<BenchCase>& cases) {
  const std::vector<EngineInfo> engines = engine_list();
  const auto on_gpu = [&](const BenchCase& bench) {
    return std::any_of(engines.begin(), engines.end(), [&](const EngineInfo& engine) {
      return engine.available && engine.name == bench.engine &&
             device_of(engine_id(engine.name)).type == FA3_CUDA;
    });
  };
  const bool gpu = std::any_of(cases.begin(), cases.end(), on_gpu);
  return gpu ? gpu::name() + ", " + machine_text() : machine_text();
}

}  // namespace

void run_bench(const BenchFlags& flags) {
  const std::vector<BenchCase> cases = sweep(flags.sweep);
  Report report(flags.json, machines_text(cases));
  Progress progress("bench", static_cast<int64_t>(cases.size()));
  size_t refused = 0;
  std::set<std::string> reasons;  // each is said once
  for (const BenchCase& bench : cases) {
    progress.next(fmt::format("{} {} s{} d{}", bench.engine, short_name(bench.dtype),
                              bench.shape.seqlen_q, bench.shape.head_dim));
    try {
      const Measured measured = measure(bench, flags);
      progress.erase();
      report.add(bench, measured);
    } catch (const CommandError& error) {
      // One engine or shape that this machine cannot do must not end a sweep.
      if (error.code() != kExitUnsupported) throw;
      progress.erase();
      if (reasons.insert(error.what()).second) warn(error.what());
      ++refused;
    }
  }
  if (refused > 0) {
    throw CommandError(kExitUnsupported, fmt::format("{} of {} cases cannot run on this machine",
                                                     refused, cases.size()));
  }
}

}  // namespace fa3::cli
