// SPDX-License-Identifier: Apache-2.0
//
// What a running program shows of its calls: lines at its end, ranges for a profiler.
#include "cli/exit_code.h"
#include "command.h"

namespace fa3::cli {
namespace {

// Three calls: one to warm up, two timed. 16 * 17 / 2 visible pairs of 2 heads.
constexpr const char* kBench =
    "bench --engine cpu --seqlen 16 --head-dim 8 --heads 2 --causal 1 --repeats 2 --threads 1";
constexpr const char* kCall = "forward float32 b1 h2:2 s16x16 d8 causal, cpu: ";

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) ++found;
  return found;
}

TEST(Monitor, prints_a_line_for_each_kind_of_call_at_the_end) {
  const Outcome outcome =
      start(std::string(kBench) + " --pass fwd,bwd", "2>&1 >/dev/null", "FA3_MONITOR=1 ");
  EXPECT_EQ(outcome.code, kExitOk);
  EXPECT_EQ(count(outcome.output, " ms each, "), 2u) << outcome.output;
  // The backward's O and LSE come from one more forward.
  const size_t line = outcome.output.find("fa3: 4 calls, ");
  ASSERT_NE(line, outcome.output.npos) << outcome.output;
  EXPECT_NE(outcome.output.find(kCall, line), outcome.output.npos) << outcome.output;
  EXPECT_NE(outcome.output.find("fa3: 3 calls, "), outcome.output.npos) << outcome.output;
  double milliseconds = 0, gflops = 0, gbytes = 0;
  ASSERT_EQ(
      std::sscanf(outcome.output.c_str() + line, "fa3: 4 calls, %lf ms each, %lf GFLOP/s, %lf GB/s",
                  &milliseconds, &gflops, &gbytes),
      3)
      << outcome.output;
  const double flops = 2 * 2 * 8 * 2 * (16 * 17 / 2), bytes = 4 * 16 * 2 * 8 * 4;
  EXPECT_NEAR(gflops * 1e6 * milliseconds, flops, 0.01 * flops);
  EXPECT_NEAR(gbytes * 1e6 * milliseconds, bytes, 0.01 * bytes);
}

TEST(Monitor, is_silent_unless_asked) {
  for (const char* environment : {"", "FA3_MONITOR= ", "FA3_MONITOR=0 "}) {
    const Outcome outcome = start(kBench, "2>&1 >/dev/null", environment);
    EXPECT_EQ(count(outcome.output, " ms each, "), 0u) << environment << outcome.output;
  }
}

TEST(Monitor, opens_a_range_for_each_call_where_a_profiler_is_attached) {
#ifdef FA3_NVTX_PROFILER
  const Outcome outcome =
      start(kBench, "2>&1 >/dev/null", "NVTX_INJECTION64_PATH=" FA3_NVTX_PROFILER " ");
  EXPECT_EQ(outcome.code, kExitOk);
  EXPECT_EQ(count(outcome.output, std::string("begin fa3: ") + kCall), 3u) << outcome.output;
  EXPECT_EQ(count(outcome.output, "end fa3\n"), 3u) << outcome.output;
#else
  GTEST_SKIP() << "NVTX comes with CUDA, which this build has not";
#endif
}

}  // namespace
}  // namespace fa3::cli
