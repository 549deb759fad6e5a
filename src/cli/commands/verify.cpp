// SPDX-License-Identifier: Apache-2.0
//
// fa3 verify: an engine against the double-precision reference, beside same-dtype standard
// attention. The cases are in verify_cases.cpp, the rule in compare.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "cli/call/calls.h"
#include "cli/call/compare.h"
#include "cli/call/error_rule.h"
#include "cli/call/execution.h"
#include "cli/commands.h"
#include "cli/commands/verify_cases.h"
#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

enum class Quantity { output, gradient };

// One output of one case, or the worst of several: the one that is nearest to, or furthest past,
// what it may err.
struct Finding {
  std::string output;
  Error error, baseline, allowed;
  std::string where;

  double severity() const {
    const auto share = [](double error, double allowed) {
      return error <= 0 ? 0 : error / allowed;
    };
    return std::max(share(error.overall, allowed.overall), share(error.row, allowed.row));
  }
  bool passed() const { return within(error, allowed); }
};

// What a (group, dtype) came to: the worst forward output and the worst gradient.
struct Summary {
  int cases = 0;
  std::map<Quantity, Finding> worst;
  double lse_error = 0;
  bool lse_passed = true;
  std::vector<std::string> failures;
};

// What the engine cannot do, by its own reason: how many forwards and backwards were left out.
using LeftOut = std::map<std::string, int>;

void run_engine(Operands* operands, const VerifyCase& verify_case, fa3_engine_id engine,
                int32_t threads) {
  fa3_options options = verify_case.options;
  options.engine = engine;
  options.num_threads = threads;
  Execution execution(operands, options);
  execution.forward();
  if (verify_case.backward) execution.backward();
  execution.fetch();
}

// False, with the reason counted, if the engine says that it cannot do this.
template <class Args>
bool can(const Args& question, LeftOut* left_out) {
  const Status status = supported(question);
  if (status.code() == StatusCode::unsupported)
    ++(*left_out)[status.message()];
  else
    require(status);
  return status.ok();
}

// Engines for GPUs multiply weights in e4m3; those for CPUs read the numbers and go on in fp32.
bool multiplies_e4m3(const Operands& operands, const EngineFlags& flags) {
  return operands.q.dtype() == FA3_FLOAT8_E4M3 &&
         device_of(engine_id(flags.engine)).type != FA3_CPU;
}

double roundoff_of(const Operands& engine, const HostTensor& output, double score,
                   const EngineFlags& flags) {
  const bool is_e4m3 = engine.q.dtype() == FA3_FLOAT8_E4M3;
  const auto dim = static_cast<double>(engine.q.shape().back());
  const double products =
      multiplies_e4m3(engine, flags) ? kE4m3WeightRoundoff + kE4m3ScoreRoundoff * score : 0;
  const fa3_dtype in = is_e4m3 ? FA3_FLOAT32 : engine.q.dtype();
  return products + roundoff_of_call(in, output.dtype(), dim, score);
}

void compare_output(const char* name, Quantity quantity, HostTensor Operands::*output,
                    const std::array<const Operands*, 3>& runs, double score,
                    const EngineFlags& flags, const std::string& where, Summary* summary) {
  const auto& [engine, standard, reference] = runs;
  if (!(engine->*output).present()) return;
  Finding finding{.output = name,
                  .error = error_of(engine->*output, reference->*output),
                  .baseline = error_of(standard->*output, reference->*output),
                  .where = where};
  const double roundoff = roundoff_of(*engine, engine->*output, score, flags);
  finding.allowed = allowed_error(finding.baseline, roundoff);
  if (!finding.passed()) {
    summary->failures.push_back(
        fmt::format("{} of {}: error {} (row {}), allowed {} (row {})", name, where,
                    error_text(finding.error.overall), error_text(finding.error.row),
                    error_text(finding.allowed.overall), error_text(finding.allowed.row)));
  }
  auto [worst, first] = summary->worst.try_emplace(quantity, finding);
  if (!first && !(finding.severity() <= worst->second.severity())) worst->second = finding;
}

void compare_lse(const Operands& engine, const Operands& reference, double score,
                 const EngineFlags& flags, const std::string& where, Summary* summary) {
  const double error = max_abs_error(engine.lse, reference.lse);
  // Standard attention stores its scores in the inputs' dtype.
  const bool rounds_scores = engine_id(flags.engine) == FA3_ENGINE_STANDARD;
  const double roundoff = multiplies_e4m3(engine, flags) ? kE4m3ScoreRoundoff
                          : rounds_scores                ? unit_roundoff(engine.q.dtype())
                                                         : 0;
  const double allowed = allowed_lse_error(score, roundoff);
  summary->lse_error = std::max(summary->lse_error, error);
  if (error <= allowed) return;
  summary->lse_passed = false;
  summary->failures.push_back(fmt::format("LSE of {}: error {}, allowed {}", where,
                                          error_text(error), error_text(allowed)));
}

void verify_one(VerifyCase verify_case, fa3_dtype dtype, const EngineFlags& flags, uint64_t seed,
                Summary* summary, LeftOut* left_out) {
  fa3_options options = verify_case.options;
  options.engine = engine_id(flags.engine);
  verify_case.backward = verify_case.backward && dtype != FA3_FLOAT8_E4M3;
  const Operands shapes = make_operands(
      verify_case.shape, dtype, verify_case.layout,
      {.backward = verify_case.backward, .sink = verify_case.sink, .memory = Memory::shapes_only});
  if (!can(forward_question(shapes, options), left_out)) return;
  verify_case.backward = verify_case.backward && can(backward_question(shapes, options), left_out);

  const Wanted wanted{.backward = verify_case.backward, .sink = verify_case.sink};
  Operands engine = make_operands(verify_case.shape, dtype, verify_case.layout, wanted);
  fill_inputs(&engine, seed);
  // bf16 holds every e4m3 exactly.
  const fa3_dtype of_standard = dtype == FA3_FLOAT8_E4M3 ? FA3_BFLOAT16 : dtype;
  Operands standard = with_inputs_of(engine, of_standard, wanted);
  // fp32 holds every fp16, bf16 and e4m3 exactly, so the oracle's results are rounded to fp32 only.
  Operands reference = with_inputs_of(engine, FA3_FLOAT32, wanted);
  run_engine(&engine, verify_case, engine_id(flags.engine), flags.threads);
  run_engine(&standard, verify_case, FA3_ENGINE_STANDARD, flags.threads);
  run_engine(&reference, verify_case, FA3_ENGINE_REFERENCE, flags.threads);

  const std::string where = fmt::format("{} {}", short_name(dtype), case_text(verify_case));
  const std::array<const Operands*, 3> runs = {&engine, &standard, &reference};
  ++summary->cases;
  const double score = largest_score(reference, verify_case.options);
  compare_output("O", Quantity::output, &Operands::o, runs, score, flags, where, summary);
  compare_output("dQ", Quantity::gradient, &Operands::dq, runs, score, flags, where, summary);
  compare_output("dK", Quantity::gradient, &Operands::dk, runs, score, flags, where, summary);
  compare_output("dV", Quantity::gradient, &Operands::dv, runs, score, flags, where, summary);
  compare_output("dSink", Quantity::gradient, &Operands::dsink, runs, score, flags, where, summary);
  compare_lse(engine, reference, score, flags, where, summary);
}

const Table& findings_table() {
  static const Table table({{"group", 20, false},
                            {"dtype", 5, false},
                            {"cases", 5},
                            {"worst", 5, false},
                            {"error", 8},
                            {"standard", 8},
                            {"allowed", 8},
                            {"row error", 9},
                            {"standard", 8},
                            {"allowed", 8},
                            {"LSE error", 9},
                            {"verdict", 7, false}});
  return table;
}

void print_summary(const std::string& group, const std::string& dtype, const Summary& summary) {
  for (const auto& [quantity, finding] : summary.worst) {
    const bool gradient = quantity == Quantity::gradient;
    const bool passed = finding.passed() && (gradient || summary.lse_passed);
    findings_table().print_row(
        {gradient ? "" : group, dtype, std::to_string(summary.cases), finding.output,
         error_text(finding.error.overall), error_text(finding.baseline.overall),
         error_text(finding.allowed.overall), error_text(finding.error.row),
         error_text(finding.baseline.row), error_text(finding.allowed.row),
         gradient ? "" : error_text(summary.lse_error), passed ? "ok" : "FAIL"});
  }
}

// Throws if the engine cannot run at all, before any work; `dtypes` are those that were asked for.
void check_engine(const EngineFlags& flags, const std::vector<std::string>& dtypes) {
  require_engine(flags.engine);
  fa3_options options = default_options();
  options.engine = engine_id(flags.engine);
  const auto question = [&](const std::string& dtype) {
    return forward_question(
        make_operands({}, dtype_of(dtype), Layout::bshd, {.memory = Memory::shapes_only}), options);
  };
  const auto able = std::find_if(dtypes.begin(), dtypes.end(), [&](const std::string& dtype) {
    return supported(question(dtype)).ok();
  });
  const ForwardArgs args = question(able == dtypes.end() ? dtypes.front() : *able);
  require(supported(args), "--engine " + flags.engine);
  fmt::print("engine    {}, {}\nreference double precision, rounded to fp32\n",
             plan_line(plan_text(args), "engine"), plan_line(plan_text(args), "kernel"));
  fmt::print(
      "standard  S and P stored in the same dtype (of e4m3 in bf16): the error that is normal\n");
  fmt::print(
      "allowed   2 x standard + 4 roundoffs; LSE 1e-4 + 2^-20 max|s| (docs/numerics.md)\n\n");
}

void print_left_out(const LeftOut& left_out) {
  if (left_out.empty()) return;
  fmt::print("\nleft out, for the engine cannot do it:\n");
  for (const auto& [reason, count] : left_out) fmt::print("  {:>4} x {}\n", count, reason);
}

}  // namespace

void run_verify(const VerifyFlags& flags) {
  check_engine(flags.engine, flags.dtypes);
  const Depth depth = flags.full ? Depth::full : flags.quick ? Depth::quick : Depth::normal;
  const std::vector<VerifyCase> cases = verify_cases(depth);
  std::vector<std::string> groups;
  for (const VerifyCase& c : cases) {
    if (std::find(groups.begin(), groups.end(), c.group) == groups.end()) groups.push_back(c.group);
  }
  Progress progress("verify", static_cast<int64_t>(cases.size() * flags.dtypes.size()));
  std::vector<std::string> failures;
  LeftOut left_out;
  int comparisons = 0;
  findings_table().print_header();
  for (const std::string& group : groups) {
    for (const std::string& dtype : flags.dtypes) {
      Summary summary;
      for (size_t i = 0; i < cases.size(); ++i) {
        if (cases[i].group != group) continue;
        progress.next(dtype + " " + case_text(cases[i]));
        verify_one(cases[i], dtype_of(dtype), flags.engine, 1000 * i, &summary, &left_out);
      }
      progress.erase();
      print_summary(group, dtype, summary);
      comparisons += summary.cases;
      failures.insert(failures.end(), summary.failures.begin(), summary.failures.end());
    }
  }
  print_left_out(left_out);
  for (const std::string& failure : failures) fmt::print("FAIL {}\n", failure);
  if (!failures.empty()) {
    throw CommandError(kExitFailed, fmt::format("{} results are further from the reference than "
                                                "allowed",
                                                failures.size()));
  }
  fmt::print("\nall {} cases are within what they may err\n", comparisons);
}

}  // namespace fa3::cli
