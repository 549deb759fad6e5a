// SPDX-License-Identifier: Apache-2.0
//
// Rules of the model, each in a program of a few warps that keeps it and in one that does not.
// Those of a whole pass: small_backward_test.cpp and ../protocol_test.cpp.
#include "machine.h"

#include <gtest/gtest.h>

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/layout.h"
#include "many_orders.h"

namespace fa3::hopper {

using cuda::Element;
namespace {

using namespace machine;  // the test's view of it

constexpr uint32_t kPlace = machine::kSmemBase;
const std::vector<machine::Buffer> kBuffers = {{"place", kPlace, 1024}};

TEST(Machine, stores_need_a_buffer_to_count_for) {
  expect_found(1, {}, [] { ptx::stmatrix_x4(kPlace, {}); }, {"a store at address"});
}

TEST(Machine, loads_by_threads_need_a_barrier_after_the_store_but_no_fence) {
  const auto program = [](bool waits) {
    return [waits] {
      uint32_t matrices[4];
      if (threadIdx.x == 0) ptx::stmatrix_x4(kPlace, {});
      if (waits) __syncthreads();
      if (threadIdx.x != 0) ptx::ldmatrix_x4(kPlace, matrices);
    };
  };
  expect_right(2, kBuffers, program(true));
  expect_found(2, kBuffers, program(false), {kUnfilled, kUntold});
}

TEST(Machine, the_copy_engine_reads_a_store_after_its_fence_and_the_barrier_after_that) {
  enum class Fence { kBefore, kAfter, kNever };
  static float target[256];
  const auto program = [](Fence fence) {
    return [fence] {
      if (threadIdx.x == 0) {
        ptx::stmatrix_x4(kPlace, {});
        if (fence == Fence::kBefore) ptx::fence_proxy_async();
        ptx::bar_arrive(1, 64);
        if (fence == Fence::kAfter) ptx::fence_proxy_async();
      } else {
        ptx::bar_sync(1, 64);
        machine::store_bytes(target, kPlace, 1024, false);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read<0>();
      }
    };
  };
  expect_right(2, kBuffers, program(Fence::kBefore));
  expect_found(2, kBuffers, program(Fence::kAfter), {kUnfenced});
  expect_found(2, kBuffers, program(Fence::kNever), {kUnfenced});
}

TEST(Machine, an_arrival_tells_what_came_before_it) {
  constexpr uint32_t kStored = kPlace + 1024;
  const auto program = [](bool arrives_last) {
    return [arrives_last] {
      if (threadIdx.x == 0) ptx::mbarrier_init(kStored, 1);
      __syncthreads();
      if (threadIdx.x == 0) {
        if (!arrives_last) ptx::mbarrier_arrive(kStored);
        ptx::stmatrix_x4(kPlace, {});
        if (arrives_last) ptx::mbarrier_arrive(kStored);
      } else {
        ptx::mbarrier_wait_parity(kStored, 0);
        machine::load_shared(kPlace);
      }
    };
  };
  expect_right(2, kBuffers, program(true));
  expect_found(2, kBuffers, program(false), {kUnfilled, kUntold});
}

TEST(Machine, a_load_over_a_store_needs_fence_and_barrier) {
  constexpr uint32_t kFull = kPlace + 1024;
  static const char source[1024] = {};
  const auto program = [](bool fences, bool waits) {
    return [fences, waits] {
      if (threadIdx.x == 0) ptx::mbarrier_init(kFull, 1);
      __syncthreads();
      if (threadIdx.x != 0) {
        ptx::stmatrix_x4(kPlace, {});
        if (fences) ptx::fence_proxy_async();
        if (waits) ptx::bar_arrive(1, 64);
      } else {
        if (waits) ptx::bar_sync(1, 64);
        ptx::mbarrier_arrive_expect_tx(kFull, 1024);
        ptx::cp_async_bulk_load(kPlace, source, 1024, kFull);
        ptx::mbarrier_wait_parity(kFull, 0);
      }
    };
  };
  expect_right(2, kBuffers, program(true, true));
  expect_found(2, kBuffers, program(false, true), {kUnfenced});
  expect_found(2, kBuffers, program(true, false),
               {"overwritten while it is stored", "overwritten while a copy arrives"});
}

TEST(Machine, the_copy_engine_reads_copies_by_threads_after_barrier_and_fence) {
  constexpr uint32_t kCopied = kPlace + 1024;
  static float target[256];
  enum class Reader { kRight, kNoFence, kFenceTooEarly, kNoWait, kThread };
  const auto program = [](Reader reader) {
    return [reader] {
      if (threadIdx.x == 0) ptx::mbarrier_init(kCopied, 1);
      __syncthreads();
      if (threadIdx.x == 0) {
        ptx::cp_async_16(kPlace, nullptr, false);
        ptx::cp_async_16(kPlace + 512, nullptr, false);
        ptx::cp_async_mbarrier_arrive(kCopied);
        ptx::cp_async_wait_all();
        return;
      }
      if (reader == Reader::kFenceTooEarly) ptx::fence_proxy_async();
      if (reader != Reader::kNoWait) ptx::mbarrier_wait_parity(kCopied, 0);
      if (reader == Reader::kThread) {
        machine::load_shared(kPlace);
        return;
      }
      if (reader == Reader::kRight || reader == Reader::kNoWait) ptx::fence_proxy_async();
      machine::store_bytes(target, kPlace, 1024, false);
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group_read<0>();
    };
  };
  expect_right(2, kBuffers, program(Reader::kRight));
  expect_right(2, kBuffers, program(Reader::kThread));
  constexpr char kNoFence[] = "no fence.proxy.async between the barrier of copies by threads";
  expect_found(2, kBuffers, program(Reader::kNoFence), {kNoFence});
  expect_found(2, kBuffers, program(Reader::kFenceTooEarly), {kNoFence});
  expect_found(2, kBuffers, program(Reader::kNoWait), {kUnfilled});
}

TEST(Machine, copies_by_threads_overwrite_nothing_that_is_read_and_tell_a_barrier) {
  constexpr uint32_t kCopied = kPlace + 1024, kRead = kPlace + 1032;
  const auto program = [](bool waits) {
    return [waits] {
      if (threadIdx.x == 0) {
        ptx::mbarrier_init(kCopied, 1);
        ptx::mbarrier_init(kRead, 1);
      }
      __syncthreads();
      for (uint32_t lap = 0; lap < 2; ++lap) {
        if (threadIdx.x == 0) {
          if (waits && lap > 0) ptx::mbarrier_wait_parity(kRead, lap - 1);
          ptx::cp_async_16(kPlace, nullptr, false);
          ptx::cp_async_mbarrier_arrive(kCopied);
        } else {
          ptx::mbarrier_wait_parity(kCopied, lap);
          machine::load_shared(kPlace);
          ptx::mbarrier_arrive(kRead);
        }
      }
      if (threadIdx.x == 0) ptx::cp_async_wait_all();
    };
  };
  expect_right(2, kBuffers, program(true));
  expect_found(2, kBuffers, program(false), {kOverRead, "overwritten while a copy arrives"});
  expect_found(1, kBuffers, [] { ptx::cp_async_16(kPlace, nullptr, false); },
               {"warp 0 left with copies that no barrier was told of"});
}

// Warps 0 and 1 store; warps 2 and 3 load that, and store over it.
TEST(Machine, strips_of_a_buffer_are_warps_own) {
  std::vector<machine::Buffer> buffers = kBuffers;
  const auto program = [](uint32_t apart, bool waits) {
    return [apart, waits] {
      const unsigned warp = threadIdx.x / 32;
      const uint32_t place = kPlace + warp % 2 * apart;
      if (warp < 2) ptx::stmatrix_x4(place, {});
      if (waits || warp < 2) ptx::bar_sync(1, waits ? 128 : 64);
      if (warp < 2) return;
      machine::load_shared(place);
      ptx::stmatrix_x4(place, {});
    };
  };
  expect_found(4, buffers, program(32, true), {kOverRead, kUntold});
  buffers[0].strips = 4;
  expect_right(4, buffers, program(32, true));
  expect_found(4, buffers, program(16, true), {kOverRead, kUntold});
  expect_found(4, buffers, program(32, false), {kOverRead, kUnfilled, kUntold});
}

TEST(Machine, the_fence_of_who_was_told_of_a_store_and_stores_there_is_enough) {
  static float target[256];
  const auto program = [](bool tells, bool fences) {
    return [tells, fences] {
      if (threadIdx.x == 0) ptx::stmatrix_x4(kPlace, {});
      if (tells) __syncthreads();
      if (threadIdx.x == 0) {
        ptx::bar_arrive(1, 64);
        return;
      }
      ptx::stmatrix_x4(kPlace, {});
      if (fences) ptx::fence_proxy_async();
      ptx::bar_sync(1, 64);
      machine::store_bytes(target, kPlace, 1024, false);
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group_read<0>();
    };
  };
  expect_right(2, kBuffers, program(true, true));
  expect_found(2, kBuffers, program(true, false), {kUnfenced});
  expect_found(2, kBuffers, program(false, true), {kUnfenced});
}

TEST(Machine, knowledge_passes_through_a_third_warp) {
  // Warp 0 stores, warp 1 is told, and tells warp 2.
  const auto program = [](bool passes_on) {
    return [passes_on] {
      const int warp = int(threadIdx.x) / 32;
      if (warp == 0) {
        ptx::stmatrix_x4(kPlace, {});
        ptx::bar_arrive(1, 64);
      } else if (warp == 1) {
        if (passes_on) ptx::bar_sync(1, 64);
        ptx::bar_arrive(2, 64);
        if (!passes_on) ptx::bar_sync(1, 64);
      } else {
        ptx::bar_sync(2, 64);
        machine::load_shared(kPlace);
      }
    };
  };
  expect_right(3, kBuffers, program(true));
  expect_found(3, kBuffers, program(false), {kUnfilled, kUntold});
}

TEST(Machine, named_barriers_count_threads_of_each_phase) {
  expect_right(2, {}, [] {
    for (const bool value : {true, false, true}) {
      EXPECT_EQ(ptx::bar_count(1, 64, value && threadIdx.x == 0), value ? 32u : 0u);
    }
  });
}

TEST(Machine, named_barriers_count_each_warp_once_and_agree_on_threads) {
  expect_found(1, {},
               [] {
                 for (int i = 0; i < 2; ++i) ptx::bar_arrive(3, 64);
               },
               {"named barrier 3: warp 0 arrives twice in one phase"});
  expect_found(
      2, {}, [] { ptx::bar_sync(3, threadIdx.x == 0 ? 64 : 96); },
      {"named barrier 3: of 64 threads, but of 96", "named barrier 3: of 96 threads, but"});
  expect_found(1, {}, [] { ptx::bar_sync(16, 32); }, {"named barrier 16"});
}

TEST(Machine, registers_move_only_when_they_are_free) {
  // 504 at 168 each: 72 + 216 + 216.
  expect_right(12, {},
               [] { threadIdx.x < 128 ? ptx::setmaxnreg_dec<72>() : ptx::setmaxnreg_inc<216>(); });
  expect_found(12, {},
               [] { threadIdx.x < 128 ? ptx::setmaxnreg_dec<96>() : ptx::setmaxnreg_inc<208>(); },
               {"deadlock: warp"});
  expect_found(4, {},
               [] {
                 if (threadIdx.x == 0) ptx::setmaxnreg_dec<40>();
               },
               {"setmaxnreg by a part of a warpgroup"});
  expect_found(4, {}, [] { ptx::setmaxnreg_dec<44>(); }, {"setmaxnreg of 44"});
}

TEST(Machine, accumulators_leave_only_when_their_product_is_over) {
  static float target[4];
  const std::vector<machine::Buffer> operand = {{"B", kPlace, 16 * 128}};
  const auto program = [](bool waits) {
    return [waits] {
      constexpr tile::TileLayout kB{16, 64};
      ptx::stmatrix_x4(kPlace, {});
      ptx::fence_proxy_async();
      float d[32];
      const uint64_t b = tile::descriptor(kB, tile::mn_major_low(kB, kPlace), 0);
      ptx::wgmma_m64k16_rs<Element::kBf16>(d, {}, b, 0);
      ptx::wgmma_commit_group();
      if (waits) ptx::wgmma_wait_group<0>();
      ptx::red_global_add_f32x4(target, {d[0], d[1], d[2], d[3]});
      ptx::wgmma_wait_group<0>();
    };
  };
  expect_right(1, operand, program(true));
  expect_found(1, operand, program(false),
               {"an accumulator was read while a product worked on it"});
}

// Loads two tiles of 64 rows of a tensor, and multiplies the first 16 rows of one by the other in
// steps.
struct Step {
  int a, b;  // column in the tile, of 16
  int tile_of_b = 1;
  bool adds = true;
};
std::function<void()> product_of(const std::vector<Step>& steps, bool waits = true) {
  return [steps, waits] {
    constexpr tile::TileLayout kTile{64, 64};
    constexpr uint32_t kFull = kPlace + 2 * kTile.bytes();
    static const char tensor = 0;
    const CUtensorMap map = encoded({&tensor, kTile.rows, kTile.row_bytes()});
    ptx::mbarrier_init(kFull, 1);
    ptx::mbarrier_arrive_expect_tx(kFull, 2 * kTile.bytes());
    for (int i = 0; i < 2; ++i) {
      ptx::cp_async_bulk_tensor_load(kPlace + uint32_t(i * kTile.bytes()), map,
                                     {.row = i * kTile.rows}, kFull);
    }
    ptx::mbarrier_wait_parity(kFull, 0);
    float d[32];
    for (const Step& step : steps) {
      const uint32_t b = kPlace + uint32_t(step.tile_of_b * kTile.bytes());
      ptx::wgmma_m64k16_ss<Element::kBf16>(
          d, tile::descriptor(kTile, tile::k_major_low(kPlace), kTile.k_major_step(step.a)),
          tile::descriptor(kTile, tile::k_major_low(b), kTile.k_major_step(step.b)), step.adds);
    }
    ptx::wgmma_commit_group();
    if (waits) ptx::wgmma_wait_group<0>();
  };
}

TEST(Machine, a_product_goes_through_two_tiles_step_by_step) {
  expect_right(1, {}, product_of({{0, 0}, {1, 1}, {2, 2}, {3, 3}}));
  expect_found(1, {}, product_of({{0, 0}, {2, 2}}), {"steps of a product that do not track_max"});
  expect_found(1, {}, product_of({{0, 0}, {1, 0}}), {"steps of a product that do not track_max"});
  expect_found(1, {}, product_of({{0, 1}}), {"operands summed over different ranges"});
  expect_found(1, {}, product_of({{0, 0}, {1, 1, 0}}), {"one product of two tiles"});
  expect_right(1, {}, product_of({{0, 0, 1, false}, {1, 1}}));
  expect_found(1, {}, product_of({{0, 0}, {1, 1, 1, false}}),
               {"a step of a product that does not add"});
}

TEST(Machine, products_are_waited_for_before_the_end) {
  expect_found(1, {}, product_of({{0, 0}}, false), {"warp 0 left with products in flight"});
}

TEST(Machine, a_chained_launch_copies_what_a_counter_and_a_fence_say_is_made) {
  constexpr uint32_t kFull = kPlace + 1024;
  static const char made[1024] = {}, older[1024] = {};
  static int counter = 1;
  const auto error_of = [](const void* source, bool looks, bool fences) {
    Setting setting;
    setting.pdl = true;
    setting.buffers = kBuffers;
    setting.made = 1;
    setting.counter_of = [](const Content& read) {
      return read.tensor == made ? &counter : nullptr;
    };
    return run_block(setting, 1, 1,
                     [&] {
                       ptx::mbarrier_init(kFull, 1);
                       while (looks && ptx::ld_acquire(&counter) < 1) {
                       }
                       if (fences) ptx::fence_proxy_async_global();
                       ptx::mbarrier_arrive_expect_tx(kFull, 1024);
                       ptx::cp_async_bulk_load(kPlace, source, 1024, kFull);
                       ptx::mbarrier_wait_parity(kFull, 0);
                     })
        .error;
  };
  EXPECT_EQ(error_of(older, false, false), "");
  EXPECT_EQ(error_of(made, true, true), "");
  EXPECT_EQ(error_of(made, true, false),
            "warp 0 copies what it has found made without a fence between");
  EXPECT_EQ(error_of(made, false, true), "warp 0 reads what the kernel before may still write");
}

TEST(Machine, a_chained_launch_copies_nothing_before_the_kernel_before_has_ended) {
  constexpr uint32_t kFull = kPlace + 1024;
  static const char source[1024] = {};
  // By warp 1; warp 0 always waits.
  const auto error_of = [](bool pdl, bool waits, bool by_thread) {
    Setting setting;
    setting.pdl = pdl;
    setting.buffers = kBuffers;
    return run_block(setting, 2, 1,
                     [&] {
                       if (waits || threadIdx.x == 0) ptx::griddepcontrol_wait();
                       if (threadIdx.x == 0) return;
                       ptx::mbarrier_init(kFull, 1);
                       if (by_thread) {
                         ptx::cp_async_16(kPlace, nullptr, false);
                         ptx::cp_async_mbarrier_arrive(kFull);
                         ptx::cp_async_wait_all();
                       } else {
                         ptx::mbarrier_arrive_expect_tx(kFull, 1024);
                         ptx::cp_async_bulk_load(kPlace, source, 1024, kFull);
                       }
                       ptx::mbarrier_wait_parity(kFull, 0);
                     })
        .error;
  };
  for (const bool by_thread : {false, true}) {
    EXPECT_EQ(error_of(false, false, by_thread), "");
    EXPECT_EQ(error_of(true, true, by_thread), "");
    EXPECT_EQ(error_of(true, false, by_thread),
              "warp 1 reads what the kernel before may still write");
  }
}

TEST(Machine, what_another_cta_stores_in_global_memory_is_read_behind_its_flag) {
  enum class Raised { kBehind, kBefore, kNever };
  static float stored[2];
  static uint64_t flag;
  const auto error_of = [](unsigned seed, Raised raised, bool waits = true) {
    flag = 0xcdcdcdcd;  // anything at first
    const auto program = [=] {
      if (blockIdx.x == 0) {
        if (raised == Raised::kBefore) ptx::raise_flag(&flag, 1);
        cuda::store_global_if(true, stored, 1, 2);
        if (raised == Raised::kBehind) ptx::raise_flag(&flag, 1);
      } else {
        float first = 0, second = 0;
        if (waits) ptx::wait_for_flag(&flag, 1);
        ptx::load_pair_if(true, stored, first, second);
        ptx::take_back_flag(&flag, 0);
      }
    };
    return run_ctas({.seed = seed, .pace = {.interruption = 0.5}}, 1,
                    {.grid = {2, 1, 1}, .count = 2}, program)
        .error;
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(error_of(seed, Raised::kBehind), "");
    EXPECT_EQ(flag, 0u) << "taken back";
    for (const std::string& error :
         {error_of(seed, Raised::kBefore), error_of(seed, Raised::kBehind, false)}) {
      EXPECT_TRUE(error.starts_with("read from global memory before it was stored") ||
                  error.starts_with("no flag between a store to global memory and its reader"))
          << error;
    }
    EXPECT_TRUE(error_of(seed, Raised::kNever).starts_with("deadlock"));
  }
}

TEST(Machine, bulk_copies_are_of_whole_16_bytes) {
  static float target[4];
  expect_found(1, kBuffers, [] { machine::store_bytes(target, kPlace + 8, 16, false); },
               {"a copy of 16 bytes at address 1032"});
}

}  // namespace
}  // namespace fa3::hopper
