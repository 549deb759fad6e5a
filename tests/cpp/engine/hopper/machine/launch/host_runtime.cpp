// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime as the launchers need it: a device with two SMs, on which a launch is
// taken down for the test to run.
#include "launch/host_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/lists/map_place.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/scheduler/side_kernels.h"
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

// The lists of a map whose entries are right, block by block.
cudaError_t fa3::cuda::prepare_block_lists(const BlockListParams& p, cudaStream_t) {
  const auto is_seen = [&](const MapRow& row, int key) {
    return row.cuts(p.rule).holds(key) &&
           p.mask.row_of(row.sequence, row.head, row.query_block)[key] != kHiddenBlock;
  };
  const auto bits_of = [&](const MapRow& row, int key) -> const uint32_t* {
    const int32_t entry = p.mask.row_of(row.sequence, row.head, row.query_block)[key];
    return entry == kFullBlock && !row.cuts(p.rule).cuts(key) ? nullptr : p.own_bits;
  };
  if (p.tile_counter != nullptr) *p.tile_counter = 0;
  for (int64_t number = 0; number < p.rows(); ++number) {
    const MapRow row = row_at(p, number);
    ListedBlock* const list = p.row_blocks + number * p.row_capacity();
    ListLength length{.nth = row.query_block};
    for (const bool full : {true, false}) {
      for (int key = 0; key < p.key_blocks; ++key) {
        if (!is_seen(row, key)) continue;
        const uint32_t* const bits = bits_of(row, key);
        if (full == (bits == nullptr)) list[length.count++] = {bits, key, 0};
      }
      if (full) length.num_full = length.count;
    }
    if (length.count == 0) list[length.count++] = {p.own_bits, 0, 0};
    p.row_lengths[number] = length;
    const bool is_first = row.exists() && row.head == 0 && row.query_block == 0;
    if (p.first_rows && is_first) p.first_rows[row.sequence] = int(number);
  }
  for (int64_t number = 0; p.column_blocks && number < p.columns(); ++number) {
    const MapColumn column = column_at(p, number);
    ListedBlock* const list = p.column_blocks + number * p.query_blocks;
    ListLength length{.nth = column.key_block};
    for (int query = 0; query < column.num_rows; ++query) {
      const MapRow row = column.row(query);
      if (!is_seen(row, column.key_block)) continue;
      int order = 0;
      for (int before = 0; before < column.key_block; ++before) order += is_seen(row, before);
      list[length.count++] = {bits_of(row, column.key_block), query, order};
    }
    p.column_lengths[number] = length;
  }
  const UnrankedLists lists = p.walked();
  for (int64_t list = 0; p.ranked() && list < lists.count; ++list) {
    const int in_map = int(list % lists.of_map);
    const RankedTogether together = ranked_with(lists, in_map);
    if (in_map != together.first) continue;
    ListLength* const lengths = lists.lengths + list;
    std::vector<int> order(size_t(together.count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return lengths[a].count < lengths[b].count; });
    for (int n = 0; n < together.count; ++n) lengths[n].nth = order[size_t(n)];
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
