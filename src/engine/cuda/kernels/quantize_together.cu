// SPDX-License-Identifier: Apache-2.0
// q, k and v quantized together, in three launches that follow each other without a gap: all that
// needs no mean, beside sums of what does; the means; the rest, from the last block on, whose rows
// are in the L2 cache. What differs from quantize.cu: docs/numerics.md.
#include <algorithm>

#include "core/error.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/kernels/quantize_tiles.cuh"

namespace fa3::cuda {
namespace {

bool has_kernel(int64_t dim) {
  return dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256;
}

// Tiles and sums of one launch, as CTAs. Tensors with a mean are added up in the first one.
unsigned count_ctas(bool first, TogetherParams* t) {
  unsigned tiles = 0;
  t->all_sums = 0;
  for (int i = 0; i < kMostTogether; ++i) {
    StreamParams& s = t->tensors[i];
    const QuantizeProblem& p = s.p;
    const auto rows = unsigned(p.batch * s.blocks), heads = unsigned(p.heads);
    const bool is_now = p.centred != first;
    t->tiles[i] = is_now ? rows * heads : 0;
    t->sums[i] = 0;
    if (first && p.centred) {
      const unsigned fours = heads * unsigned(p.head_dim) / 4;
      t->sums[i] = rows * ((fours + kFoursThreads - 1) / kFoursThreads);
    }
    s.last_first = !first;
    tiles += t->tiles[i];
    t->all_sums += t->sums[i];
  }
  const unsigned all = tiles + t->all_sums;
  t->period = t->all_sums == 0 ? std::max(all, 1u) + 1 : all / t->all_sums;
  return all;
}

template <class T, int kDim>
cudaError_t launch_together(TogetherParams* t, cudaStream_t stream) {
  const auto* tiles = reinterpret_cast<const void*>(quantize_tiles<T, kDim>);
  unsigned means = 0;
  for (const StreamParams& s : t->tensors)
    means += s.p.centred ? unsigned(s.p.batch * s.p.heads) : 0;
  cudaError_t error =
      launch(tiles, dim3(count_ctas(true, t)), kTileThreads, 0, t, {.pdl = true}, stream);
  if (means == 0 || error != cudaSuccess) return error;
  error = launch(reinterpret_cast<const void*>(find_means_together), dim3(means), kDim, 0, t,
                 {.pdl = true}, stream);
  if (error != cudaSuccess) return error;
  return launch(tiles, dim3(count_ctas(false, t)), kTileThreads, 0, t, {.pdl = true}, stream);
}

template <class T>
cudaError_t launch_together(TogetherParams* t, cudaStream_t stream) {
  switch (t->tensors[0].p.head_dim) {
    case 64:
      return launch_together<T, 64>(t, stream);
    case 96:
      return launch_together<T, 96>(t, stream);
    case 128:
      return launch_together<T, 128>(t, stream);
    case 192:
      return launch_together<T, 192>(t, stream);
    default:
      return launch_together<T, 256>(t, stream);
  }
}

}  // namespace

Status plan_quantize_together(std::span<const QuantizeProblem> problems, Plan* plan) {
  if (problems.size() > kMostTogether) return unsupported("more than three tensors at once");
  for (const QuantizeProblem& p : problems) {
    Plan one;
    one.wants_words = false;
    FA3_TRY(plan_quantize(p, &one));
    constexpr int64_t kMostCtas = int64_t{1} << 30;
    const QuantizeProblem& first = problems[0];
    const bool fits = p.x.dtype == first.x.dtype && p.x.dtype != DType::float32 &&
                      p.head_dim == first.head_dim && has_kernel(p.head_dim) && p.rotary.dim == 0 &&
                      p.descale.scaling == Scaling::per_block &&
                      p.num_descale_blocks == blocks_of(p) &&
                      capped_product(p.batch, p.heads, blocks_of(p)) < kMostCtas / 8;
    if (!fits) return unsupported("tensors that are quantized one by one");
    if (p.centred && (reinterpret_cast<uintptr_t>(p.mean.data) % 16 != 0 ||
                      p.mean.batch_stride % 4 != 0 || p.mean.head_stride % 4 != 0)) {
      return unsupported("means that are not aligned to 16 bytes");
    }
  }
  *plan = {.engine = "hopper",
           .kernel = "quantizer",
           .block_q = kRows,
           .workspace_bytes = fa3::bytes_of([&](WorkspaceAllocator& allocator) {
             for (const QuantizeProblem& p : problems) allocate(p, allocator);
           }),
           .why = "Sums of what is centred run beside what is not."};
  return {};
}

Status run_quantize_together(std::span<const QuantizeProblem> problems, void* workspace,
                             void* stream) {
  const DeviceScope scope(problems[0].device_index);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    TogetherParams t{};
    WorkspaceAllocator allocator(workspace);
    for (size_t i = 0; i < problems.size(); ++i) {
      const QuantizeProblem& p = problems[i];
      t.tensors[i].p = p;
      t.tensors[i].mixing = Mixing(p);
      t.tensors[i].parts = allocate(p, allocator);
      t.tensors[i].blocks = unsigned(blocks_of(p));
      if (error == cudaSuccess) {
        error = clear_unused_rows(p, static_cast<cudaStream_t>(stream));
      }
    }
    if (error != cudaSuccess) return finish(error, "quantize");
    error = problems[0].x.dtype == DType::float16
                ? launch_together<__half>(&t, static_cast<cudaStream_t>(stream))
                : launch_together<__nv_bfloat16>(&t, static_cast<cudaStream_t>(stream));
  }
  return finish(error, "quantize");
}

}  // namespace fa3::cuda
