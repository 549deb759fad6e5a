// SPDX-License-Identifier: Apache-2.0
//
// Calls at the edges (support/edges/edge_call.h) on a machine without a GPU: questions are answered
// for the call, no grid is empty, and no tensor map ends outside of its tensor.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "counting_runtime.h"
#include "support/deadline.h"
#include "support/edges/edge_run.h"

namespace fa3::test {
namespace {

constexpr EngineUnderTest kHopper{.name = "hopper", .id = FA3_ENGINE_HOPPER, .memory = FA3_CUDA};

// Addresses alone, each far from all others: nobody reads what lies there.
class Addresses {
 public:
  std::byte* take(size_t bytes) {
    constexpr uintptr_t kApart = uintptr_t{1} << 36;
    next_ += kApart;
    ends_[next_] = next_ + bytes;
    return reinterpret_cast<std::byte*>(next_);
  }

  // Whether the last byte that a map reaches lies in a tensor. A clipped map begins a tile before
  // its tensor; its twin, for boxes outside, begins with it, and no box of it has a row inside.
  bool hold(const MappedBytes& map) const {
    if (map.is_clipped && ends_.contains(map.begin)) return true;
    const auto after = ends_.upper_bound(map.end - 1);
    return after != ends_.begin() && map.end <= std::prev(after)->second;
  }

 private:
  uintptr_t next_ = 0;
  std::map<uintptr_t, uintptr_t> ends_;  // by where they begin
};

std::string run_counted(const EdgeCall& call) {
  g_cuda = {};
  Addresses addresses;
  std::string problem;
  g_on_map = [&](const MappedBytes& map) {
    if (!addresses.hold(map)) problem = "a tensor map reaches past the end of its tensor";
  };
  constexpr int kSeconds = 60;
  const Deadline deadline(describe(call), kSeconds);
  PlacedCall placed(call, kHopper,
                    [&](size_t bytes, size_t, const std::byte*) { return addresses.take(bytes); });
  const std::string answers = placed.run(false);
  g_on_map = nullptr;
  return answers.empty() ? problem : answers;
}

TEST(CountedEdges, of_empty_extents_in_every_combination) {
  for (const EdgeCall& call : empty_calls()) EXPECT_EQ(run_counted(call), "") << describe(call);
}

TEST(CountedEdges, of_calls_that_once_fell) {
  for (const EdgeCall& call : fallen_calls()) EXPECT_EQ(run_counted(call), "") << describe(call);
}

TEST(CountedEdges, of_random_calls) {
  const char* first = std::getenv("FA3_TEST_SEED");
  const uint64_t seed = first != nullptr ? std::strtoull(first, nullptr, 10) : 1;
  for (uint64_t i = 0; i < 4000; ++i) {
    const EdgeCall call = random_edge_call(kHopper, seed + i);
    ASSERT_EQ(run_counted(call), "") << describe(call);
  }
}

// Every counter that a CTA may wait for is cleared, whatever the lists of tiles hold.
TEST(CountedEdges, of_packed_deterministic_gradients_clear_their_counters) {
  EdgeCall call = fallen_calls().front();
  for (const auto& [deterministic, memsets] : {std::pair{true, 1}, {false, 0}}) {
    call.deterministic = deterministic;
    ASSERT_EQ(run_counted(call), "");
    EXPECT_EQ(g_cuda.memsets, memsets);
  }
}

}  // namespace
}  // namespace fa3::test
