// SPDX-License-Identifier: Apache-2.0
//
// Calls into the library for commands: by engine name, timed, with errors thrown as CommandError.
#pragma once

#include <fa3/attention.h>

#include <functional>
#include <string>
#include <vector>

namespace fa3::cli {

struct EngineInfo {
  std::string name;
  bool available;
  std::string detail;
};
std::vector<EngineInfo> engine_list();
// What is wrong with the environment's FA3_ENGINE here, or "".
std::string engine_complaint();

// "auto", "cpu", ... for --engine; engine_id() expects one of them.
const std::vector<std::string>& engine_names();
fa3_engine_id engine_id(const std::string& name);
// Throws, with the reason, if that engine cannot run here; "auto" always can.
void require_engine(const std::string& name);

// The library's plan in words, and the rest of its line that starts with `key`.
std::string plan_text(const ForwardArgs& args);
std::string plan_text(const BackwardArgs& args);
std::string plan_line(const std::string& plan, const std::string& key);

size_t workspace_bytes(const ForwardArgs& args);
size_t workspace_bytes(const BackwardArgs& args);

// Refuses a workspace that this machine's memory cannot hold, instead of being killed for it.
void reserve(Workspace* workspace, size_t bytes);

// Seconds of one call. The workspace grows before the clock starts.
double run_seconds(const ForwardArgs& args, Workspace* workspace);
double run_seconds(const BackwardArgs& args, Workspace* workspace);
double seconds_of(const std::function<void()>& work);

}  // namespace fa3::cli
