// SPDX-License-Identifier: Apache-2.0
//
// Lists of a block mask that were made before the call: what such a call still launches, and which
// lists it refuses. Runs on a machine without a GPU (counting_runtime.h).
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "calls_on_gpu.h"
#include "counting_runtime.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/forward_params.h"

namespace fa3::test {
namespace {

constexpr size_t kListBytes = size_t{1} << 26;
void* const kListMemory = address(20);

fa3_tensor map_of(int64_t queries, int64_t keys) {
  return on_gpu(10, FA3_INT32, {1, 1, (queries + 127) / 128, (keys + 127) / 128});
}

ForwardArgs masked(int64_t queries, int64_t keys, int64_t columns = 128) {
  ForwardArgs args;
  args.q = halves(0, {1, queries, 16, columns}), args.o = halves(3, {1, queries, 16, columns});
  args.k = halves(1, {1, keys, 16, columns}), args.v = halves(2, {1, keys, 16, columns});
  args.options.block_mask = map_of(queries, keys);
  args.options.block_mask_bits = on_gpu(11, FA3_INT32, {3, 128, 4});
  return args;
}

BackwardArgs masked_backward(int64_t queries, int64_t keys) {
  BackwardArgs args;
  args.q = halves(0, {1, queries, 16, 128}), args.k = halves(1, {1, keys, 16, 128});
  args.v = halves(2, {1, keys, 16, 128}), args.o = halves(3, {1, queries, 16, 128});
  args.d_o = halves(4, {1, queries, 16, 128}), args.dq = halves(7, {1, queries, 16, 128});
  args.dk = halves(8, {1, keys, 16, 128}), args.dv = halves(9, {1, keys, 16, 128});
  args.lse = on_gpu(5, FA3_FLOAT32, {1, 16, queries});
  args.options.block_mask = map_of(queries, keys);
  args.options.block_mask_bits = on_gpu(11, FA3_INT32, {3, 128, 4});
  return args;
}

fa3_status called(const ForwardArgs& args) {
  return run(args);
}
fa3_status called(const BackwardArgs& args) {
  return fa3_backward(&args, address(6), size_t{1} << 30, nullptr);
}

template <class Args>
fa3_block_lists lists_for(const Args& args) {
  fa3_block_lists lists{};
  EXPECT_TRUE(make_block_lists(args, kListMemory, kListBytes, nullptr, &lists).ok())
      << fa3_last_error();
  return lists;
}

template <class Args>
size_t list_bytes(const Args& args) {
  size_t bytes = 1;
  EXPECT_TRUE(block_lists_size(args, &bytes).ok()) << fa3_last_error();
  return bytes;
}

template <class Args>
size_t workspace_bytes(const Args& args) {
  size_t bytes = 1;
  EXPECT_TRUE(workspace_size(args, &bytes).ok()) << fa3_last_error();
  return bytes;
}

// What a call asks the runtime for.
template <class Args>
CountingRuntime asked_by(const Args& args) {
  g_cuda = {};
  EXPECT_EQ(called(args), FA3_OK) << fa3_last_error();
  return g_cuda;
}

bool is_in_lists(const void* at) {
  const auto* const begin = static_cast<const char*>(kListMemory);
  return at >= begin && at < begin + kListBytes;
}

// The main kernel's parameters, which alone asks for shared memory, and whether it may begin under
// the end of the one before.
template <class Params>
struct Launched {
  Params params;
  bool pdl = false;
};
template <class Params, class Args>
Launched<Params> main_launch(const Args& args) {
  Launched<Params> found{};
  g_on_launch = [&](const cudaLaunchConfig_t& config, const void* params) {
    if (config.dynamicSmemBytes == 0) return;
    found = {*static_cast<const Params*>(params), false};
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      const auto id = config.attrs[i].id;
      if (id == cudaLaunchAttributeProgrammaticStreamSerialization) found.pdl = true;
    }
  };
  asked_by(args);
  g_on_launch = nullptr;
  return found;
}

// Short maps have one kernel for their lists, others one for lists and one for their ranks.
TEST(ListsMadeBefore, leave_a_forward_one_launch_behind_a_cleared_counter) {
  for (const auto& [rows, list_kernels] : {std::pair{4096, 1}, {8192, 2}}) {
    ForwardArgs args = masked(rows, rows);
    const CountingRuntime without = asked_by(args);
    EXPECT_EQ(without.launches, 1 + list_kernels) << rows;
    EXPECT_EQ(without.memsets, 0);
    g_cuda = {};
    const fa3_block_lists lists = lists_for(args);
    EXPECT_EQ(g_cuda.launches, list_kernels);
    const size_t bytes = workspace_bytes(args);
    args.options.block_lists = &lists;
    const CountingRuntime with = asked_by(args);
    EXPECT_EQ(with.launches, 1) << rows;
    EXPECT_EQ(with.memsets, 1);
    EXPECT_EQ(bytes - workspace_bytes(args), list_bytes(args));
    EXPECT_LT(workspace_bytes(args), 1000u);
    EXPECT_NE(words_of(args).find("lists were made before"), std::string::npos) << words_of(args);
  }
}

TEST(ListsMadeBefore, leave_a_backward_its_three_launches) {
  for (const bool deterministic : {false, true}) {
    for (const auto& [rows, list_kernels] : {std::pair{2048, 1}, {8192, deterministic ? 2 : 3}}) {
      BackwardArgs args = masked_backward(rows, rows);
      args.options.deterministic = deterministic;
      const CountingRuntime without = asked_by(args);
      const fa3_block_lists lists = lists_for(args);
      const size_t bytes = workspace_bytes(args);
      args.options.block_lists = &lists;
      const CountingRuntime with = asked_by(args);
      EXPECT_EQ(without.launches, 3 + list_kernels) << rows;
      EXPECT_EQ(with.launches, 3) << rows;
      EXPECT_EQ(with.memsets, without.memsets);
      EXPECT_EQ(bytes - workspace_bytes(args), list_bytes(args));
    }
  }
}

// So that any number of calls may use one object at a time.
TEST(ListsMadeBefore, are_what_kernels_walk_and_the_counter_stays_in_the_workspace) {
  ForwardArgs forward = masked(4096, 4096);
  const fa3_block_lists lists = lists_for(forward);
  forward.options.block_lists = &lists;
  const auto launched = main_launch<hopper::ForwardParams>(forward);
  EXPECT_TRUE(is_in_lists(launched.params.lists.blocks));
  EXPECT_TRUE(is_in_lists(launched.params.lists.lengths));
  EXPECT_NE(launched.params.tile_counter, nullptr);
  EXPECT_FALSE(is_in_lists(launched.params.tile_counter));
  EXPECT_FALSE(launched.pdl);
  forward.options.block_lists = nullptr;
  const auto own = main_launch<hopper::ForwardParams>(forward);
  EXPECT_FALSE(is_in_lists(own.params.lists.blocks));
  EXPECT_TRUE(own.pdl);

  BackwardArgs backward = masked_backward(4096, 4096);
  const fa3_block_lists columns = lists_for(backward);
  backward.options.block_lists = &columns;
  const auto main = main_launch<hopper::BackwardParams>(backward);
  EXPECT_TRUE(is_in_lists(main.params.lists.blocks));
  EXPECT_TRUE(is_in_lists(main.params.lists.lengths));
}

// A rule beside the map, and a map for each head, take more room; types and head dims none.
TEST(ListsMadeBefore, take_what_their_mask_says) {
  const size_t plain = list_bytes(masked(4096, 4096));
  EXPECT_GT(plain, size_t{32 * 32 * 16});
  EXPECT_EQ(list_bytes(masked(4096, 4096, 64)), plain);
  ForwardArgs causal = masked(4096, 4096);
  causal.options.causal = 1;
  EXPECT_EQ(list_bytes(causal) - plain, size_t{32 * 2 * 2048});  // bits of blocks on the diagonal
  ForwardArgs own = masked(4096, 4096);
  own.options.block_mask = on_gpu(10, FA3_INT32, {1, 16, 32, 32});
  constexpr size_t kNone = 2048;  // bits of a block that nobody sees, which all rows share
  EXPECT_EQ(list_bytes(own) - kNone, 16 * (plain - kNone));
  EXPECT_GT(list_bytes(masked_backward(4096, 4096)), plain);
}

TEST(ListsMadeBefore, serve_calls_of_other_types_and_heads) {
  const fa3_block_lists lists = lists_for(masked(4096, 4096));
  ForwardArgs other = masked(4096, 4096, 64);
  other.k = halves(1, {1, 4096, 4, 64}), other.v = halves(2, {1, 4096, 4, 64});
  for (fa3_tensor* tensor : {&other.q, &other.k, &other.v, &other.o}) tensor->dtype = FA3_FLOAT16;
  other.options.scale = 0.25f;
  other.options.block_lists = &lists;
  EXPECT_EQ(asked_by(other).launches, 1);
}

struct Another {
  const char* word;  // of the sentence
  std::function<void(ForwardArgs*)> change;
};

TEST(ListsMadeBefore, of_another_call_are_refused_with_what_differs) {
  const fa3_block_lists lists = lists_for(masked(4096, 4096));
  const std::vector<Another> others = {
      {"right end of the window", [](ForwardArgs* a) { a->options.causal = 1; }},
      {"left end of the window", [](ForwardArgs* a) { a->options.window_left = 700; }},
      {"attention_chunk", [](ForwardArgs* a) { a->options.attention_chunk = 512; }},
      {"number of queries", [](ForwardArgs* a) { a->q.shape[1] = a->o.shape[1] = 4095; }},
      {"number of keys", [](ForwardArgs* a) { a->k.shape[1] = a->v.shape[1] = 4000; }},
      {"address of block_mask:", [](ForwardArgs* a) { a->options.block_mask.data = address(12); }},
      {"address of block_mask_bits",
       [](ForwardArgs* a) { a->options.block_mask_bits.data = address(12); }},
      {"number of block_mask_bits",
       [](ForwardArgs* a) { a->options.block_mask_bits.shape[0] = 2; }},
      {"key blocks", [](ForwardArgs* a) { a->options.block_mask = map_of(4096, 4200); }},
      {"heads with maps",
       [](ForwardArgs* a) {
         a->options.block_mask = on_gpu(10, FA3_INT32, {1, 16, 32, 32});
       }},
      {"stride of block_mask's rows", [](ForwardArgs* a) { a->options.block_mask.stride[2] = 64; }},
      {"their own", [](ForwardArgs* a) { a->options.seqused_k = on_gpu(13, FA3_INT32, {1}); }},
  };
  for (const Another& other : others) {
    ForwardArgs args = masked(4096, 4096);
    other.change(&args);
    args.options.block_lists = &lists;
    g_cuda = {};
    EXPECT_EQ(called(args), FA3_INVALID_ARGUMENT) << other.word;
    const std::string said = fa3_last_error();
    EXPECT_EQ(said.rfind("block_lists: expected those of a call like this one", 0), 0u) << said;
    EXPECT_NE(said.find(other.word), std::string::npos) << said;
    EXPECT_EQ(g_cuda.launches, 0);
  }
  BackwardArgs backward = masked_backward(4096, 4096);
  for (const int deterministic : {1, 0}) {
    const fa3_block_lists of_it = deterministic ? lists : lists_for(backward);
    backward.options.deterministic = 1;
    backward.options.block_lists = &of_it;
    EXPECT_EQ(called(backward), FA3_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fa3_last_error()).find("another pass"), std::string::npos)
        << fa3_last_error();
    backward.options.deterministic = 0;
    backward.options.block_lists = nullptr;
  }
}

TEST(ListsMadeBefore, of_another_device_are_refused) {
  g_cuda = {};
  g_cuda.all_are_hopper = true;
  const fa3_block_lists lists = lists_for(masked(4096, 4096));
  ForwardArgs args = masked(4096, 4096);
  for (fa3_tensor* tensor : {&args.q, &args.k, &args.v, &args.o, &args.options.block_mask,
                             &args.options.block_mask_bits}) {
    tensor->device_index = 1;
  }
  args.options.block_lists = &lists;
  EXPECT_EQ(called(args), FA3_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fa3_last_error()).find("another device: 0, here 1"), std::string::npos)
      << fa3_last_error();
}

// Which go on as without: nothing has to be asked first.
TEST(ListsMadeBefore, are_none_where_an_engine_or_a_call_has_none_to_keep) {
  ForwardArgs dense = masked(4096, 4096);
  dense.options.block_mask = dense.options.block_mask_bits = {};
  ForwardArgs capped = masked(4096, 4096);
  capped.options.softcap = 20;  // the ampere engine's
  ForwardArgs used = masked(4096, 4096);
  used.options.seqused_k = on_gpu(13, FA3_INT32, {1});
  for (ForwardArgs args : {dense, capped, used}) {
    EXPECT_EQ(list_bytes(args), 0u);
    fa3_block_lists lists{.data = address(14), .made_for = {}};
    EXPECT_TRUE(make_block_lists(args, nullptr, 0, nullptr, &lists).ok()) << fa3_last_error();
    EXPECT_EQ(lists.data, nullptr);
    if (args.options.block_mask.rank == 0) continue;
    const CountingRuntime without = asked_by(args);
    args.options.block_lists = &lists;
    EXPECT_EQ(asked_by(args).launches, without.launches);
  }
}

TEST(ListsMadeBefore, by_one_engine_are_given_to_another_that_makes_none) {
  ForwardArgs args = masked(4096, 4096);
  const fa3_block_lists lists = lists_for(args);
  args.options.block_lists = &lists;
  args.options.engine = FA3_ENGINE_AMPERE;
  EXPECT_EQ(asked_by(args).launches, 1);
}

// As for the size of a workspace.
TEST(ListsMadeBefore, are_asked_for_without_addresses) {
  ForwardArgs args = masked(4096, 4096);
  const fa3_block_lists lists = lists_for(args);
  args.options.block_lists = &lists;
  const size_t bytes = workspace_bytes(args);
  for (fa3_tensor* tensor : {&args.q, &args.k, &args.v, &args.o, &args.options.block_mask,
                             &args.options.block_mask_bits}) {
    tensor->data = nullptr;
  }
  EXPECT_EQ(workspace_bytes(args), bytes);
  args.options.block_lists = nullptr;
  EXPECT_GT(list_bytes(args), 0u);
}

// Only the mask is read.
TEST(ListsMadeBefore, need_no_memory_but_the_masks) {
  ForwardArgs args = masked(4096, 4096);
  args.q.data = args.k.data = args.v.data = args.o.data = nullptr;
  fa3_block_lists lists = lists_for(args);
  ForwardArgs call = masked(4096, 4096);
  call.options.block_lists = &lists;
  EXPECT_EQ(asked_by(call).launches, 1);

  const fa3_block_lists before = lists;
  const auto says = [&](const ForwardArgs& given, void* memory, size_t bytes, fa3_status status,
                        const char* sentence) {
    g_cuda = {};
    EXPECT_EQ(fa3_forward_make_block_lists(&given, memory, bytes, nullptr, &lists), status);
    EXPECT_EQ(std::string(fa3_last_error()).rfind(sentence, 0), 0u) << fa3_last_error();
    EXPECT_EQ(g_cuda.launches, 0);
    EXPECT_EQ(lists.data, before.data);
  };
  says(call, kListMemory, 1, FA3_WORKSPACE_TOO_SMALL, "memory: expected at least ");
  says(call, nullptr, kListBytes, FA3_INVALID_ARGUMENT, "memory: expected ");
  says(call, static_cast<char*>(kListMemory) + 8, kListBytes, FA3_INVALID_ARGUMENT,
       "memory: expected an address aligned to 256");
  says(call, args.options.block_mask.data, kListBytes, FA3_INVALID_ARGUMENT,
       "memory: expected memory of its own, but it overlaps block_mask");
  ForwardArgs hollow = masked(4096, 4096);
  hollow.options.block_mask.data = nullptr;
  says(hollow, kListMemory, kListBytes, FA3_INVALID_ARGUMENT, "block_mask: ");
  hollow = masked(4096, 4096);
  hollow.options.block_mask_bits.data = nullptr;
  says(hollow, kListMemory, kListBytes, FA3_INVALID_ARGUMENT, "block_mask_bits: ");
  EXPECT_EQ(fa3_forward_make_block_lists(&call, kListMemory, kListBytes, nullptr, nullptr),
            FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()).rfind("lists: ", 0), 0u) << fa3_last_error();
  g_cuda = {};
  g_cuda.launch = cudaErrorLaunchOutOfResources;
  EXPECT_EQ(fa3_forward_make_block_lists(&call, kListMemory, kListBytes, nullptr, &lists),
            FA3_DEVICE_ERROR);
  g_cuda = {};
}

// Nothing to do is no launch, and no lists.
TEST(ListsMadeBefore, of_no_queries_are_none) {
  ForwardArgs args = masked(0, 4096);
  EXPECT_EQ(list_bytes(args), 0u);
  const fa3_block_lists lists = lists_for(args);
  EXPECT_EQ(lists.data, nullptr);
  args.options.block_lists = &lists;
  EXPECT_EQ(asked_by(args).launches, 0);
}

}  // namespace
}  // namespace fa3::test
