// SPDX-License-Identifier: Apache-2.0
//
// Calls as a running program's owner sees them: an NVTX range on each, for a profiler that is
// attached; and with FA3_MONITOR=1 a line for each kind of call when the program ends, with calls,
// time and rates. Without either a call costs one branch.
#pragma once

#include "api/work.h"
#include "engine/engine.h"

namespace fa3::api {

// Whether anybody looks.
bool watched();

class Watch {
 public:
  Watch(Work work, const Engine& engine, const std::string& kernel, int device, void* stream);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The call was queued or done; otherwise it is not counted.
  void succeeded() { succeeded_ = true; }

 private:
  Work work_;
  const EngineClock* clock_;  // null: the host's
  int device_;
  void* stream_;
  void* begin_ = nullptr;
  double begin_seconds_ = 0;
  bool succeeded_ = false;
};

// Runs `call`, which is what an engine does of a problem.
template <class P, class Call>
Status watch(const P& problem, const Engine& engine, const std::string& kernel, void* stream,
             Call&& call) {
  if (!watched()) return call();
  Watch watch(work_of(problem), engine, kernel, problem.device_index, stream);
  Status status = call();
  if (status.ok()) watch.succeeded();
  return status;
}

}  // namespace fa3::api
