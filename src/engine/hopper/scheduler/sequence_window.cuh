// SPDX-License-Identifier: Apache-2.0
// A window of 32 sequences: each lane of the scheduling warp has one sequence's lengths. So they
// are read once, by all lanes together, and the sequence of a block of the concatenation
// (split_kv.h) is found by a vote. A small call waits longest for its first split, so this takes
// few instructions. Next: tile_scheduler.cuh.
#pragma once

#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/scheduler/split_iterator.h"

namespace fa3::hopper {

// The sum of the lengths of this lane and those before it.
__device__ __forceinline__ int sum_until(int value) {
  const int lane = ptx::lane();
  for (int distance = 1; distance < ptx::kLanes; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffff, value, distance);
    if (lane >= distance) value = SplitKvSchedule::add(value, other);
  }
  return value;
}

// A lane's sequence.
struct SequenceEntry {
  int q_begin, q_count, q_used;
  KeyRows keys;
  int first_block;
  int past_block;
};

// The window in shared memory.
struct SequenceSmem {
  SequenceEntry entries[ptx::kLanes];
};

// A sequence of dense queries that has `keys` keys.
__device__ __forceinline__ SequenceTiles decoding_sequence(const SplitKvSchedule& schedule,
                                                           int number, int keys) {
  const int rows = int(schedule.sequences.lengths_q.max);
  SequenceTiles s{};
  s.queries = {.batch = number, .count = rows, .used = rows};
  s.keys = {number, 0, keys};
  s.order = schedule.order_of(rows);
  s.number = number;
  return s;
}

// No more sequences than lanes: looked up once, and held in registers. Most decode steps are such,
// and the smallest calls wait for this.
class FewSequences {
 public:
  using Schedule = SplitKvSchedule;

  __device__ __forceinline__ explicit FewSequences(const SplitKvSchedule& schedule,
                                                   SequenceEntry* = nullptr)
      : schedule_(schedule) {}

  // The blocks of all sequences.
  __device__ __forceinline__ int count_blocks() {
    int blocks = 0;
    if (ptx::lane() < schedule_.sequences.batch) {
      const SequenceTiles s = schedule_.sequence(ptx::lane());
      keys_ = s.keys.count;
      blocks = schedule_.length_of(s);
    }
    past_ = sum_until(blocks);
    first_ = past_ - blocks;
    return __shfl_sync(0xffffffff, past_, ptx::kLanes - 1);
  }

  __device__ __forceinline__ BlockPlace place_of(int block) const {
    const int owner = __ffs(int(__ballot_sync(0xffffffff, block < past_))) - 1;
    return {owner, block - __shfl_sync(0xffffffff, first_, owner)};
  }

  // Where tiles are whole, nobody has counted blocks.
  __device__ __forceinline__ SequenceTiles sequence(int number) const {
    if (!schedule_.is_stream_k()) return schedule_.sequence(number);
    return decoding_sequence(schedule_, number, __shfl_sync(0xffffffff, keys_, number));
  }

 private:
  SplitKvSchedule schedule_;
  int keys_ = 0, first_ = 0, past_ = 0;  // of the lane's sequence
};

// Any sequences, also with varlen queries, looked up by a whole warp: every lane gets the answers.
// The window lies in shared memory, since registers are few.
template <class Kind>
class SequenceWindow {
 public:
  using Schedule = Kind;

  __device__ __forceinline__ SequenceWindow(const Schedule& schedule, SequenceEntry* entries)
      : schedule_(schedule), entries_(entries) {}

  // The blocks of all sequences; 0: lengths that no tensors have add up to too many.
  __device__ __forceinline__ int count_blocks() {
    int all = 0;
#pragma unroll 1
    for (int first = 0; first < schedule_.sequences.num_sequences(); first += ptx::kLanes) {
      all = look_from(first, all);
    }
    return all < SplitKvSchedule::kMostConcatenated ? all : 0;
  }

  __device__ __forceinline__ BlockPlace place_of(int block) {
    int first = block < entries_[0].first_block ? 0 : first_;
    int before = 0;
#pragma unroll 1
    for (;; first += ptx::kLanes) {
      if (first != first_) look_from(first, before);
      const unsigned reached = __ballot_sync(0xffffffff, block < entries_[ptx::lane()].past_block);
      if (reached != 0) {
        const int owner = __ffs(int(reached)) - 1;
        return {first_ + owner, block - entries_[owner].first_block};
      }
      before = entries_[ptx::kLanes - 1].past_block;
    }
  }

  __device__ __forceinline__ SequenceTiles sequence(int number) {
    const bool seen = first_ <= number && number < first_ + ptx::kLanes;
    if (!seen) look_from(number / ptx::kLanes * ptx::kLanes, 0);
    const SequenceEntry& entry = entries_[number - first_];
    SequenceTiles s{};
    s.queries = {.batch = schedule_.sequences.lengths_q.packed() ? 0 : number,
                 .begin = entry.q_begin,
                 .count = entry.q_count,
                 .used = entry.q_used};
    s.keys = entry.keys;
    s.order = schedule_.order_of(entry.q_count);
    s.number = number;
    return s;
  }

 private:
  // `before`: blocks of the sequences before. Returns those up to the window's end.
  __device__ __forceinline__ int look_from(int first, int before) {
    first_ = first;
    const int number = first + ptx::lane();
    SequenceTiles s{};
    int blocks = 0;
    if (number < schedule_.sequences.num_sequences()) {
      s = schedule_.sequence(number);
      blocks = schedule_.length_of(s);
    }
    const int past = SplitKvSchedule::add(before, sum_until(blocks));
    __syncwarp();
    entries_[ptx::lane()] = {s.queries.begin, s.queries.count, s.queries.used,
                             s.keys,          past - blocks,   past};
    __syncwarp();
    return entries_[ptx::kLanes - 1].past_block;
  }

  Schedule schedule_;
  SequenceEntry* entries_;
  int first_ = -ptx::kLanes;  // of the window; there is none yet
};

}  // namespace fa3::hopper
