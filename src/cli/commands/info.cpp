// SPDX-License-Identifier: Apache-2.0
//
// fa3 info: which engines are here, what the library would do with a shape, and what memory it
// takes.
#include <fmt/format.h>

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

void print_workspaces(const Operands& operands, fa3_options options) {
  fmt::print("\nWorkspace\n");
  const Table table({{"  engine", 12, false}, {"forward", 12}, {"backward", 12}});
  table.print_header();
  for (const EngineInfo& engine : engine_list()) {
    options.engine = engine_id(engine.name);
    table.print_row({"  " + engine.name, workspace_cell(forward_question(operands, options)),
                     workspace_cell(backward_question(operands, options))});
  }
}

void print_budget_line(const char* what, const std::string& formula, int64_t bytes) {
  fmt::print("  {:<16} {:<44} {:>12}\n", what, formula, bytes_text(bytes));
}

void print_budget(const InfoFlags& flags, const Operands& operands, const fa3_options& options) {
  const Shape& s = flags.shape;
  const int64_t item = HostTensor::shape_only(operands.q.dtype(), {1}).bytes();
  const auto bytes_of = [](const HostTensor& tensor) { return tensor.bytes(); };
  const auto workspace = static_cast<int64_t>(workspace_bytes(forward_question(operands, options)));
  const int64_t parts[] = {bytes_of(operands.q), bytes_of(operands.k) + bytes_of(operands.v),
                           bytes_of(operands.o), bytes_of(operands.lse), workspace};
  fmt::print("\nMemory budget, forward ({} bytes an element)\n", item);
  print_budget_line("Q",
                    fmt::format("{} b * {} sq * {} hq * {} d * {}", s.batch, s.seqlen_q, s.heads,
                                s.head_dim, item),
                    parts[0]);
  print_budget_line("K, V",
                    fmt::format("{} b * {} sk * {} hk * ({} d + {} dv) * {}", s.batch, s.seqlen_k,
                                s.kv_heads, s.head_dim, s.head_dim_v, item),
                    parts[1]);
  print_budget_line("O",
                    fmt::format("{} b * {} sq * {} hq * {} dv * {}", s.batch, s.seqlen_q, s.heads,
                                s.head_dim_v, item),
                    parts[2]);
  print_budget_line("LSE", fmt::format("{} b * {} hq * {} sq * 4", s.batch, s.heads, s.seqlen_q),
                    parts[3]);
  print_budget_line("workspace", "as the plan says", parts[4]);
  print_budget_line("fa3 needs", "the sum: linear in sq and sk", sum_of_bytes(parts));
  int64_t matrix = item;
  for (int64_t factor : {s.batch, s.heads, s.seqlen_q, s.seqlen_k}) {
    if (__builtin_mul_overflow(matrix, factor, &matrix)) {
      throw CommandError(kExitBadInput, "the score matrix has more than 2^63 bytes");
    }
  }
  print_budget_line("standard adds",
                    fmt::format("{} b * {} hq * {} sq * {} sk * {}", s.batch, s.heads, s.seqlen_q,
                                s.seqlen_k, item),
                    matrix);
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
  const Operands operands =
      make_operands(flags.shape, dtype_of(flags.dtype), Layout::bshd,
                    {.backward = true, .sink = flags.sink, .memory = Memory::shapes_only});
  print_plan("Forward", forward_question(operands, options));
  print_plan("Backward", backward_question(operands, options));
  print_workspaces(operands, options);
  print_budget(flags, operands, options);
}

}  // namespace fa3::cli
