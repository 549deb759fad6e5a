// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine/features.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "process/first_use.h"

namespace fa3::cpu {
namespace {

constexpr int64_t kSmallest = 256 << 10;
constexpr int64_t kUsual = 1 << 20;
constexpr int64_t kLargest = 4 << 20;

std::string first_word(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

int64_t ask_system() {
  int64_t bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 on Arm
#endif
  if (bytes <= 0) bytes = l2_cache_bytes_under("");
  return bytes > 0 ? std::clamp(bytes, kSmallest, kLargest) : kUsual;
}

}  // namespace

int64_t l2_cache_bytes_under(const std::string& root) {
  const std::string caches = root + "/sys/devices/system/cpu/cpu0/cache/index";
  for (int i = 0; i < 10; ++i) {
    const std::string cache = caches + std::to_string(i);
    if (first_word(cache + "/level") != "2") continue;
    if (first_word(cache + "/type") == "Instruction") continue;
    const std::string size = first_word(cache + "/size");  // "1024K"
    char* unit = nullptr;
    const int64_t number = std::strtoll(size.c_str(), &unit, 10);
    return *unit == 'K' ? number << 10 : *unit == 'M' ? number << 20 : number;
  }
  return 0;
}

int64_t l2_cache_bytes() {
  static constinit FirstUse<int64_t> bytes;
  return bytes.get(ask_system);
}

}  // namespace fa3::cpu
