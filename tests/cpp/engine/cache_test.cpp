// SPDX-License-Identifier: Apache-2.0
//
// Where keys and values lie changes no bit: pages of any size, other entries, padding on the left.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/fixture.h"
#include "support/cache.h"
#include "support/sample.h"

namespace fa3::test {
namespace {

class Cache : public EngineTest {
 protected:
  // Whether the engine reads caches of this form at all; counts and says why not.
  bool reads(const CacheForm& form) {
    const Case c = dense_case(2, 3, 40, 2, 1, 64, 64, FA3_BFLOAT16);
    const Cached cached = in_cache(c, make_inputs(c), form);
    const std::string reason = refusal(engine(), cached.c, cached.inputs);
    if (reason.empty()) return true;
    leave_out(reason);
    reason_ = reason;
    return false;
  }
  std::string reason_;
};
FA3_FOR_EVERY_ENGINE(Cache);

constexpr int64_t kPageSizes[] = {0, 1, 2, 7, 16, 48, 64, 100, 128, 256, 1000};

Case with_dense_keys(Case c) {
  if (c.k.packed()) {
    const std::vector<int32_t> owned = c.k.owned;
    c.k = {.rows = *std::max_element(owned.begin(), owned.end()), .used = owned};
  }
  return c;
}

TEST_P(Cache, changes_no_bit_of_random_cases) {
  const int rounds = by_effort(2, 6, 30);
  uint64_t seed = 31000;
  for (const int64_t page_size : kPageSizes) {
    for (const bool indexed : {false, true}) {
      for (const bool padded : {false, true}) {
        const CacheForm form{page_size, indexed, padded};
        if (!reads(form)) continue;
        for (int i = 0; i < rounds; ++i) {
          const Case c = with_dense_keys(random_case(engine(), seed++));
          const Inputs inputs = make_inputs(c);
          const Cached cached = in_cache(c, inputs, form);
          const ForwardRun plain = forward(c, inputs);
          const ForwardRun run = forward(cached.c, cached.inputs);
          ASSERT_EQ(run.o.element_bits(), plain.o.element_bits()) << form << "; " << c;
          ASSERT_EQ(run.lse.element_bits(), plain.lse.element_bits()) << form << "; " << c;
        }
      }
    }
  }
  if (!reason_.empty()) GTEST_SKIP() << engine().name << ": " << reason_;
}

// Several tiles, parts of keys, and few rows as well as many.
TEST_P(Cache, changes_no_bit_of_long_sequences) {
  for (const int64_t queries : {1, 5, 200}) {
    for (const int64_t page_size : {1, 16, 100, 256}) {
      const CacheForm form{page_size, true, true};
      if (!reads(form)) continue;
      Case c = dense_case(2, queries, 2900, 4, 2, 64, 72, FA3_BFLOAT16);
      c.causal = true;
      c.k.used = {2900, 1333};
      for (const Case& each : in_each_dtype(c)) {
        const Inputs inputs = make_inputs(each);
        const Cached cached = in_cache(each, inputs, form);
        const ForwardRun plain = forward(each, inputs);
        const ForwardRun run = forward(cached.c, cached.inputs);
        EXPECT_EQ(run.o.element_bits(), plain.o.element_bits()) << form << "; " << each;
      }
    }
  }
  if (!reason_.empty()) GTEST_SKIP() << engine().name << ": " << reason_;
}

// A prefix that two sequences share.
TEST_P(Cache, lets_sequences_share_pages) {
  if (!reads({.page_size = 16})) GTEST_SKIP() << engine().name << ": " << reason_;
  Case c = dense_case(2, 4, 48, 2, 2, 64, 64, FA3_BFLOAT16);
  Inputs inputs = make_inputs(c);
  for (int64_t row = 0; row < 32; ++row) {
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t col = 0; col < 64; ++col) {
        inputs.k.set(1, row, head, col, inputs.k.get(0, row, head, col));
        inputs.v.set(1, row, head, col, inputs.v.get(0, row, head, col));
      }
    }
  }
  Cached cached = in_cache(c, inputs, {.page_size = 16});
  int32_t* second = cached.inputs.page_table.data() + cached.inputs.max_pages;
  std::copy_n(cached.inputs.page_table.begin(), 2, second);
  EXPECT_EQ(forward(cached.c, cached.inputs).o.element_bits(), forward(c, inputs).o.element_bits());
}

// The sequences beside it change no bit of a sequence's result, whatever num_splits is.
TEST_P(Cache, splits_of_a_sequence_do_not_depend_on_the_others) {
  const auto split = [&](const Case& c, const Inputs& inputs, int splits) {
    Case with = c;
    with.num_splits = splits;
    return forward(with, inputs);
  };
  for (const Case& c : in_each_dtype(dense_case(1, 2, 5000, 2, 1, 64, 64))) {
    Case batch = c;
    batch.batch = 3;
    batch.k.used = {17, 5000, 2500};
    if (!does(batch)) continue;
    const Inputs one = make_inputs(c);
    Inputs many = make_inputs(batch);
    for (int64_t row = 0; row < 5000; ++row) {
      for (int64_t col = 0; col < 64; ++col) {
        many.k.set(1, row, 0, col, one.k.get(0, row, 0, col));
        many.v.set(1, row, 0, col, one.v.get(0, row, 0, col));
        if (row >= 2) continue;
        for (int64_t head = 0; head < 2; ++head) {
          many.q.set(1, row, head, col, one.q.get(0, row, head, col));
        }
      }
    }
    for (int splits : {0, 1, 3, 8, 256}) {
      const ForwardRun alone = split(c, one, splits);
      const ForwardRun beside = split(batch, many, splits);
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t col = 0; col < 64; ++col) {
          ASSERT_EQ(alone.o.get(0, 1, head, col), beside.o.get(1, 1, head, col))
              << splits << " splits; " << c;
        }
      }
      Case with = c;
      with.num_splits = splits;
      EXPECT_TRUE(forward_agrees({engine(), with}));
    }
  }
}

}  // namespace
}  // namespace fa3::test
