// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench/machine.h"
#include "cli/exit_code.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

nlohmann::ordered_json json_of(const BenchCase& bench, const Measured& measured) {
  const auto teraflops = [](double flops) {
    return flops > 0 ? nlohmann::ordered_json(flops * 1e-12) : nlohmann::ordered_json(nullptr);
  };
  return {{"engine", measured.engine},
          {"kernel", measured.kernel},
          {"pass", bench.backward ? "bwd" : "fwd"},
          {"dtype", short_name(bench.dtype)},
          {"batch", bench.shape.batch},
          {"heads", bench.shape.heads},
          {"kv_heads", bench.shape.kv_heads},
          {"seqlen_q", bench.shape.seqlen_q},
          {"seqlen_k", bench.shape.seqlen_k},
          {"head_dim", bench.shape.head_dim},
          {"head_dim_v", bench.shape.head_dim_v},
          {"causal", bench.causal},
          {"median_ms", measured.timing.median * 1e3},
          {"min_ms", measured.timing.min * 1e3},
          {"p10_ms", measured.timing.p10 * 1e3},
          {"p90_ms", measured.timing.p90 * 1e3},
          {"max_ms", measured.timing.max * 1e3},
          {"repeats", measured.timing.repeats},
          {"tflops", measured.flops * 1e-12},
          {"peak_tflops", teraflops(measured.peaks.median())},
          {"peak_min_tflops", teraflops(measured.peaks.lowest())},
          {"peak_max_tflops", teraflops(measured.peaks.highest())},
          {"threads", measured.on_gpu ? nlohmann::ordered_json(nullptr)
                                      : nlohmann::ordered_json(bench.threads)},
          {"workspace_bytes", measured.workspace_bytes},
          {"variant", measured.variant},
          {"layout", measured.layout},
          {"machine", measured.machine},
          {"date", today()},
          {"commit", commit()}};
}

}  // namespace

void Peaks::sample(const BenchCase& bench) {
  samples_.push_back(peak_flops(bench.dtype, bench.threads));
  std::sort(samples_.begin(), samples_.end());
}

bool Peaks::disturbed() const {
  constexpr double kTolerated = 0.2;
  return highest() - lowest() > kTolerated * highest();
}

JsonLines::JsonLines(const std::string& where) : where_(where), on_stdout_(where == "-") {
  if (where.empty() || on_stdout_) return;
  file_.open(where, std::ios::app);
  if (!file_) throw CommandError(kExitBadInput, "--json " + where + ": cannot be written");
}

void JsonLines::add(const BenchCase& bench, const Measured& measured) {
  const std::string line = json_of(bench, measured).dump();
  if (on_stdout_) {
    std::puts(line.c_str());
    flush_stdout();
  }
  if (!file_.is_open()) return;
  file_ << line << std::endl;
  if (!file_) {
    throw CommandError(kExitFailed,
                       "--json " + where_ + ": writing a line failed; is there room on the disk?");
  }
}

}  // namespace fa3::cli
