// SPDX-License-Identifier: Apache-2.0
//
// fa3 run: attention over .npy files, forward and, if asked, backward.
#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "cli/call/calls.h"
#include "cli/call/execution.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/files/npy_file.h"
#include "cli/flags.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

// What the flags say about each other; the parser has checked each alone.
void check_flags(const RunFlags& flags) {
  const auto expect = [](bool rule, const std::string& sentence) {
    if (!rule) throw CommandError(kExitBadInput, sentence);
  };
  if (flags.backward) {
    expect(!flags.d_o.empty(), "--backward: expected --do, the gradient of the output, got none");
    expect(!flags.dq.empty() && !flags.dk.empty() && !flags.dv.empty(),
           "--backward: expected --dq, --dk and --dv to write to, got fewer");
    expect(flags.dsink.empty() || !flags.sink.empty(),
           "--dsink: expected it only together with --sink, got --dsink alone");
  } else {
    expect(flags.d_o.empty() && flags.dq.empty() && flags.dk.empty() && flags.dv.empty() &&
               flags.dsink.empty(),
           "--do, --dq, --dk, --dv, --dsink: expected only with --backward; add it");
  }
}

// One file by two names: a path written differently, or a link. Devices may be named twice.
bool same_file(const std::string& one, const std::string& other) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(one, ignored) && !fs::is_regular_file(one, ignored)) return false;
  if (fs::equivalent(one, other, ignored)) return true;
  return fs::weakly_canonical(one, ignored) == fs::weakly_canonical(other, ignored);
}

// Before the work, so that it is not done in vain: each output goes to a file of its own, in a
// folder that is there.
void check_outputs(const RunFlags& flags) {
  struct Named {
    const char* flag;
    const std::string& path;
  };
  const std::array inputs = {Named{"--q", flags.q}, Named{"--k", flags.k}, Named{"--v", flags.v},
                             Named{"--sink", flags.sink}, Named{"--do", flags.d_o}};
  const std::array outputs = {Named{"--out", flags.out}, Named{"--lse", flags.lse},
                              Named{"--dq", flags.dq},   Named{"--dk", flags.dk},
                              Named{"--dv", flags.dv},   Named{"--dsink", flags.dsink}};
  std::vector<Named> others(inputs.begin(), inputs.end());
  for (const Named& output : outputs) {
    if (output.path.empty()) continue;
    const auto refuse = [&](const std::string& what) {
      throw CommandError(kExitBadInput, fmt::format("{} {}: {}", output.flag, output.path, what));
    };
    std::error_code ignored;
    if (std::filesystem::is_directory(output.path, ignored)) {
      refuse("expected a file to write to, got a directory");
    }
    const auto folder = std::filesystem::absolute(output.path, ignored).parent_path();
    if (!std::filesystem::is_directory(folder, ignored)) {
      refuse("expected a folder that exists, got none; create it first");
    }
    for (const Named& other : others) {
      if (other.path.empty() || !same_file(output.path, other.path)) continue;
      refuse(fmt::format("expected a file of its own, got that of {}; name another", other.flag));
    }
    others.push_back(output);
  }
}

Operands read_operands(const RunFlags& flags) {
  std::optional<fa3_dtype> dtype;
  if (!flags.dtype.empty()) dtype = dtype_of(flags.dtype);
  Operands operands;
  operands.layout = flags.layout == "bshd" ? Layout::bshd : Layout::bhsd;
  operands.q = read_npy(flags.q, 4, dtype);
  operands.k = read_npy(flags.k, 4, dtype);
  operands.v = read_npy(flags.v, 4, dtype);
  if (!flags.sink.empty()) operands.sink = read_npy(flags.sink, 1, FA3_FLOAT32);
  // The output has q's dtype, and its gradient the output's.
  if (!flags.d_o.empty()) operands.d_o = read_npy(flags.d_o, 4, operands.q.dtype());
  return operands;
}

void print_tensor(const char* name, const HostTensor& tensor) {
  if (!tensor.present()) return;
  fmt::print("{:<5} {} {}\n", name, shape_text(tensor.shape()), short_name(tensor.dtype()));
}

void write_output(const std::string& path, const HostTensor& tensor) {
  if (path.empty()) return;
  write_npy(path, tensor);
  fmt::print("wrote {} {} {}\n", path, shape_text(tensor.shape()), short_name(tensor.dtype()));
}

}  // namespace

void run_files(const RunFlags& flags) {
  check_flags(flags);
  check_outputs(flags);
  require_engine(flags.engine.engine);
  Operands operands = read_operands(flags);
  const fa3_options options = options_of(flags.engine, flags.mask);
  Wanted outputs{
      .backward = flags.backward, .sink = operands.sink.present(), .memory = Memory::shapes_only};
  // Files may say anything: memory for outputs only if the library accepts the shapes.
  add_outputs(&operands, outputs);
  const ForwardArgs forward = forward_question(operands, options);
  require(supported(forward));
  if (flags.backward) require(supported(backward_question(operands, options)));
  outputs.memory = Memory::allocate;
  add_outputs(&operands, outputs);

  for (const auto& [name, tensor] : {std::pair{"q", &operands.q},
                                     {"k", &operands.k},
                                     {"v", &operands.v},
                                     {"sink", &operands.sink},
                                     {"do", &operands.d_o}}) {
    print_tensor(name, *tensor);
  }
  Execution execution(&operands, options);
  fmt::print("\nforward plan\n{}", plan_text(forward));
  fmt::print("forward took {}\n", seconds_text(execution.forward()));
  if (flags.backward) {
    fmt::print("\nbackward plan\n{}", plan_text(backward_question(operands, options)));
    fmt::print("backward took {}\n", seconds_text(execution.backward()));
  }
  execution.fetch();
  fmt::print("\n");
  write_output(flags.out, operands.o);
  write_output(flags.lse, operands.lse);
  write_output(flags.dq, operands.dq);
  write_output(flags.dk, operands.dk);
  write_output(flags.dv, operands.dv);
  write_output(flags.dsink, operands.dsink);
}

}  // namespace fa3::cli
