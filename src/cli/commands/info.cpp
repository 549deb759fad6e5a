// SPDX-License-Identifier: Apache-2.0
//
// fa3 info: which engines are here, what the library would do with a shape, and what memory it
// takes.
#include <fmt/format.h>

#include <array>
#include <vector>

#include "cli/bench/machine.h"
#include "cli/call/calls.h"
#include "cli/call/execution.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

void print_engines() {
  fmt::print("Engines of this build\n");
  for (const EngineInfo& engine : engine_list()) {
    fmt::print("  {:<10} {:<11} {}\n", engine.name, engine.available ? "available" : "unavailable",
               engine.detail);
  }
  for (const std::string& complaint : {cpu_code_complaint(), engine_complaint()}) {
    if (!complaint.empty()) fmt::print("  {}\n", complaint);
  }
  fmt::print("\nMachine\n  {}, {} memory\n", machine_text(), bytes_text(total_memory_bytes()));
}

// The plan's lines, indented; or why there is none.
template <class Args>
void print_plan(const char* pass, const Args& args) {
  fmt::print("\n{} plan\n", pass);
  try {
    const std::string plan = plan_text(args);
    for (size_t begin = 0; begin < plan.size();) {
      const size_t end = plan.find('\n', begin);
      fmt::print("  {}\n", plan.substr(begin, end - begin));
      begin = end == plan.npos ? plan.size() : end + 1;
    }
  } catch (const CommandError& error) {
    if (error.code() != kExitUnsupported) throw;
    fmt::print("  none: {}\n", error.what());
  }
}

template <class Args>
std::string workspace_cell(const Args& args) {
  size_t bytes = 0;
  const Status status = workspace_size(args, &bytes);
  if (status.ok()) return bytes_text(static_cast<int64_t>(bytes));
  if (status.code() == StatusCode::unsupported) return "-";
  require(status);
  return "";
}

void print_workspaces(const Operands& operands, fa3_options options, bool with_backward) {
  fmt::print("\nWorkspace\n");
  const Table table({{"  engine", 12, false}, {"forward", 12}, {"backward", 12}});
  table.print_header();
  for (const EngineInfo& engine : engine_list()) {
    options.engine = engine_id(engine.name);
    table.print_row({"  " + engine.name, workspace_cell(forward_question(operands, options)),
                     with_backward ? workspace_cell(backward_question(operands, options)) : "-"});
  }
}

void print_budget_line(const char* what, const std::string& formula, int64_t bytes) {
  fmt::print("  {:<16} {:<44} {:>12}\n", what, formula, bytes_text(bytes));
}

Operands operands_of(const InfoFlags& flags) {
  const fa3_dtype dtype = dtype_of(flags.dtype);
  Operands operands =
      make_operands(flags.shape, dtype, Layout::bshd,
                    {.backward = true, .sink = flags.sink, .memory = Memory::shapes_only});
  if (!flags.kv_dtype.empty()) {
    const fa3_dtype of_cache = dtype_of(flags.kv_dtype);
    operands.k = HostTensor::shape_only(of_cache, operands.k.shape());
    operands.v = HostTensor::shape_only(of_cache, operands.v.shape());
  }
  return operands;
}

bool has_gradients(const InfoFlags& flags) {
  return flags.dtype != "e4m3" && flags.kv_dtype.empty();
}

// fa3_quantize() writes a factor for each FA3_DESCALE_ROWS rows; a cache has one for each head.
int64_t descale_bytes(const InfoFlags& flags) {
  constexpr int64_t kItem = sizeof(float);
  const Shape& s = flags.shape;
  const auto blocks = [](int64_t rows) { return (rows + FA3_DESCALE_ROWS - 1) / FA3_DESCALE_ROWS; };
  if (!flags.kv_dtype.empty()) return 2 * s.batch * s.kv_heads * kItem;
  return s.batch * (s.heads * blocks(s.seqlen_q) + 2 * s.kv_heads * blocks(s.seqlen_k)) * kItem;
}

void print_forward_budget(const char* title, const InfoFlags& flags) {
  const Operands operands = operands_of(flags);
  const fa3_options options = options_of(flags.engine, flags.mask);
  const Shape& s = flags.shape;
  const auto item_of = [](const HostTensor& tensor) {
    return HostTensor::shape_only(tensor.dtype(), {1}).bytes();
  };
  const int64_t item = item_of(operands.q), kv_item = item_of(operands.k);
  std::vector<int64_t> parts;
  const auto part = [&](const char* what, const std::string& formula, int64_t bytes) {
    print_budget_line(what, formula, bytes);
    parts.push_back(bytes);
  };
  fmt::print("\nMemory budget, {} ({} bytes an element)\n", title, item);
  part("Q",
       fmt::format("{} b * {} sq * {} hq * {} d * {}", s.batch, s.seqlen_q, s.heads, s.head_dim,
                   item),
       operands.q.bytes());
  part("K, V",
       fmt::format("{} b * {} sk * {} hk * ({} d + {} dv) * {}", s.batch, s.seqlen_k, s.kv_heads,
                   s.head_dim, s.head_dim_v, kv_item),
       operands.k.bytes() + operands.v.bytes());
  if (kv_item == 1) part("descale", "float32 factors of the FP8 numbers", descale_bytes(flags));
  part("O",
       fmt::format("{} b * {} sq * {} hq * {} dv * {}", s.batch, s.seqlen_q, s.heads, s.head_dim_v,
                   item_of(operands.o)),
       operands.o.bytes());
  part("LSE", fmt::format("{} b * {} hq * {} sq * 4", s.batch, s.heads, s.seqlen_q),
       operands.lse.bytes());
  const auto workspace = static_cast<int64_t>(workspace_bytes(forward_question(operands, options)));
  part("workspace", "as the plan says", workspace);
  print_budget_line("fa3 needs", "the sum: linear in sq and sk", sum_of_bytes(parts));
  int64_t matrix = item_of(operands.o);
  for (int64_t factor : {s.batch, s.heads, s.seqlen_q, s.seqlen_k}) {
    if (__builtin_mul_overflow(matrix, factor, &matrix)) {
      throw CommandError(kExitBadInput, "the score matrix has more than 2^63 bytes");
    }
  }
  print_budget_line("standard adds",
                    fmt::format("{} b * {} hq * {} sq * {} sk * {}", s.batch, s.heads, s.seqlen_q,
                                s.seqlen_k, item_of(operands.o)),
                    matrix);
}

void print_backward_budget(const InfoFlags& flags) {
  fmt::print("\nMemory budget, backward\n");
  if (!has_gradients(flags)) return fmt::print("  none: FP8 has no gradients\n");
  const Operands operands = operands_of(flags);
  const auto& [layout, q, k, v, sink, d_o, o, lse, dq, dk, dv, dsink] = operands;
  const auto question = backward_question(operands, options_of(flags.engine, flags.mask));
  size_t workspace = 0;
  const Status status = workspace_size(question, &workspace);
  if (status.code() == StatusCode::unsupported) {
    return fmt::print("  none: {}\n", status.message());
  }
  require(status);
  const std::array forward{q.bytes(), k.bytes(), v.bytes(), o.bytes(), lse.bytes()};
  const std::array parts{sum_of_bytes(forward),   d_o.bytes(),   dq.bytes(),
                         dk.bytes() + dv.bytes(), dsink.bytes(), static_cast<int64_t>(workspace)};
  print_budget_line("Q, K, V, O, LSE", "those of the forward", parts[0]);
  print_budget_line("dO", "as O", parts[1]);
  print_budget_line("dQ", "as Q", parts[2]);
  print_budget_line("dK, dV", "as K, V", parts[3]);
  print_budget_line("workspace", "as the plan says", parts[5]);
  print_budget_line("fa3 needs", "the sum: linear in sq and sk", sum_of_bytes(parts));
}

std::string expected_text(double seconds, double error, int64_t bytes) {
  const std::string time = seconds > 0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : "-";
  return fmt::format("{:>10}  error {:>6}  {:>12}", time, fmt::format("{:.2g}%", 100 * error),
                     bytes > 0 ? bytes_text(bytes) : "-");
}

// Whether FP8 pays for 16-bit tensors. Times are those of an H200.
void print_precision(const InfoFlags& flags, const ForwardArgs& args) {
  if (flags.dtype == "e4m3" || !flags.kv_dtype.empty()) return;
  fa3_advice advice;
  require(advise(args, &advice));
  const bool pays = advice.precision == FA3_FLOAT8_E4M3;
  fmt::print("\nPrecision: {}\n  {:<16} {}\n  {:<16} {}\n  {}\n", pays ? "FP8" : flags.dtype,
             flags.dtype, expected_text(advice.seconds, advice.error, advice.bytes),
             "FP8, quantized",
             expected_text(advice.seconds_fp8, advice.error_fp8, advice.bytes_fp8), advice.reason);
}

void print_budgets(const InfoFlags& flags) {
  print_forward_budget("forward", flags);
  print_backward_budget(flags);
  if (flags.shape.seqlen_q > 1) {
    InfoFlags step = flags;
    step.shape.seqlen_q = 1;
    print_forward_budget("decode step, one query a sequence", step);
  }
  fmt::print("  (standard attention stores the scores; fa3 never does)\n");
}

}  // namespace

void run_info(const InfoFlags& flags, bool with_shape) {
  print_engines();
  if (!with_shape) {
    fmt::print("\nGive a shape for its plan and memory: fa3 info --seqlen 4096 --head-dim 128\n");
    return;
  }
  const fa3_options options = options_of(flags.engine, flags.mask);
  const Operands operands = operands_of(flags);
  print_plan("Forward", forward_question(operands, options));
  if (has_gradients(flags)) print_plan("Backward", backward_question(operands, options));
  print_precision(flags, forward_question(operands, options));
  print_workspaces(operands, options, has_gradients(flags));
  print_budgets(flags);
}

}  // namespace fa3::cli
