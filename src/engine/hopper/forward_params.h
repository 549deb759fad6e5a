// SPDX-License-Identifier: Apache-2.0
// What one forward launch is given, by value, as a __grid_constant__. Filled by launch_forward.cpp.
// For features that most kernels have not, numbers and pointers alone: what is done with them
// stands with the policy, the scheduler or the loader of the kernels that have the feature.
#pragma once

#include <cuda.h>

#include "core/mask/mask_rule.h"
#include "core/scales.h"
#include "engine/cuda/feature_params.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/cuda/softmax/soft_cap.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/scheduler/split_kv_schedule.h"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/score_operands.h"
#endif

namespace fa3::hopper {

// Keys in pages: the maps of K and V have pages for batch entries, and boxes with a number of rows
// that divides a page and a tile. A page that does not exist reads as zeros.
struct PagedKeys {
  const int32_t* table;
  int64_t table_stride;
  int page_size;  // 0: no pages
  int box_rows;
  int num_pages;
};

// K or V, for threads that copy rows themselves (load_cp_async.cuh): rows and pages (or batch
// entries) lie at multiples of a unit.
struct CpAsyncRows {
  const unsigned char* data;
  int64_t head_bytes;
  uint32_t unit_bytes;
  uint32_t page_units;
  uint32_t row_units;
  int columns;
};

// Division by a number that the host knows: a product and a shift instead of some twenty
// instructions. For dividends and divisors below 2^31.
struct Divisor {
  uint32_t multiplier = 0;
  int shift = 0;

  static constexpr Divisor of(uint32_t number) {
    int bits = 0;
    while (uint64_t{1} << bits < number) ++bits;
    return {uint32_t(((uint64_t{1} << (31 + bits)) + number - 1) / number), 31 + bits};
  }
  FA3_HD constexpr unsigned quotient(unsigned n) const {
    return unsigned(uint64_t{n} * multiplier >> shift);
  }
};

struct CpAsyncKeys {
  bool active;         // else TMA brings K and V
  unsigned page_size;  // without pages: larger than any row's number
  Divisor by_page_size;
  int num_pages;  // or batch entries
  CpAsyncRows k, v;
};

// How many splits of each split tile are finished, by the number of the range that opens it
// (combine_last.cuh); or flags of the splits that go on with a tile, by the range that has one
// (combine_opener.cuh).
struct SplitCounters {
  static constexpr int kBits = 16;
  static constexpr uint64_t kMost = (1 << kBits) - 1;
  uint64_t* cells;
  uint64_t launch;  // this launch's number, in the bits above
};

// Decode kernels: clusters of 2^size_log2 CTAs; tiles of a single sequence in 2^parts_log2 splits
// (decode/work_tiles.cuh).
struct DecodeClusters {
  int size_log2 = 0;
  int parts_log2 = 0;
};

// e4m3 operands (fp8/e4m3_scales.h).
struct KeyScales;

struct E4m3Params {
  const KeyScales* keys;      // (sequences, kv heads, blocks)
  const float* value_scales;  // (sequences, kv heads): the largest
  int sequences;
  int kv_heads;
  int blocks;  // of a head
  Descales<const float> query;
  ChannelMeans<const float> value_mean;

  FA3_HD constexpr int64_t head_at(int sequence, int kv_head) const {
    return int64_t{sequence} * kv_heads + kv_head;
  }
  // `key` counts from the sequence's first.
  FA3_HD inline const KeyScales* keys_at(int sequence, int kv_head, int key) const;
};

// V^T and scales may still be made when the forward kernel starts: a tile waits for its head.
struct HeadsInWork {
  const int* parts_done;  // (sequences, kv_heads); null: all of them were there before
  int parts;              // of each head
};

struct CombineTile;

struct ForwardParams {
  // 5-D maps with dimensions {column, packed head, row, head, batch}; general kernels have clipped
  // maps of K and V (tensor_map.h).
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;

  // Again, for the few scores that are computed twice.
  cuda::RowTensor q;
  cuda::RowTensor k;
  cuda::ForwardOutput output;

  int* tile_counter;  // starts at zero: tiles are drawn; null: tiles are dealt in turn
  TileOrder order;
  int packs_per_kv_head;
  int seqlen_q;
  int seqlen_k;
  MaskRuleOf<int> mask;
  float scale_log2;  // softmax scale * log2(e)

  // For kernels that are compiled for it:
  cuda::SoftCap soft_cap;
  const SequenceTiles* sequences;  // varlen metadata, or null
  const int* num_entries;          // in `sequences`
  bool q_is_clipped;               // Q's map too, which a packed tensor has dimensions for
  int pair_blocks;                 // of PairedKvSchedule: split tiles come in pairs; 0: they do not
  CUtensorMap q_outside;           // for the boxes that lie outside of a clipped map's tensor
  CUtensorMap k_outside;
  CUtensorMap v_outside;
  PagedKeys paged;
  SplitKvSchedule schedule;      // is_active(): tiles come as splits
  cuda::PartialOutput partials;  // of split tiles
  CombineTile* combines;
  E4m3Params e4m3;
  CacheScales cache_scales;
  bool cache_is_e5m2;  // else e4m3
  CpAsyncKeys cp_async;
  SplitCounters counts;  // for splits that are combined in the kernel; else cells are null
  DecodeClusters clusters;
  cuda::DropoutParams dropout;
  cuda::BlockLists lists;  // of key blocks, by query block
  cuda::PartialInput before;
  HeadsInWork heads_in_work;
  CUtensorMap o_map;           // of kernels whose rows leave through shared memory; as q_map
  bool o_slabs_together;       // o_map has dimensions {column, row, slab, head, batch} instead
  cuda::OutputParams outputs;  // last, as most kernels have none of these
#ifdef FA3_SCORE_FUNCTION      // ScoredForwardParams of the host (launch/launch_forward.h)
  alignas(CUtensorMap) ScoreOperands score;
#endif
};

// Threads copy this launch's keys: barriers count them too.
template <Kernel C>
__device__ __forceinline__ bool uses_cp_async(const ForwardParams& params) {
  return C.may_use_cp_async() && (C.is_stream_k() || params.cp_async.active);
}

// Whether the CTA that opens a tile combines its splits (combine/combine_opener.cuh), for kernels
// in which it may; else a kernel combines them.
__device__ __forceinline__ bool opener_combines(const ForwardParams& params) {
  return params.counts.cells != nullptr;
}

}  // namespace fa3::hopper
