// SPDX-License-Identifier: Apache-2.0
//
// What the command writes arrives where it was sent, or the exit code says that it did not. A full
// disk is /dev/full.
#include <fstream>

#include "cli/exit_code.h"
#include "cli/files/npy_file.h"
#include "command.h"

namespace fa3::cli {
namespace {

constexpr const char* kNoRoom = "is there room on the disk?";

class Output : public testing::Test {
 protected:
  void SetUp() override {
    HostTensor ones(FA3_FLOAT32, {1, 3, 1, 4});
    for (int64_t i = 0; i < ones.elements(); ++i) set_element(ones.data(), FA3_FLOAT32, i, 1);
    write_npy(path("x"), ones);
  }
  std::string path(const std::string& name) const { return folder_.file(name + ".npy"); }
  // A run of the command without outputs.
  std::string run() const {
    return "run --engine reference --q " + path("x") + " --k " + path("x") + " --v " + path("x");
  }
  std::string backward() const { return run() + " --backward --do " + path("x"); }

  Folder folder_;
};

const std::string kEveryCommand[] = {
    "--help",
    "--version",
    "run --help",
    "info",
    "info --seqlen 64",
    "doctor",
    "verify --quick --engine standard --dtype fp32",
    "bench --engine standard --seqlen 16",
    "bench --engine standard --seqlen 16 --json -",
    "demo --engine standard --seqlen 16 --data " FA3_EXAMPLE_DATA,
};

TEST_F(Output, to_a_full_disk_is_a_failure_of_every_command) {
  for (const std::string& arguments : kEveryCommand) {
    expect_refused(arguments, kExitFailed, kNoRoom, "2>&1 >/dev/full");
  }
  expect_refused(run() + " --out " + path("o"), kExitFailed, kNoRoom, "2>&1 >/dev/full");
}

TEST_F(Output, to_a_closed_stream_is_a_failure_of_every_command) {
  for (const std::string& arguments : kEveryCommand) {
    expect_refused(arguments, kExitFailed, "stdout", "2>&1 >&-");
  }
}

TEST_F(Output, to_a_closed_stream_does_not_reach_the_files) {
  start(run() + " --out " + path("o"), ">&- 2>&-");
  EXPECT_EQ(read_npy(path("o"), 4).shape(), (std::vector<int64_t>{1, 3, 1, 4}));
}

TEST_F(Output, of_rows_to_a_full_disk_ends_the_sweep) {
  expect_refused("bench --engine standard --seqlen 16,32 --json /dev/full", kExitFailed,
                 "/dev/full");
}

TEST_F(Output, of_tensors_to_a_full_disk_is_a_failure) {
  expect_refused(run() + " --out /dev/full", kExitFailed, "/dev/full");
  expect_refused(run() + " --out " + path("o") + " --lse /dev/full", kExitFailed, "/dev/full");
}

// A limit on the size of files, at 512 bytes, in place of a disk with so much room.
TEST_F(Output, that_found_no_room_leaves_no_file) {
  HostTensor many(FA3_FLOAT32, {1, 64, 1, 64});
  write_npy(path("many"), many);
  const std::string q = path("many");
  const Outcome outcome =
      start("run --engine reference --q " + q + " --k " + q + " --v " + q + " --out " + path("o"),
            "2>&1", "trap '' XFSZ; ulimit -f 1; ");
  EXPECT_EQ(outcome.code, kExitFailed) << outcome.output;
  EXPECT_NE(outcome.output.find(kNoRoom), std::string::npos) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

TEST_F(Output, of_warnings_to_a_full_disk_costs_no_row) {
  // Two lines that nobody can read: hopper does no fp32, and the summary at the end.
  const Outcome outcome =
      start("bench --engine hopper,standard --seqlen 16 --json -", "2>/dev/full");
  EXPECT_EQ(outcome.code, kExitUnsupported);
  EXPECT_NE(outcome.output.find("\"standard\""), std::string::npos) << outcome.output;
}

TEST_F(Output, of_two_tensors_into_one_file_is_refused) {
  const std::string o = path("o"), other = folder_.path() / "." / "o.npy";
  expect_refused(run() + " --out " + o + " --lse " + o, kExitBadInput, "--lse");
  expect_refused(run() + " --out " + o + " --lse " + other, kExitBadInput, "--lse");
  expect_refused(backward() + " --out " + o + " --dq " + path("g") + " --dk " + path("g") +
                     " --dv " + path("dv"),
                 kExitBadInput, "--dk");
  EXPECT_FALSE(std::filesystem::exists(o));
  std::ofstream(path("target")).put('x');
  std::filesystem::create_symlink(path("target"), path("link"));
  std::filesystem::create_hard_link(path("target"), path("hard"));
  for (const char* same : {"link", "hard"}) {
    expect_refused(run() + " --out " + path("target") + " --lse " + path(same), kExitBadInput,
                   "--lse");
  }
}

TEST_F(Output, over_an_input_is_refused) {
  expect_refused(run() + " --out " + path("x"), kExitBadInput, "--out");
  expect_refused(run() + " --out " + path("o") + " --lse " + path("x"), kExitBadInput, "--lse");
  EXPECT_EQ(read_npy(path("x"), 4).shape(), (std::vector<int64_t>{1, 3, 1, 4}));
}

TEST_F(Output, may_all_go_to_dev_null) {
  EXPECT_EQ(start(run() + " --out /dev/null --lse /dev/null").code, kExitOk);
}

TEST_F(Output, that_cannot_be_written_is_refused_before_the_work) {
  const std::string nowhere = folder_.file("nowhere/o.npy");
  const Outcome outcome = start(run() + " --out " + nowhere);
  EXPECT_EQ(outcome.code, kExitBadInput);
  EXPECT_NE(outcome.output.find(nowhere), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("took"), std::string::npos) << outcome.output;
  expect_refused(run() + " --out " + folder_.path().string(), kExitBadInput, "directory");
}

TEST_F(Output, without_a_name_is_refused) {
  expect_refused(run() + " --out ''", kExitBadInput, "--out");
  const std::string complete = run() + " --out " + path("o");
  expect_refused(complete + " --lse ''", kExitBadInput, "--lse");
  expect_refused(complete + " --sink ''", kExitBadInput, "--sink");
  expect_refused(complete + " --do ''", kExitBadInput, "--do");
  expect_refused("bench --engine standard --seqlen 16 --json ''", kExitBadInput, "--json");
  expect_refused("demo --data ''", kExitBadInput, "--data");
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

}  // namespace
}  // namespace fa3::cli
