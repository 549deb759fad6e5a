// SPDX-License-Identifier: Apache-2.0
//
// The command as a user starts it: exit codes, one clear sentence for each mistake, files that
// NumPy would read.
#include "command.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "cli/call/compare.h"
#include "cli/call/operands.h"
#include "cli/exit_code.h"
#include "cli/files/npy.h"
#include "cli/files/npy_file.h"
#include "core/error.h"

namespace fa3::cli {
namespace {

class Command : public testing::Test {
 protected:
  void SetUp() override {
    operands_ = make_operands(kShape, FA3_FLOAT32, Layout::bshd, {.backward = true});
    fill_inputs(&operands_, 1);
    write_npy(path("q"), operands_.q);
    write_npy(path("k"), operands_.k);
    write_npy(path("v"), operands_.v);
    write_npy(path("do"), operands_.d_o);
  }
  std::string path(const std::string& name) const { return folder_.file(name + ".npy"); }
  std::string inputs() const {
    return " --q " + path("q") + " --k " + path("k") + " --v " + path("v") + " --out " + path("o");
  }

  static constexpr Shape kShape{.batch = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .seqlen_q = 33,
                                .seqlen_k = 47,
                                .head_dim = 16,
                                .head_dim_v = 24};
  Folder folder_;
  Operands operands_;
};

TEST_F(Command, run_writes_what_the_library_computes) {
  const Outcome outcome =
      start("run" + inputs() + " --causal --engine reference --lse " + path("lse"));
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  fa3_options options = default_options();
  options.causal = 1;
  options.engine = FA3_ENGINE_REFERENCE;
  Workspace workspace;
  ASSERT_TRUE(forward(forward_args(operands_, options), workspace).ok());
  EXPECT_EQ(error_of(read_npy(path("o"), 4), operands_.o).overall, 0);
  EXPECT_EQ(max_abs_error(read_npy(path("lse"), 3), operands_.lse), 0);
}

TEST_F(Command, run_backward_writes_gradients_of_the_inputs_shapes) {
  const Outcome outcome =
      start("run" + inputs() + " --engine reference --backward --do " + path("do") + " --dq " +
            path("dq") + " --dk " + path("dk") + " --dv " + path("dv"));
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  fa3_options options = default_options();
  options.engine = FA3_ENGINE_REFERENCE;
  Workspace workspace;
  ASSERT_TRUE(forward(forward_args(operands_, options), workspace).ok());
  ASSERT_TRUE(backward(backward_args(operands_, options), workspace).ok());
  EXPECT_EQ(error_of(read_npy(path("dq"), 4), operands_.dq).overall, 0);
  EXPECT_EQ(error_of(read_npy(path("dk"), 4), operands_.dk).overall, 0);
  EXPECT_EQ(error_of(read_npy(path("dv"), 4), operands_.dv).overall, 0);
}

TEST_F(Command, run_takes_heads_first_and_converts) {
  // Reads the same memory as (b, h, s, d): other heads and lengths, so K and V are re-shaped alike.
  const Outcome outcome = start("run --layout bhsd --dtype bf16 --q " + path("q") + " --k " +
                                path("q") + " --v " + path("q") + " --out " + path("o"));
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  const HostTensor o = read_npy(path("o"), 4);
  EXPECT_EQ(o.dtype(), FA3_BFLOAT16);
  EXPECT_EQ(o.shape(), operands_.q.shape());
}

TEST_F(Command, bfloat16_bits_in_uint16_need_to_be_named) {
  std::ofstream(path("bits"), std::ios::binary)
      << npy_header(NpyType::uint16, std::vector<int64_t>{1, 1, 1, 2}) << "\x80\x3f\x80\x3f";
  const std::string files = "run --q " + path("bits") + " --k " + path("bits") + " --v " +
                            path("bits") + " --out " + path("o");
  expect_refused(files, kExitBadInput, "--dtype bf16");
  EXPECT_EQ(start(files + " --dtype bf16").code, kExitOk);
  EXPECT_EQ(element(read_npy(path("o"), 4).data(), FA3_BFLOAT16, 0), 1.0f);
}

TEST_F(Command, wrong_arguments_end_with_code_2_and_a_sentence) {
  expect_refused("levitate", kExitBadInput, "fa3: unknown levitate; fa3 --help names the sub");
  expect_refused("levitate --seqlen 3", kExitBadInput, "fa3: unknown levitate; fa3 --help names");
  expect_refused("runn", kExitBadInput, "fa3: unknown runn; did you mean run?");
  expect_refused("--verison", kExitBadInput, "did you mean --version?");
  expect_refused("bench --caussal=1", kExitBadInput,
                 "bench: unknown --caussal=1; did you mean --causal?");
  expect_refused("bench --levitate", kExitBadInput, "--levitate");
  expect_refused("run", kExitBadInput, "--q is required");
  expect_refused("run" + inputs() + " --window 3", kExitBadInput, "--window");
  expect_refused("run" + inputs() + " --window -2,0", kExitBadInput, "window_left");
  expect_refused("run" + inputs() + " --scale 0", kExitBadInput, "scale");
  expect_refused("run" + inputs() + " --scale nan", kExitBadInput, "scale");
  expect_refused("run" + inputs() + " --softcap -1", kExitBadInput, "softcap");
  expect_refused("run" + inputs() + " --backward", kExitBadInput, "--do");
  expect_refused("run" + inputs() + " --dq x.npy", kExitBadInput, "--backward");
  expect_refused("run" + inputs() + " --dtype int8", kExitBadInput, "--dtype");
  expect_refused("bench --seqlen 0", kExitBadInput,
                 "--seqlen: expected an integer of at least 1, got 0\n");
  expect_refused("bench --heads x", kExitBadInput, "integer of at least 1, got x\n");
  expect_refused("info --batch -1", kExitBadInput, "integer of at least 0, got -1\n");
  expect_refused("bench --causal 2", kExitBadInput, "--causal");
  expect_refused("bench --heads 8 --kv-heads 3 --seqlen 16", kExitBadInput, "multiple");
  expect_refused("bench --seqlen 16 --json /nowhere/x", kExitBadInput, "/nowhere/x");
  expect_refused("info --batch 4000000000 --seqlen 4000000000", kExitBadInput, "2^63");
  expect_refused("demo --data /nowhere", kExitBadInput, "/nowhere");
  expect_refused("verify --quick --full", kExitBadInput, "--quick");
}

TEST_F(Command, without_a_word_it_says_what_it_can_do) {
  const Outcome outcome = start("");
  EXPECT_EQ(outcome.code, kExitOk);
  EXPECT_EQ(outcome.output, start("--help").output);
}

TEST_F(Command, wrong_files_end_with_code_2_and_name_the_file) {
  expect_refused("run --q /nowhere.npy --k x --v x --out y", kExitBadInput, "/nowhere.npy");
  expect_refused("run --q / --k x --v x --out y", kExitBadInput, "directory");
  std::ofstream(path("foreign")) << "not numpy";
  expect_refused("run --q " + path("foreign") + " --k x --v x --out y", kExitBadInput,
                 "foreign.npy");
  write_npy(path("flat"), HostTensor(FA3_FLOAT32, {4, 4}));
  expect_refused("run --q " + path("flat") + " --k x --v x --out y", kExitBadInput, "4 dimensions");
  expect_refused("run --q " + path("q") + " --k " + path("v") + " --v " + path("v") + " --out y",
                 kExitBadInput, "head dim");
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

// A terabyte, all of it a hole: read whole it would not fit, looked at first it is refused at once.
TEST_F(Command, a_large_foreign_file_is_refused_by_its_first_bytes) {
  std::ofstream(path("large")) << "not numpy";
  std::filesystem::resize_file(path("large"), int64_t{1} << 40);
  expect_refused("run --q " + path("large") + " --k x --v x --out y", kExitBadInput, "NUMPY");
  // And one that says truly how large it is.
  std::ofstream(path("large"), std::ios::binary)
      << npy_header(NpyType::float32, std::vector<int64_t>{1 << 20, 1, 1, 1 << 18});
  const auto header = static_cast<int64_t>(std::filesystem::file_size(path("large")));
  std::filesystem::resize_file(path("large"), header + (int64_t{1} << 40));
  expect_refused("run --q " + path("large") + " --k x --v x --out y", kExitUnsupported, "1.00 TiB");
}

// fp32 is what hopper does nowhere, so this holds on a machine with a GPU too.
TEST_F(Command, what_this_machine_cannot_do_ends_with_code_3) {
  expect_refused("run" + inputs() + " --engine hopper", kExitUnsupported, "hopper");
  expect_refused("bench --engine hopper --seqlen 16", kExitUnsupported, "hopper");
  expect_refused("verify --engine hopper --dtype fp32", kExitUnsupported, "hopper");
  expect_refused("demo --engine hopper --data " FA3_EXAMPLE_DATA, kExitUnsupported, "hopper");
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

TEST_F(Command, verify_leaves_nothing_out_on_the_cpu) {
  const Outcome outcome = start("verify --quick --engine standard --dtype fp32");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.output;
  EXPECT_EQ(outcome.output.find("left out"), std::string::npos);
}

TEST_F(Command, help_explains_with_examples) {
  for (const std::string name : {"run", "verify", "bench", "info", "doctor", "demo", "fp8"}) {
    const Outcome outcome = start(name + " --help");
    EXPECT_EQ(outcome.code, kExitOk);
    EXPECT_NE(outcome.output.find("Example"), std::string::npos) << name;
    EXPECT_NE(outcome.output.find("fa3 " + name), std::string::npos) << name;
  }
  EXPECT_NE(start("--help").output.find("Exit codes"), std::string::npos);
}

TEST_F(Command, help_begins_with_title_and_usage_and_lists_every_subcommand) {
  const std::string help = start("--help").output;
  EXPECT_TRUE(help.starts_with("fa3: exact attention in O(N) memory\nUsage: fa3 ")) << help;
  for (const std::string name :
       {"run", "verify", "bench", "info", "doctor", "demo", "fp8", "plot", "adopt"}) {
    EXPECT_NE(help.find("\n  " + name + " "), std::string::npos) << name;
  }
}

TEST_F(Command, what_is_written_in_python_says_where_it_is) {
  expect_refused("plot --help", kExitUnsupported, "python3 -m fa3 plot\n");
  expect_refused("adopt --flash-attn", kExitUnsupported, "python3 -m fa3 adopt\n");
}

TEST_F(Command, bench_prints_only_json_with_every_key) {
  const Outcome outcome =
      start("bench --engine standard --pass fwd,bwd --seqlen 16,32 --json -", "2>/dev/null");
  EXPECT_EQ(outcome.code, kExitOk);
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 4);
  EXPECT_EQ(outcome.output.front(), '{');
  for (const char* key : {"engine", "kernel", "pass", "dtype", "batch", "heads", "kv_heads",
                          "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "causal", "median_ms",
                          "tflops", "peak_tflops", "variant", "machine", "date", "commit"}) {
    EXPECT_NE(outcome.output.find(concat("\"", key, "\":")), std::string::npos) << key;
  }
}

TEST_F(Command, bench_takes_heads_as_wide_as_the_library_does) {
  const std::string call = "bench --engine cpu --seqlen 16 --heads 1 --repeats 1 --head-dim ";
  EXPECT_EQ(start(call + "576").code, kExitOk);
  expect_refused(call + "577", kExitBadInput, "577");
}

TEST_F(Command, verify_compares_fp8_forward) {
  const Outcome outcome = start("verify --quick --engine cpu --dtype e4m3");
  EXPECT_EQ(outcome.code, kExitOk) << outcome.output;
  EXPECT_NE(outcome.output.find("cases are within what they may err"), std::string::npos);
  EXPECT_EQ(outcome.output.find("dQ"), std::string::npos) << outcome.output;
}

TEST_F(Command, run_rounds_files_to_fp8_and_writes_bf16) {
  const std::string command = "run --q " + path("q") + " --k " + path("k") + " --v " + path("v");
  ASSERT_EQ(start(command + " --out " + path("wide")).code, kExitOk);
  const Outcome outcome = start(command + " --out " + path("o") + " --dtype e4m3");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  EXPECT_NE(outcome.output.find("e4m3"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("bf16"), std::string::npos) << outcome.output;
  const HostTensor o = read_npy(path("o"), 4), wide = read_npy(path("wide"), 4);
  ASSERT_EQ(o.shape(), wide.shape());
  ASSERT_EQ(o.dtype(), FA3_BFLOAT16);
  double errors = 0, size = 0;
  for (int64_t i = 0; i < wide.elements(); ++i) {
    const double right = element(wide.data(), wide.dtype(), i);
    errors += std::pow(element(o.data(), o.dtype(), i) - right, 2), size += right * right;
  }
  EXPECT_GT(std::sqrt(errors / size), 1e-3);  // rounded
  EXPECT_LT(std::sqrt(errors / size), 0.1);
}

TEST_F(Command, info_says_whether_fp8_pays) {
  const std::string shape = "info --head-dim 256 --seqlen 16384 --heads 8 --dtype bf16 ";
  const Outcome gpu = start(shape + "--engine hopper"), cpu = start(shape + "--engine cpu");
  EXPECT_NE(gpu.output.find("Precision: FP8"), std::string::npos) << gpu.output;
  EXPECT_NE(gpu.output.find("16384 keys a row"), std::string::npos) << gpu.output;
  EXPECT_NE(cpu.output.find("Precision: bf16"), std::string::npos) << cpu.output;
  EXPECT_NE(cpu.output.find("FP8 saves no time on a CPU"), std::string::npos) << cpu.output;
}

TEST_F(Command, bench_times_fp8_forward_and_skips_its_backward) {
  const Outcome outcome =
      start("bench --engine cpu --dtype e4m3 --pass fwd,bwd --seqlen 16 --repeats 1 --json -");
  EXPECT_EQ(outcome.code, kExitUnsupported) << outcome.output;
  EXPECT_NE(outcome.output.find("\"dtype\":\"e4m3\""), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("expected --pass fwd, got bwd"), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("1 of 2 cases"), std::string::npos) << outcome.output;
}

// 2^40 sequences of 16 tokens are 16 PiB, which no machine has.
TEST_F(Command, bench_skips_what_does_not_fit_and_goes_on) {
  for (const char* pass : {"fwd", "bwd"}) {
    const Outcome outcome =
        start(concat("bench --engine standard --batch 1099511627776,1 "
                     "--heads 1 --seqlen 16 --json - --pass ",
                     pass));
    EXPECT_EQ(outcome.code, kExitUnsupported) << outcome.output;
    EXPECT_NE(outcome.output.find("free, got"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("1 of 2 cases"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("\"batch\":1,"), std::string::npos) << outcome.output;
  }
}

// A header of 128 bytes may claim 2^40 empty sequences: that costs no time, in no command.
TEST_F(Command, huge_empty_shapes_take_no_time) {
  const std::vector<int64_t> empty = {int64_t{1} << 40, 0, 1, 8};
  for (const char* name : {"empty_q", "empty_k"}) {
    std::ofstream(path(name), std::ios::binary) << npy_header(NpyType::float32, empty);
  }
  const std::string files = "run --q " + path("empty_q") + " --k " + path("empty_k") + " --v " +
                            path("empty_k") + " --out " + path("o");
  const std::string huge = " --batch 1099511627776 --heads 1 --seqlen ";
  for (const std::string engine : {"auto", "cpu", "standard", "reference"}) {
    const Outcome run = start(files + " --engine " + engine, "2>&1", "timeout 20 ");
    EXPECT_EQ(run.code, kExitOk) << run.output;
    for (const char* seqlen : {"0", "1"}) {
      const Outcome info = start("info --engine " + engine + huge + seqlen, "2>&1", "timeout 20 ");
      EXPECT_EQ(info.code, kExitOk) << info.output;
    }
    const Outcome bench = start("bench --engine " + engine + huge + "1", "2>&1", "timeout 20 ");
    EXPECT_EQ(bench.code, kExitUnsupported) << bench.output;
  }
}

TEST_F(Command, run_refuses_a_workspace_that_does_not_fit) {
  write_npy(path("long"), HostTensor(FA3_FLOAT16, {1, 1 << 23, 1, 1}));
  expect_refused("run --engine standard --q " + path("long") + " --k " + path("long") + " --v " +
                     path("long") + " --out " + path("o"),
                 kExitUnsupported, "workspace: expected at most");
}

TEST_F(Command, info_knows_the_item_of_an_empty_call_and_sums_without_overflow) {
  const Outcome empty = start("info --seqlen 0");
  EXPECT_NE(empty.output.find("forward (4 bytes an element)"), std::string::npos) << empty.output;
  const Outcome huge =
      start("info --heads 1099511627776 --seqlen 16384 --seqlen-k 16 --engine reference");
  EXPECT_NE(huge.output.find("8192.00 PiB"), std::string::npos) << huge.output;
}

TEST_F(Command, a_missing_driver_is_called_so) {
  if (std::filesystem::exists("/proc/driver/nvidia/version")) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  if (start("info").output.find("hopper") == std::string::npos) {
    GTEST_SKIP() << "this build has no hopper engine";
  }
  for (const char* arguments : {"info", "doctor", "bench --engine hopper --seqlen 16"}) {
    const Outcome outcome = start(arguments);
    EXPECT_NE(outcome.output.find("no NVIDIA driver"), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("insufficient"), std::string::npos) << outcome.output;
  }
}

TEST_F(Command, info_and_doctor_say_what_is_here) {
  const Outcome info = start("info --seqlen 1000 --kv-heads 2 --causal");
  EXPECT_EQ(info.code, kExitOk);
  for (const char* part : {"reference", "Forward plan", "Backward plan", "Workspace",
                           "standard adds", "budget, backward", "dK, dV", "budget, decode step"}) {
    EXPECT_NE(info.output.find(part), std::string::npos) << part;
  }
  const Outcome doctor = start("doctor");
  EXPECT_EQ(doctor.code, kExitOk) << doctor.output;
  EXPECT_NE(doctor.output.find("fa3 works here"), std::string::npos) << doctor.output;
}

TEST_F(Command, info_and_doctor_say_that_an_instruction_set_cannot_be_had) {
  for (const char* command : {"info", "doctor"}) {
    const Outcome wrong = start(command, "2>&1", "FA3_CPU_ISA=avx3 ");
    EXPECT_EQ(wrong.code, kExitOk) << wrong.output;
    EXPECT_NE(wrong.output.find("FA3_CPU_ISA=avx3"), std::string::npos) << wrong.output;
    EXPECT_NE(wrong.output.find("portable"), std::string::npos) << wrong.output;
    const Outcome right = start(command, "2>&1", "FA3_CPU_ISA=portable ");
    EXPECT_EQ(right.output.find("FA3_CPU_ISA"), std::string::npos) << right.output;
  }
}

TEST_F(Command, info_has_the_memory_of_fp8_and_of_quantized_caches) {
  const std::string shape = "info --seqlen 640 --heads 4 --kv-heads 2 ";
  const Outcome fp8 = start(shape + "--dtype e4m3");
  EXPECT_EQ(fp8.code, kExitOk) << fp8.output;
  for (const char* part :
       {"forward (1 bytes an element)", "4 hq * 64 dv * 2", "none: FP8 has no"}) {
    EXPECT_NE(fp8.output.find(part), std::string::npos) << part << "\n" << fp8.output;
  }
  const Outcome cache = start(shape + "--dtype bf16 --kv-dtype e5m2");
  EXPECT_EQ(cache.code, kExitOk) << cache.output;
  for (const char* part : {"hk * (64 d + 64 dv) * 1", "none: FP8 has no", "16 B"}) {
    EXPECT_NE(cache.output.find(part), std::string::npos) << part << "\n" << cache.output;
  }
}

TEST_F(Command, info_and_doctor_name_an_engine_of_the_environment_that_cannot_be_had) {
  for (const char* command : {"info", "doctor"}) {
    const Outcome unknown = start(command, "2>&1", "FA3_ENGINE=gpu ");
    EXPECT_EQ(unknown.code, kExitOk) << unknown.output;
    EXPECT_NE(unknown.output.find("FA3_ENGINE=gpu: expected one of auto, "), std::string::npos)
        << unknown.output;
    const Outcome here = start(command, "2>&1", "FA3_ENGINE=reference ");
    EXPECT_EQ(here.output.find("FA3_ENGINE"), std::string::npos) << here.output;
    if (here.output.find("no NVIDIA driver") == std::string::npos) continue;
    const Outcome absent = start(command, "2>&1", "FA3_ENGINE=hopper ");
    EXPECT_NE(absent.output.find("FA3_ENGINE=hopper: no NVIDIA driver"), std::string::npos)
        << absent.output;
  }
}

// The RMSE of a method in the table that `fa3 fp8` prints.
double rmse_of(const std::string& table, const std::string& method) {
  const size_t at = table.find(method + "  ");
  return at == table.npos ? NAN : std::stod(table.substr(at + method.size()));
}

TEST(Fp8Command, shows_what_each_method_costs) {
  const Outcome outcome = start("fp8 --seqlen 600 --seeds 3 --head-dim 64");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  const double fp16 = rmse_of(outcome.output, " fp16"), bf16 = rmse_of(outcome.output, "bf16"),
               per_tensor = rmse_of(outcome.output, "e4m3, a scale per tensor"),
               papers = rmse_of(outcome.output, "e4m3, per block, Hadamard");
  EXPECT_LE(fp16, rmse_of(outcome.output, "fp16, standard attention")) << outcome.output;
  EXPECT_LT(fp16, bf16 / 4) << outcome.output;
  EXPECT_LT(bf16, papers / 4) << outcome.output;
  EXPECT_LT(papers, per_tensor / 1.4) << outcome.output;
  EXPECT_LT(per_tensor, 0.1) << outcome.output;
}

TEST(Fp8Command, goes_on_to_a_trained_transformer) {
  const Outcome outcome = start("fp8 --seqlen 64 --seeds 1 --head-dim 32 --engine cpu", "2>&1",
                                "cd " FA3_EXAMPLE_DATA "/../.. && ");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  for (const char* data : {"d32", "layer 0", "layer 2", "layer 5"}) {
    const size_t at = outcome.output.find(data);
    ASSERT_NE(at, outcome.output.npos) << outcome.output;
    const std::string table = outcome.output.substr(at);
    EXPECT_LT(rmse_of(table, "e4m3, per block, both"), 0.1) << outcome.output;
  }
}

TEST_F(Command, fp8_takes_files) {
  const Outcome outcome =
      start("fp8 --q " + path("q") + " --k " + path("k") + " --v " + path("v") + " --causal");
  ASSERT_EQ(outcome.code, kExitOk) << outcome.output;
  EXPECT_LT(rmse_of(outcome.output, "e4m3, per block, both"), 0.1) << outcome.output;
  expect_refused("fp8 --q " + path("q"), kExitBadInput, "--q, --k, --v: expected all three");
  expect_refused("fp8 --q " + path("q") + " --k " + path("v") + " --v " + path("v"), kExitBadInput,
                 "k: expected the head dim of q = 16");
}

}  // namespace
}  // namespace fa3::cli
