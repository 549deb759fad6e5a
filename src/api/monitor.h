// SPDX-License-Identifier: Apache-2.0
//
// Calls as a running program's owner sees them: an NVTX range on each, for a profiler that is
// attached; and sums over calls, for who asks (fa3_monitor()), or with FA3_MONITOR=1 as a line for
// each kind of call when the program ends. Without either a call costs one branch.
#pragma once

#include "api/work.h"
#include "engine/engine.h"

namespace fa3::api {

// Whether anybody looks.
bool watched();

// Counts calls from now on, or no longer.
void count_calls(bool counts);

// The sums so far, as fa3_monitor_text() says. Waits for no GPU.
std::string text_of_sums();

class Watch {
 public:
  Watch(Work work, const Engine& engine, const std::string& kernel, int64_t workspace, int device,
        void* stream);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The call was queued or done; otherwise it is not counted.
  void succeeded() { succeeded_ = true; }

 private:
  Work work_;
  const Engine* engine_;
  int64_t workspace_bytes_;
  bool counts_;
  int device_;
  void* stream_;
  void* begin_ = nullptr;
  double begin_seconds_ = 0;
  bool succeeded_ = false;
};

template <class P>
int device_of(const P& problem) {
  if constexpr (requires { problem.device_index; }) {
    return problem.device_index;
  } else {
    return problem.front().device_index;
  }
}

// Runs `call`, which is what an engine does of a problem.
template <class P, class Call>
Status watch(const P& problem, const Engine& engine, const std::string& kernel, int64_t workspace,
             void* stream, Call&& call) {
  if (!watched()) return call();
  Watch watch(work_of(problem), engine, kernel, workspace, device_of(problem), stream);
  Status status = call();
  if (status.ok()) watch.succeeded();
  return status;
}

}  // namespace fa3::api
