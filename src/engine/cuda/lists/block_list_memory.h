// SPDX-License-Identifier: Apache-2.0
// Where a call's workspace, or memory of their own, has the lists of a block mask. Planned and cut
// by the same numbers.
#pragma once

#include "engine/cuda/host/workspace_arrays.h"
#include "engine/cuda/lists/block_lists.h"

namespace fa3::cuda {

// Offsets in bytes from the workspace's beginning; kNoArray: that array is not there.
struct BlockListMemory {
  int64_t own_bits = kNoArray;
  int64_t row_blocks = kNoArray;
  int64_t row_lengths = kNoArray;
  int64_t orders = kNoArray;
  int64_t column_blocks = kNoArray;
  int64_t column_lengths = kNoArray;
  int64_t first_rows = kNoArray;
};

enum class ListsOf : unsigned char { kForward, kBackward, kDeterministicBackward };

// Room for the lists of tiles of sequences that have lengths of their own.
struct TileCapacity {
  int64_t queries = 0, keys = 0;
};

// Lists in memory of their own, for many calls.
int64_t block_list_bytes(const BlockListParams& params, ListsOf pass);
void set_own_memory(BlockListParams& params, ListsOf pass, void* memory);

// Without memory: what the kernel is asked for. `varlen`: null, all sequences have these lengths.
BlockListParams block_list_params(const BlockMask& mask, const MaskRuleOf<int>& rule, int seqlen_q,
                                  int seqlen_k, const TileCapacity* varlen = nullptr);
BlockListMemory place_block_lists(const BlockListParams& params, ListsOf pass, int64_t sequences,
                                  WorkspaceAllocator& allocator);
void set_memory(BlockListParams& params, const BlockListMemory& memory, void* workspace);

BlockLists row_lists(const BlockListParams& params);
BlockLists column_lists(const BlockListParams& params);

}  // namespace fa3::cuda
