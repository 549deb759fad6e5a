// SPDX-License-Identifier: Apache-2.0
// The work of one CTA under a block mask: a key block, and the query blocks of its column's list,
// head after head of the group that shares the keys. The thread that loads walks the lists and
// leaves a record of each step in shared memory, before it arrives for the step's Q; the others
// read it there. Next: backward_smem.cuh.
#pragma once

#include "engine/hopper/backward/key_blocks/listed_place.cuh"

namespace fa3::hopper {

// What is known of one step.
struct ListedStep {
  const uint32_t* bits;  // of its first query; null: all pairs are seen
  int head;
  int m_block;
  int order;  // how many key blocks add to its dQ before, in deterministic calls
};

template <BackwardConfig C>
class ListedKeyBlock {
  static constexpr int kHalves = kMaskBlock / C.shape.block_m;  // steps of a block
  // Whoever is last reads the record of a step while the loader, C.shape.stages ahead of dQ's
  // warpgroup, which is kSemaphoreDepth ahead of the release of dQ's semaphore, writes another.
  static constexpr int kRecords = 8;

 public:
  static_assert(C.shape.block_n == kMaskBlock && kMaskBlock % C.shape.block_m == 0 &&
                C.shape.helpers);

  // Where the loader is.
  struct Walk {
    const ListedBlock* list;
    int count;  // of the list
    int head;
    int at;  // in the list
    int half;
    int step;
  };
  // A persistent CTA's key block.
  struct Lap {
    int num_steps;   // negative: there is none
    int first_step;  // steps count on from key block to key block
    int values_before;
    KeyBlockIndex at;
  };
  struct Laps {
    Lap of[kLaps];
  };
  struct None {};
  struct Record {
    int num_steps;
    Walk walk;
    ListedStep steps[kRecords];
    [[no_unique_address]] typename ListedPlace<C>::Record place;
    [[no_unique_address]] std::conditional_t<C.persistent(), Laps, None> laps;
  };
  struct Steps {
    const ListedKeyBlock& work;
  };
  // A step, by its number; for the loader, the one where the walk is.
  struct Block {
    int step = 0;
    __device__ __forceinline__ void advance(Steps) { ++step; }
  };
  struct Loaded {
    __device__ __forceinline__ void advance(Steps steps) const { steps.work.walk_on(); }
  };

  __device__ __forceinline__ ListedKeyBlock(const BackwardParams& params, int tile, Record& mine)
      : params_(params), at_(params, tile, mine.place), mine_(mine) {
    if (threadIdx.x != 0 || !at_.exists()) return;
    describe();
    if constexpr (C.persistent()) mine_.laps.of[0] = {mine_.num_steps, 0, 0, at_.index()};
  }

  __device__ __forceinline__ bool exists() const { return at_.exists(); }
  __device__ __forceinline__ int first_key() const { return place().n_block() * C.shape.block_n; }
  __device__ __forceinline__ int num_steps() const {
    if constexpr (C.persistent()) return lap().num_steps;
    return mine_.num_steps;
  }
  __device__ __forceinline__ Steps steps() const { return {*this}; }
  __device__ __forceinline__ Block first_queries() const {
    if constexpr (C.persistent()) return {lap().first_step};
    return {};
  }
  __device__ __forceinline__ int sequence() const { return at_.sequence(); }
  __device__ __forceinline__ const BackwardExtents& extents() const { return params_.extents; }
  __device__ __forceinline__ float scale() const { return at_.scale(); }

  __device__ __forceinline__ ptx::TileCoordinates keys() const { return at_.keys(); }
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return place().gradients(first);
  }

  // A persistent CTA's key block of a lap, whose K is here; false: there is none.
  __device__ __forceinline__ bool enter(uint32_t lap) {
    lap_ = lap;
    return num_steps() >= 0;
  }
  __device__ __forceinline__ int values_before() const { return lap().values_before; }

  // ---- For the loader ----

  // To a persistent CTA's next key block, before the arrival for its K. A negative tile: there is
  // none.
  __device__ __forceinline__ void describe_next(int tile) {
    const Lap before = lap();
    Lap& next = mine_.laps.of[++lap_ % kLaps];
    if (tile < 0) {
      next.num_steps = -1;
      return;
    }
    at_.move_to(tile);
    describe();
    next = {mine_.num_steps, before.first_step + before.num_steps,
            before.values_before + (before.num_steps > 0), at_.index()};
  }

  __device__ __forceinline__ static constexpr Loaded first_loaded() { return {}; }
  __device__ __forceinline__ ptx::TileCoordinates queries(const Loaded&) const {
    return at_.queries(mine_.walk.head, m_block_of_walk());
  }
  __device__ __forceinline__ int64_t scratch_block(const Loaded&) const {
    return at_.scratch_block(mine_.walk.head, m_block_of_walk());
  }
  // Before the arrival for the step's Q.
  __device__ __forceinline__ void record(const Loaded&) const {
    const Walk& walk = mine_.walk;
    const ListedBlock& listed = walk.list[walk.at];
    const uint32_t* const bits =
        listed.bits ? listed.bits + walk.half * C.shape.block_m * kMaskRowWords : nullptr;
    mine_.steps[(walk.step + first_queries().step) % kRecords] = {bits, walk.head,
                                                                  m_block_of_walk(), listed.order};
  }

  // ---- For those who have waited for the step's Q, or for who has ----

  __device__ __forceinline__ const ListedStep& at(Block block) const {
    return mine_.steps[block.step % kRecords];
  }
  __device__ __forceinline__ int64_t scratch_block(Block block) const {
    return place().scratch_block(at(block).head, at(block).m_block);
  }
  __device__ __forceinline__ int dq_order(Block block) const { return at(block).order; }
  // Dense calls have whole blocks of scratch.
  __device__ __forceinline__ bool has_rows(Block block, int part) const {
    if constexpr (!C.general()) return true;
    return at(block).m_block * C.shape.block_m +
               C.dq_accum().first_row_of_warp(part, int(threadIdx.x)) <
           at_.seqlen_q();
  }

 private:
  __device__ __forceinline__ void describe() const {
    mine_.num_steps = count_steps();
    mine_.walk = {nullptr, 0, at_.kv_head() * params_.heads_per_kv_head - 1, 0, 0, 0};
    if (mine_.num_steps > 0) open_next_list();
  }
  __device__ __forceinline__ const Lap& lap() const { return mine_.laps.of[lap_ % kLaps]; }
  // A persistent CTA reads it in shared memory, for want of registers.
  __device__ __forceinline__ ListedPlace<C> place() const {
    if constexpr (C.persistent()) return {params_, lap().at};
    return at_;
  }

  // A block of queries may end in its first half.
  __device__ __forceinline__ bool has_half(int block, int half) const {
    return block * kMaskBlock + half * C.shape.block_m < at_.seqlen_q();
  }
  __device__ __forceinline__ int m_block_of_walk() const {
    return mine_.walk.list[mine_.walk.at].block * kHalves + mine_.walk.half;
  }

  __device__ __forceinline__ int count_steps() const {
    int steps = 0;
    const int first = at_.kv_head() * params_.heads_per_kv_head;
#pragma unroll 1
    for (int head = first; head < first + params_.heads_per_kv_head; ++head) {
      const int list = at_.list_of(head), count = params_.lists.lengths[list].count;
      if (count == 0) continue;
      const int last = params_.lists.blocks_of(list)[count - 1].block;
      steps += count * kHalves;
      for (int half = 1; half < kHalves; ++half) steps -= !has_half(last, half);
    }
    return steps;
  }

  // The next head's that is not empty: there is one, for there is a step to come.
  __device__ __forceinline__ void open_next_list() const {
    Walk& walk = mine_.walk;
    int list = 0;
    do {
      list = at_.list_of(++walk.head);
      walk.count = params_.lists.lengths[list].count;
    } while (walk.count == 0);
    walk.list = params_.lists.blocks_of(list);
    walk.at = 0;
  }
  __device__ __forceinline__ void walk_on() const {
    Walk& walk = mine_.walk;
    if (++walk.step == num_steps()) return;
    if (walk.half + 1 < kHalves && has_half(walk.list[walk.at].block, walk.half + 1)) {
      ++walk.half;
      return;
    }
    walk.half = 0;
    if (++walk.at == walk.count) open_next_list();
  }

  const BackwardParams& params_;
  ListedPlace<C> at_;
  Record& mine_;
  uint32_t lap_ = 0;
};

}  // namespace fa3::hopper
