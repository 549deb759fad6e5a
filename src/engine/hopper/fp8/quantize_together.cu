// SPDX-License-Identifier: Apache-2.0
// q, k and v quantized together, by two launches: what sums and means lie in is marked as not yet
// stored, and then one kernel does all. What differs from quantize.cu: docs/numerics.md.
#include "engine/hopper/fp8/quantize_together.cuh"

#include <algorithm>

#include "core/error.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/kernels/quantize_sums.cuh"
#include "engine/hopper/host/tensor_map.h"

namespace fa3::cuda {
namespace {

using hopper::QuantizeOrder;
using hopper::TogetherParams;
using hopper::TogetherStart;

// A group's rows. They are read again three groups later, from the L2 cache, which has 50 MB.
constexpr int64_t kGroupBytes = int64_t{4} << 20;

bool has_kernel(int64_t dim) {
  return dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256;
}

QuantizeOrder order_of(std::span<const QuantizeProblem> problems) {
  QuantizeOrder::Tensor tensors[QuantizeOrder::kMostTensors];
  for (size_t i = 0; i < problems.size(); ++i) {
    const QuantizeProblem& p = problems[i];
    tensors[i] = {int(p.batch), int(p.heads), int(blocks_of(p)), p.centred};
  }
  return {tensors, int(kGroupBytes / (kRows * problems[0].head_dim * 2))};
}

TensorSpan rows_of(const QuantizeProblem& p) {
  const bool packed = p.lengths.packed();
  return {.data = p.x.data,
          .batches = packed ? 1 : p.batch,
          .rows = packed ? p.lengths.total : p.lengths.max,
          .heads = p.heads,
          .columns = p.head_dim,
          .batch_stride = p.x.batch_stride,
          .row_stride = p.x.row_stride,
          .head_stride = p.x.head_stride};
}

// Sums of all tensors, one behind the other, and how many tasks are taken.
struct TogetherMemory {
  float* sums[QuantizeOrder::kMostTensors] = {};
  int64_t floats = 0;
  unsigned* taken = nullptr;
};

TogetherMemory allocate(std::span<const QuantizeProblem> problems, WorkspaceAllocator& allocator) {
  TogetherMemory memory;
  int64_t from[QuantizeOrder::kMostTensors] = {};
  for (size_t i = 0; i < problems.size(); ++i) {
    const QuantizeProblem& p = problems[i];
    from[i] = memory.floats;
    if (p.centred) memory.floats += p.batch * p.heads * blocks_of(p) * p.head_dim;
  }
  float* const sums = allocator.take<float>(memory.floats);
  for (size_t i = 0; i < problems.size() && sums != nullptr; ++i) memory.sums[i] = sums + from[i];
  memory.taken = allocator.take<unsigned>(1);
  return memory;
}

cudaError_t launch_start(std::span<const QuantizeProblem> problems, const TogetherMemory& memory,
                         int sms, cudaStream_t stream) {
  TogetherStart start{.sums = reinterpret_cast<float4*>(memory.sums[0]),
                      .fours = memory.floats / 4,
                      .head_fours = int(problems[0].head_dim / 4),
                      .taken = memory.taken};
  int64_t fours = start.fours;
  for (size_t i = 0; i < problems.size(); ++i) {
    const QuantizeProblem& p = problems[i];
    if (!p.centred) continue;
    start.means[i] = p.mean;
    start.heads[i] = int(p.heads);
    start.sequences[i] = int(p.batch);
    fours = std::max(fours, p.batch * p.heads * start.head_fours);
  }
  constexpr int kThreads = 256, kMostOfSm = 4;
  const int64_t ctas = std::min<int64_t>(fours / kThreads + 1, int64_t{sms} * kMostOfSm);
  return launch(reinterpret_cast<const void*>(hopper::start_quantizing), dim3(unsigned(ctas)),
                kThreads, 0, &start, {.pdl = true}, stream);
}

template <class T, int kDim>
cudaError_t launch_together(TogetherParams* t, int sms, cudaStream_t stream) {
  using Shape = hopper::TogetherShape<kDim>;
  const int64_t ctas = std::min<int64_t>(t->order.tasks(), sms);
  return launch(reinterpret_cast<const void*>(hopper::quantize_together<T, kDim>),
                dim3(unsigned(ctas)), Shape::kThreads, int(sizeof(hopper::TogetherSmem<kDim>)), t,
                {.pdl = true}, stream);
}

template <class T>
cudaError_t launch_together(TogetherParams* t, int sms, cudaStream_t stream) {
  switch (t->tensors[0].p.head_dim) {
    case 64:
      return launch_together<T, 64>(t, sms, stream);
    case 96:
      return launch_together<T, 96>(t, sms, stream);
    case 128:
      return launch_together<T, 128>(t, sms, stream);
    case 192:
      return launch_together<T, 192>(t, sms, stream);
    default:
      return launch_together<T, 256>(t, sms, stream);
  }
}

}  // namespace

Status plan_quantize_together(std::span<const QuantizeProblem> problems, Plan* plan) {
  if (problems.size() > QuantizeOrder::kMostTensors)
    return unsupported("more than three tensors at once");
  for (const QuantizeProblem& p : problems) {
    Plan one;
    one.wants_words = false;
    FA3_TRY(plan_quantize(p, &one));
    constexpr int64_t kMostBlocks = int64_t{1} << 27;
    const QuantizeProblem& first = problems[0];
    const int64_t tiles = capped_product(p.batch, p.heads, blocks_of(p));
    const bool fits = p.x.dtype == first.x.dtype && p.x.dtype != DType::float32 &&
                      p.head_dim == first.head_dim && has_kernel(p.head_dim) && p.rotary.dim == 0 &&
                      p.descale.scaling == Scaling::per_block && p.descale.heads_per_scale == 1 &&
                      p.num_descale_blocks == blocks_of(p) && tiles > 0 && tiles < kMostBlocks;
    if (!fits) return unsupported("tensors that are quantized one by one");
    if (p.centred && (reinterpret_cast<uintptr_t>(p.mean.data) % 16 != 0 ||
                      p.mean.batch_stride % 4 != 0 || p.mean.head_stride % 4 != 0)) {
      return unsupported("means that are not aligned to 16 bytes");
    }
    if (const char* obstacle = hopper::tensor_map_obstacle(rows_of(p)))
      return unsupported(obstacle);
  }
  if (order_of(problems).tasks() >= QuantizeOrder::kTooMany) {
    return unsupported("tensors of very different shapes");
  }
  *plan = {.engine = "hopper",
           .kernel = "quantizer",
           .block_q = kRows,
           .workspace_bytes =
               fa3::bytes_of([&](WorkspaceAllocator& allocator) { allocate(problems, allocator); }),
           .why = "One launch reads each number from memory once."};
  return {};
}

Status run_quantize_together(std::span<const QuantizeProblem> problems, void* workspace,
                             void* stream) {
  const DeviceScope scope(problems[0].device_index);
  int sms = 0;
  FA3_TRY(count_sms(problems[0].device_index, &sms));
  const auto queue = static_cast<cudaStream_t>(stream);
  cudaError_t error = scope.error();
  TogetherParams t{};
  WorkspaceAllocator allocator(workspace);
  const TogetherMemory memory = allocate(problems, allocator);
  t.order = order_of(problems);
  t.taken = memory.taken;
  const bool is_half = problems[0].x.dtype == DType::float16;
  for (size_t i = 0; i < problems.size() && error == cudaSuccess; ++i) {
    const QuantizeProblem& p = problems[i];
    t.tensors[i].p = p;
    t.tensors[i].mixing = Mixing(p);
    t.tensors[i].parts.sums = memory.sums[i];
    t.tensors[i].blocks = unsigned(blocks_of(p));
    const hopper::tile::TileLayout layout{kRows, int(p.head_dim)};
    if (!hopper::encode_slab_map(t.maps[i], rows_of(p), is_half ? Element::kFp16 : Element::kBf16,
                                 layout, kRows)) {
      return finish(cudaErrorInvalidValue, "quantize");
    }
    error = clear_unused_rows(p, queue);
  }
  if (error == cudaSuccess) error = launch_start(problems, memory, sms, queue);
  if (error == cudaSuccess) {
    error = is_half ? launch_together<__half>(&t, sms, queue)
                    : launch_together<__nv_bfloat16>(&t, sms, queue);
  }
  return finish(error, "quantize");
}

}  // namespace fa3::cuda
