// SPDX-License-Identifier: Apache-2.0
//
// The engine suites, for all engines or for the one in FA3_TEST_ENGINE. FA3_CPU_ISA chooses the cpu
// engine's instruction set for the whole process. What this build or machine lacks is skipped with
// a sentence that says why, and an exit code that ctest knows.
#include <gtest/gtest.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "support/engines.h"
#include "support/runs/ability.h"

namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in CMakeLists.txt

bool engine_names(std::string_view isa) {
  return fa3::test::engine_detail("cpu").find(isa) != std::string::npos;
}

bool machine_has(std::string_view isa) {
  if (isa == "portable") return true;
#if defined(__aarch64__)
  if (isa == "neon") return true;
  if (isa == "neon_bf16") return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#elif defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == "avx512") return __builtin_cpu_supports("avx512f") != 0;
  if (isa == "avx512_bf16") return __builtin_cpu_supports("avx512bf16") != 0;
  if (isa == "amx") return engine_names("amx");  // the system has a say, or tiles are emulated
#endif
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const char* isa = std::getenv("FA3_CPU_ISA");
  if (isa != nullptr && !machine_has(isa)) {
    std::printf("skipped: this machine has no %s\n", isa);
    return kSkipped;
  }
  const char* engine = std::getenv("FA3_TEST_ENGINE");
  if (fa3::test::engines_under_test().empty()) {
    std::printf("skipped: engine %s: %s\n", engine, fa3::test::engine_detail(engine).c_str());
    return kSkipped;
  }
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  fa3::test::print_left_out();
  if (testing::UnitTest::GetInstance()->test_to_run_count() > 0) return result;
  std::printf("no test matches the filter\n");
  return 1;
}
