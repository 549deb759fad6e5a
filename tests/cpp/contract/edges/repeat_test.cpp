// SPDX-License-Identifier: Apache-2.0
//
// What must not change a single bit: running again, other threads, other layouts, the neighbours in
// the batch, other calls at the same time.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "contract/fixture.h"
#include "support/runs/sample.h"

namespace fa3::test {
namespace {

class Bitwise : public EngineTest {
 protected:
  void expect_same(const ForwardRun& got, const ForwardRun& want, const Case& c) const {
    ASSERT_TRUE(bits_equal("o", got.o, want.o)) << c;
    ASSERT_TRUE(bits_equal("lse", got.lse, want.lse)) << c;
  }
  void expect_same(const Runs& got, const Runs& want, const Case& c) const {
    expect_same(got.forward, want.forward, c);
    if (!got.backward || !want.backward) return;
    ASSERT_TRUE(bits_equal("dq", got.backward->dq, want.backward->dq)) << c;
    ASSERT_TRUE(bits_equal("dk", got.backward->dk, want.backward->dk)) << c;
    ASSERT_TRUE(bits_equal("dv", got.backward->dv, want.backward->dv)) << c;
    ASSERT_TRUE(bits_equal("dsink", got.backward->dsink, want.backward->dsink)) << c;
  }

  // Decode, grouped heads, many tiles, many rows of one key head, packed lengths; with every
  // feature, and with few.
  std::vector<Case> cases() {
    Case square = dense_case(2, 200, 260, 4, 2, 64, 64, FA3_BFLOAT16);
    square.causal = true;
    Case decode = dense_case(1, 1, 3000, 4, 1, 64, 48, FA3_FLOAT16);
    Case decode_sink = dense_case(1, 1, 3000, 4, 1, 64, 48);
    decode_sink.sink = true;
    Case window = dense_case(1, 333, 333, 2, 2, 40, 72, FA3_FLOAT16);
    window.left = 50;
    window.right = 7;
    window.softcap = 15;
    Case one_key_head = dense_case(2, 260, 700, 4, 1, 32, 48, FA3_BFLOAT16);
    one_key_head.left = 50;
    one_key_head.right = 0;
    Case one_head = dense_case(1, 1030, 300, 1, 1, 16, 24);
    one_head.causal = true;
    Case packed = dense_case(4, 0, 0, 6, 3, 32, 32);
    packed.q = {.owned = {1, 70, 0, 129}, .spare_rows = 2};
    packed.k = {.owned = {300, 70, 5, 64}, .spare_rows = 1};
    packed.causal = true;
    std::vector<Case> done;
    for (const Case& c : {square, decode, decode_sink, window, one_key_head, one_head, packed}) {
      if (does(c)) done.push_back(c);
    }
    return done;
  }

  // Batch-invariant ones equal a packed batch of one, and their gradients too.
  void expect_sequences_equal_alone(const Case& packed) {
    const Inputs inputs = make_inputs(packed);
    const ForwardRun together = forward(packed, inputs);
    std::optional<BackwardRun> gradients;
    if (packed.batch_invariant && does_backward(packed)) {
      gradients = backward(packed, inputs, together);
    }
    for (int64_t b = 0; b < packed.batch; ++b) {
      const Sequence q_at = packed.sequence_q(b), k_at = packed.sequence_k(b);
      Case alone = packed;
      alone.batch = 1;
      const auto one = [&](int64_t rows) {
        return packed.batch_invariant ? Side{.owned = {int32_t(rows)}} : Side{.rows = rows};
      };
      alone.q = one(q_at.used);
      alone.k = one(k_at.used);
      Inputs mine = make_inputs(alone);
      const auto copy = [](const Tensor& from, int64_t first, Tensor* to) {
        for (int64_t row = 0; row < to->shape().rows; ++row) {
          for (int64_t head = 0; head < to->shape().heads; ++head) {
            for (int64_t c = 0; c < to->shape().dim; ++c) {
              to->set(0, row, head, c, from.get(0, first + row, head, c));
            }
          }
        }
      };
      copy(inputs.q, q_at.first, &mine.q);
      copy(inputs.k, k_at.first, &mine.k);
      copy(inputs.v, k_at.first, &mine.v);
      copy(inputs.d_o, q_at.first, &mine.d_o);
      const auto expect_rows = [&](const char* name, const Tensor& got, const Tensor& all,
                                   const Sequence& at) {
        Tensor want = got;
        copy(all, at.first, &want);
        ASSERT_TRUE(bits_equal(name, got, want)) << packed << " sequence " << b;
      };
      const ForwardRun run = forward(alone, mine);
      expect_rows("o", run.o, together.o, q_at);
      if (!gradients) continue;
      const BackwardRun own = backward(alone, mine, run);
      expect_rows("dq", own.dq, gradients->dq, q_at);
      expect_rows("dk", own.dk, gradients->dk, k_at);
      expect_rows("dv", own.dv, gradients->dv, k_at);
    }
  }
};
FA3_FOR_EVERY_ENGINE(Bitwise);

// Parts of their tiles are combined.
TEST_P(Bitwise, a_repeated_call_of_few_causal_heads_gives_the_same_bits) {
  const int64_t rows = by_effort(200, 1200, 1900);
  Case c = dense_case(1, rows, rows + 90, 2, 1, 128, 128, FA3_BFLOAT16);
  c.causal = true;
  if (!does(c)) return;
  const Inputs inputs = make_inputs(c);
  const Runs first = both(c, inputs);
  for (int repeat = 0; repeat < by_effort(1, 2, 100); ++repeat) {
    expect_same(both(c, inputs), first, c);
  }
}

TEST_P(Bitwise, a_repeated_call_gives_the_same_bits) {
  for (Case c : cases()) {
    c.num_threads = 3;
    const Inputs inputs = make_inputs(c);
    const Runs first = both(c, inputs);
    for (int repeat = 0; repeat < by_effort(2, 5, 100); ++repeat) {
      expect_same(both(c, inputs), first, c);
    }
  }
}

// As users of flash_attn rely on. GPUs split the steps of few key blocks, and of groups of heads.
TEST_P(Bitwise, dk_and_dv_repeat_without_deterministic) {
  const int64_t rows = by_effort(150, 2048, 2048);
  Case few = dense_case(1, rows, rows, 1, 1, 128, 128, FA3_BFLOAT16);
  Case causal = dense_case(1, rows, rows, 3, 3, 128, 128, FA3_FLOAT16);
  causal.causal = true;
  Case group = dense_case(1, 500, 700, 14, 2, 128, 128, FA3_BFLOAT16);
  group.causal = true;
  // Somewhat more key blocks than SMs: 60 x 4 at a head dim that is not a kernel's.
  Case wave = dense_case(by_effort(2, 12, 60), by_effort(64, 256, 1024), by_effort(64, 256, 1024),
                         4, 4, 160, 160, FA3_FLOAT16);
  for (const Case& c : {few, causal, group, wave}) {
    if (!does(c) || !does_backward(c)) continue;
    const Inputs inputs = make_inputs(c);
    const ForwardRun run = forward(c, inputs);
    const BackwardRun first = backward(c, inputs, run, false);
    for (int repeat = 0; repeat < by_effort(1, 3, 100); ++repeat) {
      const BackwardRun again = backward(c, inputs, run, false);
      ASSERT_TRUE(bits_equal("dk", again.dk, first.dk)) << c;
      ASSERT_TRUE(bits_equal("dv", again.dv, first.dv)) << c;
    }
  }
}

TEST_P(Bitwise, the_number_of_threads_does_not_matter) {
  for (Case c : cases()) {
    c.num_threads = 1;
    const Inputs inputs = make_inputs(c);
    const Runs one = both(c, inputs);
    for (int num_threads : {2, 3, 8, 0}) {
      c.num_threads = num_threads;
      expect_same(both(c, inputs), one, c);
    }
  }
}

TEST_P(Bitwise, the_layout_in_memory_does_not_matter) {
  for (Case c : cases()) {
    const Inputs inputs = make_inputs(c);
    const Runs want = both(c, inputs);
    for (Layout layout : {Layout::bhsd, Layout::padded, Layout::spaced, Layout::qkv}) {
      c.in = c.out = layout;
      if (does(c)) expect_same(both(c, make_inputs(c)), want, c);
    }
  }
}

Tensor batch_entry(const Tensor& tensor, int64_t b) {
  Shape shape = tensor.shape();
  shape.batch = 1;
  Tensor entry(shape, tensor.dtype());
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t c = 0; c < shape.dim; ++c) {
        entry.set(0, row, head, c, tensor.get(b, row, head, c));
      }
    }
  }
  return entry;
}

TEST_P(Bitwise, neighbours_in_the_batch_do_not_matter_to_the_forward) {
  for (const auto& [seqlen_q, seqlen_k] : {std::pair{150, 150}, {1, 2500}, {5, 700}, {70, 1}}) {
    Case c = dense_case(7, seqlen_q, seqlen_k, 4, 2, 64, 64, FA3_BFLOAT16);
    c.causal = true;
    // Where rows share SMs, the number of parts that keys are cut into follows the batch,
    // unless it is given.
    if (!engine().rows_apart) c.num_splits = 2;
    if (!does(c)) continue;
    const Inputs inputs = make_inputs(c);
    const ForwardRun together = forward(c, inputs);
    Case alone = c;
    alone.batch = 1;
    for (int64_t b : {0, 3, 6}) {
      const Inputs mine{.q = batch_entry(inputs.q, b),
                        .k = batch_entry(inputs.k, b),
                        .v = batch_entry(inputs.v, b),
                        .d_o = {},
                        .sink = {},
                        .cu_q = {},
                        .cu_k = {}};
      const ForwardRun run = forward(alone, mine);
      ASSERT_TRUE(bits_equal("o", run.o, batch_entry(together.o, b))) << c << " entry " << b;
      ASSERT_TRUE(bits_equal("lse", run.lse, batch_entry(together.lse, b))) << c << " entry " << b;
    }
  }
}

TEST_P(Bitwise, a_packed_sequence_equals_the_same_sequence_alone) {
  if (!engine().rows_apart)
    GTEST_SKIP() << "its tiles follow the batch, but in batch-invariant calls";
  Case packed = dense_case(3, 0, 0, 4, 2, 40, 40);
  packed.q = {.owned = {33, 1, 80}};
  packed.k = {.owned = {65, 900, 80}};
  packed.causal = true;
  for (const Case& c : in_each_dtype(packed)) expect_sequences_equal_alone(c);
}

// A decoding row, a short and a long sequence: side by side they would have other tiles than alone.
TEST_P(Bitwise, of_batch_invariant_calls_no_sequence_knows_of_those_beside_it) {
  Case packed = dense_case(4, 0, 0, 8, 2, 64, 64, FA3_BFLOAT16);
  const int32_t rows = by_effort(140, 500, 500), keys = by_effort(600, 2100, 2100);
  packed.q = {.owned = {1, 70, rows, 3}, .spare_rows = 2};
  packed.k = {.owned = {keys - 100, 70, rows + 200, keys}, .spare_rows = 1};
  packed.causal = true;
  packed.batch_invariant = true;
  std::vector<Case> all = {packed, packed, packed};
  all[1].dim = all[1].dim_v = 128;
  all[2].left = 300;
  all[2].softcap = 20;
  for (Case& c : all) {
    for (const int num_splits : {0, 3, 20}) {
      c.num_splits = num_splits;
      if (does(c)) expect_sequences_equal_alone(c);
    }
  }
}

// The thread sanitizer watches this one.
TEST_P(Bitwise, calls_of_several_host_threads_do_not_disturb_each_other) {
  const std::vector<Case> all = cases();
  std::vector<Inputs> inputs;
  std::vector<Runs> want;
  for (const Case& c : all) {
    inputs.push_back(make_inputs(c));
    want.push_back(both(c, inputs.back()));
  }
  std::vector<std::thread> hosts;
  for (size_t host = 0; host < 4; ++host) {
    hosts.emplace_back([&, host] {
      for (size_t turn = 0; turn < by_effort<size_t>(4, 8, 40); ++turn) {
        const size_t i = (host + turn) % all.size();
        Runs got{.forward = forward(all[i], inputs[i]), .backward = {}};
        if (want[i].backward) got.backward = backward(all[i], inputs[i], got.forward);
        expect_same(got, want[i], all[i]);
      }
    });
  }
  for (std::thread& host : hosts) host.join();
}

}  // namespace
}  // namespace fa3::test
