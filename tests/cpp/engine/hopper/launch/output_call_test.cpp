// SPDX-License-Identifier: Apache-2.0
// A call with an output gate or max_logit, from the C ABI to its launches, on a machine without a
// GPU (counting_runtime.h): what the kernels are given, and what is refused.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "calls_on_gpu.h"
#include "counting_runtime.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/forward_params.h"

namespace fa3::test {
namespace {

using hopper::ForwardParams, cuda::Gate, cuda::GateType;

fa3_tensor heads(int number, fa3_dtype dtype = FA3_BFLOAT16, int64_t columns = 128) {
  return on_gpu(number, dtype, {2, 1000, 4, columns});
}

struct OutputCall : testing::Test {
  OutputCall() {
    setenv("FA3_CACHE_DIR", "", 1);
    g_cuda = {};
    args.q = heads(0), args.k = heads(1), args.v = heads(2), args.o = heads(3);
    g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
      launches.push_back({config.dynamicSmemBytes > 0, params});
      if (config.dynamicSmemBytes > 0) given = *static_cast<const ForwardParams*>(params);
    };
  }
  ~OutputCall() override {
    unsetenv("FA3_CACHE_DIR");
    g_on_launch = nullptr;
  }
  std::string refusal() {
    EXPECT_NE(fa3_forward_supported(&args), FA3_OK);
    return fa3_last_error();
  }

  struct Launched {
    bool is_forward;
    const void* params;
  };
  std::vector<Launched> launches;
  ForwardParams given{};
  ForwardArgs args;
};

// Kernels are compiled at run time.
#define FA3_RUN_OR_SKIP(args)                                           \
  if (const fa3_status status = run(args); status == FA3_UNSUPPORTED) { \
    GTEST_SKIP() << fa3_last_error();                                   \
  } else {                                                              \
    ASSERT_EQ(status, FA3_OK) << fa3_last_error();                      \
  }

TEST_F(OutputCall, GivesTheKernelItsGateAndClearedMaxLogits) {
  args.gate = heads(7, FA3_FLOAT32);
  args.max_logit = on_gpu(8, FA3_FLOAT32, {2, 4});
  args.options.scale = 0.25f;
  FA3_RUN_OR_SKIP(args);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_FALSE(launches[0].is_forward) << "clears";
  const auto& [gate, max_logit] = given.outputs;
  EXPECT_EQ(max_logit.data, address(8));
  EXPECT_EQ(max_logit.at(1, 2), static_cast<float*>(address(8)) + 6);
  EXPECT_EQ(max_logit.scale, 0.25f);
  EXPECT_EQ(gate.logits.data, address(7));
  EXPECT_EQ(gate.logits.columns, 128);
  EXPECT_EQ(gate.logits.strides.row, 4 * 128);
  EXPECT_EQ(gate.kind, Gate::kPairs);
  EXPECT_EQ(gate.type, GateType::kFp32);
}

TEST_F(OutputCall, SaysInItsPlanThatItsKernelIsCompiledAtRunTime) {
  EXPECT_EQ(words_of(args).find("compiled at run time"), std::string::npos);
  args.gate = heads(7);
  args.max_logit = on_gpu(8, FA3_FLOAT32, {2, 4});
  const std::string words = words_of(args);
  EXPECT_NE(words.find("gate max logit"), std::string::npos) << words;
  EXPECT_NE(words.find("compiled at run time"), std::string::npos) << words;
}

TEST_F(OutputCall, IsCompiledForTheAmpereEngineToo) {
  args.options.engine = FA3_ENGINE_AMPERE;
  args.gate = heads(7);
  args.max_logit = on_gpu(8, FA3_FLOAT32, {2, 4});
  const std::string words = words_of(args);
  EXPECT_NE(words.find("gate max logit"), std::string::npos) << words;
  EXPECT_NE(words.find("compiled at run time"), std::string::npos) << words;
  fa3_score_function score{};
  score.text = "return score;";
  args.options.score = &score;
  args.max_logit = {};
  EXPECT_NE(refusal().find("a score function beside an output gate"), std::string::npos)
      << fa3_last_error();
}

// The kernel that merges the splits multiplies by the gate: theirs is built.
TEST_F(OutputCall, GatesSplitsOfTheAmpereEngineWhereTheyAreMerged) {
  args.options.engine = FA3_ENGINE_AMPERE;
  args.num_splits = 3;
  args.gate = heads(7);
  EXPECT_EQ(words_of(args).find("compiled at run time"), std::string::npos);
}

TEST_F(OutputCall, IsRefusedBesideWhatItsKernelsDoNotKnow) {
  args.gate = heads(7);
  fa3_score_function score{};
  score.text = "return score;";
  args.options.score = &score;
  args.options.engine = FA3_ENGINE_HOPPER;
  EXPECT_NE(refusal().find("a score function beside an output gate"), std::string::npos)
      << fa3_last_error();
  args = in_e4m3(causal_prompt());
  args.options.engine = FA3_ENGINE_HOPPER;
  args.max_logit = on_gpu(8, FA3_FLOAT32, {1, 16});
  EXPECT_EQ(fa3_forward_supported(&args), FA3_OK) << fa3_last_error();
  args.k_mean = on_gpu(9, FA3_FLOAT32, {1, 16, 128});
  EXPECT_NE(refusal().find("k_mean beside max_logit"), std::string::npos) << fa3_last_error();
}

struct GatedBackward : testing::Test {
  GatedBackward() {
    g_cuda = {};
    args.q = heads(0), args.k = heads(1), args.v = heads(2), args.o = heads(3);
    args.d_o = heads(4);
    args.lse = on_gpu(5, FA3_FLOAT32, {2, 4, 1000});
    args.dq = heads(7), args.dk = heads(8), args.dv = heads(9);
  }
  ~GatedBackward() override {
    g_on_launch = nullptr;
    g_on_map = nullptr;
  }
  size_t workspace_bytes() const {
    size_t bytes = 0;
    EXPECT_EQ(fa3_backward_workspace_size(&args, &bytes), FA3_OK) << fa3_last_error();
    return bytes;
  }

  BackwardArgs args;
};

TEST_F(GatedBackward, ReadsTheGatedGradientFromTheWorkspace) {
  const size_t without = workspace_bytes();
  args.gate = heads(10), args.d_gate = heads(11);
  constexpr size_t kBytes = size_t{2} * 1000 * 4 * 128 * 2;
  const size_t bytes = workspace_bytes();
  EXPECT_GE(bytes, without + kBytes);
  cuda::GateRows rows{};
  int launches = 0;
  g_on_launch = [&](const cudaLaunchConfig_t&, const void* params) {
    if (launches++ > 0) return;
    const auto& p = *static_cast<const hopper::GatedPreprocessParams*>(params);
    rows = p.gate;
    EXPECT_EQ(p.rows.d_o.data, address(4)) << "of D";
  };
  std::vector<uintptr_t> maps;
  g_on_map = [&](const MappedBytes& map) { maps.push_back(map.begin); };
  ASSERT_EQ(fa3_backward(&args, address(6), bytes, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(launches, 3);
  EXPECT_EQ(rows.gate.logits.data, address(10));
  EXPECT_EQ(rows.d_gate.data, address(11));
  EXPECT_TRUE(rows.in_vectors);
  const auto d_a = reinterpret_cast<uintptr_t>(rows.d_a.data);
  const auto workspace = reinterpret_cast<uintptr_t>(address(6));
  EXPECT_TRUE(workspace <= d_a && d_a + kBytes <= workspace + bytes);
  EXPECT_NE(std::ranges::find(maps, d_a), maps.end()) << "the main kernel's dO";
  EXPECT_EQ(std::ranges::find(maps, reinterpret_cast<uintptr_t>(address(4))), maps.end());
}

TEST_F(GatedBackward, TakesGatesOfAnyAlignmentAndNoGradient) {
  args.gate = heads(10);
  args.gate.data = static_cast<char*>(args.gate.data) + 2;
  cuda::GateRows rows{};
  int launches = 0;
  g_on_launch = [&](const cudaLaunchConfig_t&, const void* params) {
    if (launches++ == 0) rows = static_cast<const hopper::GatedPreprocessParams*>(params)->gate;
  };
  ASSERT_EQ(fa3_backward(&args, address(6), workspace_bytes(), nullptr), FA3_OK)
      << fa3_last_error();
  EXPECT_FALSE(rows.in_vectors);
  EXPECT_EQ(rows.d_gate.data, nullptr);
}

// Their kernel has no preprocess.
TEST_F(GatedBackward, OfShortSequencesIsThreeKernels) {
  args.q = halves(0, {320, 4, 128}), args.o = halves(2, {320, 4, 128});
  args.d_o = halves(3, {320, 4, 128}), args.dq = halves(4, {320, 4, 128});
  args.k = halves(7, {320, 4, 128}), args.v = halves(8, {320, 4, 128});
  args.dk = halves(9, {320, 4, 128}), args.dv = halves(10, {320, 4, 128});
  args.lse = on_gpu(5, FA3_FLOAT32, {4, 320});
  args.options.cu_seqlens_q = on_gpu(11, FA3_INT32, {11});
  args.options.cu_seqlens_k = on_gpu(11, FA3_INT32, {11});
  args.options.max_seqlen_q = args.options.max_seqlen_k = 32;
  const auto words = [&] {
    char text[1024] = "";
    EXPECT_EQ(fa3_backward_plan_text(&args, text, sizeof text, nullptr), FA3_OK)
        << fa3_last_error();
    return std::string(text);
  };
  EXPECT_NE(words().find("a tile holds a whole sequence"), std::string::npos) << words();
  args.gate = halves(12, {320, 4, 128});
  EXPECT_EQ(words().find("a tile holds a whole sequence"), std::string::npos) << words();
  EXPECT_NE(words().find("preprocess applies the gate"), std::string::npos) << words();
}

}  // namespace
}  // namespace fa3::test
