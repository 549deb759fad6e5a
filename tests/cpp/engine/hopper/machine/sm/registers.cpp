// SPDX-License-Identifier: Apache-2.0
#include "sm/registers.h"

#include <algorithm>
#include <string>

#include "failure.h"
#include "sm/block.h"

namespace fa3::machine {
namespace {

constexpr int kFewest = 24, kMost = 256, kStep = 8;

// 64 K over the threads of all blocks on an SM, in steps of 8: 168 for 384 threads, which makes 504
// for three warpgroups, not 512.
int at_launch(int warps) {
  constexpr int kRegisterFile = 65536, kThreadsPerWarp = 32;
  return std::min(kMost, kRegisterFile / (warps * kThreadsPerWarp) / kStep * kStep);
}

}  // namespace

Registers::Registers(int sharing, int warps) : of_warp_(size_t(warps), at_launch(sharing)) {}

void Registers::require_sensible(int registers) const {
  if (registers < kFewest || registers > kMost || registers % kStep != 0) {
    fail("setmaxnreg of ", registers, ": takes multiples of 8 from 24 to 256");
  }
}

void Registers::decrease(int registers) {
  here().scheduler.yield();
  int& mine = of_warp_[size_t(here().warp())];
  require_sensible(registers);
  if (registers > mine) fail("setmaxnreg.dec to ", registers, " from ", mine);
  free_ += mine - registers;
  mine = registers;
}

void Registers::increase(int registers) {
  int& mine = of_warp_[size_t(here().warp())];
  require_sensible(registers);
  if (registers < mine) fail("setmaxnreg.inc to ", registers, " from ", mine);
  const auto more = [&mine, registers] { return registers - mine; };  // none, after another lane
  here().scheduler.wait_until("registers: " + std::to_string(more()) + " more for each thread",
                              [this, more] { return free_ >= more(); });
  free_ -= more();
  mine = registers;
}

void Registers::require_whole_warpgroups() const {
  constexpr size_t kWarpsPerWarpgroup = 4;
  for (size_t w = 0; w < of_warp_.size(); ++w) {
    const size_t first = w / kWarpsPerWarpgroup * kWarpsPerWarpgroup;
    if (of_warp_[w] != of_warp_[first]) {
      fail("setmaxnreg by a part of a warpgroup: warp ", first, " has ", of_warp_[first],
           " registers, warp ", w, " ", of_warp_[w]);
    }
  }
}

}  // namespace fa3::machine
