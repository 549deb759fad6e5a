// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the forward kernel: tile sizes, stages and schedule. What follows
// from them: which scheduler, KV loader and combine the kernel is made of (forward/producer/), tile
// shapes, registers and how its consumers are compiled (consumer_tuning.h). Plain constexpr,
// readable on any host. The kernels that there are stand in kernels/forward.h.
#pragma once

#include "core/macros.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

// Which tiles a CTA computes (forward/producer/schedule/tile_scheduler.cuh).
enum class SchedulerKind { kDense, kVarlen, kSplit, kStreamK, kListed };

// How keys and values get into shared memory (forward/producer/kv_loader.cuh).
enum class KvLoaderKind { kDense, kPages, kPagesOrCpAsync, kCpAsync, kQuantized, kE4m3, kListed };

// Who combines the splits of a tile: a kernel that comes after (combine/combine_kernel.cu), the CTA
// that is done last (combine/combine_last.cuh), or the CTA that opens the tile, unless the launch
// leaves it to a kernel (combine/combine_opener.cuh).
enum class CombineKind { kNone, kKernel, kLastCta, kOpener };

// What K and V are in global memory, where Q is fp16 or bf16 unless it says e4m3.
enum class Operands : unsigned char {
  k16Bit,           // as Q
  kQuantizedCache,  // e4m3, which becomes fp16 in shared memory (dequantize_keys.cuh) or registers
  kE4m3,            // e4m3, as Q; V lies transposed
  kE4m3RowsOfV,     // V in rows, and the kernel transposes it (producer/transpose_values.cuh)
};

// Which tiles a CTA computes, and which masks and lengths it knows.
enum class Tiles : unsigned char {
  kDense,         // one length for all sequences, full or causal
  kVarlen,        // every mask and length; whole tiles
  kSplit,         // the same; tiles may be split along the keys. Not with three consumers, which
                  // leave the producer no registers for it
  kStreamK,       // few queries, and nothing but what these need
  kDecode,        // the same for fewer still: each warp has keys of its own (decode/)
  kDecodeSingle,  // a single sequence: each split of a tile has a cluster of CTAs
  kListed,        // lists of a block mask (cuda/lists/block_list.h); one length
  kListedVarlen,  // the same; lengths of their own
};

enum class Scores : unsigned char { kScaled, kCapped };

// How P V is summed.
enum class Sum : unsigned char {
  kInRegisters,
  kPromoted,   // of e4m3: in parts (promoted_sum.cuh)
  kContinued,  // rows go on from a result over other keys, and O may be float32
};

// Which weights of a visible key count.
enum class Weights : unsigned char {
  kAll,
  kDropped,   // dropout
  kMaskBits,  // those that the bits of a block mask have
};

// What is loaded of a captured tensor before there are scores.
enum class Ahead : unsigned char { kNothing, kTile, kTileReadOnce, kPairs };

struct Shape {
  int head_dim = 128;     // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;   // columns of V and O as tiled
  int block_m = 128;      // query rows a tile, 64 for each consumer warpgroup
  int block_n = 128;      // keys a tile
  int q_stages = 1;       // 2: the next tile's Q is loaded while this tile's is in use
  int kv_stages = 5;      // K and V tiles take turns in one pipeline
  int loaded_stages = 0;  // of a quantized cache: e4m3 arrives in a pipeline of its own
  int ctas_per_sm = 1;
  bool overlaps = true;   // a step's softmax runs under P V of the block before
  bool ping_pong = true;  // warpgroups take turns to issue their products

  bool operator==(const Shape&) const = default;
};

// A score function's captured tensors. No built kernel has one.
struct Captured {
  Ahead ahead = Ahead::kNothing;
  bool may_hide = false;  // the function hides keys

  FA3_HD constexpr bool loads_tile() const {
    return ahead == Ahead::kTile || ahead == Ahead::kTileReadOnce;
  }
  bool operator==(const Captured&) const = default;
};

// ---- The types of a kernel's operands, and its tiles in shared memory ----

struct OperandTypes {
  Element query, product, stored;

  // Q is brought to the products' type.
  FA3_HD constexpr bool rescales_queries() const {
    return stored == Element::kE4m3 && query != product;
  }
};

struct TileShapes {
  tile::TileLayout q, k, v;
  tile::TileLayout loaded_k, loaded_v;  // as they arrive: narrower in a quantized cache
  tile::TileLayout staged_o;            // of a warp, where O leaves through shared memory

  // e4m3 products sum along columns, so that V comes transposed, or is where it has arrived.
  FA3_HD constexpr TileShapes(int block_m, int block_n, int head_dim, int head_dim_v,
                              int product_bytes, int stored_bytes, bool transposed_v,
                              bool arrives_in_rows)
      : q{block_m, head_dim, product_bytes},
        k{block_n, head_dim, product_bytes},
        v(transposed_v ? tile::TileLayout{head_dim_v, block_n, product_bytes}
                       : tile::TileLayout{block_n, head_dim_v, product_bytes}),
        loaded_k{block_n, head_dim, stored_bytes},
        loaded_v(transposed_v && !arrives_in_rows
                     ? v
                     : tile::TileLayout{block_n, head_dim_v, stored_bytes}),
        staged_o{cuda::kRowsPerWarp, head_dim_v} {}

  FA3_HD constexpr int q_bytes() const { return q.bytes(); }
  FA3_HD constexpr int stage_bytes() const { return larger(k, v); }
  FA3_HD constexpr int loaded_stage_bytes() const { return larger(loaded_k, loaded_v); }

 private:
  static FA3_HD constexpr int larger(tile::TileLayout a, tile::TileLayout b) {
    return a.bytes() > b.bytes() ? a.bytes() : b.bytes();
  }
};

// Fields hold choices, functions hold what follows from them.
struct Kernel {
  Shape shape = {};
  Element element = Element::kBf16;  // of O; of Q, K and V too, unless they are e4m3
  Operands operands = Operands::k16Bit;
  Tiles tiles = Tiles::kDense;
  Scores scores = Scores::kScaled;
  Sum sum = Sum::kInRegisters;
  Weights weights = Weights::kAll;
  Captured captured = {};
  Outputs outputs = {};  // no built kernel has any: compiled at run time

  bool operator==(const Kernel&) const = default;

  // ---- The parts by themselves ----

  FA3_HD constexpr bool e4m3() const { return operands >= Operands::kE4m3; }
  FA3_HD constexpr bool transposes_v() const { return operands == Operands::kE4m3RowsOfV; }
  // K and V of a quantized cache, which become fp16.
  FA3_HD constexpr bool dequantizes() const { return operands == Operands::kQuantizedCache; }
  // Every mask and length.
  FA3_HD constexpr bool general() const {
    return tiles == Tiles::kVarlen || tiles == Tiles::kSplit || tiles == Tiles::kListedVarlen;
  }
  FA3_HD constexpr bool capped() const { return scores == Scores::kCapped; }
  // Decode kernels (decode/): each warp has keys of its own. For a single sequence every split has
  // a cluster.
  FA3_HD constexpr bool is_decode() const {
    return tiles == Tiles::kDecode || is_single_sequence();
  }
  FA3_HD constexpr bool is_single_sequence() const { return tiles == Tiles::kDecodeSingle; }
  // For few query rows alone: a tile for each sequence and head pack, of dense queries, under masks
  // with a right side alone. Tiles are split; those of 128 rows may be whole. Threads copy the
  // keys, unless they are dequantized or the kernel decodes. Instruction fetch bounds small calls,
  // so the kernel leaves everything else out.
  FA3_HD constexpr bool is_stream_k() const { return tiles == Tiles::kStreamK || is_decode(); }
  FA3_HD constexpr bool continued() const { return sum == Sum::kContinued; }
  FA3_HD constexpr bool dropout() const { return weights == Weights::kDropped; }
  FA3_HD constexpr bool block_mask() const { return weights == Weights::kMaskBits; }
  FA3_HD constexpr bool gated() const { return outputs.gate != Gate::kNone; }

  // Whether the parts fit each other.
  FA3_HD constexpr bool is_consistent() const {
    const bool listed = tiles == Tiles::kListed || tiles == Tiles::kListedVarlen;
    return e4m3() == (sum == Sum::kPromoted) && block_mask() == listed && (general() || !capped());
  }

  // Softmax steps that leave the reference where it is (cuda/softmax/softmax.cuh). Stream-K tiles
  // of 64 rows wait for memory: online steps take no more of their time. Beside pairs, registers do
  // not last for guarded steps that may find no reference: 0.8 of the speed of online steps
  // (docs/lab/flex.md).
  FA3_HD constexpr bool guarded() const {
    if (dequantizes() || is_decode()) return false;
    if (tiles == Tiles::kStreamK && consumers() == 1) return false;
    return captured.ahead != Ahead::kPairs || !captured.may_hide;
  }
  // Weights begin far below the largest one that is allowed: fp16 has no exponents for that.
  FA3_HD constexpr bool has_headroom() const {
    return element == Element::kBf16 && guarded() && !e4m3() && !block_mask();
  }

  // ---- The three types that a kernel is made of ----

  FA3_HD constexpr SchedulerKind scheduler() const {
    if (is_stream_k()) return SchedulerKind::kStreamK;
    switch (tiles) {
      case Tiles::kDense:
        return SchedulerKind::kDense;
      case Tiles::kSplit:
        return SchedulerKind::kSplit;
      case Tiles::kListed:
      case Tiles::kListedVarlen:
        return SchedulerKind::kListed;
      default:
        return SchedulerKind::kVarlen;
    }
  }
  FA3_HD constexpr KvLoaderKind kv_loader() const {
    if (e4m3()) return KvLoaderKind::kE4m3;
    if (dequantizes()) return KvLoaderKind::kQuantized;
    if (block_mask()) return KvLoaderKind::kListed;
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
    if (!is_stream_k()) return CombineKind::kKernel;
    return consumers() == 1 ? CombineKind::kLastCta : CombineKind::kOpener;
  }

  // Tiles may be split along the keys (scheduler/split_kv.h). Such a kernel starts while the one
  // before still runs, a combine or the varlen metadata, say, and waits for its end itself (PDL).
  // Dense kernels gain nothing by that, and windows lose 2 to 3% (docs/lab/decoding.md).
  FA3_HD constexpr bool can_split() const {
    return scheduler() == SchedulerKind::kSplit || is_stream_k();
  }
  // Tiles of a causal mask may lie in pairs there: those of 64 rows are for sequences of one tile.
  FA3_HD constexpr bool pairs_tiles() const {
    return scheduler() == SchedulerKind::kSplit && consumers() > 1;
  }
  // Keys may lie in pages, or sequences beside each other: TMA is kept from reading past a
  // sequence's end.
  FA3_HD constexpr bool clips_keys() const { return general() || dequantizes(); }
  // Keys in small pages can be copied by threads (load_cp_async.cuh), which take registers of the
  // producer's warpgroup.
  FA3_HD constexpr bool may_use_cp_async() const {
    return can_split() && !e4m3() && (is_decode() || !dequantizes());
  }

  // ---- Threads, types and shapes ----

  FA3_HD constexpr int consumers() const {
    return is_decode() ? 1 : shape.block_m / kRowsPerWarpgroup;
  }
  FA3_HD constexpr int consumer_warps() const {
    return is_decode() ? threads() / kWarpSize : consumers() * kWarpsPerWarpgroup;
  }
  FA3_HD constexpr int threads() const {
    return is_decode() ? 2 * kWarpgroupSize : (consumers() + 1) * kWarpgroupSize;
  }

  // Types of Q in global memory, of the products' operands, of K and V in global memory. What is
  // dequantized becomes fp16, whatever Q's type is, and so does Q (fp8/rescale_queries.cuh).
  FA3_HD constexpr OperandTypes types() const {
    const Element query = e4m3() ? Element::kE4m3 : element;
    const Element product = dequantizes() ? Element::kFp16 : query;
    return {query, product, dequantizes() ? Element::kE4m3 : product};
  }
  FA3_HD constexpr TileShapes tiles_in_smem() const {
    return {shape.block_m,
            shape.block_n,
            shape.head_dim,
            shape.head_dim_v,
            bytes_of(types().product),
            bytes_of(types().stored),
            e4m3(),
            transposes_v()};
  }
  // A tile of a captured tensor as large as the scores (forward/producer/load_captured.cuh).
  FA3_HD constexpr tile::TileLayout captured_tile() const { return {shape.block_m, shape.block_n}; }
  FA3_HD constexpr int captured_stages() const { return shape.kv_stages >= 6 ? 3 : 2; }
  FA3_HD constexpr int loaded_stages() const {
    return dequantizes() ? shape.loaded_stages : shape.kv_stages;
  }
};

// A kernel's function, and the bytes of shared memory that it asks for: in forward_kernel.cuh and
// decode_kernel.cuh.
template <Kernel C>
struct KernelOf;

}  // namespace fa3::hopper
