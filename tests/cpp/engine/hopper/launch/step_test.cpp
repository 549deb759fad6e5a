// SPDX-License-Identifier: Apache-2.0
//
// What a call on a GPU asks of the host: a step of decoding takes a few microseconds there, of
// which every question to the driver, every string and every allocation is a part. And what it
// refuses where the GPU is not what it needs. StreamKRanges on a machine without a GPU
// (counting_runtime.h).
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>

#include "counting_runtime.h"

namespace {
int g_allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace fa3::test {
namespace {

// Addresses alone: nobody reads what lies there.
void* address(int number) {
  return reinterpret_cast<void*>(uintptr_t{0x100000000} * static_cast<uintptr_t>(number + 1));
}

fa3_tensor on_gpu(int number, fa3_dtype dtype, std::initializer_list<int64_t> shape) {
  fa3_tensor tensor = contiguous(address(number), dtype, shape);
  tensor.device_type = FA3_CUDA;
  return tensor;
}

fa3_tensor halves(int number, std::initializer_list<int64_t> shape) {
  return on_gpu(number, FA3_BFLOAT16, shape);
}

// New tokens of sequences whose keys lie in pages, and whose lengths are on the device.
ForwardArgs decoding_step(int64_t sequences = 1, int64_t tokens = 1) {
  ForwardArgs step;
  step.q = halves(0, {sequences, tokens, 64, 128});
  step.k = halves(1, {512, 16, 8, 128});
  step.v = halves(2, {512, 16, 8, 128});
  step.o = halves(3, {sequences, tokens, 64, 128});
  step.page_table = on_gpu(4, FA3_INT32, {sequences, 512});
  step.options.seqused_k = on_gpu(5, FA3_INT32, {sequences});
  step.options.causal = 1;
  return step;
}

ForwardArgs causal_prompt() {
  ForwardArgs prompt;
  prompt.q = halves(0, {1, 4096, 16, 128});
  prompt.k = halves(1, {1, 4096, 16, 128});
  prompt.v = halves(2, {1, 4096, 16, 128});
  prompt.o = halves(3, {1, 4096, 16, 128});
  prompt.options.causal = 1;
  return prompt;
}

ForwardArgs step_on(int device) {
  ForwardArgs step = decoding_step();
  for (fa3_tensor* tensor :
       {&step.q, &step.k, &step.v, &step.o, &step.page_table, &step.options.seqused_k}) {
    tensor->device_index = device;
  }
  return step;
}

fa3_status run(const ForwardArgs& args) {
  return fa3_forward(&args, address(6), size_t{1} << 28, nullptr);
}

// What the second of two equal calls asks for.
CountingRuntime asked_by_another(const ForwardArgs& args) {
  g_cuda = {};
  EXPECT_EQ(run(args), FA3_OK) << fa3_last_error();
  g_cuda = {};
  g_allocations = 0;
  EXPECT_EQ(run(args), FA3_OK) << fa3_last_error();
  EXPECT_EQ(g_allocations, 0);
  EXPECT_EQ(g_cuda.device_counts, 0);
  EXPECT_EQ(g_cuda.function_settings, 0);
  return g_cuda;
}

ForwardArgs over_quantized_cache(ForwardArgs step) {
  step.k = on_gpu(1, FA3_FLOAT8_E4M3, {512, 16, 8, 128});
  step.v = on_gpu(2, FA3_FLOAT8_E4M3, {512, 16, 8, 128});
  return step;
}

// Of one sequence TMA brings K and V, of several it brings Q.
TEST(Step, of_decoding_is_one_launch_with_few_tensor_maps_and_no_allocation) {
  for (const auto& [sequences, tensor_maps] : {std::pair{1, 2}, {8, 1}}) {
    const CountingRuntime asked = asked_by_another(decoding_step(sequences));
    EXPECT_EQ(asked.launches, 1);
    EXPECT_EQ(asked.tensor_maps, tensor_maps) << sequences << " sequences";
    EXPECT_EQ(asked.memsets, 0);
    EXPECT_LE(asked.device_questions, 1);
  }
}

// Of several sequences threads copy all there is. Keys of many query rows are dequantized by
// threads, so the TMA loads them, by two maps each, the second for what lies outside.
TEST(Step, of_decoding_from_a_quantized_cache_is_one_launch_too) {
  for (const auto& [sequences, tokens, tensor_maps] :
       {std::tuple{1, 1, 2}, {8, 1, 0}, {32, 8, 5}}) {
    const CountingRuntime asked =
        asked_by_another(over_quantized_cache(decoding_step(sequences, tokens)));
    EXPECT_EQ(asked.launches, 1);
    EXPECT_EQ(asked.tensor_maps, tensor_maps) << sequences << " sequences, " << tokens << " tokens";
    EXPECT_EQ(asked.memsets, 0);
  }
}

// New tokens of prompts, of 512 keys each. Tiles that all have a CTA at once are found without a
// list: what the plan says of that reaches the launch, which else would count more of them.
TEST(Step, of_few_tokens_of_prompts_is_one_launch_and_of_many_two) {
  for (const auto& [sequences, tokens, launches, thread_blocks] :
       {std::tuple{2, 64, 1, 64u}, {8, 256, 2, 132u}}) {
    ForwardArgs chunk = decoding_step(sequences, tokens);
    chunk.page_table = on_gpu(4, FA3_INT32, {sequences, 32});
    const CountingRuntime asked = asked_by_another(chunk);
    EXPECT_EQ(asked.launches, launches) << sequences << " x " << tokens << " tokens";
    EXPECT_EQ(asked.thread_blocks, thread_blocks) << sequences << " x " << tokens << " tokens";
    EXPECT_EQ(asked.memsets, 0);
  }
}

TEST(Step, of_a_prompt_is_one_launch_with_three_tensor_maps_behind_a_cleared_counter) {
  const CountingRuntime asked = asked_by_another(causal_prompt());
  EXPECT_EQ(asked.launches, 1);
  EXPECT_EQ(asked.tensor_maps, 3);
  EXPECT_EQ(asked.memsets, 1);
}

BackwardArgs training_step(int64_t keys = 2048, int64_t columns = 128, int64_t queries = 2048,
                           int64_t batch = 1) {
  const auto heads = [&](int number, int64_t rows) {
    return halves(number, {batch, rows, 16, columns});
  };
  BackwardArgs args;
  args.q = heads(0, queries), args.k = heads(1, keys), args.v = heads(2, keys);
  args.o = heads(3, queries), args.d_o = heads(4, queries);
  args.lse = on_gpu(5, FA3_FLOAT32, {batch, 16, queries});
  args.dq = heads(7, queries), args.dk = heads(8, keys), args.dv = heads(9, keys);
  return args;
}

TEST(Step, of_training_allocates_nothing) {
  const BackwardArgs args = training_step();
  g_cuda = {};
  for (int call = 0; call < 2; ++call) {
    g_allocations = 0;
    EXPECT_EQ(fa3_backward(&args, address(6), size_t{1} << 28, nullptr), FA3_OK)
        << fa3_last_error();
  }
  EXPECT_EQ(g_allocations, 0);
}

bool plan_says(const BackwardArgs& args, std::string_view text) {
  char words[1024] = "";
  EXPECT_EQ(fa3_backward_plan_text(&args, words, sizeof words, nullptr), FA3_OK)
      << fa3_last_error();
  return std::string_view(words).find(text) != std::string_view::npos;
}
bool is_in_pairs(const BackwardArgs& args) {
  return plan_says(args, " in pairs");
}

TEST(Step, of_training_is_in_pairs_where_the_mask_is_full) {
  EXPECT_TRUE(is_in_pairs(training_step()));
  EXPECT_TRUE(is_in_pairs(training_step(1000)));
  EXPECT_FALSE(is_in_pairs(training_step(1100)));  // nine key blocks
  const auto with = [](auto set) {
    BackwardArgs args = training_step();
    set(args);
    return args;
  };
  EXPECT_TRUE(is_in_pairs(with([](auto& a) { a.options.deterministic = 1; })));
  EXPECT_FALSE(is_in_pairs(with([](auto& a) { a.options.causal = 1; })));
  EXPECT_FALSE(is_in_pairs(with([](auto& a) { a.options.window_left = 100; })));
  EXPECT_FALSE(is_in_pairs(with([](auto& a) { a.options.softcap = 30; })));
  EXPECT_FALSE(is_in_pairs(with([](auto& a) { a.options.dropout_p = 0.1f; })));
  EXPECT_FALSE(is_in_pairs(with([](auto& a) { a.options.seqused_k = on_gpu(6, FA3_INT32, {1}); })));
  EXPECT_FALSE(is_in_pairs(with([](auto& a) {
    a.dk = on_gpu(8, FA3_FLOAT32, {1, 2048, 16, 128});
    a.dv = on_gpu(9, FA3_FLOAT32, {1, 2048, 16, 128});
  })));
}

TEST(Step, of_training_at_64_columns_is_persistent_where_key_blocks_have_few_steps) {
  const auto is_persistent = [](BackwardArgs args) { return plan_says(args, " persistent"); };
  EXPECT_TRUE(is_persistent(training_step(1024, 64, 1024, 16)));
  EXPECT_FALSE(is_persistent(training_step(1024, 64, 1024, 1)));
  EXPECT_FALSE(is_persistent(training_step(1024, 64, 2048, 16)));
  EXPECT_FALSE(is_persistent(training_step(1024, 128, 1024, 16)));
  const auto with = [](int64_t queries, auto set) {
    BackwardArgs args = training_step(1024, 64, queries, 16);
    set(args);
    return args;
  };
  EXPECT_TRUE(is_persistent(with(2048, [](auto& a) { a.options.causal = 1; })));
  EXPECT_FALSE(is_persistent(with(512, [](auto& a) { a.options.deterministic = 1; })));
  EXPECT_FALSE(is_persistent(with(512, [](auto& a) { a.options.window_left = 100; })));
  EXPECT_FALSE(is_persistent(with(512, [](auto& a) { a.options.dropout_p = 0.1f; })));
}

// A serving engine's step without requests, over pages of 8192 keys.
TEST(Step, without_sequences_is_no_launch) {
  ForwardArgs packed = decoding_step(0);
  packed.q = halves(0, {0, 64, 128});
  packed.o = halves(3, {0, 64, 128});
  packed.options.cu_seqlens_q = on_gpu(7, FA3_INT32, {1});
  for (const ForwardArgs& step :
       {decoding_step(0), over_quantized_cache(decoding_step(0)), packed}) {
    g_cuda = {};
    size_t bytes = 1;
    EXPECT_EQ(fa3_forward_workspace_size(&step, &bytes), FA3_OK) << fa3_last_error();
    EXPECT_EQ(bytes, 0u);
    EXPECT_EQ(run(step), FA3_OK) << fa3_last_error();
    EXPECT_EQ(g_cuda.launches, 0);
  }
}

// Rows that no sequence owns are written all the same.
TEST(Step, of_rows_without_sequences_is_launched) {
  ForwardArgs unowned = decoding_step(0);
  unowned.q = halves(0, {5, 64, 128});
  unowned.o = halves(3, {5, 64, 128});
  unowned.options.cu_seqlens_q = on_gpu(7, FA3_INT32, {1});
  g_cuda = {};
  EXPECT_EQ(run(unowned), FA3_OK) << fa3_last_error();
  EXPECT_GT(g_cuda.launches, 0);
}

std::string words_of(const ForwardArgs& args) {
  char words[1024] = "";
  EXPECT_EQ(fa3_forward_plan_text(&args, words, sizeof words, nullptr), FA3_OK) << fa3_last_error();
  return words;
}

TEST(Words, of_a_plan_are_those_of_the_field) {
  const auto expect = [](const ForwardArgs& args, std::initializer_list<const char*> parts) {
    const std::string words = words_of(args);
    for (const char* part : parts) EXPECT_NE(words.find(part), std::string::npos) << words;
  };
  ForwardArgs prompts = decoding_step(2, 64), wide = causal_prompt(), fixed = decoding_step();
  prompts.page_table = on_gpu(4, FA3_INT32, {2, 32});
  wide.v = halves(2, {1, 4096, 16, 304});
  wide.o = halves(3, {1, 4096, 16, 304});
  fixed.num_splits = 5;
  fixed.options.batch_invariant = 1;
  expect(decoding_step(), {"PackGQA heads 8\n", "PackGQA: 8 query heads share a tile",
                           "split-KV: 1 cluster of 8 CTAs per tile"});
  expect(decoding_step(8),
         {"split-KV: stream-K over 256 CTAs, combined in the kernel", "cp.async loads K and V"});
  expect(prompts, {"single wave: one CTA per tile"});
  expect(fixed, {"split-KV: up to 5 splits per tile", "batch-invariant"});
  expect(wide, {"V in 2 launches of 256 columns"});
  expect(over_quantized_cache(decoding_step()), {"Q, K and V become float16 in registers"});
}

// What Hopper's kernels refuse goes to the ampere engine, which says why; so does all that lies on
// another GPU.
TEST(Choice, falls_to_the_ampere_engine_with_the_reason) {
  ForwardArgs odd_strides = causal_prompt();
  odd_strides.k.stride[0] += 1;
  odd_strides.k.stride[1] += 1;
  const std::string words = words_of(odd_strides);
  EXPECT_NE(words.find("engine ampere\n"), std::string::npos) << words;
  EXPECT_NE(words.find("rows are copied by 2 bytes"), std::string::npos) << words;
  EXPECT_NE(words.find("; not hopper: k: "), std::string::npos) << words;
  EXPECT_NE(words_of(step_on(1)).find("; not hopper: cuda:1 has compute capability 8.0"),
            std::string::npos);
  // A step is split over CTAs, and its partial results are merged.
  for (const auto& [args, launches] : {std::pair{odd_strides, 1}, std::pair{step_on(1), 2}}) {
    EXPECT_EQ(run(args), FA3_OK) << fa3_last_error();
    g_cuda = {};
    EXPECT_EQ(run(args), FA3_OK) << fa3_last_error();
    EXPECT_EQ(g_cuda.launches, launches);
    EXPECT_EQ(g_cuda.tensor_maps, 0);
    EXPECT_EQ(g_cuda.device_counts, 0);  // nobody looks for a device to have words
  }
}

TEST(Choice, by_name_is_obeyed) {
  ForwardArgs prompt = causal_prompt();
  prompt.options.engine = FA3_ENGINE_AMPERE;
  const std::string words = words_of(prompt);
  EXPECT_NE(words.find("engine ampere\nkernel forward bfloat16 d128/128"), std::string::npos)
      << words;
  EXPECT_EQ(words.find("not hopper"), std::string::npos) << words;
}

// New tokens over the pages of a batch, by every array that may say where they are.
ForwardArgs many_tokens_of_few_splits() {
  ForwardArgs step = decoding_step(64, 1);
  step.q = halves(0, {8192, 32, 128});
  step.o = halves(3, {8192, 32, 128});
  step.options.cu_seqlens_q = on_gpu(7, FA3_INT32, {65});
  step.num_splits = 4;
  return step;
}

size_t workspace_of(const ForwardArgs& args) {
  size_t bytes = 0;
  EXPECT_EQ(fa3_forward_workspace_size(&args, &bytes), FA3_OK) << fa3_last_error();
  return bytes;
}

// Whatever max_seqlen_q says: four partial results of each row, of those too that the last tile of
// each sequence has in excess.
TEST(Workspace, of_split_packed_queries_grows_with_their_rows) {
  ForwardArgs step = many_tokens_of_few_splits();
  const size_t rows = 8192 + 66 * 128, floats = 4 * rows * 32 * 129;  // columns, and the LSE
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

ForwardArgs in_e4m3(ForwardArgs prompt) {
  for (fa3_tensor* tensor : {&prompt.q, &prompt.k, &prompt.v}) tensor->dtype = FA3_FLOAT8_E4M3;
  return prompt;
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

// The scales' kernel and the forward's, with maps of Q, K, V and O; V in rows takes two that are
// V's.
TEST(Step, of_an_e4m3_prompt_launches_nothing_for_values_that_are_transposed) {
  ForwardArgs prompt = in_e4m3(causal_prompt());
  EXPECT_EQ(asked_by_another(prompt).launches, 3);
  const int64_t strides[] = {4096 * 16 * 128, 1, 4096 * 128, 4096};
  std::copy_n(strides, 4, prompt.v.stride);
  prompt.v_transposed = 1;
  const CountingRuntime asked = asked_by_another(prompt);
  EXPECT_EQ(asked.launches, 2);
  EXPECT_EQ(asked.memsets, 0);
  EXPECT_EQ(asked.tensor_maps, 4);
  EXPECT_NE(words_of(prompt).find("V is given transposed"), std::string::npos);
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
