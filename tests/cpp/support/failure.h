// SPDX-License-Identifier: Apache-2.0
//
// A refused call in words: the function, its status and the library's sentence.
#pragma once

#include <fa3/fa3.h>

#include <string>

namespace fa3::test {

inline std::string failure(const char* call, fa3_status status) {
  return std::string(call) + ": " + fa3_status_name(status) + ": " + fa3_last_error();
}

}  // namespace fa3::test
