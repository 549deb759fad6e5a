// SPDX-License-Identifier: Apache-2.0
// A call with a score function, from the C ABI to its launch, on a machine without a GPU
// (counting_runtime.h): what is refused, and what the kernel is given.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "counting_runtime.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/launch/launch_forward.h"

namespace fa3::test {
namespace {

fa3_tensor on_gpu(int number) {
  void* address = reinterpret_cast<void*>(uintptr_t{0x100000000} * uintptr_t(number + 1));
  return contiguous(address, FA3_BFLOAT16, {2, 1000, 4, 128}, {FA3_CUDA, 0});
}

struct ScoredCall : testing::Test {
  ScoredCall() {
    setenv("FA3_CACHE_DIR", "", 1);
    g_cuda = {};
    slopes.data = reinterpret_cast<const void*>(uintptr_t{0x7000});
    slopes.rank = 1;
    slopes.shape[0] = 4;
    slopes.stride[0] = 3;
    score.text = "return score + load<float, 0>(h) * (kv_idx - q_idx);";
    score.tensors = &slopes;
    score.num_tensors = 1;
    args.q = on_gpu(0);
    args.k = on_gpu(1);
    args.v = on_gpu(2);
    args.o = on_gpu(3);
    args.options.score = &score;
  }
  ~ScoredCall() override {
    unsetenv("FA3_CACHE_DIR");
    g_on_launch = nullptr;
  }
  std::string refusal() {
    EXPECT_NE(fa3_forward_supported(&args), FA3_OK);
    return fa3_last_error();
  }

  fa3_captured_tensor slopes{};
  fa3_score_function score{};
  ForwardArgs args;
};

TEST_F(ScoredCall, IsOneLaunchThatKnowsTheCapturedTensors) {
  fa3::hopper::ScoredForwardParams given{};
  g_on_launch = [&](const cudaLaunchConfig_t&, const void* params) {
    given = *static_cast<const fa3::hopper::ScoredForwardParams*>(params);
  };
  void* workspace = reinterpret_cast<void*>(uintptr_t{0x900000000});
  const fa3_status status = fa3_forward(&args, workspace, size_t{1} << 28, nullptr);
  if (status == FA3_UNSUPPORTED) GTEST_SKIP() << fa3_last_error();
  ASSERT_EQ(status, FA3_OK) << fa3_last_error();
  EXPECT_EQ(g_cuda.launches, 1);
  EXPECT_EQ(given.score.captures.tensors[0].data, slopes.data);
  EXPECT_EQ(given.score.captures.tensors[0].extent[0], 4);
  EXPECT_EQ(given.score.captures.tensors[0].stride[0], 3);
  EXPECT_FLOAT_EQ(given.forward.scale_log2, 0.08838835f);  // 128^-0.5: natural scores
  EXPECT_TRUE(given.forward.output.some_rows_see_no_key);
}

TEST_F(ScoredCall, OfOneTokenOverPagesIsOneLaunchOfADecodeKernel) {
  int32_t* const numbers = reinterpret_cast<int32_t*>(uintptr_t{0x9000});
  args.q = contiguous(on_gpu(0).data, FA3_BFLOAT16, {2, 1, 4, 128}, {FA3_CUDA, 0});
  args.o = contiguous(on_gpu(3).data, FA3_BFLOAT16, {2, 1, 4, 128}, {FA3_CUDA, 0});
  args.k = contiguous(on_gpu(1).data, FA3_BFLOAT16, {600, 16, 4, 128}, {FA3_CUDA, 0});
  args.v = contiguous(on_gpu(2).data, FA3_BFLOAT16, {600, 16, 4, 128}, {FA3_CUDA, 0});
  args.page_table = contiguous(numbers, FA3_INT32, {2, 256}, {FA3_CUDA, 0});
  args.options.seqused_k = contiguous(numbers, FA3_INT32, {2}, {FA3_CUDA, 0});
  fa3::hopper::ScoredForwardParams given{};
  unsigned threads = 0;
  g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
    threads = config.blockDim.x;
    given = *static_cast<const fa3::hopper::ScoredForwardParams*>(params);
  };
  void* workspace = reinterpret_cast<void*>(uintptr_t{0x900000000});
  const fa3_status status = fa3_forward(&args, workspace, size_t{1} << 28, nullptr);
  if (status == FA3_UNSUPPORTED) GTEST_SKIP() << fa3_last_error();
  ASSERT_EQ(status, FA3_OK) << fa3_last_error();
  EXPECT_EQ(g_cuda.launches, 1);
  EXPECT_EQ(threads, 256u);
  EXPECT_EQ(given.score.captures.tensors[0].data, slopes.data);
  EXPECT_EQ(given.forward.paged.table, numbers);
  EXPECT_FLOAT_EQ(given.forward.scale_log2, 0.08838835f);
}

TEST_F(ScoredCall, IsRefusedWithWhatItCannotDo) {
  args.options.softcap = 5;
  EXPECT_NE(refusal().find("softcap: expected 0 with a score function"), std::string::npos);
  args.options.softcap = 0;
  score.num_tensors = 9;
  EXPECT_NE(refusal().find("expected 0 to 8 captured tensors, got 9"), std::string::npos);
  score.num_tensors = 1;
  slopes.shape[0] = 0;
  EXPECT_NE(refusal().find("expected extents of 1 to 2^31 - 1"), std::string::npos);
  slopes.shape[0] = 4;
  score.text = nullptr;
  EXPECT_NE(refusal().find("expected a text"), std::string::npos);
  score.text = "return score;";
  args.options.engine = FA3_ENGINE_AMPERE;
  EXPECT_EQ(fa3_forward_supported(&args), FA3_OK) << fa3_last_error();
  args.options.dropout_p = 0.5f;
  EXPECT_NE(refusal().find("no kernel for dropout beside a score function"), std::string::npos);
  args.options.engine = FA3_ENGINE_HOPPER;
  EXPECT_EQ(fa3_forward_supported(&args), FA3_OK) << fa3_last_error();
}

struct ScoredGradients : ScoredCall {
  ScoredGradients() {
    backward.q = args.q;
    backward.k = args.k;
    backward.v = args.v;
    backward.o = backward.d_o = args.o;
    backward.dq = on_gpu(4);
    backward.dk = on_gpu(5);
    backward.dv = on_gpu(6);
    backward.lse = contiguous(on_gpu(7).data, FA3_FLOAT32, {2, 4, 1000}, {FA3_CUDA, 0});
    backward.options.score = &score;
    slopes.gradient = reinterpret_cast<float*>(uintptr_t{0x8000});
    score.gradients = "add_for_tile<0>(gradient * (kv_idx - q_idx), h);";
  }
  std::string refusal() {
    EXPECT_NE(fa3_backward_supported(&backward), FA3_OK);
    return fa3_last_error();
  }

  BackwardArgs backward;
};

TEST_F(ScoredGradients, AreThreeLaunchesOfWhichOneKnowsTheCapturedTensors) {
  int launches = 0;
  fa3::hopper::ScoredBackwardParams given{};
  g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
    if (++launches == 2) given = *static_cast<const fa3::hopper::ScoredBackwardParams*>(params);
    if (launches == 2) EXPECT_EQ(config.blockDim.x, 512u);
  };
  void* workspace = reinterpret_cast<void*>(uintptr_t{0x900000000});
  const fa3_status status = fa3_backward(&backward, workspace, size_t{1} << 28, nullptr);
  if (status == FA3_UNSUPPORTED) GTEST_SKIP() << fa3_last_error();
  ASSERT_EQ(status, FA3_OK) << fa3_last_error();
  EXPECT_EQ(launches, 3);
  EXPECT_EQ(given.score.captures.tensors[0].data, slopes.data);
  EXPECT_EQ(given.score.captures.tensors[0].stride[0], 3);
  EXPECT_EQ(given.score.gradients[0].data, slopes.gradient);
  EXPECT_EQ(given.score.gradients[0].stride[0], 1);
  EXPECT_FLOAT_EQ(given.score.scale, 0.08838835f);
  EXPECT_FLOAT_EQ(given.main.scale_log2, 1.4426950f);  // of natural scores
}

TEST_F(ScoredGradients, GoWithDropoutWhereTheSlopeIsOne) {
  backward.options.dropout_p = 0.5f;
  backward.options.engine = FA3_ENGINE_HOPPER;
  EXPECT_EQ(fa3_backward_supported(&backward), FA3_OK) << fa3_last_error();
  score.slope = "return 0.5f * score;";
  EXPECT_NE(refusal().find("gradients with dropout_p beside a score function"), std::string::npos);
  score.slope = nullptr;
  backward.options.engine = FA3_ENGINE_AMPERE;
  EXPECT_NE(refusal().find("no kernel for dropout beside a score function"), std::string::npos);
}

TEST_F(ScoredGradients, WalkListsWhateverTheSlope) {
  int32_t* const map = reinterpret_cast<int32_t*>(uintptr_t{0x9000});
  backward.options.block_mask = contiguous(map, FA3_INT32, {1, 1, 8, 8}, {FA3_CUDA, 0});
  for (const char* slope : {static_cast<const char*>(nullptr), "return 0.5f * score;"}) {
    score.slope = slope;
    fa3::hopper::ScoredBackwardParams given{};
    bool found = false;
    g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
      if (config.blockDim.x != 512) return;
      given = *static_cast<const fa3::hopper::ScoredBackwardParams*>(params);
      found = true;
    };
    void* workspace = reinterpret_cast<void*>(uintptr_t{0x900000000});
    const fa3_status status = fa3_backward(&backward, workspace, size_t{1} << 28, nullptr);
    if (status == FA3_UNSUPPORTED) GTEST_SKIP() << fa3_last_error();
    ASSERT_EQ(status, FA3_OK) << fa3_last_error();
    EXPECT_TRUE(found && given.main.lists.lengths != nullptr);
    EXPECT_EQ(given.score.gradients[0].data, slopes.gradient);
  }
}

// Beside lists of 64 columns other calls have persistent CTAs.
TEST_F(ScoredGradients, OfListsHaveACtaForEachKeyBlock) {
  const auto of_64_columns = [](int number) {
    return contiguous(on_gpu(number).data, FA3_BFLOAT16, {8, 1000, 32, 64}, {FA3_CUDA, 0});
  };
  int number = 0;
  for (fa3_tensor* tensor : {&backward.q, &backward.k, &backward.v, &backward.o, &backward.d_o,
                             &backward.dq, &backward.dk, &backward.dv}) {
    *tensor = of_64_columns(number++);
  }
  backward.lse = contiguous(on_gpu(8).data, FA3_FLOAT32, {8, 32, 1000}, {FA3_CUDA, 0});
  int32_t* const map = reinterpret_cast<int32_t*>(uintptr_t{0x9000});
  backward.options.block_mask = contiguous(map, FA3_INT32, {1, 1, 8, 8}, {FA3_CUDA, 0});
  for (const fa3_score_function* function : {&score, static_cast<fa3_score_function*>(nullptr)}) {
    backward.options.score = function;
    unsigned ctas = 0;
    g_on_launch = [&](const cudaLaunchConfig_t& config, const void*) {
      if (config.blockDim.x == 512) ctas = config.gridDim.x;
    };
    void* workspace = reinterpret_cast<void*>(uintptr_t{0x9000000000});
    const fa3_status status = fa3_backward(&backward, workspace, size_t{1} << 33, nullptr);
    if (status == FA3_UNSUPPORTED) GTEST_SKIP() << fa3_last_error();
    ASSERT_EQ(status, FA3_OK) << fa3_last_error();
    EXPECT_EQ(ctas == 8 * 32 * 8, function != nullptr) << ctas;
  }
}

TEST_F(ScoredGradients, WalkListsThatWereMadeBefore) {
  int32_t* const map = reinterpret_cast<int32_t*>(uintptr_t{0x9000});
  void* const memory = reinterpret_cast<void*>(uintptr_t{0xa00000000});
  void* const workspace = reinterpret_cast<void*>(uintptr_t{0x900000000});
  backward.options.block_mask = contiguous(map, FA3_INT32, {1, 1, 8, 8}, {FA3_CUDA, 0});
  fa3_block_lists lists{};
  ASSERT_EQ(fa3_backward_make_block_lists(&backward, memory, 1 << 24, nullptr, &lists), FA3_OK)
      << fa3_last_error();
  EXPECT_EQ(lists.data, memory);
  backward.options.block_lists = &lists;
  int launches = 0;
  const void* walked = nullptr;
  g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
    ++launches;
    if (config.blockDim.x != 512) return;
    walked = static_cast<const fa3::hopper::ScoredBackwardParams*>(params)->main.lists.lengths;
  };
  const fa3_status status = fa3_backward(&backward, workspace, size_t{1} << 28, nullptr);
  if (status == FA3_UNSUPPORTED) GTEST_SKIP() << fa3_last_error();
  ASSERT_EQ(status, FA3_OK) << fa3_last_error();
  EXPECT_EQ(launches, 3);
  EXPECT_GE(walked, memory);
}

TEST_F(ScoredGradients, AreRefusedWithWhatTheyCannotDo) {
  backward.options.deterministic = 1;
  EXPECT_NE(refusal().find("captured tensors in one order"), std::string::npos) << refusal();
  backward.options.deterministic = 0;
  score.gradients = nullptr;
  EXPECT_NE(refusal().find("expected the text `gradients`"), std::string::npos) << refusal();
  slopes.gradient = nullptr;
  EXPECT_EQ(fa3_backward_supported(&backward), FA3_OK) << fa3_last_error();
}

TEST_F(ScoredGradients, OfAFunctionWithASlopeWalkListsOfOneLengthAlone) {
  int32_t* const map = reinterpret_cast<int32_t*>(uintptr_t{0x9000});
  backward.options.block_mask = contiguous(map, FA3_INT32, {1, 1, 8, 8}, {FA3_CUDA, 0});
  backward.options.seqused_k = contiguous(map, FA3_INT32, {2}, {FA3_CUDA, 0});
  backward.options.engine = FA3_ENGINE_HOPPER;
  EXPECT_EQ(fa3_backward_supported(&backward), FA3_OK) << fa3_last_error();
  score.gradients = "add_for_tile<0>(gradient * score, h);";
  score.gradients_use_score = 1;
  EXPECT_NE(refusal().find("block_mask and lengths of sequences"), std::string::npos) << refusal();
  score.slope = "return 0.5f * score;";
  score.gradients = nullptr;
  slopes.gradient = nullptr;
  EXPECT_NE(refusal().find("block_mask and lengths of sequences"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace fa3::test
