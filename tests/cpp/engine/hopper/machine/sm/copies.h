// SPDX-License-Identifier: Apache-2.0
//
// TMA: copies into shared memory that arrive at some time and tell an mbarrier, and
// copies out of it that read until their group is waited for. Beside it copies by threads, which
// arrive at some time too, and then for their warp at an mbarrier.
#pragma once

#include <deque>
#include <vector>

#include "instructions.h"
#include "sm/memory.h"

namespace fa3::machine {

void begin_load(uint32_t smem, int bytes, uint32_t barrier,
                const std::function<Content(int offset)>& content);

// Out of shared memory, of one warp.
class Departures {
 public:
  void send(uint32_t smem, Departure departure);
  void commit();
  void wait(int pending);
  void wait_for_arrival(int pending);
  bool idle() const { return flying_.empty() && open_.empty(); }

 private:
  HeldPieces open_;
  std::deque<HeldPieces> flying_;
  // The departures of each group, by their number: of the open one, and of those before.
  std::vector<size_t> open_departures_;
  std::vector<std::vector<size_t>> departures_;
};

// Into shared memory, of one modelled thread: 16 bytes for each lane. They are known to be there
// to who waits at the barrier that they arrive at; or to the thread that waits for its groups.
class ThreadCopies {
 public:
  void begin(uint32_t smem, const void* global);
  // Begins a copy with numbers: `bytes` lie in shared memory once the copy has arrived.
  void begin(uint32_t smem, std::vector<unsigned char> bytes);
  void arrive(uint32_t barrier);
  void wait();
  void commit();
  void wait_for_groups(int newest);
  bool idle() const;

 private:
  struct Copy {
    uint32_t smem;
    Content content;
    std::vector<unsigned char> bytes;
  };
  void begin(Copy copy);

  std::vector<Copy> open_;  // that no barrier, or group, was told of
  std::deque<std::vector<Copy>> groups_;
  int groups_in_flight_ = 0;
};

}  // namespace fa3::machine
