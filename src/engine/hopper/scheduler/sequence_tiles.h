// SPDX-License-Identifier: Apache-2.0
// Variable-length sequences, optionally in a KV cache: what the device reads about one, and the
// varlen metadata, a list of tiles that it makes of all. The lengths are read on the device, so a
// captured graph follows the arrays. Each query block of a sequence has one entry for all its
// heads, which describes the sequence: a tile's number leads to it in one read. Plain numbers,
// tested on the host. Next: split_kv.h, varlen_metadata.h.
#pragma once

#include "engine/cuda/tile/sequences.h"
#include "engine/hopper/config/sm90.h"

namespace fa3::hopper {

struct VarlenMetadata {
  Lengths lengths_q;
  Lengths lengths_k;
  int batch;
  int block_m;
  PackGqa pack;
  int num_packs;
  int tail_tiles;  // at the very end this many go longest first, whatever their head
  int capacity;    // room for entries: enough for all lengths that keep their bounds

  SequenceTiles* entries;
  int* num_entries;
  int* tile_counter;  // is cleared; null: there is none
  KeyPlaces places{};

  FA3_HD constexpr int num_sequences() const { return cuda::num_sequences(lengths_q, batch); }

  // Sequence `b`, without its place in the list.
  FA3_HD constexpr SequenceTiles sequence(int b) const {
    const SequenceRows rows = rows_of_sequence(lengths_q, lengths_k, places, batch, b);
    SequenceTiles s{};
    s.queries = rows.queries;
    s.keys = rows.keys;
    s.order = {(pack.rows(s.queries.count) + block_m - 1) / block_m, num_packs, 1, 0};
    s.number = b;
    return s;
  }

  // Longest keys first: the last tiles should be short ones.
  static constexpr int kBuckets = 1024;
  static constexpr int kBucketKeys = 64;
  static FA3_HD constexpr int bucket(const SequenceTiles& s);

  // In varlen_metadata.h, for who makes the list. The sequence, given that its entries begin with
  // `first` of `all_entries`; and these entries.
  FA3_HD constexpr SequenceTiles placed(SequenceTiles s, int first, int all_entries) const;
  FA3_HD constexpr void write(const SequenceTiles& of, int first, int all_entries) const;
};

}  // namespace fa3::hopper
