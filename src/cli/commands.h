// SPDX-License-Identifier: Apache-2.0
//
// The subcommands: what each receives, and its work, which throws CommandError to end with anything
// but exit code 0. How they are typed: command_line.cpp.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/bench_cases.h"
#include "cli/call/operands.h"
#include "cli/flags.h"

namespace fa3::cli {

struct RunFlags {
  std::string q, k, v, sink, d_o;           // read
  std::string out, lse, dq, dk, dv, dsink;  // written
  std::string layout = "bshd";
  std::string dtype;
  bool backward = false;
  EngineFlags engine;
  MaskFlags mask;
};
void run_files(const RunFlags& flags);

struct VerifyFlags {
  EngineFlags engine;
  std::vector<std::string> dtypes = kDtypeNames;
  bool quick = false, full = false;
};
void run_verify(const VerifyFlags& flags);

struct BenchFlags {
  SweepFlags sweep;
  std::string layout = "bshd";
  int repeats = 0;
  std::string json;
};
void run_bench(const BenchFlags& flags);

struct InfoFlags {
  Shape shape;
  std::string dtype = "fp32";
  std::string kv_dtype;  // of a quantized cache; empty: like dtype
  bool sink = false;
  EngineFlags engine;
  MaskFlags mask;
};
void run_info(const InfoFlags& flags, bool with_shape);

struct Fp8Flags {
  std::string q, k, v;  // read; empty: data with outliers
  std::vector<int64_t> head_dim = {64, 128, 256};
  int64_t seqlen = 4096, heads = 1;
  int seeds = 10;
  EngineFlags engine;
  MaskFlags mask;
};
void run_fp8(const Fp8Flags& flags);

struct DemoFlags {
  std::string data;  // empty: examples/data, or what is installed beside the command
  int64_t seqlen = 16384;
  std::string dtype = "fp32";
  EngineFlags engine;
};
void run_demo(const DemoFlags& flags);

void run_doctor();

}  // namespace fa3::cli
