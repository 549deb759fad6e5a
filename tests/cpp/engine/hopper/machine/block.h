// SPDX-License-Identifier: Apache-2.0
//
// Everything that the model keeps of the one block that runs.
#pragma once

#include <array>

#include "barriers.h"
#include "copies.h"
#include "fault.h"
#include "memory.h"
#include "products.h"
#include "registers.h"
#include "scheduler.h"

namespace fa3::machine {

struct Block {
  Block(const Setting& setting, int warps, const std::function<void()>& body);

  int warp() const { return scheduler.warp(); }
  Clock& clock() { return clocks[size_t(warp())]; }
  Accessor accessor() { return {warp(), clock()}; }
  void require_kernel_before_ended() const;

  const Setting& setting;
  Scheduler scheduler;
  Memory memory;
  Registers registers;
  Faults faults;
  Barriers barriers;
  NamedBarriers named;
  // By warp.
  std::array<Clock, kMostWarps> clocks;
  std::array<Products, kMostWarps> products;
  std::array<Departures, kMostWarps> departures;
  std::array<ThreadCopies, kMostWarps> thread_copies;
  std::array<bool, kMostWarps> waited{};  // for the kernel before
  Outcome outcome;
};

Block& here();

}  // namespace fa3::machine
