// SPDX-License-Identifier: Apache-2.0
// A warp makes the list of a row, 32 entries of the map at a time: what comes before an entry is
// counted by a vote. The lists of columns are made of those of rows, which know every block's bits
// and order, by a second kernel; another one ranks lists by their lengths. Of short maps one kernel
// makes all: to start another one takes longer than its work. No number depends on which warp is
// first.
#include "engine/cuda/lists/block_lists.h"

#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/lists/map_entry.h"
#include "engine/cuda/lists/map_place.h"
#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {
namespace {

constexpr int kWarps = 4;

// A short map has one CTA, and a warp for each row or column. Measured: with two for each, what a
// kernel less gains is lost twice over (docs/lab/masks.md).
constexpr int kWarpsOfMap = 32;

// The kernels of a call follow each other by programmatic dependent launch, where GPUs know it.
__device__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until the kernel before has finished, its stores visible.
__device__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

class RowOfMap {
 public:
  // `row`: the number of its list.
  __device__ RowOfMap(const BlockListParams& p, int64_t row, const MapRow& at)
      : p_(p),
        at_(at),
        cuts_(at.cuts(p.rule)),
        own_bits_(p.own_bits + (1 + row * p.most_cuts()) * kMaskBlockWords),
        blocks_(p.mask.row_of(at.sequence, at.head, at.query_block)) {}

  // What map and rule say of a block together.
  __device__ MapEntry at(int block) const {
    if (!cuts_.holds(block)) return {};
    const MapEntry entry = map_entry(p_.mask, blocks_, block);
    return cuts_.cuts(block) && entry.seen() ? MapEntry{false, bits_of(block)} : entry;
  }

  __device__ void write_bits_of_cuts(int lane) const {
    for (int number = 0, block; (block = cuts_.cut(number)) >= 0; ++number) {
      const MapEntry entry = map_entry(p_.mask, blocks_, block);
      if (!entry.seen()) continue;
      for (int i = lane; i < kMaskBlockWords; i += kWarpSize) {
        const int query = at_.query_block * kMaskBlock + i / kMaskRowWords;
        const int key = block * kMaskBlock + i % kMaskRowWords * 32;
        const KeyRangeOf<int> keys = p_.rule.keys_of(query, at_.seqlen_q, at_.seqlen_k);
        bits_of(block)[i] = (entry.full ? ~0u : entry.bits[i]) & bits_until(keys.end - key) &
                            ~bits_until(keys.begin - key);
      }
    }
  }

 private:
  __device__ uint32_t* bits_of(int block) const {
    return own_bits_ + int64_t{cuts_.place(block)} * kMaskBlockWords;
  }
  __device__ static uint32_t bits_until(int bit) {
    return bit >= 32 ? ~0u : bit <= 0 ? 0u : (1u << bit) - 1;
  }

  const BlockListParams& p_;
  const MapRow at_;
  const RowCuts cuts_;
  uint32_t* const own_bits_;
  const int32_t* const blocks_;
};

__device__ void list_row(const BlockListParams& p, int64_t row, int lane) {
  const MapRow at = row_at(p, row);
  const RowOfMap map(p, row, at);
  ListedBlock* const list = p.row_blocks + row * p.row_capacity();
  const unsigned before = (1u << lane) - 1;
  ListLength length{.nth = at.query_block};
  for (int first = 0; first < p.key_blocks; first += kWarpSize) {
    length.num_full += __popc(__ballot_sync(0xffffffff, map.at(first + lane).full));
  }
  int full = 0, partial = length.num_full;
  for (int first = 0; first < p.key_blocks; first += kWarpSize) {
    const MapEntry entry = map.at(first + lane);
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
  map.write_bits_of_cuts(lane);
  if (length.count == 0) {  // a block of none stands in; every such row clears the same bits
    for (int i = lane; i < kMaskBlockWords; i += kWarpSize) p.own_bits[i] = 0;
    if (lane == 0) list[0] = {p.own_bits, 0, 0};
    length.count = 1;
  }
  if (lane != 0) return;
  p.row_lengths[row] = length;
  if (p.first_rows != nullptr && at.exists() && at.head == 0 && at.query_block == 0) {
    p.first_rows[at.sequence] = int(row);
  }
}

// The map is read again, a column at a time.
__device__ void list_column(const BlockListParams& p, int64_t column, int lane) {
  const MapColumn at = column_at(p, column);
  ListedBlock* const list = p.column_blocks + column * p.query_blocks;
  int count = 0;
  for (int first = 0; first < at.num_rows; first += kWarpSize) {
    const int query_block = first + lane;
    const bool exists = query_block < at.num_rows;
    const int64_t row = at.first_row + (exists ? query_block : 0);
    const MapEntry entry =
        exists ? RowOfMap(p, row, at.row(query_block)).at(at.key_block) : MapEntry{};
    const unsigned seen = __ballot_sync(0xffffffff, entry.seen());
    if (entry.seen()) {
      const int order = p.orders != nullptr ? p.orders[row * p.key_blocks + at.key_block] : 0;
      list[count + __popc(seen & ((1u << lane) - 1))] = {entry.bits, query_block, order};
    }
    count += __popc(seen);
  }
  if (lane == 0) p.column_lengths[column] = {count, 0, at.key_block};
}

// Each list says at the place of its rank which it is.
__device__ void rank_list(const UnrankedLists& p, int64_t list, int lane) {
  const RankedTogether group = ranked_with(p, int(list % p.of_map));
  if (group.count == 0) return;
  const int number = int(list % p.of_map) - group.first;
  ListLength* const lengths = p.lengths + (list - number);
  const int mine = lengths[number].count;
  int shorter = 0;
  for (int first = 0; first < group.count; first += kWarpSize) {
    const int other = first + lane;
    const int count = other < group.count ? lengths[other].count : mine + 1;
    const bool is_before = count < mine || (count == mine && other < number);
    shorter += __popc(__ballot_sync(0xffffffff, is_before));
  }
  if (lane == 0) lengths[shorter].nth = number;
}

__device__ int lane() {
  return int(threadIdx.x) % kWarpSize;
}
__device__ int warp() {
  return int(threadIdx.x) / kWarpSize;
}
// The list of a warp, in a kernel whose warps have one each.
__device__ int64_t only_list() {
  return int64_t{blockIdx.x} * kWarps + warp();
}

__global__ void row_lists_kernel(const __grid_constant__ BlockListParams p) {
  let_next_start();
  const int64_t row = only_list();
  if (row == 0 && lane() == 0 && p.tile_counter != nullptr) *p.tile_counter = 0;
  if (row >= p.rows()) return;
  if (p.varlen) wait_for_kernel_before();
  list_row(p, row, lane());
}

__global__ void column_lists_kernel(const __grid_constant__ BlockListParams p) {
  let_next_start();
  wait_for_kernel_before();
  if (only_list() < p.columns()) list_column(p, only_list(), lane());
}

__global__ void rank_kernel(const __grid_constant__ UnrankedLists p) {
  let_next_start();
  wait_for_kernel_before();
  if (only_list() < p.count) rank_list(p, only_list(), lane());
}

bool are_short(const BlockListParams& p) {
  return !p.varlen && p.rows_of_map <= kWarpsOfMap && p.columns_of_map <= kWarpsOfMap;
}

// All lists of a short map, by one CTA.
__global__ void __launch_bounds__(kWarpsOfMap* kWarpSize)
    short_map_kernel(const __grid_constant__ BlockListParams p) {
  let_next_start();
  const int64_t map = blockIdx.x;
  if (map == 0 && threadIdx.x == 0 && p.tile_counter != nullptr) *p.tile_counter = 0;
  for (int row = warp(); row < p.rows_of_map; row += kWarpsOfMap) {
    list_row(p, map * p.rows_of_map + row, lane());
  }
  if (p.column_blocks != nullptr) {
    __syncthreads();
    for (int column = warp(); column < p.columns_of_map; column += kWarpsOfMap) {
      list_column(p, map * p.columns_of_map + column, lane());
    }
  }
  if (!p.ranked()) return;
  __syncthreads();
  const UnrankedLists lists = p.walked();
  for (int list = warp(); list < lists.of_map; list += kWarpsOfMap) {
    rank_list(lists, map * lists.of_map + list, lane());
  }
}

template <class Params>
cudaError_t launch_warps(void (*kernel)(Params), int64_t warps, const Params& params, bool pdl,
                         cudaStream_t stream) {
  Params copy = params;
  const auto ctas = unsigned(ceil_div(warps, int64_t{kWarps}));
  return launch(reinterpret_cast<const void*>(kernel), {ctas, 1, 1}, kWarps * kWarpSize, 0, &copy,
                {.pdl = pdl}, stream);
}

}  // namespace

cudaError_t prepare_block_lists(const BlockListParams& p, cudaStream_t stream) {
  if (are_short(p)) {
    BlockListParams copy = p;
    return launch(reinterpret_cast<const void*>(&short_map_kernel), {unsigned(p.maps()), 1, 1},
                  kWarpsOfMap * kWarpSize, 0, &copy, {}, stream);
  }
  cudaError_t error = launch_warps(&row_lists_kernel, p.rows(), p, p.varlen, stream);
  if (error == cudaSuccess && p.column_blocks != nullptr) {
    error = launch_warps(&column_lists_kernel, p.columns(), p, true, stream);
  }
  if (error != cudaSuccess || !p.ranked()) return error;
  return launch_warps(&rank_kernel, p.walked().count, p.walked(), true, stream);
}

}  // namespace fa3::cuda
