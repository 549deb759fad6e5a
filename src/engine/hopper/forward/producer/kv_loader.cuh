// SPDX-License-Identifier: Apache-2.0
// What every way to load keys and values shares. For each key block K comes first, then V of the
// block before it: a consumer multiplies Q K^T of one block together with P V of the previous one,
// across tiles too. Without overlap V of the block itself comes second. The source of a kernel
// (instances/) includes the loaders that it needs:
//   load_tma.cuh        rows that lie one behind the other, by TMA
//   load_tma_pages.cuh  sequences beside each other, or pages, by TMA
//   load_cp_async.cuh   the same, or copied by threads
//   load_quantized.cuh  a quantized cache
//   load_tma_e4m3.cuh   e4m3 operands
//   load_tma_listed.cuh the blocks of a block mask's lists
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

// What loads a kernel's keys and values, KvLoaderOf<C>:
//   Loads:  how K and V of a block are brought into a stage
//   Scales: what the producer adds to a work tile
//   Helper: what warps 1 to 3 of its warpgroup do
//   Smem:   what the helper keeps in shared memory
//   restore(work, output): what V's encoding leaves to do to a thread's O
// V is stored as it is multiplied.
struct PlainKv {
  struct Smem {};

  template <class Work, int Count>
  static __device__ __forceinline__ void restore(const Work&, float (&)[Count]) {}
};

struct NoHelper {
  template <class... Args>
  __device__ __forceinline__ explicit NoHelper(const Args&...) {}
  static __device__ __forceinline__ constexpr bool takes_part(const ForwardParams&) {
    return false;
  }
  template <class Addresses>
  static __device__ __forceinline__ void init_pipelines(Addresses, int) {}
  __device__ __forceinline__ void run() const {}
};

template <Kernel C>
struct NoTileScales {
  static __device__ __forceinline__ void add(const ForwardParams&, SmemPlan<C>&, WorkTileOf<C>&,
                                             uint32_t) {}
};

// Where the keys of a tile lie: in registers, since its work tile is in shared memory.
struct TileKeys {
  int begin;  // of block 0, in the tensors
  int count;  // from there on, of the sequence
  int kv_head;
  int batch;  // or entry of the page table

  // For e4m3:
  int sequence;
  int first;  // block 0's first key, counted from the sequence's

  const cuda::ListedBlock* listed;  // for block masks
};

template <Kernel C>
__device__ __forceinline__ TileKeys keys_of(const ForwardParams& params,
                                            const WorkTileOf<C>& work) {
  TileKeys keys{work.keys.begin + work.first_key,
                work.keys.count - work.first_key,
                work.queries.pack / params.packs_per_kv_head,
                work.keys.batch,
                sequence_of<C>(work),
                work.first_key,
                nullptr};
  if constexpr (C.block_mask()) keys.listed = work.place.blocks;
  return keys;
}

// The stages that K and V arrive in, as the producer goes through them: the base of each way to
// load them. Such a class knows a block by what it needs of it until its V is loaded too.
template <Kernel C>
class KvStages {
 public:
  using Issuer = typename TileScheduler<C>::Issuer;
  static constexpr bool kUsesTma = true, kDelaysV = C.shape.overlaps;

  __device__ __forceinline__ KvStages(const ForwardParams& params, SmemAddresses<C> at)
      : params_(params), at_(at) {}

  // What is looked up of a block before its K is loaded: nothing.
  __device__ __forceinline__ void look_ahead(const TileKeys&, int) const {}

 protected:
  static constexpr tile::TileLayout kK = C.tiles_in_smem().loaded_k,
                                    kV = C.tiles_in_smem().loaded_v;

  __device__ __forceinline__ tile::ClippedMap k_map() const {
    return {params_.k_map, params_.k_outside, params_.k.columns};
  }
  __device__ __forceinline__ tile::ClippedMap v_map() const {
    return {params_.v_map, params_.v_outside, params_.output.o.columns};
  }

  // No lane is a lap behind: a barrier only tells one lap from the next.
  __device__ __forceinline__ void wait_for_stage() const {
    at_.loaded_pipeline().wait_empty(kv_);
    Issuer::sync();
  }
  // Other warps copy this block (load_cp_async.cuh).
  __device__ __forceinline__ void leave_to_cp_async() {
    wait_for_stage();
    if (Issuer::leads()) ptx::mbarrier_arrive(at_.kv_pipeline().full(kv_.stage()));
    kv_.advance();
  }

  const ForwardParams& params_;
  const SmemAddresses<C> at_;
  PipelineState<C.loaded_stages()> kv_;
};

// Loads the blocks of tiles, the last one of each first. Kv: how K and V of one block are brought
// into a stage.
template <class Kv>
class KvLoader {
 public:
  template <class... Args>
  __device__ __forceinline__ explicit KvLoader(const Args&... args) : kv_(args...) {}

  // K of a block, and V of the block that the last call was about, or of this one.
  __device__ __forceinline__ void load(const TileKeys& keys, int number, bool starts_tile) {
    const typename Kv::Block block = kv_.block_of(keys, number, starts_tile);
    kv_.load_k(block);
    if (number > 0) kv_.look_ahead(keys, number - 1);
    if constexpr (Kv::kDelaysV) {
      load_delayed_v();
      delayed_v_ = block;
      has_delayed_v_ = true;
    } else {
      kv_.load_v(block);
    }
  }

  __device__ __forceinline__ void load_delayed_v() {
    if (has_delayed_v_) kv_.load_v(delayed_v_);
    has_delayed_v_ = false;
  }

 private:
  Kv kv_;
  typename Kv::Block delayed_v_{};
  bool has_delayed_v_ = false;
};

}  // namespace fa3::hopper
