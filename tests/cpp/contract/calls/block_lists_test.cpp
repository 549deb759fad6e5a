// SPDX-License-Identifier: Apache-2.0
//
// Lists of a block mask that were made before the calls: the bits of every result are those of
// calls that make them, beside rules and score functions, from several streams at once, again and
// again.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "contract/fixture.h"

namespace fa3::test {
namespace {

class BlockLists : public EngineTest {
 protected:
  // Maps of each way to make lists: short ones, long ones, of heads, of sequences; with rules.
  // Engines of the CPU make none, so that one is enough there.
  std::vector<Case> cases() {
    Case plain = masked(dense_case(2, 600, 900, 4, 2, 64, 64));
    Case heads = masked(dense_case(2, 260, 390, 6, 2, 128, 128));
    heads.mask.by_sequence = heads.mask.by_head = true;
    Case causal = masked(dense_case(1, 700, 911, 2, 1, 128, 128));
    causal.causal = true;
    Case window = masked(dense_case(1, 1000, 1000, 2, 2, 64, 64));
    window.left = 300;
    window.right = 40;
    Case shifted = masked(dense_case(1, 500, 700, 2, 1, 96, 96));
    shifted.right = 0;
    shifted.shift = -1;
    Case many = masked(dense_case(1, 4300, 4200, 2, 2, 64, 64), 0.7, 0.1);
    many.causal = true;
    Case one_query = masked(dense_case(2, 1, 700, 4, 1, 64, 64));
    Case few = masked(dense_case(1, 140, 200, 2, 1, 32, 32));
    few.causal = true;
    std::vector<Case> wanted{few};
    if (engine().memory == FA3_CUDA) {
      wanted = {few, plain, heads, causal, window, shifted, many, one_query};
    }
    std::vector<Case> all;
    for (const Case& c : wanted) {
      for (const Case& typed : in_each_dtype(c)) all.push_back(typed);
    }
    return all;
  }

  static Case masked(Case c, double hidden = 0.4, double partial = 0.3) {
    c.mask = {.on = true, .hidden = hidden, .partial = partial};
    return c;
  }
};
FA3_FOR_EVERY_ENGINE(BlockLists);

TEST_P(BlockLists, made_before_a_forward_change_no_bit) {
  for (const Case& c : cases()) {
    const Inputs inputs = make_inputs(c);
    const ForwardRun own = forward(c, inputs);
    const ForwardRun given = run_forward(engine(), c, inputs, Lists::made_before);
    EXPECT_EQ(given.problem, "") << c;
    EXPECT_TRUE(bits_equal("o", given.o, own.o)) << c;
    EXPECT_TRUE(bits_equal("lse", given.lse, own.lse)) << c;
  }
}

TEST_P(BlockLists, made_before_a_deterministic_backward_change_no_bit) {
  for (const Case& c : cases()) {
    if (!does_backward(c)) continue;
    const Inputs inputs = make_inputs(c);
    const ForwardRun at = forward(c, inputs);
    const BackwardRun own = backward(c, inputs, at);
    const BackwardRun given = run_backward(engine(), c, inputs, at, true, Lists::made_before);
    EXPECT_EQ(given.problem, "") << c;
    EXPECT_TRUE(bits_equal("dq", given.dq, own.dq)) << c;
    EXPECT_TRUE(bits_equal("dk", given.dk, own.dk)) << c;
    EXPECT_TRUE(bits_equal("dv", given.dv, own.dv)) << c;
  }
}

// Sums of dQ come in any order there; those of keys in that of their lists, as without.
TEST_P(BlockLists, made_before_a_backward_in_any_order_change_no_bit_of_dk_and_dv) {
  for (const Case& c : cases()) {
    if (!does_backward(c)) continue;
    const Inputs inputs = make_inputs(c);
    const ForwardRun at = forward(c, inputs);
    const BackwardRun own = run_backward(engine(), c, inputs, at, false);
    const BackwardRun given = run_backward(engine(), c, inputs, at, false, Lists::made_before);
    EXPECT_EQ(own.problem, "") << c;
    EXPECT_EQ(given.problem, "") << c;
    EXPECT_TRUE(bits_equal("dk", given.dk, own.dk)) << c;
    EXPECT_TRUE(bits_equal("dv", given.dv, own.dv)) << c;
  }
}

// A call of its own stream and workspace; all have one object with lists.
struct Caller {
  Tensor o, lse;
  fa3_forward_params params;
  void* workspace = nullptr;
  size_t bytes = 0;
  fa3_status status = FA3_OK;

  explicit Caller(const Case& c)
      : o(c.o_shape(), c.o_dtype(), c.out), lse(c.lse_shape(), FA3_FLOAT32, c.out) {}
};

TEST_P(BlockLists, serve_calls_on_several_streams_at_once) {
  // The stream of each thread, in CUDA's words; engines of the CPU ignore it.
  void* const stream_of_thread = reinterpret_cast<void*>(uintptr_t{2});
  for (const Case& c : cases()) {
    const Inputs inputs = make_inputs(c);
    const ForwardRun own = forward(c, inputs);
    std::vector<Caller> callers(2, Caller(c));
    Placement placement(engine().memory);
    fa3_block_lists lists{};
    Caller& first = callers[0];
    first.params = forward_params(engine().id, c, inputs, first.o, first.lse);
    place(c, inputs, &first.o, &first.lse, &placement, &first.params);
    size_t bytes = 0;
    ASSERT_EQ(fa3_forward_block_lists_size(&first.params, &bytes), FA3_OK) << fa3_last_error();
    ASSERT_EQ(fa3_forward_make_block_lists(&first.params, placement.workspace(bytes), bytes,
                                           nullptr, &lists),
              FA3_OK)
        << fa3_last_error();
    for (Caller& caller : callers) {
      if (&caller != &first) {
        caller.params = first.params;
        caller.params.o = view_of(c.q, caller.o);
        caller.params.lse = lse_view(c.q, caller.lse);
        placement.output(&caller.o, &caller.params.o);
        placement.output(&caller.lse, &caller.params.lse);
      }
      caller.params.options.block_lists = &lists;
      ASSERT_EQ(fa3_forward_workspace_size(&caller.params, &caller.bytes), FA3_OK);
      caller.workspace = placement.workspace(caller.bytes);
    }
    std::vector<std::thread> threads;
    for (Caller& caller : callers) {
      threads.emplace_back([&caller, stream_of_thread] {
        for (int i = 0; i < 20 && caller.status == FA3_OK; ++i) {
          caller.status =
              fa3_forward(&caller.params, caller.workspace, caller.bytes, stream_of_thread);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(placement.fetch(), "") << c;
    for (const Caller& caller : callers) {
      EXPECT_EQ(caller.status, FA3_OK) << c;
      EXPECT_TRUE(bits_equal("o", caller.o, own.o)) << c;
      EXPECT_TRUE(bits_equal("lse", caller.lse, own.lse)) << c;
    }
  }
}

// Both passes of a call, from lists of memory that lies elsewhere each time: nothing of the lists
// stays with what was made of them before.
TEST_P(BlockLists, made_again_elsewhere_give_the_same_bits) {
  Case c = masked(dense_case(1, 500, 800, 2, 1, 64, 64, FA3_BFLOAT16));
  if (!does(c)) return;
  const Inputs inputs = make_inputs(c);
  const ForwardRun one = run_forward(engine(), c, inputs, Lists::made_before);
  const ForwardRun two = run_forward(engine(), c, inputs, Lists::made_before);
  EXPECT_EQ(one.problem + two.problem, "");
  EXPECT_TRUE(bits_equal("o", one.o, two.o));
}

}  // namespace
}  // namespace fa3::test
