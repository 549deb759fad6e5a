// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the forward kernel: tile sizes, stages and schedule. What follows
// from them: which scheduler, KV loader and combine the kernel is made of
// (forward/producer/), tile shapes (tile_shapes.h), registers (register_budget.h) and how
// its consumers are compiled (consumer_tuning.h). Plain constexpr, readable on any host. The
// kernels that there are stand in kernels/forward.h.
#pragma once

#include "core/macros.h"
#include "engine/cuda/ptx/element.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/config/tile_shapes.h"

namespace fa3::hopper {

// Which tiles a CTA computes (forward/producer/schedule/tile_scheduler.cuh).
enum class SchedulerKind { kDense, kVarlen, kSplit, kStreamK, kListed };

// How keys and values get into shared memory (forward/producer/kv_loader.cuh).
enum class KvLoaderKind { kDense, kPages, kPagesOrCpAsync, kCpAsync, kQuantized, kE4m3, kListed };

// Who combines the splits of a tile: a kernel that comes after (combine/combine_kernel.h), the CTA
// that is done last (combine/combine_last.cuh), or the CTA that opens the tile, unless the launch
// leaves it to a kernel (combine/combine_opener.cuh).
enum class CombineKind { kNone, kKernel, kLastCta, kOpener };

struct ForwardConfig {
  Element element = Element::kBf16;  // of O; of Q, K and V too, unless they are e4m3
  bool e4m3 = false;
  int head_dim = 128;     // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;   // columns of V and O as tiled
  int block_m = 128;      // query rows a tile, 64 for each consumer warpgroup
  int block_n = 128;      // keys a tile
  int q_stages = 1;       // 2: the next tile's Q is loaded while this tile's is in use
  int kv_stages = 5;      // K and V tiles take turns in one pipeline
  bool overlaps = true;   // a step's softmax runs under P V of the block before
  bool ping_pong = true;  // warpgroups take turns to issue their products
  int ctas_per_sm = 1;
  int quantized_stages = 0;  // for K and V of a quantized cache: e4m3 arrives in a pipeline of its
                             // own and becomes fp16 on the way to the other (dequantize_keys.cuh)
  bool may_split = false;    // general kernels can split tiles along the keys; not with three
                             // consumers, which leave the producer no registers for it
  bool guarded =
      true;  // softmax steps that leave the reference where it is (cuda/softmax/softmax.cuh)
  bool dropout = false;
  bool block_mask = false;  // tiles walk the lists of a block mask (cuda/lists/block_list.h)
  Variant variant = Variant::kDense;
  bool transposes_v = false;  // of e4m3: V comes in rows, and the kernel itself transposes it
                              // (producer/transpose_values.cuh)
  bool continued = false;     // rows go on from a result over other keys, and O may be float32

  FA3_HD constexpr ForwardConfig with(Element e, Variant v) const {
    ForwardConfig other = *this;
    other.element = e;
    other.variant = v;
    if (other.can_split() && q_stages > 1) {  // a split tile's Q is loaded after its first K
      other.q_stages = 1;
      other.kv_stages += (q_stages - 1) * tiles().q_bytes() / tiles().stage_bytes();
    }
    return other;
  }

  // The same tiles in a kernel that only decodes. Tiles of 64 rows wait for memory: online softmax
  // steps take no more of their time.
  FA3_HD constexpr ForwardConfig stream_k() const {
    ForwardConfig other = with(element, Variant::kStreamK);
    if (consumers() == 1) other.guarded = false;
    return other;
  }

  // ---- The variant ----

  FA3_HD constexpr bool general() const { return variant == Variant::kGeneral || capped(); }
  FA3_HD constexpr bool capped() const { return variant == Variant::kCapped; }
  // Decode kernels (decode/): each warp has keys of its own. For a single sequence every split has
  // a cluster.
  FA3_HD constexpr bool is_decode() const {
    return variant == Variant::kDecode || is_single_sequence();
  }
  FA3_HD constexpr bool is_single_sequence() const { return variant == Variant::kDecodeSingle; }

  // Weights begin far below the largest one that is allowed: fp16 has no exponents for that.
  FA3_HD constexpr bool has_headroom() const {
    const bool has_steps = variant == Variant::kDense || variant == Variant::kStreamK || general();
    return element == Element::kBf16 && has_steps && guarded && !e4m3 && !block_mask &&
           !dequantizes();
  }

  // ---- The three types that a kernel is made of ----

  FA3_HD constexpr SchedulerKind scheduler() const {
    if (block_mask) return SchedulerKind::kListed;
    if (variant == Variant::kStreamK || is_decode()) return SchedulerKind::kStreamK;
    if (may_split && variant != Variant::kDense) return SchedulerKind::kSplit;
    return general() ? SchedulerKind::kVarlen : SchedulerKind::kDense;
  }
  FA3_HD constexpr KvLoaderKind kv_loader() const {
    if (e4m3) return KvLoaderKind::kE4m3;
    if (dequantizes()) return KvLoaderKind::kQuantized;
    if (block_mask) return KvLoaderKind::kListed;
    switch (scheduler()) {
      case SchedulerKind::kDense:
        return KvLoaderKind::kDense;
      case SchedulerKind::kVarlen:
        return KvLoaderKind::kPages;
      case SchedulerKind::kSplit:
        return KvLoaderKind::kPagesOrCpAsync;
      case SchedulerKind::kStreamK:
      case SchedulerKind::kListed:
        break;
    }
    return KvLoaderKind::kCpAsync;
  }
  FA3_HD constexpr CombineKind combine() const {
    if (!can_split()) return CombineKind::kNone;
    if (!always_splits()) return CombineKind::kKernel;
    return consumers() == 1 ? CombineKind::kLastCta : CombineKind::kOpener;
  }

  // Tiles may be split along the keys (scheduler/split_kv.h). Such a kernel starts while the one
  // before still runs, a combine or the varlen metadata, say, and waits for its end itself (PDL).
  // Dense kernels gain nothing by that, and windows lose 2 to 3% (docs/lab/decoding.md).
  FA3_HD constexpr bool can_split() const {
    return scheduler() == SchedulerKind::kSplit || always_splits();
  }
  // Tiles of a causal mask may lie in pairs there: those of 64 rows are for sequences of one tile.
  FA3_HD constexpr bool pairs_tiles() const {
    return scheduler() == SchedulerKind::kSplit && consumers() > 1;
  }
  // Only tiles one for each sequence and head pack, of dense queries under masks with a right side
  // alone, and split; those of 128 rows may be whole. Threads copy the keys, unless they are
  // dequantized or the kernel decodes: a small call waits for instructions, so there is nothing
  // else in it.
  FA3_HD constexpr bool always_splits() const { return scheduler() == SchedulerKind::kStreamK; }

  // K and V of a quantized cache, which become fp16.
  FA3_HD constexpr bool dequantizes() const { return quantized_stages > 0; }
  // Keys may lie in pages, or sequences beside each other: TMA is kept from reading past a
  // sequence's end.
  FA3_HD constexpr bool clips_keys() const { return general() || dequantizes(); }
  // Keys in small pages can be copied by threads (load_cp_async.cuh), which take registers of the
  // producer's warpgroup.
  FA3_HD constexpr bool may_use_cp_async() const {
    return can_split() && !e4m3 && (is_decode() || !dequantizes());
  }

  // ---- Threads, types and shapes ----

  FA3_HD constexpr int consumers() const { return is_decode() ? 1 : block_m / kRowsPerWarpgroup; }
  FA3_HD constexpr int consumer_warps() const {
    return is_decode() ? threads() / kWarpSize : consumers() * kWarpsPerWarpgroup;
  }
  FA3_HD constexpr int threads() const {
    return is_decode() ? 2 * kWarpgroupSize : (consumers() + 1) * kWarpgroupSize;
  }

  // Types of Q in global memory, of the products' operands, of K and V in global memory. What is
  // dequantized becomes fp16, whatever Q's type is, and so does Q (fp8/rescale_queries.cuh).
  FA3_HD constexpr OperandTypes types() const {
    const Element query = e4m3 ? Element::kE4m3 : element;
    const Element product = dequantizes() ? Element::kFp16 : query;
    return {query, product, dequantizes() ? Element::kE4m3 : product};
  }
  FA3_HD constexpr TileShapes tiles() const {
    return {block_m,
            block_n,
            head_dim,
            head_dim_v,
            bytes_of(types().product),
            bytes_of(types().stored),
            e4m3,
            transposes_v};
  }
  // A tile of a captured tensor as large as the scores (forward/producer/load_captured.cuh).
  FA3_HD constexpr tile::TileLayout captured_tile() const { return {block_m, block_n}; }
  FA3_HD constexpr int captured_stages() const { return kv_stages >= 6 ? 3 : 2; }
  FA3_HD constexpr int loaded_stages() const {
    return dequantizes() ? quantized_stages : kv_stages;
  }
};

}  // namespace fa3::hopper
