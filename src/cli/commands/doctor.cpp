// SPDX-License-Identifier: Apache-2.0
//
// fa3 doctor: one check a line, each with its verdict, and what to do at the end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include "cli/bench/machine.h"
#include "cli/call/calls.h"
#include "cli/call/execution.h"
#include "cli/call/operands.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/text.h"
#include "core/threads.h"

namespace fa3::cli {
namespace {

// Prints findings and remembers the advice that goes with those that are not ok.
class Diagnosis {
 public:
  void ok(const std::string& what, const std::string& finding) { print("ok", what, finding); }
  void warn(const std::string& what, const std::string& finding, const std::string& advice) {
    print("warn", what, finding);
    advice_.push_back(advice);
  }
  void fail(const std::string& what, const std::string& finding, const std::string& advice) {
    print("FAIL", what, finding);
    advice_.push_back(advice);
    failed_ = true;
  }

  bool failed() const { return failed_; }
  const std::vector<std::string>& advice() const { return advice_; }

 private:
  static void print(const char* verdict, const std::string& what, const std::string& finding) {
    fmt::print("{:<5} {:<18} {}\n", verdict, what, finding);
  }

  bool failed_ = false;
  std::vector<std::string> advice_;
};

std::string version_text(int32_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check_version(Diagnosis* report) {
  constexpr int32_t kBuilt =
      FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH;
  const std::string found = fmt::format("command {}, library {}, commit {}", version_text(kBuilt),
                                        version_text(fa3_version()), commit());
  if (fa3_version() == kBuilt) return report->ok("version", found);
  report->fail("version", found,
               "The command loads another version's libfa3: check LD_LIBRARY_PATH, or reinstall.");
}

void check_cpu(Diagnosis* report) {
  const std::vector<std::string> extensions = cpu_extensions();
  const auto has = [&](const char* name) {
    return std::find(extensions.begin(), extensions.end(), name) != extensions.end();
  };
  const std::string found = fmt::format("{} ({})", cpu_model(), fmt::join(extensions, " "));
  if (has("avx512f") || has("avx2") || has("asimd")) return report->ok("CPU", found);
  report->warn("CPU", found,
               "The CPU has neither AVX2 nor AVX-512: fa3 runs its portable code, right but slow.");
}

void check_environment(Diagnosis* report) {
  if (const std::string complaint = cpu_code_complaint(); !complaint.empty()) {
    report->warn("environment", complaint, "Unset FA3_CPU_ISA, or name one of those.");
  }
  if (const std::string complaint = engine_complaint(); !complaint.empty()) {
    report->warn("environment", complaint, "Unset FA3_ENGINE, or name an engine that is here.");
  }
}

void check_threads(Diagnosis* report) {
  const int available = available_threads();
  const int present = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string found = fmt::format("{} of {} cores usable", available, present);
  if (available >= present) return report->ok("threads", found);
  report->warn(
      "threads", found,
      "This process may not use all cores (taskset, OMP_NUM_THREADS or a container limit).");
}

void check_memory(Diagnosis* report) {
  const int64_t available = available_memory_bytes();
  if (available <= 0) return report->ok("memory", "the system does not say");
  const std::string found =
      fmt::format("{} free of {}", bytes_text(available), bytes_text(total_memory_bytes()));
  constexpr int64_t kDemoBytes = int64_t{1} << 30;
  if (available >= kDemoBytes) return report->ok("memory", found);
  report->warn("memory", found, "Less than 1 GiB is free: long sequences may not fit.");
}

// What an engine is tried with, and how far it may be off: fp32 where it can, else fp16.
struct Trial {
  fa3_dtype dtype;
  double allowed;
};
Trial trial_of(const std::string& engine) {
  if (engine == "hopper" || engine == "ampere") return {FA3_FLOAT16, 2e-3};
  return {FA3_FLOAT32, 1e-5};
}

// With Q = 0 every key has the same weight: O is the mean of V and LSE is log(keys), whoever
// computes. Returns the largest error, or NaN if the call was refused (*reason then says why).
double uniform_attention_error(const std::string& engine, std::string* reason) {
  const Shape shape{
      .heads = 2, .kv_heads = 1, .seqlen_q = 5, .seqlen_k = 37, .head_dim = 24, .head_dim_v = 24};
  const fa3_dtype dtype = trial_of(engine).dtype;
  Operands operands = make_operands(shape, dtype, Layout::bshd, {});
  fill_inputs(&operands, 7);
  for (int64_t i = 0; i < operands.q.elements(); ++i) set_element(operands.q.data(), dtype, i, 0);
  fa3_options options = default_options();
  options.engine = engine_id(engine);
  try {
    Execution execution(&operands, options);
    execution.forward();
    execution.fetch();
  } catch (const CommandError& error) {
    *reason = error.what();
    return std::nan("");
  }
  const auto off = [](double got, double expected) {
    return std::isfinite(got) ? std::abs(got - expected) : std::numeric_limits<double>::infinity();
  };
  double largest = 0;
  for (int64_t i = 0; i < operands.o.elements(); ++i) {
    double mean = 0;
    for (int64_t key = 0; key < shape.seqlen_k; ++key) {
      mean += element(operands.v.data(), dtype, key * shape.head_dim + i % shape.head_dim);
    }
    mean /= static_cast<double>(shape.seqlen_k);
    largest = std::max(largest, off(element(operands.o.data(), dtype, i), mean));
  }
  const double lse = std::log(static_cast<double>(shape.seqlen_k));
  for (int64_t i = 0; i < operands.lse.elements(); ++i) {
    largest = std::max(largest, off(element(operands.lse.data(), FA3_FLOAT32, i), lse));
  }
  return largest;
}

void check_engine(const EngineInfo& engine, Diagnosis* report) {
  if (!engine.available) return report->ok("engine " + engine.name, "not here: " + engine.detail);
  std::string reason;
  const double error = uniform_attention_error(engine.name, &reason);
  const double allowed = trial_of(engine.name).allowed;
  if (error <= allowed) {
    return report->ok("engine " + engine.name,
                      fmt::format("{}; tiny case off by {}", engine.detail, error_text(error)));
  }
  report->fail("engine " + engine.name,
               reason.empty() ? fmt::format("tiny case off by {}, expected below {}",
                                            error_text(error), error_text(allowed))
                              : reason,
               fmt::format("The engine {} computes wrongly here: run `fa3 verify --engine {}` and "
                           "report its output.",
                           engine.name, engine.name));
}

void check_engines(Diagnosis* report) {
  const std::vector<EngineInfo> engines = engine_list();
  for (const EngineInfo& engine : engines) check_engine(engine, report);
  const bool fast = std::any_of(engines.begin(), engines.end(),
                                [](const EngineInfo& e) { return e.name == "cpu" && e.available; });
  if (!fast) {
    report->warn("engine cpu", "not in this build",
                 "The fast CPU engine is missing: automatic calls use the slow reference.");
  }
}

// A call that must be refused, with a sentence.
void check_refusal(Diagnosis* report) {
  Operands operands = make_operands({.seqlen_q = 4, .seqlen_k = 4}, FA3_FLOAT32, Layout::bshd,
                                    {.memory = Memory::shapes_only});
  fa3_options options = default_options();
  options.scale = 0;
  const Status status = supported(forward_args(operands, options));
  if (status.code() == StatusCode::invalid_argument && !status.message().empty()) {
    return report->ok("bad input", "scale 0 is refused with a sentence");
  }
  report->fail("bad input", "scale 0 was not refused", "The library is damaged: reinstall it.");
}

void check_gpu(Diagnosis* report) {
  std::error_code error;
  const bool driver = std::filesystem::exists("/proc/driver/nvidia/version", error);
  const bool device = std::filesystem::exists("/dev/nvidia0", error);
  const std::vector<EngineInfo> engines = engine_list();
  if (!driver && !device) return report->ok("GPU", "no NVIDIA GPU; the CPU engines compute");
  const EngineInfo* best = nullptr;
  for (const EngineInfo& engine : engines) {
    if (engine.name != "hopper" && engine.name != "ampere") continue;
    best = &engine;  // the last one runs on all that the others run on
    if (engine.available) break;
  }
  if (best == nullptr) {
    return report->warn("GPU", "an NVIDIA GPU, but this build has no CUDA engine",
                        "Build with the CUDA toolkit (nvcc in PATH) to use the GPU.");
  }
  if (!best->available) {
    return report->warn("GPU", "an NVIDIA GPU that no engine can use: " + best->detail,
                        "fa3 computes on the CPU here; the ampere engine needs compute capability "
                        "8.0 or later and a recent driver.");
  }
  report->ok("GPU", concat(best->detail, ": engine ", best->name));
}

}  // namespace

void run_doctor() {
  Diagnosis report;
  check_version(&report);
  check_cpu(&report);
  check_environment(&report);
  check_threads(&report);
  check_memory(&report);
  check_engines(&report);
  check_refusal(&report);
  check_gpu(&report);
  fmt::print("\n");
  for (const std::string& advice : report.advice()) fmt::print("- {}\n", advice);
  if (report.failed()) throw CommandError(kExitFailed, "a check failed");
  fmt::print("{}fa3 works here. Next: fa3 demo, fa3 verify, fa3 bench.\n",
             report.advice().empty() ? "" : "\n");
}

}  // namespace fa3::cli
