// SPDX-License-Identifier: Apache-2.0
//
// The edges of the interface (support/edges/edge_call.h): every combination of empty extents, and
// random calls over memory that ends with the tensors. A seed names a failing call: FA3_TEST_SEED
// begins there, FA3_TEST_SECONDS goes on for so long.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "contract/fixture.h"
#include "support/edges/edge_run.h"

namespace fa3::test {
namespace {

class Edges : public EngineTest {
 protected:
  // Calls of a GPU take milliseconds to place.
  void expect_kept(const std::vector<EdgeCall>& calls, int64_t every) const {
    for (size_t i = 0; i < calls.size(); i += static_cast<size_t>(every)) {
      EdgeCall c = calls[i];
      if (engine().memory == FA3_CPU) c.cache_dtype = c.dtype = FA3_FLOAT32;
      EXPECT_EQ(run_edge_call(engine(), c), "") << describe(c);
    }
  }
};
FA3_FOR_EVERY_ENGINE(Edges);

TEST_P(Edges, empty_extents_in_every_combination) {
  expect_kept(empty_calls(), by_effort(23, engine().memory == FA3_CUDA ? 7 : 1, 1));
}

// Where what is mapped has to be filled, few keys: 1500 made 161 MB of each tensor.
TEST_P(Edges, calls_that_once_fell) {
  std::vector<EdgeCall> calls = fallen_calls();
  for (EdgeCall& c : calls) {
    if (engine().memory == FA3_CPU) c.seqlen_k = std::min<int64_t>(c.seqlen_k, 150);
  }
  expect_kept(calls, 1);
}

int64_t number_in(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoll(text, nullptr, 10) : otherwise;
}

TEST_P(Edges, random_calls) {
  using Clock = std::chrono::steady_clock;
  const int64_t first = number_in("FA3_TEST_SEED", 1), count = by_effort(40, 250, 3000);
  const auto until = Clock::now() + std::chrono::seconds(number_in("FA3_TEST_SECONDS", 0));
  for (int64_t i = 0; i < count || Clock::now() < until; ++i) {
    const EdgeCall c = random_edge_call(engine(), static_cast<uint64_t>(first + i));
    ASSERT_EQ(run_edge_call(engine(), c), "") << engine().name << ": " << describe(c);
  }
}

}  // namespace
}  // namespace fa3::test
