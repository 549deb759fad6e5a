// SPDX-License-Identifier: Apache-2.0
//
// The copy engine: copies into shared memory that arrive at some time and tell an mbarrier, and
// copies out of it that read until their group is waited for.
#pragma once

#include <deque>

#include "instructions.h"
#include "memory.h"

namespace fa3::machine {

void begin_load(uint32_t smem, int bytes, uint32_t barrier,
                const std::function<Content(int offset)>& content);

// Out of shared memory, of one warp.
class Departures {
 public:
  void send(uint32_t smem, Departure departure);
  void commit();
  void wait(int pending);
  bool idle() const { return flying_.empty() && open_.empty(); }

 private:
  HeldPieces open_;
  std::deque<HeldPieces> flying_;
};

}  // namespace fa3::machine
