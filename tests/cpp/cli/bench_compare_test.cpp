// SPDX-License-Identifier: Apache-2.0
//
// fa3 bench --compare: what it calls slower, what it leaves alone, and how it ends.
#include <fmt/format.h>

#include <fstream>

#include "cli/exit_code.h"
#include "command.h"

namespace fa3::cli {
namespace {

class Compare : public testing::Test {
 protected:
  // One row of a case: milliseconds of the median and of where most rounds were.
  std::string run(const std::string& name, double median, double low, double high,
                  const char* machine = "here") {
    std::ofstream file(folder_.file(name), std::ios::app);
    file << fmt::format(
                R"({{"engine":"cpu","pass":"fwd","seqlen_q":{},"machine":"{}","median_ms":{},)"
                R"("p10_ms":{},"p90_ms":{}}})",
                ++rows_[name], machine, median, low, high)
         << "\n";
    return folder_.file(name);
  }
  Outcome compare(const std::string& before, const std::string& after) {
    return start("bench --compare " + before + " " + after);
  }

  Folder folder_;
  std::map<std::string, int> rows_;
};

TEST_F(Compare, flags_what_is_slower_beyond_the_noise_and_fails) {
  run("old", 10, 9.9, 10.1);
  run("new", 10.5, 10.4, 10.6);
  const std::string old = run("old", 20, 19, 21), now = run("new", 20.5, 20, 22);
  const Outcome outcome = compare(old, now);
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_NE(outcome.output.find("SLOWER 1.050 times as long (10.5 ms, 10 before): engine cpu, pass "
                                "fwd, seqlen_q 1, machine here"),
            outcome.output.npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("2 cases in both: 1 slower, 0 faster"), outcome.output.npos);
}

TEST_F(Compare, leaves_alone_what_overlaps_or_is_small_or_faster) {
  run("old", 10, 9, 12);  // rounds overlap
  run("new", 11, 10, 13);
  run("old", 10, 9.99, 10.01);  // apart, but by 1%
  run("new", 10.1, 10.09, 10.11);
  const std::string old = run("old", 10, 9.9, 10.1), now = run("new", 5, 4.9, 5.1);
  const Outcome outcome = compare(old, now);
  EXPECT_EQ(outcome.code, kExitOk) << outcome.output;
  EXPECT_NE(outcome.output.find("3 cases in both: 0 slower, 1 faster"), outcome.output.npos)
      << outcome.output;
}

TEST_F(Compare, needs_cases_in_common_and_files_it_can_read) {
  const std::string here = run("here", 10, 9, 11), there = run("there", 10, 9, 11, "elsewhere");
  expect_refused("bench --compare " + here + " " + there, kExitBadInput, "no case in common");
  expect_refused("bench --compare " + here + " nowhere", kExitBadInput, "cannot be read");
  std::ofstream(folder_.file("text")) << "text\n";
  expect_refused("bench --compare " + here + " " + folder_.file("text"), kExitBadInput, "line 1");
}

TEST_F(Compare, reads_what_bench_writes) {
  const std::string rows = folder_.file("rows");
  ASSERT_EQ(start("bench --seqlen 16,32 --repeats 1 --json " + rows).code, kExitOk);
  const Outcome outcome = compare(rows, rows);
  EXPECT_EQ(outcome.code, kExitOk) << outcome.output;
  EXPECT_NE(outcome.output.find("2 cases in both: 0 slower, 0 faster; on average 1.000"),
            outcome.output.npos)
      << outcome.output;
}

}  // namespace
}  // namespace fa3::cli
