// SPDX-License-Identifier: Apache-2.0
//
// Rules about lanes and clusters, each in a small program that keeps it and in one that does not.
#include <gtest/gtest.h>

#include "engine/hopper/ptx/cluster.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "many_orders.h"

namespace fa3::hopper {
namespace {

using namespace machine;

constexpr uint32_t kPlace = machine::kSmemBase, kOther = kPlace + 1024;
constexpr char kMeet[] = "lanes of one warp meet in different instructions";
constexpr char kClusters[] = "the cluster's barrier";

void copy(uint32_t to) {
  ptx::cp_async_16(to, nullptr, false);
  ptx::cp_async_commit_group();
}
void load(uint32_t from) {
  uint32_t words[4];
  ptx::ld_shared_b32x4(from, words);
}

TEST(Lanes, read_each_others_copies_after_the_copiers_wait_and_a_syncwarp) {
  enum class Between { kAll, kNoWait, kNoSync, kShuffle };
  const auto program = [](Between between) {
    return [between] {
      if (ptx::lane() == 3) copy(kPlace);
      if (ptx::lane() == 3 && between != Between::kNoWait) ptx::cp_async_wait_group<0>();
      if (between == Between::kShuffle) {
        __shfl_sync(~0u, 0, 3);
      } else if (between != Between::kNoSync) {
        __syncwarp();
      }
      if (ptx::lane() == 5) load(kPlace);
      __any_sync(~0u, true);
      ptx::cp_async_wait_group<0>();
    };
  };
  expect_right(1, {}, program(Between::kAll));
  expect_found(1, {}, program(Between::kNoWait), {kUnfilled});
  expect_found(1, {}, program(Between::kNoSync), {kUnfilled, kUntold});
  expect_found(1, {}, program(Between::kShuffle), {kUntold});
}

TEST(Lanes, wait_for_as_many_groups_as_they_read) {
  const auto program = [](bool waits_for_both) {
    return [waits_for_both] {
      copy(kPlace), copy(kOther);
      ptx::cp_async_wait_group<1>();
      __syncwarp();
      load(kPlace);
      if (waits_for_both) ptx::cp_async_wait_group<0>();
      __syncwarp();
      load(kOther);
      ptx::cp_async_wait_group<0>();
    };
  };
  expect_right(1, {}, program(true));
  expect_found(1, {}, program(false), {kUnfilled});
}

// Warps 0 and 1 copy to the place that warp 2 reads, and tell one barrier.
TEST(Lanes, copy_over_what_is_read_only_when_each_copier_knows_that_it_was) {
  constexpr uint32_t kRead = kOther, kCopied = kOther + 8;
  const auto program = [](bool both_wait) {
    return [both_wait] {
      if (threadIdx.x == 0) {
        ptx::mbarrier_init(kRead, 1);
        ptx::mbarrier_init(kCopied, 2);
        copy(kPlace);
        ptx::cp_async_wait_group<0>();
      }
      __syncthreads();
      const int warp = int(threadIdx.x) / 32;
      if (ptx::lane() != 0) return;
      if (warp == 2) {
        load(kPlace);
        ptx::mbarrier_arrive(kRead);
        ptx::mbarrier_wait_parity(kCopied, 0);
        load(kPlace);
        return;
      }
      if (warp == 0 || both_wait) ptx::mbarrier_wait_parity(kRead, 0);
      ptx::cp_async_16(kPlace + uint32_t(warp) * 16, nullptr, false);
      ptx::cp_async_mbarrier_arrive(kCopied);
      ptx::cp_async_wait_all();
    };
  };
  expect_right(3, {}, program(true));
  expect_found(3, {}, program(false), {kUnfilled, kOverRead});
}

TEST(Lanes, exchange_values_and_meet_in_one_instruction) {
  expect_right(2, {}, [] {
    const int lane = ptx::lane();
    EXPECT_EQ(__shfl_xor_sync(~0u, lane, 5), lane ^ 5);
    EXPECT_EQ(__shfl_up_sync(~0u, lane, 2), lane < 2 ? lane : lane - 2);
    EXPECT_EQ(__ballot_sync(~0u, lane % 2 == 0), 0x55555555u);
    EXPECT_FALSE(__any_sync(~0u, false));
    EXPECT_EQ(__reduce_or_sync(~0u, 1u << lane), ~0u);
  });
  expect_found(1, {}, [] { ptx::lane() == 7 ? __syncwarp() : void(__any_sync(~0u, true)); },
               {kMeet});
}

// Runs a program in a cluster of two CTAs.
std::string in_a_cluster(const std::function<void()>& program) {
  std::string error;
  for (const Pace& pace : kManyPaces) {
    const Setting setting{.seed = 1, .pace = pace};
    const std::string said =
        run_ctas(setting, 1, {.grid = {2, 1, 1}, .count = 2, .cluster = 2}, program).error;
    if (error.empty()) error = said;
  }
  return error;
}

TEST(Clusters, every_thread_waits_once_for_each_arrival) {
  const auto program = [](int arrivals, int waits) {
    return [=] {
      for (int i = 0; i < std::max(arrivals, waits); ++i) {
        if (i < arrivals) ptx::cluster_arrive();
        if (i < waits) ptx::cluster_wait();
      }
    };
  };
  EXPECT_EQ(in_a_cluster(program(3, 3)), "");
  EXPECT_TRUE(in_a_cluster(program(1, 2)).starts_with(kClusters));
  EXPECT_TRUE(in_a_cluster(program(3, 1)).starts_with(kClusters));
  EXPECT_NE(in_a_cluster(program(3, 2)).find("left without a wait"), std::string::npos);
}

// Lane 0 of each CTA sends 16 bytes to the other one, which counts them.
TEST(Clusters, what_is_sent_needs_a_receiver_that_waits_for_its_bytes) {
  const auto program = [](bool begins, uint32_t expected, bool waits) {
    return [=] {
      if (ptx::lane() == 0) {
        ptx::mbarrier_init(kOther, 1);
        ptx::mbarrier_arrive_expect_tx(kOther, expected);
      }
      ptx::cluster_arrive();
      if (begins) ptx::cluster_wait();
      const unsigned other = 1 - ptx::cluster_rank();
      if (ptx::lane() == 0) {
        ptx::st_async_f32x4(ptx::in_block_of_cluster(kPlace, other), float4{1, 2, 3, 4},
                            ptx::in_block_of_cluster(kOther, other));
      }
      if (!begins) ptx::cluster_wait();
      if (waits) ptx::mbarrier_wait_parity_of_cluster(kOther, 0);
    };
  };
  EXPECT_EQ(in_a_cluster(program(true, 16, true)), "");
  EXPECT_NE(in_a_cluster(program(false, 16, true)).find("was not initialised"), std::string::npos);
  EXPECT_TRUE(in_a_cluster(program(true, 32, true)).starts_with("deadlock"));
  EXPECT_EQ(in_a_cluster(program(true, 16, false)), "sent to a CTA that has left");
  const std::string said = in_a_cluster([] {
    if (ptx::lane() != 0) return;
    ptx::mbarrier_init(kOther, 1);
    ptx::mbarrier_arrive_expect_tx(kOther, 16);
  });
  EXPECT_NE(said.find("was left with bytes under way"), std::string::npos) << said;
}

TEST(Clusters, who_has_left_is_waited_for_no_more) {
  const auto program = [](bool arrives) {
    return [=] {
      if (ptx::cluster_rank() == 1 && ptx::lane() > 0) return;
      if (arrives || ptx::lane() > 0) ptx::cluster_arrive(), ptx::cluster_wait();
      if (!arrives && ptx::cluster_rank() == 1) ptx::mbarrier_init(kOther, 1);
      if (!arrives && ptx::cluster_rank() == 1) ptx::mbarrier_wait_parity(kOther, 0);
    };
  };
  EXPECT_EQ(in_a_cluster(program(true)), "");
  EXPECT_TRUE(in_a_cluster(program(false)).starts_with("deadlock"));
  EXPECT_EQ(in_a_cluster([] {
              ptx::cluster_arrive();
              if (ptx::cluster_rank() == 0) ptx::cluster_wait(), ptx::cluster_arrive();
              ptx::cluster_wait();
            }),
            "");
}

TEST(Clusters, a_relaxed_arrival_shows_nothing_that_was_stored) {
  const auto program = [](bool relaxed) {
    return [=] {
      if (ptx::lane() == 0) ptx::st_shared_b32x4(kPlace, {});
      relaxed ? ptx::cluster_arrive_relaxed() : ptx::cluster_arrive();
      ptx::cluster_wait();
      if (ptx::lane() == 1) load(kPlace);
    };
  };
  EXPECT_EQ(in_a_cluster(program(false)), "");
  EXPECT_TRUE(in_a_cluster(program(true)).starts_with("no barrier between the store"));
}

// Lane 0 of each CTA sends 1 KB of its memory to the other one, and overwrites it when that has
// read it.
enum class Exchange {
  kRight,
  kToWhoIsNotThere,  // the CTAs do not meet before
  kUnfenced,
  kUnwaited,      // the receiver reads at once
  kUnread,        // the sender overwrites at once
  kTooManyBytes,  // are waited for
  kLeftEarly,     // the CTAs do not meet behind it, and nobody is told
  kUntold,        // nobody waits for what tells that all was read
};
std::function<void()> exchange_of(Exchange how) {
  return [how] {
    constexpr uint32_t kCame = kOther + 1024, kRead = kCame + 8;
    constexpr int kBytes = 1024;
    const auto is = [how](Exchange other) { return how == other; };
    const bool leads = ptx::lane() == 0;
    const unsigned other = 1 - ptx::cluster_rank();
    if (leads) {
      ptx::mbarrier_init(kCame, 1);
      ptx::mbarrier_init(kRead, 1);
      ptx::mbarrier_arrive_expect_tx(kCame, is(Exchange::kTooManyBytes) ? 2 * kBytes : kBytes);
      ptx::st_shared_b32x4(kPlace, {});
      if (!is(Exchange::kUnfenced)) ptx::fence_proxy_async();
    }
    if (!is(Exchange::kToWhoIsNotThere)) ptx::cluster_arrive(), ptx::cluster_wait();
    if (leads) {
      ptx::cp_async_bulk_to_cluster(ptx::in_block_of_cluster(kOther, other), kPlace, kBytes,
                                    ptx::in_block_of_cluster(kCame, other));
      if (!is(Exchange::kUnwaited)) ptx::mbarrier_wait_parity_of_cluster(kCame, 0);
      load(kOther);
      if (is(Exchange::kLeftEarly)) return;
      ptx::mbarrier_arrive_in_cluster(ptx::in_block_of_cluster(kRead, other));
      if (is(Exchange::kUntold)) return;
      if (!is(Exchange::kUnread)) ptx::mbarrier_wait_parity_of_cluster(kRead, 0);
      ptx::st_shared_b32x4(kPlace, {});
    }
    if (!is(Exchange::kLeftEarly)) ptx::cluster_arrive(), ptx::cluster_wait();
  };
}

TEST(Clusters, copies_between_CTAs_are_of_what_is_there_to_who_is_there) {
  const auto expect_said = [](Exchange how, const std::vector<std::string>& complaints) {
    for (const Pace& pace : kManyPaces) {
      for (unsigned seed = 0; seed < kSeeds / 5; ++seed) {
        const std::string said =
            run_ctas({.seed = seed, .pace = pace}, 1, {.grid = {2, 1, 1}, .count = 2, .cluster = 2},
                     exchange_of(how))
                .error;
        const bool expected =
            std::any_of(complaints.begin(), complaints.end(),
                        [&](const std::string& complaint) { return said.starts_with(complaint); });
        ASSERT_TRUE(expected || (complaints.empty() && said.empty()))
            << "said '" << said << "', exchange " << int(how) << ", " << pace.name << ", seed "
            << seed;
      }
    }
  };
  expect_said(Exchange::kRight, {});
  expect_said(Exchange::kToWhoIsNotThere, {"barrier"});
  expect_said(Exchange::kUnfenced, {kUnfenced});
  expect_said(Exchange::kUnwaited, {kUnfilled});
  expect_said(Exchange::kUnread, {kOverRead});
  expect_said(Exchange::kTooManyBytes, {"deadlock"});
  expect_said(Exchange::kLeftEarly, {"a CTA left while another was sent its memory"});
  expect_said(Exchange::kUntold,
              {"a CTA left while another was sent its memory", "sent to a CTA that has left"});
}

}  // namespace
}  // namespace fa3::hopper
