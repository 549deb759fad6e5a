// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine/l2_cache.h"

#include <unistd.h>

#include <algorithm>

#include "process/first_use.h"

namespace fa3::cpu {
namespace {

constexpr int64_t kSmallest = 256 << 10;
constexpr int64_t kUsual = 1 << 20;
constexpr int64_t kLargest = 4 << 20;

int64_t ask_system() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return std::clamp(bytes, kSmallest, kLargest);
#endif
  return kUsual;
}

}  // namespace

int64_t l2_cache_bytes() {
  static constinit FirstUse<int64_t> bytes;
  return bytes.get(ask_system);
}

}  // namespace fa3::cpu
