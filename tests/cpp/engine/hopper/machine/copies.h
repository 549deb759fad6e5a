// SPDX-License-Identifier: Apache-2.0
//
// TMA: copies into shared memory that arrive at some time and tell an mbarrier, and
// copies out of it that read until their group is waited for. Beside it copies by threads, which
// arrive at some time too, and then for their warp at an mbarrier.
#pragma once

#include <deque>
#include <vector>

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

// Into shared memory, of one warp: 16 bytes for each lane, of which lane 0 is seen.
class ThreadCopies {
 public:
  void begin(uint32_t smem, const void* global);
  void arrive(uint32_t barrier);
  void wait();
  bool idle() const { return open_.empty(); }

 private:
  struct Copy {
    uint32_t smem;
    Content content;
  };
  std::vector<Copy> open_;  // that no barrier was told of
  int groups_in_flight_ = 0;
};

}  // namespace fa3::machine
