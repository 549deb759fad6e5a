// SPDX-License-Identifier: Apache-2.0
//
// A call and its device: workspaces and grids follow from its SMs, contexts stay the caller's, and
// a device that is not what kernels need is refused in words. Runs on a machine without a GPU
// (counting_runtime.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "calls_on_gpu.h"
#include "counting_runtime.h"

namespace fa3::test {
namespace {

size_t workspace_of(const ForwardArgs& args) {
  size_t bytes = 0;
  EXPECT_EQ(fa3_forward_workspace_size(&args, &bytes), FA3_OK) << fa3_last_error();
  return bytes;
}

// Whatever max_seqlen_q says: four partial results of each row, of those too that the last tile of
// each sequence has in excess.
TEST(Workspace, of_split_packed_queries_grows_with_their_rows) {
  ForwardArgs step = many_tokens_of_few_splits();
  const size_t rows = 8192 + 66 * 128,
               floats = 4 * rows * 32 * 130;  // columns, a reference and a sum
  EXPECT_LT(workspace_of(step), floats * sizeof(float));
  step.options.batch_invariant = 1;
  EXPECT_LT(workspace_of(step), floats * sizeof(float));
}

// The device of a call is what it says it is: slices of GPUs have few SMs.
TEST(Workspace, and_grids_follow_from_the_sms_of_the_device) {
  constexpr int kSlice = 5;
  for (const auto& [sms, device] : {std::pair{16, kSlice}, {78, kSlice + 1}}) {
    g_cuda = {.devices = kSlice + 2, .all_are_hopper = true, .sms = sms};
    for (ForwardArgs step : {decoding_step(), decoding_step(8), decoding_step(2, 64),
                             causal_prompt(), many_tokens_of_few_splits()}) {
      for (fa3_tensor* tensor : {&step.q, &step.k, &step.v, &step.o, &step.page_table,
                                 &step.options.seqused_k, &step.options.cu_seqlens_q}) {
        tensor->device_index = device;
      }
      EXPECT_EQ(fa3_forward(&step, address(6), size_t{1} << 34, nullptr), FA3_OK)
          << fa3_last_error();
      EXPECT_LE(g_cuda.thread_blocks, 65536u);
    }
  }
  g_cuda = {};
}

// CTAs of the largest attention kernel, which alone asks for shared memory.
unsigned grid_of(ForwardArgs args, int sm_margin) {
  args.options.sm_margin = sm_margin;
  unsigned ctas = 0;
  g_on_launch = [&](const cudaLaunchConfig_t& config, const void*) {
    const unsigned grid = config.gridDim.x * config.gridDim.y * config.gridDim.z;
    if (config.dynamicSmemBytes > 0) ctas = std::max(ctas, grid);
  };
  g_cuda = {};
  EXPECT_EQ(fa3_forward(&args, address(6), size_t{1} << 34, nullptr), FA3_OK) << fa3_last_error();
  g_on_launch = nullptr;
  return ctas;
}

TEST(SmMargin, leaves_sms_to_others) {
  ForwardArgs chunks = decoding_step(8, 256), fixed = decoding_step(2, 64);
  fixed.num_splits = 5;
  for (const ForwardArgs& args : {causal_prompt(), in_e4m3(causal_prompt()), chunks}) {
    EXPECT_EQ(grid_of(args, 0), 132u);
    EXPECT_EQ(grid_of(args, 20), 112u);
    EXPECT_EQ(grid_of(args, 131), 1u);
  }
  for (const ForwardArgs& args :
       {decoding_step(), decoding_step(8), decoding_step(2, 64), fixed, many_tokens_of_few_splits(),
        over_quantized_cache(decoding_step()), over_quantized_cache(decoding_step(32, 8))}) {
    for (const int free : {1, 2, 3, 7, 32, 100}) {
      const unsigned ctas = grid_of(args, 132 - free);
      EXPECT_GE(ctas, 1u);
      EXPECT_LE(ctas, 2u * unsigned(free)) << "two CTAs share an SM at most";
    }
  }
  g_cuda = {};
}

// A plan is that of a device with as many SMs as are left.
TEST(SmMargin, plans_as_for_a_smaller_device) {
  constexpr int kSmaller = 8;
  for (ForwardArgs step : {decoding_step(), decoding_step(8), causal_prompt()}) {
    step.options.sm_margin = 32;
    const std::string words = words_of(step);
    g_cuda = {.devices = kSmaller + 1, .all_are_hopper = true, .sms = 100};
    step.options.sm_margin = 0;
    for (fa3_tensor* tensor :
         {&step.q, &step.k, &step.v, &step.o, &step.page_table, &step.options.seqused_k}) {
      tensor->device_index = kSmaller;
    }
    EXPECT_EQ(words_of(step), words);
    g_cuda = {};
  }
}

TEST(SmMargin, of_batch_invariant_calls_changes_no_split) {
  ForwardArgs step = decoding_step(8);
  step.num_splits = 5;
  step.options.batch_invariant = 1;
  const std::string words = words_of(step);
  step.options.sm_margin = 100;
  EXPECT_EQ(words_of(step), words);
}

// A context that a caller has made, or that stands for some of the SMs (green contexts).
TEST(Context, of_the_caller_stays_and_the_work_runs_in_it) {
  for (const void* context : {primary_context(0), callers_context()}) {
    g_cuda = {};
    g_cuda.context = context;
    EXPECT_EQ(run(decoding_step()), FA3_OK) << fa3_last_error();
    EXPECT_EQ(g_cuda.context_of_launch, context);
    EXPECT_EQ(g_cuda.context, context);
  }
}

TEST(Context, of_another_device_is_current_again_behind_the_call) {
  constexpr int kOther = 9;
  for (const void* context : {primary_context(0), callers_context()}) {
    g_cuda = {.devices = kOther + 1, .all_are_hopper = true, .context = context};
    EXPECT_EQ(run(step_on(kOther)), FA3_OK) << fa3_last_error();
    EXPECT_EQ(g_cuda.context_of_launch, primary_context(kOther));
    EXPECT_EQ(g_cuda.context, context);
  }
}

// A thread that has used no GPU yet.
TEST(Context, of_a_thread_without_one_is_the_devices_primary_one) {
  g_cuda = {};
  EXPECT_EQ(run(decoding_step()), FA3_OK) << fa3_last_error();
  EXPECT_EQ(g_cuda.context_of_launch, primary_context(0));
}

constexpr int kUnknown = 7;  // a device that nobody has asked about before

class Refused : public testing::Test {
 protected:
  void SetUp() override { g_cuda = {}; }

  // In these words, and no error is left behind for the caller's own CUDA code.
  static testing::AssertionResult is_refused(const ForwardArgs& args, fa3_status status,
                                             const char* words) {
    if (run(args) != status || std::string(fa3_last_error()).find(words) == std::string::npos) {
      return testing::AssertionFailure() << fa3_last_error();
    }
    if (g_cuda.last_error != cudaSuccess) return testing::AssertionFailure() << "an error is left";
    return testing::AssertionSuccess();
  }
};

TEST_F(Refused, without_a_driver) {
  g_cuda.driver = cudaErrorInsufficientDriver;
  EXPECT_TRUE(is_refused(step_on(kUnknown), FA3_UNSUPPORTED, "hopper: no NVIDIA driver"));
}

TEST_F(Refused, without_a_gpu) {
  g_cuda.driver = cudaErrorNoDevice;
  EXPECT_TRUE(is_refused(step_on(kUnknown), FA3_UNSUPPORTED, "hopper: no NVIDIA GPU"));
}

TEST_F(Refused, on_a_gpu_of_another_kind) {
  EXPECT_TRUE(is_refused(step_on(2), FA3_UNSUPPORTED,
                         "hopper: cuda:2 has compute capability 7.0; the kernels need 9.0; ampere: "
                         "cuda:2 has compute capability 7.0; the kernels need 8.0 or later"));
}

TEST_F(Refused, without_an_sm_that_is_left) {
  for (ForwardArgs args : {decoding_step(), in_e4m3(causal_prompt())}) {
    args.options.sm_margin = 132;
    EXPECT_TRUE(is_refused(args, FA3_UNSUPPORTED,
                           "sm_margin: expected fewer than the 132 SMs of cuda:0, got 132"));
  }
}

TEST_F(Refused, on_a_device_that_there_is_not) {
  EXPECT_TRUE(is_refused(step_on(3), FA3_UNSUPPORTED, "hopper: cuda:3: invalid device ordinal"));
}

TEST_F(Refused, by_the_launch) {
  g_cuda.launch = cudaErrorLaunchOutOfResources;
  EXPECT_TRUE(is_refused(decoding_step(), FA3_DEVICE_ERROR, "hopper forward: too many resources"));
  EXPECT_EQ(std::string(fa3_last_error()).find("free"), std::string::npos);
  g_cuda.free_bytes = size_t{100} << 20;
  EXPECT_TRUE(is_refused(decoding_step(), FA3_DEVICE_ERROR, "the GPU has 100 MiB of 81920 free"));
}

// What was remembered of a device does not outlive a reset of it.
TEST(Reset, of_a_device_is_noticed_and_kernels_get_their_shared_memory_again) {
  g_cuda = {};
  EXPECT_EQ(run(decoding_step()), FA3_OK);
  g_cuda = {.smem_allowed = false};
  EXPECT_EQ(run(decoding_step()), FA3_OK) << fa3_last_error();
  EXPECT_EQ(g_cuda.launches, 2);
  EXPECT_EQ(g_cuda.function_settings, 2);  // shared memory, and clusters of any size
  EXPECT_EQ(g_cuda.last_error, cudaSuccess);
}

}  // namespace
}  // namespace fa3::test
