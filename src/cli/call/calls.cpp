// SPDX-License-Identifier: Apache-2.0
#include "cli/call/calls.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

#include "cli/call/host_tensor.h"
#include "cli/exit_code.h"
#include "core/error.h"

namespace fa3::cli {
namespace {

constexpr std::array kEngineIds = {
    std::pair{"auto", FA3_ENGINE_AUTO},           std::pair{"cpu", FA3_ENGINE_CPU},
    std::pair{"reference", FA3_ENGINE_REFERENCE}, std::pair{"standard", FA3_ENGINE_STANDARD},
    std::pair{"hopper", FA3_ENGINE_HOPPER},       std::pair{"ampere", FA3_ENGINE_AMPERE},
};

template <class Args>
std::string text_of_plan(const Args& args) {
  std::string text;
  require(fa3::plan_text(args, &text));
  return text;
}

template <class Args>
size_t bytes_of_workspace(const Args& args) {
  size_t bytes = 0;
  require(workspace_size(args, &bytes));
  return bytes;
}

void run(const ForwardArgs& args, Workspace* workspace) {
  require(forward(args, workspace->data(), workspace->bytes()));
}
void run(const BackwardArgs& args, Workspace* workspace) {
  require(backward(args, workspace->data(), workspace->bytes()));
}

template <class Args>
double seconds_of_call(const Args& args, Workspace* workspace) {
  reserve(workspace, workspace_bytes(args));
  return seconds_of([&] { run(args, workspace); });
}

}  // namespace

std::vector<EngineInfo> engine_list() {
  std::vector<EngineInfo> engines;
  fa3_engine_info info;
  for (int32_t i = 0; fa3_engine(i, &info) == FA3_OK; ++i) {
    engines.push_back({info.name, info.available != 0, info.detail});
  }
  return engines;
}

std::string engine_complaint() {
  const char* asked = std::getenv("FA3_ENGINE");
  const std::string name = asked == nullptr ? "" : asked;
  if (name.empty() || name == "auto") return "";
  std::string names = "auto";
  for (const EngineInfo& engine : engine_list()) {
    if (engine.name != name) {
      names += ", " + engine.name;
    } else if (engine.available) {
      return "";
    } else {
      return concat("FA3_ENGINE=", name, ": ", engine.detail,
                    "; calls that name no engine are refused on a GPU, and not affected on a CPU");
    }
  }
  return concat("FA3_ENGINE=", name, ": expected one of ", names,
                "; calls that name no engine are refused");
}

const std::vector<std::string>& engine_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(kEngineIds.size());
    for (const auto& [name, id] : kEngineIds) all.emplace_back(name);
    return all;
  }();
  return names;
}

fa3_engine_id engine_id(const std::string& name) {
  return std::find_if(kEngineIds.begin(), kEngineIds.end(),
                      [&](const auto& engine) { return name == engine.first; })
      ->second;
}

void require_engine(const std::string& name) {
  if (name == "auto") return;
  std::string others;
  for (const EngineInfo& engine : engine_list()) {
    if (engine.name == name && engine.available) return;
    if (engine.name == name) {
      throw CommandError(kExitUnsupported, concat("--engine ", name, ": ", engine.detail));
    }
    others += concat(others.empty() ? "" : ", ", engine.name);
  }
  throw CommandError(kExitUnsupported,
                     concat("--engine ", name, ": this build has no such engine; it has ", others));
}

std::string plan_text(const ForwardArgs& args) {
  return text_of_plan(args);
}
std::string plan_text(const BackwardArgs& args) {
  return text_of_plan(args);
}

std::string plan_line(const std::string& plan, const std::string& key) {
  size_t begin = 0;
  while (begin < plan.size()) {
    const size_t end = std::min(plan.find('\n', begin), plan.size());
    const std::string line = plan.substr(begin, end - begin);
    if (line.starts_with(key + " ")) return line.substr(key.size() + 1);
    begin = end + 1;
  }
  return "";
}

size_t workspace_bytes(const ForwardArgs& args) {
  return bytes_of_workspace(args);
}
size_t workspace_bytes(const BackwardArgs& args) {
  return bytes_of_workspace(args);
}

void reserve(Workspace* workspace, size_t bytes) {
  if (bytes > workspace->bytes()) require_memory("workspace", static_cast<int64_t>(bytes));
  require(workspace->reserve(bytes));
}

double run_seconds(const ForwardArgs& args, Workspace* workspace) {
  return seconds_of_call(args, workspace);
}
double run_seconds(const BackwardArgs& args, Workspace* workspace) {
  return seconds_of_call(args, workspace);
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace fa3::cli
