// SPDX-License-Identifier: Apache-2.0
// The entries of the varlen metadata (sequence_tiles.h): how they are sorted and written. Plain
// numbers, tested on the host. Next: varlen_metadata.cu.
#pragma once

#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {

FA3_HD constexpr int VarlenMetadata::bucket(const SequenceTiles& s) {
  const int longer = s.keys.count / kBucketKeys;
  return kBuckets - 1 - (longer < kBuckets ? longer : kBuckets - 1);
}

FA3_HD constexpr SequenceTiles VarlenMetadata::placed(SequenceTiles s, int first,
                                                      int all_entries) const {
  const int m_blocks = s.order.num_m_blocks;
  const int tiles_after = (all_entries - first - m_blocks) * num_packs;
  s.first_entry = first;
  if (tiles_after < tail_tiles && m_blocks > 0) {
    const int heads = (tail_tiles - tiles_after + m_blocks - 1) / m_blocks;
    s.order.tail_heads = heads < num_packs ? heads : num_packs;
  }
  return s;
}

FA3_HD constexpr void VarlenMetadata::write(const SequenceTiles& of, int first,
                                            int all_entries) const {
  const SequenceTiles s = placed(of, first, all_entries);
  const int m_blocks = s.order.num_m_blocks;
  for (int i = first; i < first + m_blocks && i < capacity; ++i) entries[i] = s;
}

}  // namespace fa3::hopper
