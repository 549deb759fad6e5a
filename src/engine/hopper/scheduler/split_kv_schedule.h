// SPDX-License-Identifier: Apache-2.0
// Which tiles of a launch are split along the keys, and where: what a kernel is told. split_kv.h
// says how, and has the functions that are only declared here.
#pragma once

#include "core/mask/mask_rule.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {

// Rules without a left side are the usual case, and take fewer instructions.
FA3_HD constexpr bool hides_right_only(const MaskRuleOf<int>& mask) {
  return mask.left == mask.kUnbounded && mask.chunk == mask.kNoChunks;
}

struct KvBlocks;

struct SplitKvSchedule {
  static constexpr bool kMayPair = false;
  static constexpr int kStreamK = 0, kUnsplit = 1;  // values of num_splits
  // No concatenation of sequences that keep their bounds is as long (choose_split.cpp). Of others
  // the lengths may add up to anything: such calls do nothing.
  static constexpr int kMostConcatenated = INT32_MAX / 2;

  VarlenMetadata sequences;  // lengths and places; its list is not used
  MaskRuleOf<int> mask;
  int block_n;
  int num_splits;       // most splits of a tile, kStreamK or kUnsplit
  int most_m_blocks;    // most query blocks of a sequence
  bool simple = false;  // is_simple(), found on the host

  FA3_HD constexpr bool is_active() const { return block_n > 0; }
  FA3_HD constexpr bool is_stream_k() const { return num_splits <= kStreamK; }

  // Stream-K alone:
  int groups_log2 = 0;  // 2^groups_log2 concatenations, a divisor of the number of head packs
  bool combine_by_tile = false;  // the combine list has an entry for each tile; else for each range

  // Queries are dense, and the keys of each sequence are the first of its own entry: as in most
  // decode steps, whose smallest calls wait for little else than the schedule. Known without the
  // arrays: a workspace query must get the answer that the call will need.
  FA3_HD constexpr bool is_simple() const;

  // This schedule where is_for_decoding(): constants for what is known then, so that the
  // compiler leaves out the rest. `may_be_whole`: tiles may have one split each.
  FA3_HD constexpr SplitKvSchedule for_decoding(bool may_be_whole = false) const;
  FA3_HD constexpr bool is_for_decoding() const;

  FA3_HD constexpr SequenceTiles sequence(int b) const;
  static FA3_HD constexpr int within(int length, int most);
  FA3_HD constexpr TileOrder order_of(int queries) const;

  // The blocks that some row of a tile sees. A tile that sees nothing still visits one.
  FA3_HD constexpr KvBlocks blocks_of(const SequenceTiles& s, int m_block) const;

  // The most blocks that a tile of the sequence may have.
  FA3_HD constexpr int most_blocks(const SequenceTiles& s) const;

  // How long a sequence is in the concatenation: in KV blocks, or in query blocks.
  FA3_HD constexpr int length_of(const SequenceTiles& s) const;
  // The sum of two lengths, neither of which is more.
  static FA3_HD constexpr int add(int length, int other);

  // Whether fixed splits find tiles in the concatenation; else each sequence has most_m_blocks.
  FA3_HD constexpr bool concatenates_tiles() const;

  // Tiles by number, where splits are fixed or there are none: all there are, and more.
  FA3_HD constexpr int num_tiles() const;
};

}  // namespace fa3::hopper
