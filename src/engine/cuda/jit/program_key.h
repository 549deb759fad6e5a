// SPDX-License-Identifier: Apache-2.0
// What a program follows from, as bytes. A kernel is known by them in memory: they are put together
// in a fraction of a microsecond, a program's text in several. Next: kernel_cache.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace fa3::cuda {

class ProgramKey {
 public:
  ProgramKey& add(int64_t number) {
    char bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    bytes_.append(bytes, sizeof number);
    return *this;
  }

  // Null is no text, which differs from an empty one.
  ProgramKey& add(const char* text) {
    const size_t length = text == nullptr ? 0 : std::strlen(text);
    add(text == nullptr ? int64_t{-1} : int64_t(length));
    if (length > 0) bytes_.append(text, length);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace fa3::cuda
