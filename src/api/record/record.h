// SPDX-License-Identifier: Apache-2.0
//
// The flight recorder. FA3_LOG=call writes a line on stderr before each call, FA3_LOG=error one for
// each call that failed. FA3_DUMP=FOLDER keeps the inputs of calls that failed or made NaN or
// infinity. Without either a call costs one branch. Nothing here changes a result, or throws.
#pragma once

#include <fa3/status.h>

#include <span>
#include <string>
#include <utility>

#include "api/record/recorded_call.h"
#include "engine/engine.h"

namespace fa3::api {

// What the environment asks for.
struct Recording {
  bool failures = false;         // lines of calls that failed
  bool calls = false;            // lines of all calls
  const char* folder = nullptr;  // of kept inputs; null: none are kept

  bool any() const { return failures || folder != nullptr; }
};
const Recording& recording();

// An engine is about to run the call: writes its line.
void record_start(const RecordedCall& call, const Engine& engine, const std::string& kernel);

// Writes the line of a failure, and keeps inputs. `engine`: null if none was chosen.
void record_end(const RecordedCall& call, const fa3_options* options, const Engine* engine,
                const Status& status, void* stream);

template <class Params>
const fa3_options* options_of(const Params& params) {
  if constexpr (requires { params.options; }) return &params.options;
  return nullptr;
}

// Records call(started), which says started(engine, kernel) before an engine runs. Several `calls`
// are one for an engine.
template <class Params, class Call>
Status record(std::span<const Params> calls, void* stream, Call&& call) {
  const Recording& asked = recording();
  if (!asked.any()) return call([](const Engine&, const std::string&) {});
  const auto try_to = [](const auto& write) {
    try {
      write();
    } catch (...) {  // no memory for a line: the call itself goes on
    }
  };
  const Engine* chosen = nullptr;
  Status status = call([&](const Engine& engine, const std::string& kernel) {
    chosen = &engine;
    if (!asked.calls) return;
    for (const Params& params : calls) {
      try_to([&] { record_start(recorded(params), engine, kernel); });
    }
  });
  if (status.ok() && asked.folder == nullptr) return status;
  for (const Params& params : calls) {
    try_to([&] { record_end(recorded(params), options_of(params), chosen, status, stream); });
  }
  return status;
}

template <class Params, class Call>
Status record(const Params& params, void* stream, Call&& call) {
  return record(std::span<const Params>(&params, 1), stream, std::forward<Call>(call));
}

}  // namespace fa3::api
