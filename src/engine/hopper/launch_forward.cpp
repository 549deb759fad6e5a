// SPDX-License-Identifier: Apache-2.0
// From tensors to a grid. See launch_forward.h; the kernel begins in forward_kernel.cuh.
#include "engine/hopper/launch_forward.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/hopper/forward_params.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// The ticket counter has the workspace's first 16 bytes, then one RedoEntry (8 bytes) a tile.
constexpr int64_t kCounterBytes = 16;
constexpr int64_t kRedoEntryBytes = 8;

// A tail of this many waves of tiles evens out the multiprocessors: more for longer sequences, whose
// longest tiles are longer and whose keys need less memory bandwidth for their use.
constexpr int64_t kTailWavesPerMBlock = 16;
constexpr int64_t kMinTailWaves = 2;
constexpr int64_t kMaxTailWaves = 8;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Tiles differ in length: then they are drawn from a counter when a multiprocessor is free, else
// dealt in turn, which needs no counter to be cleared.
bool tiles_differ(const ForwardConfig& c, const ForwardArguments& a, int pack) {
  return a.causal || (a.q.rows << pack) % c.block_m != 0;
}

int64_t tiles(const ForwardConfig& c, const ForwardArguments& a, int pack) {
  return ceil_div(a.q.rows << pack, c.block_m) * (a.q.heads >> pack) * a.q.batches;
}

// Up to 6 would do: Q comes 64 rows a copy, which must be whole queries of one pack.
constexpr int kMaxPackLog2 = 4;
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

TileOrder tile_order(const ForwardConfig& c, const ForwardArguments& a, int pack,
                     int multiprocessors) {
  const int64_t num_m_blocks = ceil_div(a.q.rows << pack, c.block_m);
  const int64_t packs = a.q.heads >> pack;
  const int64_t heads = packs * a.q.batches;
  const int64_t waves =
      std::clamp(num_m_blocks / kTailWavesPerMBlock, kMinTailWaves, kMaxTailWaves);
  const int64_t tail = a.causal ? ceil_div(waves * multiprocessors, num_m_blocks) : 0;
  return {int(num_m_blocks), int(packs), int(a.q.batches), int(std::min(heads, tail))};
}

bool encode_maps(ForwardParams& params, const ForwardConfig& c, const ForwardArguments& a) {
  const int packed_heads = 1 << params.pack_log2;
  const tile::TileLayout q{c.block_m, c.head_dim};
  const tile::TileLayout k{c.block_n, c.head_dim};
  const tile::TileLayout v{c.block_n, c.head_dim_v};
  return encode_tensor_map(params.q_map, a.q, c.element, q, kRowsPerWarpgroup, packed_heads) &&
         encode_tensor_map(params.k_map, a.k, c.element, k, c.block_n) &&
         encode_tensor_map(params.v_map, a.v, c.element, v, c.block_n);
}

}  // namespace

// Packing pays where tiles would be partly empty, and where a causal mask cuts through them: fewer
// queries a tile leave less beside the diagonal.
int forward_pack_log2(const ForwardConfig& c, const ForwardArguments& a) {
  int most = std::min(std::countr_zero(unsigned(a.heads_per_kv_head)), kMaxPackLog2);
  while (a.q.rows << most > kMaxPackedRows) --most;
  const bool cut_by_mask = a.causal && a.q.rows >= c.block_m;
  return cut_by_mask || tiles(c, a, most) < tiles(c, a, 0) ? most : 0;
}

int64_t forward_num_tiles(const ForwardConfig& config, const ForwardArguments& a) {
  return tiles(config, a, forward_pack_log2(config, a));
}

int64_t forward_workspace_bytes(int64_t num_tiles) {
  return kCounterBytes + num_tiles * kRedoEntryBytes;
}

cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardArguments& a,
                           cudaStream_t stream) {
  const ForwardConfig& c = kernel.config;
  ForwardParams params{};
  params.pack_log2 = forward_pack_log2(c, a);
  if (!encode_maps(params, c, a)) return cudaErrorInvalidValue;
  params.o = a.o.data;
  params.o_batch_stride = a.o.batch_stride;
  params.o_head_stride = a.o.head_stride;
  params.o_row_stride = a.o.row_stride;
  params.head_dim_v = int(a.o.columns);
  params.lse = a.lse;
  params.lse_batch_stride = a.lse_batch_stride;
  params.lse_head_stride = a.lse_head_stride;
  params.lse_row_stride = a.lse_row_stride;
  params.ticket_counter =
      tiles_differ(c, a, params.pack_log2) ? static_cast<int*>(a.workspace) : nullptr;
  params.redo = reinterpret_cast<RedoEntry*>(static_cast<char*>(a.workspace) + kCounterBytes);
  params.seqlen_q = int(a.q.rows);
  params.seqlen_k = a.seqlen_k;
  params.packs_per_kv_head = a.heads_per_kv_head >> params.pack_log2;
  params.causal = a.causal;
  params.scale_log2 = float(a.scale * kLog2E);

  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  params.order = tile_order(c, a, params.pack_log2, multiprocessors);
  error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kernel.smem_bytes);
  if (error != cudaSuccess) return error;
  if (params.ticket_counter) {
    error = cudaMemsetAsync(params.ticket_counter, 0, sizeof(int), stream);
    if (error != cudaSuccess) return error;
  }
  void* kernel_arguments[] = {&params};
  return cudaLaunchKernel(kernel.function,
                          dim3(std::min(multiprocessors, params.order.num_tiles())),
                          dim3(c.threads()), kernel_arguments, kernel.smem_bytes, stream);
}

}  // namespace fa3::hopper
