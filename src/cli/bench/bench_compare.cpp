// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_compare.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/exit_code.h"
#include "cli/text.h"

namespace fa3::cli {
namespace {

using Json = nlohmann::ordered_json;

// Medians of equal builds, run minutes apart, differ by this fraction.
constexpr double kNoise = 0.02;

// What makes two rows the same case.
constexpr const char* kCase[] = {"engine",   "pass",     "dtype",    "batch",    "heads",
                                 "kv_heads", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v",
                                 "causal",   "threads",  "variant",  "layout",   "q_scale",
                                 "data",     "case",     "machine"};

struct Row {
  double median, low, high;  // milliseconds; low and high: where most rounds were
};

// Percentiles say more than extremes, which one disturbed round decides.
double value_of(const Json& row, const char* percentile, const char* extreme) {
  for (const char* key : {percentile, extreme}) {
    if (row.contains(key)) return row[key].get<double>();
  }
  return row["median_ms"].get<double>();
}

// By case, in words; the last row of a case counts.
std::map<std::string, Row> read_rows(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw CommandError(kExitBadInput, "--compare " + path + ": cannot be read");
  std::map<std::string, Row> rows;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) {
      throw CommandError(kExitBadInput, fmt::format("--compare {}: line {}: expected a JSON object",
                                                    path, number));
    }
    if (!row.contains("median_ms") || !row["median_ms"].is_number()) continue;  // nothing was timed
    std::string name;
    for (const char* key : kCase) {
      if (!row.contains(key) || row[key].is_null()) continue;
      const Json& value = row[key];
      name += fmt::format("{}{} {}", name.empty() ? "" : ", ", key,
                          value.is_string() ? value.get<std::string>() : value.dump());
    }
    rows[name] = {row["median_ms"].get<double>(), value_of(row, "p10_ms", "min_ms"),
                  value_of(row, "p90_ms", "max_ms")};
  }
  return rows;
}

}  // namespace

void compare_runs(const std::string& before, const std::string& after) {
  const std::map<std::string, Row> old_rows = read_rows(before), new_rows = read_rows(after);
  int shared = 0, slower = 0, faster = 0;
  double logs = 0;
  for (const auto& [name, old] : old_rows) {
    const auto found = new_rows.find(name);
    if (found == new_rows.end()) continue;
    const Row& now = found->second;
    const double ratio = now.median / old.median;
    ++shared;
    logs += std::log(ratio);
    const bool apart = now.low > old.high || now.high < old.low;
    if (!apart || std::abs(ratio - 1) <= kNoise) continue;
    ++(ratio > 1 ? slower : faster);
    fmt::print("{} {:.3f} times as long ({:.4g} ms, {:.4g} before): {}\n",
               ratio > 1 ? "SLOWER" : "faster", ratio, now.median, old.median, name);
  }
  if (shared == 0) {
    throw CommandError(kExitBadInput,
                       fmt::format("--compare: {} and {} have no case in common (same machine, "
                                   "engine, shape, type and options)",
                                   before, after));
  }
  fmt::print("{} cases in both: {} slower, {} faster; on average {:.3f} times as long\n", shared,
             slower, faster, std::exp(logs / shared));
  if (slower > 0) {
    throw CommandError(kExitFailed, fmt::format("{} of {} cases became slower", slower, shared));
  }
}

}  // namespace fa3::cli
