// SPDX-License-Identifier: Apache-2.0
#include "api/boundary.h"

#include <algorithm>
#include <cstring>

namespace fa3::api {
namespace {

// The thread's last error. Plain memory: nothing to allocate when memory is what is missing,
// nothing destroyed before the last call, which may come from a destructor at the thread's or
// program's end.
constexpr size_t kLongestError = 4096;
thread_local char t_last_error[kLongestError];

}  // namespace

fa3_status remember(int code, std::string_view sentence) noexcept {
  const size_t length = std::min(sentence.size(), kLongestError - 1);
  std::memcpy(t_last_error, sentence.data(), length);
  t_last_error[length] = '\0';
  return static_cast<fa3_status>(code);
}

const char* last_error() noexcept {
  return t_last_error;
}

}  // namespace fa3::api
