// SPDX-License-Identifier: Apache-2.0
// The one template parameter of the forward kernel: tile sizes, buffers and schedule, with the
// register and shared-memory budgets that follow from them. Plain constexpr, readable on any host.
// The configurations that are built stand in compiled.h.
#pragma once

#include <fa3/fa3.h>

#include "core/macros.h"
#include "engine/cuda/element.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

struct ForwardConfig {
  Element element = Element::kBf16;  // of O; of Q, K and V too, unless they are e4m3
  bool e4m3 = false;
  int head_dim = 128;     // columns of Q and K as tiled; shorter heads are filled with zeros
  int head_dim_v = 128;   // columns of V and O as tiled
  int block_m = 128;      // query rows a tile, 64 for each consumer warpgroup
  int block_n = 128;      // keys a tile
  int q_stages = 1;       // 2: the next tile's Q loads before this tile's is spent
  int kv_stages = 5;      // K and V tiles take turns in one pipeline
  bool ping_pong = true;  // warpgroups take turns to issue their products
  int ctas_per_sm = 1;    // CTAs that share an SM
  int quantized_stages =
      0;  // of a quantized cache: K and V arrive as e4m3, in a pipeline of their own, and
          // become fp16 on the way to the other (dequantize_keys.cuh); 0: they have it
  bool may_split = false;  // general kernels can split tiles along the keys; not with three
                           // consumers, which leave the producer no registers for it
  bool guarded = true;     // softmax steps that leave the reference where it is (cuda/softmax.cuh)
  Variant variant = Variant::kDense;

  FA3_HD constexpr ForwardConfig with(Element e, Variant v) const {
    ForwardConfig other = *this;
    other.element = e;
    other.variant = v;
    if (other.can_split() && q_stages > 1) {  // a split tile's Q is asked for behind its first K
      other.q_stages = 1;
      other.kv_stages += (q_stages - 1) * q_bytes() / stage_bytes();
    }
    return other;
  }

  // The same tiles in a kernel that does nothing but decode, which takes online steps.
  FA3_HD constexpr ForwardConfig stream_k() const {
    ForwardConfig other = *this;
    other.guarded = false;
    other.variant = Variant::kStreamK;
    return other;
  }

  FA3_HD constexpr bool general() const { return variant == Variant::kGeneral || capped(); }
  FA3_HD constexpr bool capped() const { return variant == Variant::kCapped; }

  // Starts while the kernel before still runs, a combine or the list of its sequences, say, and
  // waits for its end itself. Dense kernels gain nothing by that, and windows lose 2 to 3%
  // (docs/lab/decoding.md).
  FA3_HD constexpr bool uses_pdl() const { return can_split(); }

  // Knows split tiles alone, one for each sequence and head pack, of queries that are dense, under
  // masks with a right side alone, and, unless they are dequantized or stream, keys that threads
  // copy: a small call waits for instructions, so there are no others.
  FA3_HD constexpr bool always_splits() const {
    return variant == Variant::kStreamK || is_decode();
  }

  // Such a kernel whose warps have keys of their own (stream/), and one that has a cluster for each
  // part of one sequence's tiles instead of runs.
  FA3_HD constexpr bool is_decode() const {
    return variant == Variant::kDecode || is_single_sequence();
  }
  FA3_HD constexpr bool is_single_sequence() const { return variant == Variant::kDecodeSingle; }

  // Keys may lie in pages, or sequences beside each other: TMA is kept from reading past a
  // sequence's end.
  FA3_HD constexpr bool clips_keys() const { return general() || dequantizes(); }

  FA3_HD constexpr int consumers() const { return is_decode() ? 1 : block_m / kRowsPerWarpgroup; }
  FA3_HD constexpr int consumer_warps() const {
    return is_decode() ? threads() / kWarpSize : consumers() * kWarpsPerWarpgroup;
  }
  FA3_HD constexpr int threads() const {
    return is_decode() ? 2 * kWarpgroupSize : (consumers() + 1) * kWarpgroupSize;
  }

  FA3_HD constexpr Element output() const { return element; }
  // Of the products' operands. What is dequantized becomes fp16, whatever Q's type is.
  FA3_HD constexpr Element input() const {
    return e4m3 ? Element::kE4m3 : dequantizes() ? Element::kFp16 : element;
  }
  // Then Q becomes fp16 too (rescale_queries.cuh).
  FA3_HD constexpr bool rescales_queries() const { return dequantizes() && element != input(); }

  // TMA may fill the stages of such a warp; else its lanes do, which is faster where all
  // SMs read e4m3, but for sixteen rows (docs/lab/decoding.md).
  FA3_HD constexpr bool may_use_tma() const {
    return is_single_sequence() || !dequantizes() || block_m > 8;
  }

  // Keys of a stage of a warp that streams.
  FA3_HD constexpr int stage_keys() const { return block_n / consumer_warps(); }

  // CTAs of two calls share an SM: while one call ends, the next has begun and waits for
  // it. So stages are few.
  FA3_HD constexpr bool overlaps_next_call() const {
    return is_single_sequence() && block_m <= 8 && head_dim_v <= 128;
  }
  FA3_HD constexpr int decode_ctas_per_sm() const { return overlaps_next_call() ? 2 : 1; }
  // Stages of a warp that streams. Where there is one tile, joined rows lie in them, and they have
  // all the room.
  FA3_HD constexpr int decode_stages() const {
    if (!is_single_sequence()) return kv_stages;
    const int stage_bytes = stage_keys() * head_dim * bytes_of(stored());
    return kSingleStageBytes / decode_ctas_per_sm() / (consumer_warps() * stage_bytes);
  }
  static constexpr int kSingleStageBytes = 192 << 10;

  // Of Q in global memory; of K and V there, and the stages that they are loaded into.
  FA3_HD constexpr bool dequantizes() const { return quantized_stages > 0; }
  FA3_HD constexpr Element query() const { return e4m3 ? Element::kE4m3 : element; }
  FA3_HD constexpr Element stored() const { return dequantizes() ? Element::kE4m3 : input(); }
  FA3_HD constexpr int loaded_stages() const {
    return dequantizes() ? quantized_stages : kv_stages;
  }

  // Tiles in shared memory. e4m3 products sum along columns, so that V comes transposed.
  FA3_HD constexpr tile::TileLayout q_tile() const {
    return {block_m, head_dim, bytes_of(input())};
  }
  FA3_HD constexpr tile::TileLayout k_tile() const {
    return {block_n, head_dim, bytes_of(input())};
  }
  FA3_HD constexpr tile::TileLayout v_tile() const {
    if (e4m3) return {head_dim_v, block_n, bytes_of(input())};
    return {block_n, head_dim_v, bytes_of(input())};
  }
  FA3_HD constexpr tile::TileLayout loaded_k_tile() const {
    return dequantizes() ? tile::TileLayout{block_n, head_dim, bytes_of(stored())} : k_tile();
  }
  FA3_HD constexpr tile::TileLayout loaded_v_tile() const {
    return dequantizes() ? tile::TileLayout{block_n, head_dim_v, bytes_of(stored())} : v_tile();
  }

  // Of e4m3 products, so many keys of which make a part of O (promoted_sum.cuh).
  static constexpr int kPromotionKeys = 1152;
  FA3_HD constexpr int promotion_blocks() const { return kPromotionKeys / block_n; }

  // The step that starts a tile is compiled apart from the others: these then have registers to
  // spare, but short sequences pay for the longer code. Measured: at 128 columns 15% at causal 1k.
  FA3_HD constexpr bool starts_apart() const { return e4m3 && head_dim_v > 128; }
  // Where a part ends, it joins the others while Q K^T runs, if registers last for both; else
  // between two steps. Measured, over official: 128 columns 0.978 to 0.982, 64 columns 1.031
  // to 1.016.
  FA3_HD constexpr bool promotes_under_scores() const { return consumers() <= 2; }
  // Reads where a tile's edge lies again whenever it is asked for: few registers are left.
  FA3_HD constexpr bool reads_edge_again() const { return general() || e4m3; }
  // Peaked rows are taken by steps of their own, in a loop of their own, that follow their maximum.
  FA3_HD constexpr bool tracks_max() const { return e4m3 && !general(); }
  // So many of a thread's weights in the shadow of that search: three in eight. Measured: without
  // them 2 to 5% of peaked rows' speed are lost.
  FA3_HD constexpr int shadow_weights() const { return block_n / 16 * 3; }
  FA3_HD constexpr int scale_groups() const { return block_n / FA3_DESCALE_ROWS; }

  // 64 K registers over the launch's threads, in steps of 8: 168 for 384 threads, 128 for 512 or
  // twice 256, 80 for three times 256. After setmaxnreg the sum over warpgroups must not pass 512:
  // 40 + 2 * 232 = 72 + 2 * 216 = 88 + 2 * 208 = 24 + 2 * 240 = 504, 32 + 3 * 160 = 512, 2 * (72 +
  // 184) = 512, 2 * (32 + 208) or 3 * (32 + 128) = 480. The producer spills below 40, but not of
  // dense e4m3 tiles; splitting tiles takes more. The consumers need consumer_registers_used().
  FA3_HD constexpr int producer_registers() const {
    if (can_split()) return consumers_spare() ? 88 : 72;
    if (spares_producer()) return 24;
    return consumers() == 2 ? 40 : 32;
  }
  FA3_HD constexpr int consumer_registers() const {
    if (consumers() == 1)
      return ctas_per_sm == 1 ? 240 : ctas_per_sm == 3 ? 128 : can_split() ? 184 : 208;
    if (consumers() == 2 && can_split()) return consumers_spare() ? 208 : 216;
    if (consumers() == 2) return spares_producer() ? 240 : 232;
    return 160;
  }
  // So many that a producer that splits tiles hardly spills.
  FA3_HD constexpr bool consumers_spare() const {
    return consumers() == 2 && consumer_registers_used() <= 192;
  }
  FA3_HD constexpr bool spares_producer() const {
    return consumers() == 2 && (consumer_registers_used() > 232 || (e4m3 && !general()));
  }

  // Of a thread at launch; setmaxnreg tells which way it goes from here.
  FA3_HD constexpr int launch_registers() const {
    const int all = 65536 / (threads() * ctas_per_sm) / 8 * 8;
    return all < 256 ? all : 256;
  }

  // Whether tiles can be split along the keys (scheduler/split_kv.h).
  FA3_HD constexpr bool can_split() const { return may_split && variant != Variant::kDense; }

  // Whether O may be float32, or its rows end within 16 bytes. Where it may not, the compiler
  // spills.
  FA3_HD constexpr bool stores_any_rows() const {
    return general() && !dequantizes() && head_dim != 96 && (head_dim_v <= 192 || consumers() == 1);
  }

  // A whole warp asks for copies: keys in small pages come in many.
  FA3_HD constexpr bool loads_by_warp() const { return can_split(); }

  // Of few queries over a quantized cache: tiles are small and follow each other soon, so what a
  // step waits for counts. Rows that no query has are left alone, and O is only multiplied where a
  // reference moves.
  FA3_HD constexpr bool short_steps() const { return dequantizes() && consumers() == 1; }

  // Keys and values in small pages can be copied by threads (load_cp_async.cuh), which take
  // registers of the producer's warpgroup.
  FA3_HD constexpr bool may_use_cp_async() const {
    return can_split() && !e4m3 && (is_decode() || !dequantizes());
  }

  // Whether lost scores can be computed again from keys in pages, so that these may take guarded
  // steps. Where they cannot, the compiler spills.
  FA3_HD constexpr bool recomputes_pages() const {
    return may_use_cp_async() && !capped() && (head_dim_v <= 192 || consumers() == 1);
  }

  // Spend registers on a shorter step between tiles. Measured: two warpgroups gain 1 to 4% up to 2k
  // keys, three lose 1%.
  FA3_HD constexpr bool short_tile_change() const { return consumers() <= 2; }

  // So many of a thread's weights are packed while the others are still exponentiated, which waits
  // for the product before. Measured: at 64 columns, where the product is short, a gain of 1 to 3%;
  // else a loss of 3%; of e4m3 a loss of 6 to 15%.
  FA3_HD constexpr int early_weights() const {
    return head_dim_v <= 64 && !e4m3 && guarded ? block_n / 8 * 3 : 0;
  }

  // Scores N/2, the previous block's packed weights, output Dv/2, and some 28 for the rest.
  FA3_HD constexpr int consumer_registers_used() const {
    return block_n / 2 + block_n * bytes_of(input()) / 8 + head_dim_v / 2 + 28;
  }

  FA3_HD constexpr int q_bytes() const { return q_tile().bytes(); }
  FA3_HD constexpr int stage_bytes() const { return larger(k_tile(), v_tile()); }
  FA3_HD constexpr int loaded_stage_bytes() const {
    return larger(loaded_k_tile(), loaded_v_tile());
  }

 private:
  static FA3_HD constexpr int larger(tile::TileLayout a, tile::TileLayout b) {
    return a.bytes() > b.bytes() ? a.bytes() : b.bytes();
  }
};

}  // namespace fa3::hopper
