// SPDX-License-Identifier: Apache-2.0
// The scheduler of sequences that may have lengths of their own. Next: split_tiles.cuh.
#pragma once

#include "engine/cuda/mask/key_window.h"
#include "engine/hopper/forward/producer/schedule/dense_tiles.cuh"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {

template <Kernel C, class Issuing = ThreadIssuer>
class VarlenTiles : public DenseTiles<C, Issuing> {
  using Dense = DenseTiles<C, Issuing>;

 protected:
  using Dense::number, Dense::params_;

 public:
  using Dense::Dense;

  __device__ __forceinline__ void open() {
    if (has_metadata()) num_metadata_tiles_ = *params_.num_entries * params_.order.num_packs;
  }

  __device__ __forceinline__ bool done() const {
    return number() >= (has_metadata() ? num_metadata_tiles_ : params_.order.num_tiles());
  }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) const {
    work.place.partial = TileSplit::kNotSplit;
    if (has_metadata()) {
      const int entry = number() / params_.order.num_packs;
      SequenceTiles s = params_.sequences[entry];
      const TileIndex index = s.order.tile(number() - s.first_entry * params_.order.num_packs);
      s.queries.pack = index.pack;
      work.place.set_sequence(s.number, params_.e4m3.sequences);
      this->write(work, index.m_block, s.queries, s.keys);
    } else {
      Dense::next(work);
    }
    return true;
  }

 private:
  __device__ __forceinline__ bool has_metadata() const { return params_.sequences; }

  int num_metadata_tiles_ = 0;
};

template <Kernel C>
struct SchedulerOf<C, SchedulerKind::kVarlen> {
  using Type = VarlenTiles<C>;
};

}  // namespace fa3::hopper
