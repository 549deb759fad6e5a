// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/machine.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "cli/commit.h"
#include "core/dtype.h"
#include "core/threads.h"
#include "engine/cpu/kernels/isa.h"
#include "engine/cpu/kernels/kernels.h"

namespace fa3::cli {
namespace {

// The value of the first "key : value" line of a file under /proc; "" if there is none.
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t bytes_in(const char* path, const std::string& key) {
  const std::string kib = proc_value(path, key);  // "24567890 kB"
  return kib.empty() ? 0 : std::strtoll(kib.c_str(), nullptr, 10) * 1024;
}

}  // namespace

std::string cpu_model() {
  std::string model = proc_value("/proc/cpuinfo", "model name");
  if (!model.empty()) return model;
  utsname system{};
  if (uname(&system) != 0) return "unknown CPU";
  const std::string part = proc_value("/proc/cpuinfo", "CPU part");  // Arm: a number
  if (part.empty()) return system.machine;
  return fmt::format("{} (implementer {}, part {})", system.machine,
                     proc_value("/proc/cpuinfo", "CPU implementer"), part);
}

#if defined(__aarch64__)

std::vector<std::string> cpu_extensions() {
  std::vector<std::string> found = {"asimd"};
  if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0) found.emplace_back("bf16");
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) != 0) found.emplace_back("sve");
  return found;
}

#else

std::vector<std::string> cpu_extensions() {
  constexpr const char* kOfInterest[] = {"avx2",        "fma",         "f16c",    "avx512f",
                                         "avx512_bf16", "avx512_fp16", "amx_bf16"};
  std::istringstream words(proc_value("/proc/cpuinfo", "flags"));
  std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  std::vector<std::string> found;
  for (const char* name : kOfInterest) {
    if (std::find(all.begin(), all.end(), name) != all.end()) found.emplace_back(name);
  }
  return found;
}

#endif

std::string cpu_code_complaint() {
  const char* asked = std::getenv("FA3_CPU_ISA");
  if (asked == nullptr || *asked == '\0' || cpu::find_kernels(asked) != nullptr) return "";
  std::string names;
  for (const char* name :
       {"amx", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon", "portable"}) {
    if (cpu::find_kernels(name) != nullptr) names += fmt::format(" {}", name);
  }
  return fmt::format("FA3_CPU_ISA={}: expected one of{}, as this CPU has them; not heeded", asked,
                     names);
}

int64_t total_memory_bytes() {
  return bytes_in("/proc/meminfo", "MemTotal");
}

int64_t available_memory_bytes() {
  return bytes_in("/proc/meminfo", "MemAvailable");
}

int64_t peak_resident_bytes() {
  return bytes_in("/proc/self/status", "VmHWM");
}

std::string machine_text() {
  return fmt::format("{}, {} threads, {}", cpu_model(), available_threads(),
                     fmt::join(cpu_extensions(), " "));
}

std::string today() {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

std::string commit() {
  return FA3_COMMIT;
}

double peak_flops(fa3_dtype dtype, int num_threads) {
  // The engine multiplies float8 as float32.
  const fa3_dtype multiplied = dtype == FA3_FLOAT8_E4M3 ? FA3_FLOAT32 : dtype;
  return cpu::measure_peak_flops(static_cast<DType>(multiplied), num_threads);
}

}  // namespace fa3::cli
