// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cli/ablation.h"
#include "cli/bench_report.h"
#include "cli/calls.h"
#include "cli/execution.h"
#include "cli/exit_code.h"
#include "cli/gpu.h"
#include "cli/machine.h"
#include "cli/text.h"
#include "cli/timing.h"
#include "engine/hopper/ablation/ablation.h"
#include "engine/hopper/launch_forward.h"

namespace fa3::cli {
namespace {

constexpr int kRounds = 21;
constexpr double kTolerated = 2e-3;  // of fp16 results, relative to the library's

// Q, K, V, O in device memory, and what the variants are launched with.
class Tensors {
 public:
  Tensors(const Operands& operands, const Shape& shape, bool causal)
      : q_(operands.q.bytes()),
        k_(operands.k.bytes()),
        v_(operands.v.bytes()),
        o_(operands.o.bytes()),
        lse_(operands.lse.bytes()) {
    q_.read_from(operands.q.data());
    k_.read_from(operands.k.data());
    v_.read_from(operands.v.data());
    arguments_.q = span(q_, shape);
    arguments_.k = span(k_, shape);
    arguments_.v = span(v_, shape);
    arguments_.o = span(o_, shape);
    arguments_.lse = reinterpret_cast<float*>(lse_.data());
    arguments_.lse_batch_stride = shape.heads * shape.seqlen_q;
    arguments_.lse_head_stride = shape.seqlen_q;
    arguments_.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    arguments_.causal = causal;
    arguments_.seqlen_k = static_cast<int>(shape.seqlen_k);
    int64_t bytes = 0;
    for (const hopper::AblationVariant& variant : hopper::kAblation) {
      bytes = std::max(bytes, hopper::forward_workspace_bytes(
                                  hopper::forward_num_tiles(variant.config, arguments_)));
    }
    workspace_ = gpu::Buffer(bytes);
    arguments_.workspace = workspace_.data();
  }

  const hopper::ForwardArguments& arguments() const { return arguments_; }
  gpu::Buffer& o() { return o_; }

 private:
  static hopper::TensorSpan span(const gpu::Buffer& memory, const Shape& s) {
    const int64_t row = s.heads * s.head_dim;
    return {memory.data(), s.batch,          s.seqlen_q, s.heads,
            s.head_dim,    s.seqlen_q * row, row,        s.head_dim};
  }

  gpu::Buffer q_, k_, v_, o_, lse_, workspace_;
  hopper::ForwardArguments arguments_;
};

// Relative, in the 2-norm, over every 17th element: prime to every stride.
double sampled_error(const HostTensor& got, const HostTensor& expected) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < expected.elements(); i += 17) {
    const double want = element(expected.data(), expected.dtype(), i);
    const double off = element(got.data(), got.dtype(), i) - want;
    error += off * off;
    norm += want * want;
  }
  return std::sqrt(error / norm);
}

// The library as users call it, then the variants.
struct Contender {
  std::string variant, what, kernel;
  std::function<double()> call;
  std::vector<double> seconds;
  double error = 0;
};

double launch_seconds(int variant, const hopper::ForwardArguments& arguments) {
  cudaError_t error = cudaSuccess;
  const double seconds = gpu::seconds_of([&] {
    error = hopper::launch_forward(hopper::ablation_kernel_at(variant), arguments, nullptr);
  });
  if (error != cudaSuccess) {
    throw CommandError(kExitFailed,
                       fmt::format("{}: {}", hopper::kAblation[static_cast<size_t>(variant)].name,
                                   cudaGetErrorString(error)));
  }
  return seconds;
}

std::string kernel_text(const hopper::ForwardConfig& config) {
  return fmt::format("forward float16 d{}/{} {}x{}", config.head_dim, config.head_dim_v,
                     config.block_m, config.block_n);
}

// H100 SXM5, from the paper: only the ratios may be compared.
std::string paper_text(const std::string& variant) {
  if (variant == "full") return "661";
  if (variant == "no_pipelining") return "582";
  if (variant == "plain_no_warp_specialisation") return "570";
  return "";
}

// Every round times each contender once, in an order that turns round: heat and clocks are shared.
void time_all(std::vector<Contender>* contenders, int rounds) {
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    if (round % 2 != 0) std::reverse(contenders->begin(), contenders->end());
    for (Contender& one : *contenders) {
      const double seconds = one.call();
      if (round >= 0) one.seconds.push_back(seconds);
    }
    if (round % 2 != 0) std::reverse(contenders->begin(), contenders->end());
  }
}

void print_table(const std::vector<Contender>& contenders, double work) {
  const Table table({{"variant", 40, false},
                     {"median ms", 10},
                     {"TFLOP/s", 8},
                     {"of full", 8},
                     {"paper", 6},
                     {"differs", 8},
                     {"", 38, false}});
  table.print_header();
  const double full = timing_of(contenders[1].seconds).median;
  for (const Contender& one : contenders) {
    const double median = timing_of(one.seconds).median;
    table.print_row({one.variant, fmt::format("{:.3f}", median * 1e3),
                     fmt::format("{:.1f}", work / median * 1e-12),
                     fmt::format("{:.3f}", full / median), paper_text(one.variant),
                     error_text(one.error), one.what + ", " + one.kernel});
  }
  fmt::print(
      "\npaper: TFLOP/s of table 2 (arXiv 2407.08608), on an H100. differs: from the library's "
      "O.\n");
}

}  // namespace

void run_ablation(AblationFlags flags) {
  require_engine("hopper");
  flags.shape.kv_heads = flags.shape.heads;
  flags.shape.seqlen_k = flags.shape.seqlen_q;
  fa3_options options = default_options();
  options.engine = FA3_ENGINE_HOPPER;
  options.causal = flags.causal ? 1 : 0;
  Operands operands = make_operands(flags.shape, FA3_FLOAT16, Layout::bshd, {});
  const std::string plan = plan_text(forward_question(operands, options));
  JsonLines json(flags.json);
  fill_inputs(&operands, 0);
  Tensors tensors(operands, flags.shape, flags.causal);
  Execution library(&operands, options);

  std::vector<Contender> contenders;
  contenders.push_back({"default",
                        "the library's choice",
                        plan_line(plan, "kernel"),
                        [&] { return library.forward(); },
                        {}});
  for (int i = 0; i < static_cast<int>(hopper::kAblation.size()); ++i) {
    const hopper::AblationVariant& variant = hopper::kAblation[static_cast<size_t>(i)];
    contenders.push_back({variant.name,
                          variant.what,
                          kernel_text(variant.config),
                          [&tensors, i] { return launch_seconds(i, tensors.arguments()); },
                          {}});
  }

  // Right first: every variant against the library.
  library.forward();
  library.fetch();
  HostTensor got(FA3_FLOAT16, operands.o.shape());
  bool right = true;
  for (Contender& one : std::span(contenders).subspan(1)) {
    got.poison();
    tensors.o().read_from(got.data());
    one.call();
    tensors.o().write_to(got.data());
    one.error = sampled_error(got, operands.o);
    right = right && one.error <= kTolerated;
  }
  time_all(&contenders, flags.repeats > 0 ? flags.repeats : kRounds);

  const double work = forward_flops(flags.shape, flags.causal);
  const BenchCase bench{
      .engine = "hopper", .dtype = FA3_FLOAT16, .shape = flags.shape, .causal = flags.causal};
  for (const Contender& one : contenders) {
    const Timing timing = timing_of(one.seconds);
    json.add(bench, {.engine = "hopper",
                     .kernel = one.kernel,
                     .variant = one.variant,
                     .on_gpu = true,
                     .machine = gpu::name(),
                     .timing = timing,
                     .workspace_bytes = workspace_bytes(forward_question(operands, options)),
                     .flops = work / timing.median});
  }
  if (!json.on_stdout()) {
    fmt::print("{}\n{}, commit {}\nb {} h {} s {} d {}, fp16{}\n\n", gpu::name(), today(), commit(),
               flags.shape.batch, flags.shape.heads, flags.shape.seqlen_q, flags.shape.head_dim,
               flags.causal ? ", causal" : "");
    print_table(contenders, work);
  }
  if (!right) throw CommandError(kExitFailed, "a variant differs from the library's result");
}

}  // namespace fa3::cli
