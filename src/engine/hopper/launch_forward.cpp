// SPDX-License-Identifier: Apache-2.0
// From tensors to a grid. See launch_forward.h; the kernel begins in forward_kernel.cuh.
#include "engine/hopper/launch_forward.h"

#include <algorithm>
#include <bit>

#include "core/workspace.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/launch.h"
#include "engine/hopper/list_sequences.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// A tail of this many waves of tiles evens out the multiprocessors: more for longer sequences, whose
// longest tiles are longer and whose keys need less memory bandwidth for their use.
constexpr int64_t kTailWavesPerMBlock = 16;
constexpr int64_t kMinTailWaves = 2;
constexpr int64_t kMaxTailWaves = 8;

// Up to 6 would do: Q comes 64 rows a copy, which must be whole queries of one pack.
constexpr int kMaxPackLog2 = 4;
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

int64_t num_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  return ceil_div(pack.rows(int64_t{launch.seqlen_q}), c.block_m);
}

// For the queries of all sequences; where they are ragged, the most that there can be: each sequence
// ends within a tile, and so do the rows that none owns.
int64_t row_tiles(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  if (!launch.ragged) return num_m_blocks(c, launch, pack) * launch.q.batches;
  return ceil_div(pack.rows(launch.q.rows * launch.q.batches), c.block_m) + launch.sequences + 1;
}

int64_t num_tiles(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  return row_tiles(c, launch, pack) * (launch.q.heads / pack.heads());
}

struct Workspace {
  int* ticket_counter;       // null: tiles are dealt in turn
  SequenceTiles* sequences;  // of ragged lengths: row_tiles()
  int* num_entries;          // of them
};

// Tiles that differ in length are drawn from a counter when a multiprocessor is free; others are dealt
// in turn, which needs no counter to be cleared.
Workspace carve(const ForwardConfig& c, const ForwardLaunch& launch, Carver& carver) {
  if (launch.ragged) {
    return {.ticket_counter = carver.take<int>(1),
            .sequences = carver.take<SequenceTiles>(row_tiles(c, launch, launch.pack)),
            .num_entries = carver.take<int>(1)};
  }
  const bool tiles_differ =
      !launch.mask.hides_nothing() || launch.pack.rows(launch.q.rows) % c.block_m != 0;
  return {.ticket_counter = tiles_differ ? carver.take<int>(1) : nullptr};
}

// How many tiles at the end go longest first, whatever their head.
int64_t tail_tiles(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  if (launch.mask.hides_nothing()) return 0;
  const int64_t waves = num_m_blocks(c, launch, launch.pack) / kTailWavesPerMBlock;
  return std::clamp(waves, kMinTailWaves, kMaxTailWaves) * multiprocessors;
}

TileOrder tile_order(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  const int64_t packs = launch.q.heads / launch.pack.heads();
  if (launch.ragged) return {int(row_tiles(c, launch, launch.pack)), int(packs), 1, 0};
  const int64_t m_blocks = num_m_blocks(c, launch, launch.pack);
  const int64_t tail = ceil_div(tail_tiles(c, launch, multiprocessors), m_blocks);
  return {int(m_blocks), int(packs), int(launch.q.batches),
          int(std::min(packs * launch.q.batches, tail))};
}

SequenceList sequence_list(const ForwardConfig& c, const ForwardLaunch& launch,
                           const Workspace& workspace, int multiprocessors) {
  return {.lengths_q = launch.lengths_q,
          .lengths_k = launch.lengths_k,
          .batch = int(launch.sequences),
          .block_m = c.block_m,
          .pack = launch.pack,
          .num_packs = int(launch.q.heads / launch.pack.heads()),
          .tail_tiles = int(tail_tiles(c, launch, multiprocessors)),
          .capacity = int(row_tiles(c, launch, launch.pack)),
          .entries = workspace.sequences,
          .num_entries = workspace.num_entries,
          .ticket_counter = workspace.ticket_counter};
}

bool encode_maps(ForwardParams& params, const ForwardConfig& c, const ForwardLaunch& launch) {
  const tile::TileLayout q{c.block_m, c.head_dim, bytes_of(c.element)};
  const tile::TileLayout k{c.block_n, c.head_dim, bytes_of(c.element)};
  const tile::TileLayout v{c.block_n, c.head_dim_v, bytes_of(c.element)};
  const int heads = launch.pack.heads();
  params.q_is_clipped = c.general() && launch.lengths_q.packed();
  const bool q_done =
      params.q_is_clipped
          ? encode_clipped_queries(params.q_map, params.q_outside, launch.q, c.element, q,
                                   kRowsPerWarpgroup, heads)
          : encode_tensor_map(params.q_map, launch.q, c.element, q, kRowsPerWarpgroup, heads);
  if (!q_done) return false;
  if (c.general()) {
    return encode_clipped_map(params.k_map, params.k_outside, launch.k, c.element, k) &&
           encode_clipped_map(params.v_map, params.v_outside, launch.v, c.element, v);
  }
  return encode_tensor_map(params.k_map, launch.k, c.element, k, c.block_n) &&
         encode_tensor_map(params.v_map, launch.v, c.element, v, c.block_n);
}

cudaError_t current_multiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace

HeadPack most_packed(int64_t heads_per_kv_head) {
  return {std::min(std::countr_zero(uint64_t(heads_per_kv_head)), kMaxPackLog2)};
}

// Packing pays where tiles would be partly empty, and where a causal mask cuts through them: fewer
// queries a tile leave less beside the diagonal.
HeadPack choose_pack(const ForwardConfig& c, const ForwardLaunch& launch) {
  HeadPack most = most_packed(launch.heads_per_kv_head);
  while (most.rows(launch.q.rows) > kMaxPackedRows) --most.log2;
  const bool cut_by_mask = !launch.mask.hides_nothing() && launch.seqlen_q >= c.block_m;
  const bool saves_tiles = num_tiles(c, launch, most) < num_tiles(c, launch, HeadPack{});
  return cut_by_mask || saves_tiles ? most : HeadPack{};
}

int64_t forward_num_tiles(const ForwardConfig& config, const ForwardLaunch& launch) {
  return num_tiles(config, launch, launch.pack);
}

int64_t forward_workspace_bytes(const ForwardConfig& config, const ForwardLaunch& launch) {
  return bytes_of([&](Carver& carver) { carve(config, launch, carver); });
}

cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardLaunch& launch,
                           cudaStream_t stream) {
  const ForwardConfig& c = kernel.config;
  int multiprocessors = 0;
  cudaError_t error = current_multiprocessors(&multiprocessors);
  if (error != cudaSuccess) return error;

  Carver carver(launch.workspace);
  const Workspace workspace = carve(c, launch, carver);
  ForwardParams params{};
  if (!encode_maps(params, c, launch)) return cudaErrorInvalidValue;
  params.q = row_tensor(launch.q);
  params.k = row_tensor(launch.k);
  params.output = {
      .o = row_tensor(launch.o),
      .lse = launch.lse,
      .pack = launch.pack,
      .some_rows_see_no_key =
          launch.ragged || launch.mask.keys_of(0, launch.seqlen_q, launch.seqlen_k).empty(),
      .sink = launch.sink};
  params.ticket_counter = workspace.ticket_counter;
  params.order = tile_order(c, launch, multiprocessors);
  params.packs_per_kv_head = launch.heads_per_kv_head / launch.pack.heads();
  params.seqlen_q = launch.seqlen_q;
  params.seqlen_k = launch.seqlen_k;
  params.mask = launch.mask;
  params.scale_log2 = float(launch.scale * kLog2E);
  if (launch.softcap != 0) params.soft_cap = SoftCap::of(launch.scale, launch.softcap);
  params.sequences = workspace.sequences;
  params.num_entries = workspace.num_entries;

  error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kernel.smem_bytes);
  if (error != cudaSuccess) return error;
  if (launch.ragged) {
    error = list_sequences(sequence_list(c, launch, workspace, multiprocessors), stream);
    if (error != cudaSuccess) return error;
  } else if (params.ticket_counter) {
    error = cudaMemsetAsync(params.ticket_counter, 0, sizeof(int), stream);
    if (error != cudaSuccess) return error;
  }
  void* kernel_arguments[] = {&params};
  return cudaLaunchKernel(kernel.function,
                          dim3(std::min(multiprocessors * c.blocks, params.order.num_tiles())),
                          dim3(c.threads()), kernel_arguments, kernel.smem_bytes, stream);
}

}  // namespace fa3::hopper
