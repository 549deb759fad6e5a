// SPDX-License-Identifier: Apache-2.0
// What kernels of every engine are given for dropout and block masks, which most kernels have not:
// numbers and pointers alone. What is done with them stands in dropout/dropout.cuh and
// lists/block_list.h.
#pragma once

#include <cstdint>

#include "core/dropout/dropout_call.h"

namespace fa3::cuda {

struct DropoutParams {
  Dropout dropout;
  float scale = 1.0f;         // 1 / (1 - p), of what is kept; any where nothing is
  float keeps = 1.0f;         // 1 - p; likewise
  uint32_t limits[2] = {};    // of the draws in both halves of a word (Dropout::limit)
  uint32_t kept_if_rare = 0;  // all ones where p > 1 / 2

  static DropoutParams of(const Dropout& dropout) {
    const bool none = dropout.threshold == 65536;
    const float scale = none ? 1.0f : float(dropout.scale());
    return {dropout,
            scale,
            none ? 1.0f : float(1 / dropout.scale()),
            {dropout.limit(false) * 0x10001u, dropout.limit(true) * 0x10001u},
            dropout.drops_most() ? ~0u : 0u};
  }
};

struct ListedBlock;
struct ListLength;

// Lists of blocks, one after the other, `capacity` apart.
struct BlockLists {
  const ListedBlock* blocks;
  const ListLength* lengths;
  int num_lists;  // of a map
  int capacity;
  bool by_batch, by_head;  // who has maps of their own
  int heads;               // that have

  FA3_HD int number(int batch, int head, int list) const {
    return ((by_batch ? batch * heads : 0) + (by_head ? head : 0)) * num_lists + list;
  }
  // Which of a map's lists is the n-th by length, where they are ranked.
  FA3_HD inline int ranked(int batch, int head, int n) const;
  FA3_HD inline const ListedBlock* blocks_of(int number) const;
};

}  // namespace fa3::cuda
