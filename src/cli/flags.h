// SPDX-License-Identifier: Apache-2.0
//
// Options that several subcommands share, under the same names and with the same meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/call/operands.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fa3::cli {

// Who computes, with how many threads.
struct EngineFlags {
  std::string engine = "auto";
  int32_t threads = 0;
};

// Which scores count, and how they are shaped.
struct MaskFlags {
  bool causal = false;
  std::vector<int64_t> window;  // {left, right} or empty
  float softcap = 0;
  std::optional<float> scale;
};

fa3_options options_of(const EngineFlags& engine, const MaskFlags& mask);

// "fp32", "fp16", "bf16", as validated by the parser. dtype_of() knows "e4m3" and "e5m2", too.
extern const std::vector<std::string> kDtypeNames;
extern const std::vector<std::string> kForwardDtypeNames;  // and those without a backward
fa3_dtype dtype_of(const std::string& name);

}  // namespace fa3::cli
