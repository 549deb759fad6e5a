// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/plan_e4m3.h"

#include <bit>

#include "core/error.h"
#include "core/macros.h"
#include "engine/cuda/device.h"
#include "engine/hopper/host/capability.h"
#include "engine/hopper/instances/e4m3_table.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kHeadDimStep = 16;  // TMA moves 16 bytes at least
constexpr int64_t kMaxGrid = 65535;   // of the preparing kernels, in heads and in batches

bool nothing_to_do(const Problem& p) {
  const bool no_rows =
      p.lengths_q.in_one_tensor ? p.lengths_q.total == 0 : p.batch == 0 || p.lengths_q.max == 0;
  return p.heads_q == 0 || no_rows;
}

ForwardShape e4m3_shape_of(const Problem& p) {
  return {.head_dim = p.head_dim,
          .head_dim_v = p.head_dim_v,
          .keys = p.lengths_k.max,
          .single_rows = reads_single_rows(p.key_places, p.lengths_k)};
}

// Keys are never split, however many splits are asked for.
Variant e4m3_variant_of(Problem p) {
  p.num_splits = 1;
  return variant_of(p) == Variant::kDense ? Variant::kDense : Variant::kCapped;
}

}  // namespace

Status check_e4m3(const Problem& p) {
  if (p.o.dtype != DType::float16 && p.o.dtype != DType::bfloat16) {
    return unsupported("an output of ", name_of(p.o.dtype), " from inputs of float8_e4m3");
  }
  // What the keys' mean adds to a score is added to the LSE alone, behind the kernel.
  if (p.k_quantization.mean.data && (p.softcap != 0.0f || p.has_sink || is_varlen(p))) {
    return unsupported("k_mean beside a softcap, sink logits, or sequences of unequal lengths");
  }
  if (p.head_dim % kHeadDimStep != 0 || p.head_dim_v % kHeadDimStep != 0) {
    return unsupported("head dims of float8_e4m3 must be multiples of 16, got ", p.head_dim,
                       " and ", p.head_dim_v);
  }
  if (select_e4m3_kernel(e4m3_shape_of(p), e4m3_variant_of(p)) == kNoKernel) {
    return unsupported("no float8_e4m3 kernel for head dims ", p.head_dim, " and ", p.head_dim_v,
                       "; the largest have 256");
  }
  FA3_TRY(check_row_numbers(p));
  if (p.batch > kMaxGrid || p.heads_q > kMaxGrid) {
    return unsupported("more than ", kMaxGrid, " sequences or heads of float8_e4m3");
  }
  return {};
}

Status check_e4m3_layouts(const Problem& problem) {
  const ForwardLaunch a = launch_of(problem);
  for (const auto& [name, tensor] : {std::pair{"q", a.q}, {"k", a.k}, {"o", a.o}}) {
    const char* obstacle = tensor_map_obstacle(tensor);
    if (obstacle) return unsupported(name, ": ", obstacle);
  }
  constexpr int64_t kWord = 4;  // V is read by words
  const TensorSpan& v = a.v;
  if (reinterpret_cast<uintptr_t>(v.data) % kWord != 0 || v.row_stride % kWord != 0 ||
      v.head_stride % kWord != 0 || v.batch_stride % kWord != 0) {
    return unsupported("v: address and strides must be multiples of 4 bytes");
  }
  return {};
}

int select_e4m3_kernel(const ForwardShape& shape, Variant variant) {
  constexpr int kDense = num_dense_e4m3_kernels();
  const int first = variant == Variant::kDense ? 0 : kDense;
  const int end = variant == Variant::kDense ? kDense : int(kE4m3Table.size());
  const int row =
      select_kernel(shape, std::span(kE4m3Table).subspan(size_t(first), size_t(end - first)));
  return row == kNoKernel ? kNoKernel : first + row;
}

E4m3Launch e4m3_launch_of(const Problem& p) {
  return {
      .forward = launch_of(p), .q = p.q_quantization, .k = p.k_quantization, .v = p.v_quantization};
}

Status plan_e4m3(const Problem& problem, Plan* plan) {
  FA3_TRY(check_e4m3(problem));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  FA3_TRY(check_e4m3_layouts(problem));
  E4m3Launch launch = e4m3_launch_of(problem);
  const int row = select_e4m3_kernel(e4m3_shape_of(problem), e4m3_variant_of(problem));
  const auto& [c, max_keys, max_rows, why] = kE4m3Table[size_t(row)];
  launch.forward.pack = choose_e4m3_pack(c, launch);
  const int64_t num_tiles = forward_num_tiles(c, launch.forward);
  if (num_tiles > kMaxTiles) return unsupported("more than 2^30 tiles of queries");

  plan->engine = "hopper";
  plan->variant = row;
  plan->block_q = c.block_m;
  plan->block_k = c.block_n;
  plan->packed_heads = launch.forward.pack.heads();
  plan->num_tasks = num_tiles;
  plan->workspace_bytes = nothing_to_do(problem) ? 0 : e4m3_workspace_bytes(c, launch);
  if (!plan->wants_words) return {};
  plan->kernel = concat("forward float8_e4m3 d", c.head_dim, "/", c.head_dim_v, " ", c.block_m, "x",
                        c.block_n, mask_name(launch.forward.mask));
  plan->why = concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ", why,
                     "; V is transposed beforehand");
  if (plan->packed_heads > 1) {
    plan->why += concat("; ", plan->packed_heads, " query heads share a tile");
  }
  return {};
}

Status run_e4m3(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  if (nothing_to_do(problem)) return {};
  const DeviceScope scope(problem.device_index);
  const auto queue = static_cast<cudaStream_t>(stream);
  const ForwardKernel kernel = e4m3_kernel_at(plan.variant, element_of(problem.o.dtype));
  E4m3Launch launch = e4m3_launch_of(problem);
  launch.forward.pack = {std::countr_zero(uint64_t(plan.packed_heads))};
  launch.forward.workspace = workspace;
  cudaError_t error = scope.error();
  if (error == cudaSuccess) error = prepare_e4m3_launch(kernel, &launch, queue);
  if (error == cudaSuccess) error = launch_prepared_e4m3(kernel, launch, queue);
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  return {StatusCode::device_error, concat("hopper forward: ", cudaGetErrorString(error))};
}

}  // namespace fa3::hopper
