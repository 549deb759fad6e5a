// SPDX-License-Identifier: Apache-2.0
//
// fa3 demo: the main job, shown. Attention of a trained transformer over real text, then a sequence
// whose score matrix would not fit. Both checked against the double-precision reference.
#include <fmt/format.h>

#include "cli/bench/machine.h"
#include "cli/bench/timing.h"
#include "cli/call/calls.h"
#include "cli/call/compare.h"
#include "cli/call/error_rule.h"
#include "cli/call/execution.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/files/example_data.h"
#include "cli/files/npy_file.h"
#include "cli/flags.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

constexpr int64_t kBudgetBytes = int64_t{1} << 30;

fa3_options options_for(const DemoFlags& flags, fa3_engine_id engine) {
  fa3_options options = default_options();
  options.engine = engine;
  options.num_threads = flags.engine.threads;
  return options;
}

fa3_options ours(const DemoFlags& flags) {
  return options_for(flags, engine_id(flags.engine.engine));
}

int64_t memory_of_call(const Operands& operands, const fa3_options& options) {
  return input_bytes(operands) + output_bytes(operands) +
         static_cast<int64_t>(workspace_bytes(forward_question(operands, options)));
}

struct Checked {
  Error ours, standard;
  bool passed;
};

// `operands` holds a result; the same inputs go through the reference and through standard
// attention.
Checked check(const DemoFlags& flags, const Operands& operands) {
  Workspace workspace;
  const Operands standard = with_inputs_of(operands, operands.q.dtype(), {});
  const Operands reference = with_inputs_of(operands, FA3_FLOAT32, {});
  run_seconds(forward_args(standard, options_for(flags, FA3_ENGINE_STANDARD)), &workspace);
  run_seconds(forward_args(reference, options_for(flags, FA3_ENGINE_REFERENCE)), &workspace);
  Checked checked{.ours = error_of(operands.o, reference.o),
                  .standard = error_of(standard.o, reference.o)};
  const double lse_error = max_abs_error(operands.lse, reference.lse);
  const double score = largest_score(reference, options_for(flags, FA3_ENGINE_REFERENCE));
  const auto dim = static_cast<double>(operands.q.shape().back());
  const double roundoff = roundoff_of_call(operands.q.dtype(), operands.o.dtype(), dim, score);
  checked.passed = within(checked.ours, allowed_error(checked.standard, roundoff)) &&
                   lse_error <= allowed_lse_error(score);
  return checked;
}

Shape shape_of(const Operands& operands) {
  const auto& q = operands.q.shape();
  const auto& k = operands.k.shape();
  return {.batch = q[0],
          .heads = q[2],
          .kv_heads = k[2],
          .seqlen_q = q[1],
          .seqlen_k = k[1],
          .head_dim = q[3],
          .head_dim_v = operands.v.shape()[3]};
}

Operands load_layer(const DemoFlags& flags, int layer) {
  Operands operands;
  const fa3_dtype dtype = dtype_of(flags.dtype);
  operands.q = read_npy(layer_file(flags.data, layer, "q"), 4, dtype);
  operands.k = read_npy(layer_file(flags.data, layer, "k"), 4, dtype);
  operands.v = read_npy(layer_file(flags.data, layer, "v"), 4, dtype);
  add_outputs(&operands, {});
  return operands;
}

bool show_layers(const DemoFlags& flags) {
  const fa3_options options = ours(flags);
  const std::vector<int> shown = layers_in(flags.data);
  const Operands first = load_layer(flags, shown.front());
  const std::string plan = plan_text(forward_question(first, options));
  fmt::print(
      "1. A trained transformer reads Moby-Dick\n\n"
      "   Q, K and V of all-MiniLM-L6-v2, {} {}: {} tokens, {} heads, head dim\n"
      "   {}, {}. Engine {}, {}.\n\n",
      shown.size() == 1 ? "layer" : "layers", fmt::join(shown, ", "), first.q.shape()[1],
      first.q.shape()[2], first.q.shape()[3], short_name(first.q.dtype()),
      plan_line(plan, "engine"), plan_line(plan, "kernel"));
  const Table table({{"   layer", 8, false},
                     {"error", 8},
                     {"standard", 8},
                     {"time", 10},
                     {"speed", 14},
                     {"memory", 10},
                     {"standard", 10},
                     {"", 4, false}});
  table.print_header();
  bool passed = true;
  for (int layer : shown) {
    Operands operands = load_layer(flags, layer);
    Execution execution(&operands, options);
    const Timing timing = time_call([&] { return execution.forward(); });
    execution.fetch();
    const Checked checked = check(flags, operands);
    passed = passed && checked.passed;
    table.print_row({fmt::format("   {}", layer), error_text(checked.ours.overall),
                     error_text(checked.standard.overall), seconds_text(timing.median),
                     flops_text(forward_flops(shape_of(operands), false) / timing.median),
                     bytes_text(memory_of_call(operands, options)),
                     bytes_text(memory_of_call(operands, options_for(flags, FA3_ENGINE_STANDARD))),
                     checked.passed ? "ok" : "FAIL"});
  }
  fmt::print(
      "\n   error: of O against double precision, relative, beside that of standard attention\n"
      "   (S and P stored) in the same dtype. memory: inputs, outputs and workspace.\n");
  return passed;
}

// The query rows that are checked, spread over the sequence with its ends.
std::vector<int64_t> sampled_rows(int64_t seqlen) {
  constexpr int64_t kRows = 16;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < kRows; ++i) rows.push_back(i * (seqlen - 1) / (kRows - 1));
  return rows;
}

// (1, s, h, d) -> the rows of it.
HostTensor take_rows(const HostTensor& tensor, const std::vector<int64_t>& rows) {
  std::vector<int64_t> shape = tensor.shape();
  shape[1] = static_cast<int64_t>(rows.size());
  HostTensor taken(tensor.dtype(), shape);
  const int64_t row_elements = shape[2] * shape[3];
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t i = 0; i < row_elements; ++i) {
      set_element(taken.data(), taken.dtype(), static_cast<int64_t>(r) * row_elements + i,
                  element(tensor.data(), tensor.dtype(), rows[r] * row_elements + i));
    }
  }
  return taken;
}

// The LSE (1, h, s) of those rows.
HostTensor take_lse(const HostTensor& lse, const std::vector<int64_t>& rows) {
  const int64_t heads = lse.shape()[1], seqlen = lse.shape()[2];
  HostTensor taken(FA3_FLOAT32, {1, heads, static_cast<int64_t>(rows.size())});
  for (int64_t head = 0; head < heads; ++head) {
    for (size_t r = 0; r < rows.size(); ++r) {
      set_element(taken.data(), FA3_FLOAT32,
                  head * static_cast<int64_t>(rows.size()) + static_cast<int64_t>(r),
                  element(lse.data(), FA3_FLOAT32, head * seqlen + rows[r]));
    }
  }
  return taken;
}

bool show_long_sequence(const DemoFlags& flags) {
  const Shape shape{.seqlen_q = flags.seqlen, .seqlen_k = flags.seqlen};
  const fa3_dtype dtype = dtype_of(flags.dtype);
  const fa3_options options = ours(flags);
  Operands operands = make_operands(shape, dtype, Layout::bshd, {});
  fill_inputs(&operands, 16);
  const ForwardArgs args = forward_question(operands, options);
  const int64_t standard = memory_of_call(operands, options_for(flags, FA3_ENGINE_STANDARD));
  const int64_t needed = memory_of_call(operands, options);
  const auto verdict = [](int64_t bytes) {
    return bytes <= kBudgetBytes ? "fits" : "does not fit";
  };
  fmt::print(
      "\n2. {} tokens with a memory budget of {}\n\n"
      "   Random data, {} heads, head dim {}, {}.\n\n"
      "   standard attention   {:>10}   {}: {} heads x {} x {} scores\n"
      "   fa3                  {:>10}   {}: inputs {}, outputs {}, workspace {}\n\n",
      flags.seqlen, bytes_text(kBudgetBytes), shape.heads, shape.head_dim, flags.dtype,
      bytes_text(standard), verdict(standard), shape.heads, flags.seqlen, flags.seqlen,
      bytes_text(needed), verdict(needed), bytes_text(input_bytes(operands)),
      bytes_text(output_bytes(operands)), bytes_text(static_cast<int64_t>(workspace_bytes(args))));
  std::fflush(stdout);

  Execution execution(&operands, options);
  const double seconds = execution.forward();
  execution.fetch();
  fmt::print("   time      {}, {}\n", seconds_text(seconds),
             flops_text(forward_flops(shape, false) / seconds));
  if (const int64_t peak = peak_resident_bytes(); peak > 0) {
    fmt::print("   measured  {} is the most memory that this whole process ever held\n",
               bytes_text(peak));
  }

  const std::vector<int64_t> rows = sampled_rows(flags.seqlen);
  Operands sample;
  sample.q = take_rows(operands.q, rows);
  sample.k = operands.k.converted(dtype);
  sample.v = operands.v.converted(dtype);
  sample.o = take_rows(operands.o, rows);
  sample.lse = take_lse(operands.lse, rows);
  const Checked checked = check(flags, sample);
  fmt::print(
      "   checked   {} rows of each head against double precision: error {}, worst row {}\n"
      "             (standard attention on the same rows: {}, {}): {}\n",
      rows.size(), error_text(checked.ours.overall), error_text(checked.ours.row),
      error_text(checked.standard.overall), error_text(checked.standard.row),
      checked.passed ? "ok" : "FAIL");
  return checked.passed;
}

}  // namespace

void run_demo(const DemoFlags& given) {
  require_engine(given.engine.engine);
  DemoFlags flags = given;
  if (flags.data.empty()) flags.data = data_folder();
  if (layers_in(flags.data).empty()) {
    throw CommandError(
        kExitBadInput,
        fmt::format("--data {}: expected minilm_layer0_q.npy and its like there, got "
                    "no such file; pass the examples/data directory of the sources",
                    flags.data));
  }
  fmt::print("fa3 demo on {}\n\n", machine_text());
  const bool layers = show_layers(flags);
  const bool long_sequence = show_long_sequence(flags);
  if (!layers || !long_sequence) {
    throw CommandError(kExitFailed,
                       "a result is further from the reference than allowed; run "
                       "`fa3 verify` and report its output");
  }
  fmt::print("\nAll results are as exact as standard attention's. Next: fa3 run --help\n");
}

}  // namespace fa3::cli
