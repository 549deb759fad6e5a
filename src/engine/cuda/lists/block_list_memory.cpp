// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/lists/block_list_memory.h"

#include "core/ceil_div.h"

namespace fa3::cuda {
namespace {

BlockLists lists_of(const BlockListParams& p, const ListedBlock* blocks, const ListLength* lengths,
                    int num_lists, int capacity) {
  return {.blocks = blocks,
          .lengths = lengths,
          .num_lists = num_lists,
          .capacity = capacity,
          .by_batch = !p.varlen && p.mask.batches > 1,
          .by_head = p.mask.heads > 1,
          .heads = int(p.mask.heads)};
}

}  // namespace

BlockListParams block_list_params(const BlockMask& mask, const MaskRuleOf<int>& rule, int seqlen_q,
                                  int seqlen_k, const TileCapacity* varlen) {
  const int query_blocks = int(ceil_div(int64_t{seqlen_q}, int64_t{kMaskBlock}));
  const int key_blocks = int(ceil_div(int64_t{seqlen_k}, int64_t{kMaskBlock}));
  return {.mask = mask,
          .rule = rule,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .varlen = varlen != nullptr,
          .rows_of_map = varlen ? int(varlen->queries) + 1 : query_blocks,
          .columns_of_map = varlen ? int(varlen->keys) + 1 : key_blocks,
          .query_blocks = query_blocks,
          .key_blocks = key_blocks};
}

BlockListMemory place_block_lists(const BlockListParams& p, ListsOf pass, int64_t sequences,
                                  WorkspaceAllocator& allocator) {
  const int64_t own_bits = 1 + capped_product(p.rows(), p.most_cuts());
  BlockListMemory memory;
  memory.own_bits = place<uint32_t>(allocator, own_bits, kMaskBlockWords);
  memory.row_blocks = place<ListedBlock>(allocator, p.rows(), p.row_capacity());
  memory.row_lengths = place<ListLength>(allocator, p.rows());
  if (pass == ListsOf::kForward) return memory;
  if (pass == ListsOf::kDeterministicBackward) {
    memory.orders = place<int>(allocator, p.rows(), p.key_blocks);
  }
  memory.column_blocks = place<ListedBlock>(allocator, p.columns(), p.query_blocks);
  memory.column_lengths = place<ListLength>(allocator, p.columns());
  if (p.varlen) memory.first_rows = place<int>(allocator, sequences + 1);
  return memory;
}

void set_memory(BlockListParams& p, const BlockListMemory& memory, void* workspace) {
  p.own_bits = array_at<uint32_t>(workspace, memory.own_bits);
  p.row_blocks = array_at<ListedBlock>(workspace, memory.row_blocks);
  p.row_lengths = array_at<ListLength>(workspace, memory.row_lengths);
  p.orders = array_at<int>(workspace, memory.orders);
  p.column_blocks = array_at<ListedBlock>(workspace, memory.column_blocks);
  p.column_lengths = array_at<ListLength>(workspace, memory.column_lengths);
  p.first_rows = array_at<int>(workspace, memory.first_rows);
}

int64_t block_list_bytes(const BlockListParams& p, ListsOf pass) {
  WorkspaceAllocator allocator;
  place_block_lists(p, pass, 0, allocator);
  return allocator.bytes();
}

void set_own_memory(BlockListParams& p, ListsOf pass, void* memory) {
  WorkspaceAllocator allocator;
  set_memory(p, place_block_lists(p, pass, 0, allocator), memory);
}

BlockLists row_lists(const BlockListParams& p) {
  return lists_of(p, p.row_blocks, p.row_lengths, p.rows_of_map, p.row_capacity());
}

BlockLists column_lists(const BlockListParams& p) {
  return lists_of(p, p.column_blocks, p.column_lengths, p.columns_of_map, p.query_blocks);
}

}  // namespace fa3::cuda
