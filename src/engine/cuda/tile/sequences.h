// SPDX-License-Identifier: Apache-2.0
// The rows of one sequence's queries and keys, as the device reads them from lengths that may hold
// anything. Plain constexpr, tested on the host. Next: tile_order.h.
#pragma once

#include "core/key_places.h"
#include "core/seqlen.h"
#include "engine/cuda/tile/rows.h"
#include "engine/cuda/tile/tile_order.h"

namespace fa3::cuda {

// A sequence's keys: where they start in K and V, and how many there are.
struct KeyRows {
  int batch;  // entry of the tensors, or of the page table
  int begin;
  int count;
};

struct SequenceRows {
  QueryRows queries{};
  KeyRows keys{};
};

// Rows of a packed tensor that no sequence owns are written too: as one more sequence, number
// `batch`, all unused.
FA3_HD constexpr int num_sequences(const Lengths& lengths_q, int batch) {
  return batch + (lengths_q.packed() ? 1 : 0);
}

// Sequence `b` of `batch`. One that names no entry of the cache has no keys.
FA3_HD constexpr SequenceRows rows_of_sequence(const Lengths& lengths_q, const Lengths& lengths_k,
                                               const KeyPlaces& places, int batch, int b) {
  SequenceRows s;
  if (b == batch) {
    const Rows unowned = lengths_q.unowned_rows(batch);
    s.queries.begin = int(unowned.begin);
    s.queries.count = int(unowned.owned);
    return s;
  }
  const Rows q = lengths_q.clamped_rows_of(b), k = lengths_k.clamped_rows_of(b);
  s.queries = {.batch = lengths_q.packed() ? 0 : b,
               .begin = int(q.begin),
               .count = int(q.owned),
               .used = int(q.used)};
  s.keys = {lengths_k.packed() ? 0 : b, int(k.begin), int(k.used)};
  if (places.elsewhere) {
    const int64_t entry = places.entry_of(b);
    s.keys = places.has_entry(entry) ? KeyRows{int(entry), s.keys.begin, s.keys.count} : KeyRows{};
  }
  return s;
}

// An entry of a list of tiles that the device makes of lengths (hopper/scheduler/sequence_tiles.h).
// Each block of rows of a sequence has one, which describes the sequence.
struct alignas(16) SequenceTiles {
  QueryRows queries;
  KeyRows keys;
  int first_entry;  // in the list; the sequence has order.num_m_blocks entries
  TileOrder order;  // the sequence's own tiles
  int number;       // of the sequence
};

}  // namespace fa3::cuda
