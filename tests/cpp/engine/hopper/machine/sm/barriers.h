// SPDX-License-Identifier: Apache-2.0
//
// Barriers: mbarriers with phases and bytes, the hardware's numbered ones, and that of a cluster.
// Who arrives tells what it knows (clock.h); who waits learns what all have told in that phase.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "clock.h"

namespace fa3::machine {

struct Barrier {
  int actor = 0;  // in clocks
  int arrivals = 0, pending = 0;
  int64_t bytes = 0;  // expected, not yet arrived
  int completed = 0;  // phases
  int64_t came = 0;   // of this phase's bytes
  Moment made;
  Clock telling;  // of those that have arrived in this phase
  Clock told;     // what the last completed phase says
};

class Barriers {
 public:
  void init(uint32_t address, int arrivals);
  void arrive(uint32_t address, int64_t bytes);
  // Before another CTA arrives or sends bytes.
  void require_known(uint32_t address, const Clock& knows);
  bool passed(uint32_t address, uint32_t parity);
  void wait(uint32_t address, uint32_t parity);

  // The phase that a copy counts for, and the arrival of its bytes.
  Moment end_of_phase(uint32_t address);
  void bytes_arrived(uint32_t address, int64_t bytes);
  // The arrival of a warp's own copies, which tells nothing else of the warp.
  void copies_arrived(uint32_t address);

  // When the CTA is over: nothing is under way, or nothing of what these barriers expect.
  void require_at_rest(const std::vector<uint32_t>& expect_ahead) const;

 private:
  struct Waiter {
    uint32_t barrier = 0;  // 0: the thread does not wait
    int phase = 0;
    std::map<uint32_t, int> seen;  // phases of each barrier that it saw completed itself
  };

  Barrier& at(uint32_t address);
  bool has_passed(uint32_t address, uint32_t parity);
  void note_passed(uint32_t address);
  void complete_if_due(uint32_t address);

  std::map<uint32_t, Barrier> barriers_;
  std::array<Waiter, kMostThreads> waiters_;
};

class NamedBarriers {
 public:
  // A modelled thread counts as all that it stands for, and arrives once in a phase.
  void arrive(int id, int threads);
  void sync(int id, int threads);
  // In how many of its threads `value` is true.
  unsigned sync_and_count(int id, int threads, bool value);

 private:
  struct Named {
    int threads = 0;           // that the phase is for
    std::vector<int> arrived;  // modelled threads
    std::vector<int> waiting;  // those of them that wait
    Clock telling;
    unsigned counted = 0;  // threads whose value is true
    int64_t completed = 0;
    unsigned last_counted = 0;  // in the phase before
  };

  void count(int id, int threads, bool waits, bool value = false);

  std::map<int, Named> barriers_;
};

// The barrier of all threads of a cluster, each of which waits once for each time that it has
// arrived. Threads that have left are waited for no more.
class ClusterBarrier {
 public:
  explicit ClusterBarrier(int threads)
      : present_(threads), pending_(threads), arrived_(size_t(threads)), last_(size_t(threads)) {}
  void arrive(bool tells);
  void wait();
  // Before the running thread leaves.
  void require_waited() const;
  void leave();

 private:
  static size_t own_number();
  void count();

  int present_, pending_, completed_ = 0;
  Clock telling_, told_;
  std::vector<int> arrived_;  // the phase that a thread has not waited for, from 1; 0: none
  std::vector<int> last_;     // that it arrived in
};

// Where the lanes of a warp come together, all at the same instruction: shuffles, votes and
// __syncwarp. Shuffles tell nothing of memory.
class WarpMeeting {
 public:
  using Values = std::array<uint64_t, kLanes>;
  // work(values): done by the last lane to come, before others go on.
  const Values& exchange(const char* instruction, uint64_t mine,
                         const std::function<void(const Values&)>& work = {});
  void sync();

 private:
  const char* instruction_ = nullptr;
  int arrived_ = 0, completed_ = 0;
  std::array<Values, 2> values_{};  // of two phases: a lane may be one ahead
  Clock telling_, told_;
};

}  // namespace fa3::machine
