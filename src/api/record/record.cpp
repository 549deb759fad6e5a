// SPDX-License-Identifier: Apache-2.0
#include "api/record/record.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "api/record/kept_inputs.h"
#include "core/error.h"
#include "process/first_use.h"

namespace fa3::api {
namespace {

// One call of the system, so that lines of threads do not mix. A line that cannot be written is
// lost.
void write_line(std::string line) {
  line = "fa3: " + line + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

Recording asked_for() {
  const char* const log = std::getenv("FA3_LOG");
  const char* const folder = std::getenv("FA3_DUMP");
  const std::string_view level = log == nullptr ? "" : log;
  Recording asked{.failures = level == "error" || level == "call", .calls = level == "call"};
  if (!level.empty() && !asked.failures) {
    write_line(concat("FA3_LOG: expected error or call, got ", level, "; ignored"));
  }
  if (folder != nullptr && *folder != '\0') asked.folder = strdup(folder);  // never freed
  return asked;
}

// Not the caller's mistake and not the library's answer.
bool broke(const Status& status) {
  return status.code() == StatusCode::out_of_memory || status.code() == StatusCode::device_error ||
         status.code() == StatusCode::internal_error;
}

std::string with_engine(const RecordedCall& call, const Engine* engine, const std::string& kernel) {
  std::string line = line_of(call);
  if (engine != nullptr) line += concat(" -> ", engine->name);
  return kernel.empty() ? line : line + ": " + kernel;
}

}  // namespace

const Recording& recording() {
  static constinit FirstUse<Recording> asked;
  return asked.get(asked_for);
}

void record_start(const RecordedCall& call, const Engine& engine, const std::string& kernel) {
  write_line(with_engine(call, &engine, kernel));
}

void record_end(const RecordedCall& call, const fa3_options* options, const Engine* engine,
                const Status& status, void* stream) {
  if (!status.ok() && recording().failures) {
    write_line(with_engine(call, engine, "") + ": failed: " + status.message());
  }
  const char* const folder = recording().folder;
  if (folder == nullptr || engine == nullptr || !(status.ok() || broke(status))) return;
  const std::string said = keep_inputs({call, options, *engine, stream}, folder, status.message());
  if (!said.empty()) write_line(with_engine(call, engine, "") + ": " + said);
}

}  // namespace fa3::api
