// SPDX-License-Identifier: Apache-2.0
//
// The engine suites. FA3_CPU_ISA chooses the cpu engine's instruction set for the whole process; on
// a machine without it there is nothing to test, which ctest learns from the exit code.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in CMakeLists.txt

bool machine_has(std::string_view isa) {
  if (isa == "portable") return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == "avx512") return __builtin_cpu_supports("avx512f") != 0;
  if (isa == "avx512_bf16") return __builtin_cpu_supports("avx512bf16") != 0;
#endif
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const char* isa = std::getenv("FA3_CPU_ISA");
  if (isa != nullptr && !machine_has(isa)) {
    std::printf("SKIPPED: this machine has no %s\n", isa);
    return kSkipped;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
