// SPDX-License-Identifier: Apache-2.0
// Variable-length sequences, optionally in a KV cache: what the device reads about one, and the
// varlen metadata, a list of tiles that it makes of all. The lengths are read on the device, so a
// captured graph follows the arrays. Each query block of a sequence has one entry for all its
// heads, which describes the sequence: a tile's number leads to it in one read. Plain numbers,
// tested on the host. Next: split_kv.h, varlen_metadata.h.
#pragma once

#include "core/key_places.h"
#include "core/seqlen.h"
#include "engine/cuda/rows.h"
#include "engine/hopper/scheduler/tile_order.h"

namespace fa3::hopper {

// A sequence's keys: where they start in K and V, and how many there are.
struct KeyRows {
  int batch;  // entry of the tensors, or of the page table
  int begin;
  int count;
};

struct alignas(16) SequenceTiles {
  cuda::QueryRows queries;
  KeyRows keys;
  int first_entry;  // in the list; the sequence has order.num_m_blocks entries
  TileOrder order;  // the sequence's own tiles
  int number;       // of the sequence
};

struct VarlenMetadata {
  Lengths lengths_q;
  Lengths lengths_k;
  int batch;
  int block_m;
  cuda::PackGqa pack;
  int num_packs;
  int tail_tiles;  // at the very end this many go longest first, whatever their head
  int capacity;    // room for entries: enough for all lengths that keep their bounds

  SequenceTiles* entries;
  int* num_entries;
  int* tile_counter;  // is cleared; null: there is none
  KeyPlaces places{};

  // Rows of a packed tensor that no sequence owns are written too: as one more sequence, all
  // unused.
  FA3_HD constexpr int num_sequences() const { return batch + (lengths_q.packed() ? 1 : 0); }

  // Sequence `b`, without its place in the list. The arrays may hold anything; a sequence that
  // names no entry of the cache has no keys.
  FA3_HD constexpr SequenceTiles sequence(int b) const {
    SequenceTiles s{};
    if (b == batch) {
      const Rows last = lengths_q.clamped_rows_of(b - 1);
      s.queries.begin = b == 0 ? 0 : int(last.begin + last.owned);
      s.queries.count = int(lengths_q.total) - s.queries.begin;
    } else {
      const Rows q = lengths_q.clamped_rows_of(b), k = lengths_k.clamped_rows_of(b);
      s.queries = {.batch = lengths_q.packed() ? 0 : b,
                   .begin = int(q.begin),
                   .count = int(q.owned),
                   .used = int(q.used)};
      s.keys = {lengths_k.packed() ? 0 : b, int(k.begin), int(k.used)};
      if (places.elsewhere) {
        const int64_t entry = places.entry_of(b);
        s.keys =
            places.has_entry(entry) ? KeyRows{int(entry), s.keys.begin, s.keys.count} : KeyRows{};
      }
    }
    s.order = {(pack.rows(s.queries.count) + block_m - 1) / block_m, num_packs, 1, 0};
    s.number = b;
    return s;
  }

  // Longest keys first: the last tiles should be short ones.
  static constexpr int kBuckets = 1024;
  static constexpr int kBucketKeys = 64;
  static FA3_HD constexpr int bucket(const SequenceTiles& s) {
    const int longer = s.keys.count / kBucketKeys;
    return kBuckets - 1 - (longer < kBuckets ? longer : kBuckets - 1);
  }

  // The sequence, given that its entries begin with `first` of `all_entries`.
  FA3_HD constexpr SequenceTiles placed(SequenceTiles s, int first, int all_entries) const {
    const int m_blocks = s.order.num_m_blocks;
    const int tiles_after = (all_entries - first - m_blocks) * num_packs;
    s.first_entry = first;
    if (tiles_after < tail_tiles && m_blocks > 0) {
      const int heads = (tail_tiles - tiles_after + m_blocks - 1) / m_blocks;
      s.order.tail_heads = heads < num_packs ? heads : num_packs;
    }
    return s;
  }
  FA3_HD constexpr void write(const SequenceTiles& of, int first, int all_entries) const {
    const SequenceTiles s = placed(of, first, all_entries);
    const int m_blocks = s.order.num_m_blocks;
    for (int i = first; i < first + m_blocks && i < capacity; ++i) entries[i] = s;
  }
};

}  // namespace fa3::hopper
