// SPDX-License-Identifier: Apache-2.0
// From tensors to three grids. See launch_backward.h; the main kernel begins in backward_kernel.cuh.
#include "engine/hopper/backward/launch_backward.h"

#include <algorithm>

#include "core/workspace.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/launch.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
constexpr int kPreprocessThreads = 256;

// Of Q, dO and the sums of dQ of the heads in work: a part of the L2 cache.
constexpr int64_t kSectionBytes = 8 << 20;

QueryScratch carve(const BackwardConfig& c, const BackwardArguments& a, Carver& carver) {
  const int64_t q_blocks = ceil_div(a.q.rows, c.block_m);
  const int64_t blocks = backward_num_query_blocks(c, a);
  QueryScratch scratch{};
  scratch.dq_sum = carver.take<float>(blocks, c.dq_parts().chunk_floats());
  scratch.lse_log2 = carver.take<float>(blocks, c.block_m);
  scratch.delta = carver.take<float>(blocks, c.block_m);
  if (a.deterministic) scratch.turns = carver.take<int>(blocks);
  scratch.q_blocks = int(q_blocks);
  scratch.heads = int(a.q.heads);
  return scratch;
}

KeyBlockOrder order_of(const BackwardConfig& c, const BackwardArguments& a) {
  const int64_t heads_per_kv_head = a.q.heads / a.k.heads;
  const int64_t kv_head_bytes =
      heads_per_kv_head * a.q.rows *
      ((c.head_dim + c.head_dim_v) * bytes_of(c.element) + c.head_dim * 4);
  const int64_t heads = a.k.heads * a.k.batches;
  return {int(ceil_div(a.k.rows, c.block_n)), int(a.k.heads), int(a.k.batches),
          int(std::clamp<int64_t>(kSectionBytes / std::max<int64_t>(kv_head_bytes, 1), 1, heads)),
          a.deterministic && a.causal};
}

bool encode_maps(BackwardParams& p, const BackwardConfig& c, const BackwardArguments& a) {
  // Without queries their maps are never read; those of the keys stand in.
  const TensorSpan& q = a.q.rows > 0 ? a.q : a.k;
  const TensorSpan& d_o = a.q.rows > 0 ? a.d_o : a.v;
  const auto encode = [&](CUtensorMap& map, const TensorSpan& t, tile::TileLayout layout,
                          int rows) { return encode_tensor_map(map, t, c.element, layout, rows); };
  return encode(p.q_map, q, c.q_layout(), c.block_m) &&
         encode(p.d_o_map, d_o, c.d_o_layout(), c.block_m) &&
         encode(p.k_map, a.k, c.k_layout(), c.block_n) &&
         encode(p.v_map, a.v, c.v_layout(), c.block_n) &&
         encode(p.dk_map, a.dk, c.k_layout(), kRowsPerWarpgroup) &&
         encode(p.dv_map, a.dv, c.v_layout(), kRowsPerWarpgroup);
}

// `chained`: may start before the launch in front of it has ended; it waits for that one itself.
cudaError_t launch(const void* function, int64_t blocks, int threads, int smem_bytes, void* params,
                   bool chained, cudaStream_t stream) {
  if (blocks == 0) return cudaSuccess;
  cudaLaunchAttribute chain{};
  chain.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  chain.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(smem_bytes);
  config.stream = stream;
  config.attrs = &chain;
  config.numAttrs = chained ? 1 : 0;
  void* arguments[] = {params};
  return cudaLaunchKernelExC(&config, function, arguments);
}

cudaError_t launch_main(const BackwardKernel& kernel, const BackwardArguments& a,
                        const QueryScratch& scratch, bool chained, cudaStream_t stream) {
  const BackwardConfig& c = kernel.config;
  BackwardParams p{};
  if (a.k.rows == 0) return cudaSuccess;
  if (!encode_maps(p, c, a)) return cudaErrorInvalidValue;
  p.scratch = scratch;
  p.order = order_of(c, a);
  p.extents = {int(a.q.rows), int(a.k.rows), a.causal};
  p.heads_per_kv_head = int(a.q.heads / a.k.heads);
  p.scale = a.gradient_scale;
  p.scale_log2 = float(a.scale * kLog2E);
  const cudaError_t error = cudaFuncSetAttribute(
      kernel.main, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.smem_bytes);
  if (error != cudaSuccess) return error;
  return launch(kernel.main, backward_num_tiles(c, a), c.threads(), kernel.smem_bytes, &p, chained,
                stream);
}

}  // namespace

int64_t backward_num_tiles(const BackwardConfig& c, const BackwardArguments& a) {
  return capped_product(ceil_div(a.k.rows, c.block_n), a.k.heads, a.k.batches);
}

int64_t backward_num_query_blocks(const BackwardConfig& c, const BackwardArguments& a) {
  return capped_product(ceil_div(a.q.rows, c.block_m), a.q.heads, a.q.batches);
}

int64_t backward_workspace_bytes(const BackwardConfig& c, const BackwardArguments& a) {
  return bytes_of([&](Carver& carver) { carve(c, a, carver); });
}

cudaError_t launch_backward(const BackwardKernel& kernel, const BackwardArguments& a,
                            cudaStream_t stream, int launches) {
  const BackwardConfig& c = kernel.config;
  Carver carver(a.workspace);
  const QueryScratch scratch = carve(c, a, carver);
  const int64_t blocks = backward_num_query_blocks(c, a);
  cudaError_t error = cudaSuccess;
  if (launches & kPreprocess) {
    PreprocessParams p{row_tensor(a.o), row_tensor(a.d_o), a.lse, a.d_lse, scratch, int(a.q.rows)};
    error = launch(kernel.preprocess, blocks, kPreprocessThreads, 0, &p, false, stream);
  }
  if (error == cudaSuccess && launches & kMain) {
    error = launch_main(kernel, a, scratch, launches & kPreprocess && blocks > 0, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess) {
    PostprocessParams p{row_tensor(a.dq), scratch, int(a.q.rows), a.gradient_scale};
    error = launch(kernel.postprocess, blocks * c.dq_parts().parts(), kWarpgroupSize, 0, &p,
                   launches != kPostprocess, stream);
  }
  return error;
}

}  // namespace fa3::hopper
