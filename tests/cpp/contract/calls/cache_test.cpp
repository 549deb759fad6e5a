// SPDX-License-Identifier: Apache-2.0
//
// Where keys and values lie changes no bit: pages of any size, other entries, padding on the left.
// Where an engine has other tiles for other memory, it changes no more than roundings.
#include <gtest/gtest.h>

#include <algorithm>

#include "contract/fixture.h"
#include "support/cases/cache.h"
#include "support/cases/fp8.h"
#include "support/oracle/textbook.h"
#include "support/runs/sample.h"

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
  void expect_the_same(const Cached& cached, const Case& c, const Inputs& inputs) const {
    const ForwardRun run = forward(cached.c, cached.inputs);
    if (!engine().rows_apart) {
      const Case plain = dequantized(c);
      const Inputs plain_inputs = dequantized(c, inputs);
      EXPECT_TRUE(forward_agrees({engine(), c}, textbook_forward(plain, plain_inputs), run,
                                 run_forward(baseline(), plain, plain_inputs)));
      return;
    }
    const ForwardRun plain = forward(c, inputs);
    EXPECT_TRUE(bits_equal("o", run.o, plain.o));
    EXPECT_TRUE(bits_equal("lse", run.lse, plain.lse));
  }
  std::string reason_;
};
FA3_FOR_EVERY_ENGINE(Cache);

constexpr int64_t kPageSizes[] = {0, 1, 2, 7, 16, 48, 64, 100, 128, 256, 1000};

Case with_dense_keys(Case c) {
  if (c.k.packed()) {
    const std::vector<int32_t> owned = c.k.owned;
    c.k = {.rows = c.k.longest(), .used = owned};
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
          expect_the_same(in_cache(c, inputs, form), c, inputs);
          ASSERT_FALSE(HasFailure()) << form << "; " << c;
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
        expect_the_same(in_cache(each, inputs, form), each, inputs);
        ASSERT_FALSE(HasFailure()) << form << "; " << each;
      }
    }
  }
  if (!reason_.empty()) GTEST_SKIP() << engine().name << ": " << reason_;
}

// Under queries of any type; the scales belong to sequences, wherever their rows are.
TEST_P(Cache, changes_no_bit_of_quantized_keys) {
  for (const int64_t queries : {1, 70}) {
    for (const int64_t page_size : {0, 1, 16, 100}) {
      const CacheForm form{page_size, true, page_size != 16};
      Case c = dense_case(2, queries, 700, 4, 2, 64, 64, FA3_BFLOAT16);
      c.fp8 = {.kv = true,
               .e5m2 = page_size == 1 || page_size == 100,
               .k = Scales::head,
               .v = Scales::tensor};
      c.k.used = {700, 333};
      for (const Case& each : in_each_dtype(c)) {
        const Inputs inputs = make_inputs(each);
        const Cached cached = in_cache(each, inputs, form);
        const std::string reason = refusal(engine(), cached.c, cached.inputs);
        if (!reason.empty()) {
          leave_out(reason);
          reason_ = reason;
          continue;
        }
        expect_the_same(cached, each, inputs);
        ASSERT_FALSE(HasFailure()) << form << "; " << each;
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
  expect_the_same(cached, c, inputs);
}

// Numbers that lead out of the cache: nobody looks at them in device memory, and nothing is read
// there. Keys and values of a page that does not exist are zeros; an entry that does not exist has
// no keys.
TEST_P(Cache, contains_tables_that_lead_out_of_it) {
  if (engine().memory == FA3_CPU) GTEST_SKIP() << engine() << ": host tables are validated";
  if (!reads({.page_size = 16, .indexed = true})) GTEST_SKIP() << engine() << ": " << reason_;
  for (const int64_t queries : {1, 70}) {
    for (int splits : {0, 3}) {
      Case c = dense_case(3, queries, 640, 4, 2, 64, 64, FA3_BFLOAT16);
      c.num_splits = splits;
      Inputs inputs = make_inputs(c);
      Cached cached = in_cache(c, inputs, {.page_size = 16, .indexed = true});
      std::vector<int32_t>& table = cached.inputs.page_table;
      const auto pages_of = [&](size_t b) {
        return table.begin() + cached.inputs.batch_index[b] * cached.inputs.max_pages;
      };
      const int32_t wrong[] = {-1, 1 << 30, INT32_MIN};
      for (int at = 0; at < 3; ++at) pages_of(0)[at * 7] = wrong[at];
      for (int64_t row = 0; row < 640; ++row) {
        if (row / 16 % 7 != 0 || row / 16 > 14) continue;
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t col = 0; col < 64; ++col) {
            inputs.k.set(0, row, head, col, 0);
            inputs.v.set(0, row, head, col, 0);
          }
        }
      }
      cached.inputs.batch_index[1] = 1 << 30;
      Case without = c;
      without.k.used = {640, 0, 640};
      const ForwardRun run = forward(cached.c, cached.inputs);
      EXPECT_TRUE(forward_agrees({engine(), without}, textbook_forward(without, inputs), run,
                                 run_forward(baseline(), without, inputs)))
          << queries << " queries, " << splits << " splits";
    }
  }
}

// The sequences beside it change no bit of a sequence's result, whatever num_splits is.
TEST_P(Cache, splits_of_a_sequence_do_not_depend_on_the_others) {
  const auto split = [&](const Case& c, const Inputs& inputs, int splits) {
    Case with = c;
    with.num_splits = splits;
    return forward(with, inputs);
  };
  Case alone_in_call = dense_case(1, 2, 5000, 2, 1, 64, 64);
  alone_in_call.k.used = {5000};
  for (const Case& c : in_each_dtype(alone_in_call)) {
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
      if (splits == 0 && !engine().rows_apart) continue;  // then it divides the work of all
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
