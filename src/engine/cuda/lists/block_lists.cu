// SPDX-License-Identifier: Apache-2.0
// A warp makes the list of a row, 32 entries of the map at a time: what comes before an entry is
// counted by a vote. The lists of columns are made of those of rows, which know every block's bits
// and order, by a second kernel. No number depends on which warp is first.
#include "engine/cuda/lists/block_lists.h"

#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/mask/map_entry.h"
#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {
namespace {

constexpr int kWarps = 4;

using Entry = MapEntry;

class RowOfMap {
 public:
  __device__ RowOfMap(const BlockListParams& p, int64_t row)
      : p_(p), tail_bits_(p.own_bits + (1 + row) * kMaskBlockWords) {
    const int64_t map = row / p.query_blocks;
    blocks_ = p.mask.row_of(map / p.mask.heads, map % p.mask.heads, row % p.query_blocks);
  }

  // What the caller says of a block.
  __device__ Entry given(int block) const {
    return block < p_.key_blocks ? map_entry(p_.mask, blocks_, block) : Entry{};
  }
  // The same, but only those keys of the last block that exist are seen.
  __device__ Entry at(int block) const {
    const Entry entry = given(block);
    const bool is_tail = p_.has_tail() && block == p_.key_blocks - 1;
    return is_tail && entry.seen() ? Entry{false, tail_bits_} : entry;
  }

  __device__ void write_tail_bits(int lane) const {
    const Entry entry = given(p_.key_blocks - 1);
    if (!entry.seen()) return;
    const int keys = p_.seqlen_k % kMaskBlock;
    for (int i = lane; i < kMaskBlockWords; i += kWarpSize) {
      const int left = keys - i % kMaskRowWords * 32;
      const uint32_t exist = left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1;
      tail_bits_[i] = (entry.full ? ~0u : entry.bits[i]) & exist;
    }
  }

 private:
  const BlockListParams& p_;
  uint32_t* const tail_bits_;
  const int32_t* blocks_;
};

__global__ void row_lists_kernel(const __grid_constant__ BlockListParams p) {
  const int lane = int(threadIdx.x) % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kWarps + int(threadIdx.x) / kWarpSize;
  if (row == 0 && lane == 0 && p.tile_counter != nullptr) *p.tile_counter = 0;
  if (row >= p.rows()) return;
  const RowOfMap map(p, row);
  ListedBlock* const list = p.row_blocks + row * p.row_capacity();
  const unsigned before = (1u << lane) - 1;
  ListLength length{};
  for (int first = 0; first < p.key_blocks; first += kWarpSize) {
    length.num_full += __popc(__ballot_sync(0xffffffff, map.at(first + lane).full));
  }
  int full = 0, partial = length.num_full;
  for (int first = 0; first < p.key_blocks; first += kWarpSize) {
    const Entry entry = map.at(first + lane);
    const unsigned are_full = __ballot_sync(0xffffffff, entry.full);
    const unsigned are_partial = __ballot_sync(0xffffffff, entry.bits != nullptr);
    const int order = full + partial - length.num_full + __popc((are_full | are_partial) & before);
    const int at =
        entry.full ? full + __popc(are_full & before) : partial + __popc(are_partial & before);
    if (entry.seen()) {
      list[at] = {entry.bits, first + lane, order};
      if (p.orders != nullptr) p.orders[row * p.key_blocks + first + lane] = order;
    }
    full += __popc(are_full);
    partial += __popc(are_partial);
  }
  length.count = partial;
  if (p.has_tail()) map.write_tail_bits(lane);
  if (length.count == 0) {  // a block of none stands in; every such row clears the same bits
    for (int i = lane; i < kMaskBlockWords; i += kWarpSize) p.own_bits[i] = 0;
    if (lane == 0) list[0] = {p.own_bits, 0, 0};
    length.count = 1;
  }
  if (lane == 0) p.row_lengths[row] = length;
}

// The map is read again, a column at a time.
__global__ void column_lists_kernel(const __grid_constant__ BlockListParams p) {
  const int lane = int(threadIdx.x) % kWarpSize;
  const int64_t column = int64_t{blockIdx.x} * kWarps + int(threadIdx.x) / kWarpSize;
  if (column >= p.maps() * p.key_blocks) return;
  const int64_t map = column / p.key_blocks;
  const int key_block = int(column % p.key_blocks);
  ListedBlock* const list = p.column_blocks + column * p.query_blocks;
  int count = 0;
  for (int first = 0; first < p.query_blocks; first += kWarpSize) {
    const int query_block = first + lane;
    const bool exists = query_block < p.query_blocks;
    const int64_t row = map * p.query_blocks + (exists ? query_block : 0);
    const Entry entry = exists ? RowOfMap(p, row).at(key_block) : Entry{};
    const unsigned seen = __ballot_sync(0xffffffff, entry.seen());
    if (entry.seen()) {
      const int order = p.orders != nullptr ? p.orders[row * p.key_blocks + key_block] : 0;
      list[count + __popc(seen & ((1u << lane) - 1))] = {entry.bits, query_block, order};
    }
    count += __popc(seen);
  }
  if (lane == 0) p.column_lengths[column] = {count, 0};
}

cudaError_t launch_warps(const void* kernel, int64_t warps, const BlockListParams& params,
                         cudaStream_t stream) {
  BlockListParams copy = params;
  const auto ctas = unsigned(ceil_div(warps, int64_t{kWarps}));
  return launch(kernel, {ctas, 1, 1}, kWarps * kWarpSize, 0, &copy, {}, stream);
}

}  // namespace

cudaError_t prepare_block_lists(const BlockListParams& params, cudaStream_t stream) {
  cudaError_t error =
      launch_warps(reinterpret_cast<const void*>(&row_lists_kernel), params.rows(), params, stream);
  if (error != cudaSuccess || params.column_blocks == nullptr) return error;
  return launch_warps(reinterpret_cast<const void*>(&column_lists_kernel),
                      params.maps() * params.key_blocks, params, stream);
}

}  // namespace fa3::cuda
