// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime as the launchers need it: a device with two SMs, on which a launch is
// taken down for the test to run.
#include "host_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/cuda/kernels/sink_gradient.h"
#include "engine/cuda/lists/block_lists.h"
#include "engine/hopper/combine/combine_kernel.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/scheduler/varlen_metadata.h"
#include "machine.h"

namespace fa3::machine {

std::function<void(const void*, dim3, const void*, bool)> on_launch;

}  // namespace fa3::machine

namespace fa3::hopper {

bool encode_tensor_map(CUtensorMap& map, const TensorSpan& tensor, Element, tile::TileLayout layout,
                       int box_rows, int) {
  map = machine::encoded({tensor.data, box_rows, layout.row_bytes()});
  return true;
}

bool encode_slab_map(CUtensorMap& map, const TensorSpan& tensor, Element, tile::TileLayout layout,
                     int box_rows) {
  map = machine::encoded({.tensor = tensor.data,
                          .box_rows = box_rows,
                          .row_bytes = layout.row_bytes(),
                          .slabs = layout.slabs()});
  return true;
}

namespace {

bool encode_clipped(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& tensor, int box_rows,
                    int row_bytes, bool of_queries) {
  machine::TensorMap clipped{.tensor = tensor.data,
                             .box_rows = box_rows,
                             .row_bytes = row_bytes,
                             .rows_before = box_rows,
                             .of_queries = of_queries,
                             .columns = int(tensor.columns),
                             .rows = int(tensor.rows),
                             .origin_is_memory = false};
  map = machine::encoded(clipped);
  clipped.origin_is_memory = true;
  outside = machine::encoded(clipped);
  return true;
}

}  // namespace

bool encode_clipped_map(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& tensor, Element,
                        tile::TileLayout layout) {
  return encode_clipped(map, outside, tensor, layout.rows, layout.row_bytes(), false);
}

bool encode_clipped_queries(CUtensorMap& map, CUtensorMap& outside, const TensorSpan& tensor,
                            Element, tile::TileLayout layout, int box_rows, int) {
  return encode_clipped(map, outside, tensor, box_rows, layout.row_bytes(), true);
}

// The device's list in the order of the sequences.
cudaError_t prepare_varlen_metadata(const VarlenMetadata& list, cudaStream_t) {
  int all = 0;
  for (int b = 0; b < list.num_sequences(); ++b) all += list.sequence(b).order.num_m_blocks;
  int first = 0;
  for (int b = 0; b < list.num_sequences(); ++b) {
    list.write(list.sequence(b), first, all);
    first += list.sequence(b).order.num_m_blocks;
  }
  *list.num_entries = all;
  if (list.tile_counter) *list.tile_counter = 0;
  return cudaSuccess;
}

// StreamKRanges behind the kernel, on a grid of its own: not part of what the machine watches.
cudaError_t combine_splits(const CombineParams&, cudaStream_t) {
  return cudaSuccess;
}

}  // namespace fa3::hopper

cudaError_t fa3::cuda::sum_sink_gradients(const SinkSums&, cudaStream_t) {
  return cudaSuccess;
}

namespace {
fa3::cuda::RowCuts cuts_of(const fa3::cuda::BlockListParams& p, int query_block) {
  return fa3::cuda::RowCuts::of(p.rule, query_block, p.seqlen_q, p.seqlen_k);
}
}  // namespace

// The lists of a map whose entries are right, block by block.
cudaError_t fa3::cuda::prepare_block_lists(const BlockListParams& p, cudaStream_t) {
  const auto bits_of = [&](int64_t map, int query, int key) -> const uint32_t* {
    const int32_t entry = p.mask.row_of(map / p.mask.heads, map % p.mask.heads, query)[key];
    const bool cut = cuts_of(p, query).cuts(key);
    return entry == kFullBlock && !cut ? nullptr : p.own_bits;
  };
  const auto is_seen = [&](int64_t map, int query, int key) {
    return cuts_of(p, query).holds(key) &&
           p.mask.row_of(map / p.mask.heads, map % p.mask.heads, query)[key] != kHiddenBlock;
  };
  if (p.tile_counter != nullptr) *p.tile_counter = 0;
  for (int64_t row = 0; row < p.rows(); ++row) {
    const int64_t map = row / p.query_blocks;
    const int query = int(row % p.query_blocks);
    ListedBlock* const list = p.row_blocks + row * p.row_capacity();
    ListLength length{};
    for (const bool full : {true, false}) {
      for (int key = 0; key < p.key_blocks; ++key) {
        const uint32_t* const bits = bits_of(map, query, key);
        if (is_seen(map, query, key) && full == (bits == nullptr))
          list[length.count++] = {bits, key, 0};
      }
      if (full) length.num_full = length.count;
    }
    if (length.count == 0) list[length.count++] = {p.own_bits, 0, 0};
    p.row_lengths[row] = length;
  }
  for (int64_t column = 0; p.column_blocks && column < p.maps() * p.key_blocks; ++column) {
    const int64_t map = column / p.key_blocks;
    const int key = int(column % p.key_blocks);
    int count = 0;
    for (int query = 0; query < p.query_blocks; ++query) {
      if (!is_seen(map, query, key)) continue;
      int order = 0;
      for (int before = 0; before < key; ++before) order += is_seen(map, query, before);
      p.column_blocks[column * p.query_blocks + count++] = {bits_of(map, query, key), query, order};
    }
    p.column_lengths[column] = {count, 0, key};
  }
  const UnrankedLists lists = p.walked();
  for (int64_t first = 0; p.ranked() && first < lists.count; first += lists.of_map) {
    ListLength* const lengths = lists.lengths + first;
    std::vector<int> order(size_t(lists.of_map));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return lengths[a].count < lengths[b].count; });
    for (int n = 0; n < lists.of_map; ++n) lengths[n].nth = order[size_t(n)];
  }
  return cudaSuccess;
}

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = fa3::machine::kSms;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  bool pdl = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      pdl = attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  fa3::machine::on_launch(function, config->gridDim, arguments[0], pdl);
  return cudaSuccess;
}
}
