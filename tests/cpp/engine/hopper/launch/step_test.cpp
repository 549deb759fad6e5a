// SPDX-License-Identifier: Apache-2.0
//
// What a call on a GPU asks of the host: a step of decoding takes a few microseconds there, of
// which every question to the driver, every string and every allocation is a part; and which engine
// and kernels it takes. Runs on a machine without a GPU (counting_runtime.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>

#include "calls_on_gpu.h"
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

// TMA brings K and V of one sequence, and Q of several.
TEST(Step, of_decoding_is_one_launch_with_few_tensor_maps_and_no_allocation) {
  for (const auto& [sequences, tensor_maps] : {std::pair{1, 2}, {8, 1}}) {
    const CountingRuntime asked = asked_by_another(decoding_step(sequences));
    EXPECT_EQ(asked.launches, 1);
    EXPECT_EQ(asked.tensor_maps, tensor_maps) << sequences << " sequences";
    EXPECT_EQ(asked.memsets, 0);
    EXPECT_LE(asked.device_questions, 1);
  }
}

// Threads copy all there is of several sequences. Keys of many query rows are dequantized by
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
  expect(decoding_step(32, 16),
         {"split-KV: stream-K over 128 CTAs, combined by the CTA that opens a tile"});
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

}  // namespace
}  // namespace fa3::test
