// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/plan_forward.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/macros.h"
#include "engine/cuda/device.h"
#include "engine/hopper/host/capability.h"
#include "engine/hopper/host/launch.h"
#include "engine/hopper/instances/cache_table.h"
#include "engine/hopper/instances/decode_table.h"
#include "engine/hopper/instances/stream_k_table.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/select_decode.h"
#include "engine/hopper/plan/select_kernel.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kE4m3Step = 16;  // of head dims: 16 bytes of a copy

// What a plan keeps as its variant.
struct Choice {
  int row;  // of table_of()
  Variant variant;
  int groups_log2;  // of a split into stream-K ranges
  int cluster_log2 = 0;
  bool direct = false;

  static constexpr int kVariants = int(Variant::kDecodeSingle) + 1;
  static constexpr int kKernels = int(kForwardTable.size()) * kVariants;

  static constexpr int kRowsLog2s = 32, kClusterLog2s = 8;  // more than there are

  bool is_decode() const {
    return variant == Variant::kDecode || variant == Variant::kDecodeSingle;
  }

  int number() const {
    const int split = (int(direct) * kClusterLog2s + cluster_log2) * kRowsLog2s + groups_log2;
    return split * kKernels + row * kVariants + int(variant);
  }
  static Choice of(int number) {
    const int kernel = number % kKernels, split = number / kKernels;
    return {kernel / kVariants, Variant(kernel % kVariants), split % kRowsLog2s,
            split / kRowsLog2s % kClusterLog2s, split / kRowsLog2s >= kClusterLog2s};
  }
  const KernelInstance& compiled(const Problem& p) const {
    if (is_decode()) return kDecodeTable[size_t(row)];
    if (variant == Variant::kStreamK) return kStreamKTable[size_t(row)];
    return table_of(p)[size_t(row)];
  }
  ForwardKernel kernel(const Problem& p) const {
    const Element element = element_of(p.dtype);
    if (is_decode()) return decode_kernel_at(row, element, variant);
    if (variant == Variant::kStreamK) return stream_k_kernel_at(row, element);
    return (p.has_e4m3() ? cache_kernel_at : forward_kernel_at)(row, element, variant);
  }
};

// The pack and the split go into the launch.
Choice choose(const Problem& problem, int num_sms, ForwardLaunch* launch) {
  const DecodeChoice stream = select_decode(problem, num_sms, launch);
  if (stream.row != kNoKernel) {
    return {stream.row, stream.variant, launch->split.groups_log2, launch->split.cluster_log2};
  }
  const int row = select_kernel_and_split(problem, num_sms, launch);
  const int groups_log2 = launch->split.groups_log2;
  const int stream_k_index = select_stream_k(problem, row, *launch);
  if (stream_k_index != kNoKernel) return {stream_k_index, Variant::kStreamK, groups_log2};
  const bool needs_general =
      launch->split.active() || table_of(problem)[size_t(row)].config.dequantizes();
  const Variant least = needs_general ? Variant::kGeneral : Variant::kDense;
  return {.row = row,
          .variant = std::max(variant_of(problem), least),
          .groups_log2 = groups_log2,
          .direct = launch->split.direct};
}

Status check_layouts(const ForwardLaunch& a) {
  const auto check = [](const char* name, const TensorSpan& tensor) -> Status {
    const char* obstacle = tensor_map_obstacle(tensor);
    return obstacle ? unsupported(name, ": ", obstacle) : Status{};
  };
  FA3_TRY(check("q", a.q));
  FA3_TRY(check("k", a.k));
  FA3_TRY(check("v", a.v));
  return check("o", a.o);
}

// Of 16-bit queries' keys and values.
Status check_cache_scales(const Problem& p) {
  if (!p.has_e4m3()) return {};
  for (const auto& [name, of] : {std::pair{"k", &p.k_quantization}, {"v", &p.v_quantization}}) {
    if (of->descale.scaling == Scaling::per_block) {
      return unsupported(name, "_descale of ", int(FA3_DESCALE_ROWS),
                         " rows each beside 16-bit queries; give one for each sequence and head");
    }
    if (of->mean.data != nullptr) return unsupported(name, "_mean beside 16-bit queries");
  }
  return {};
}

bool nothing_to_do(const ForwardLaunch& a) {
  return a.q.batches == 0 || a.q.heads == 0 || a.q.rows == 0;
}

std::string reasons(const Problem& problem, const ForwardConfig& c, const char* of_the_row,
                    const ForwardLaunch& launch) {
  const SplitKv& split = launch.split;
  std::string why =
      concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ", of_the_row);
  if (c.dequantizes()) {
    why += concat("; all becomes float16 ", c.is_decode() ? "in registers" : "in shared memory");
  }
  if (uses_cp_async(c, launch)) why += "; threads copy keys, row by row";
  if (launch.pack.heads() > 1) {
    why += concat("; ", launch.pack.heads(), " query heads share a tile");
  }
  if (split.num_splits == SplitKv::kStreamK) {
    why += concat(c.is_single_sequence() ? "; keys of each tile are dealt to "
                                         : "; keys are split into runs for ",
                  split.ctas / (c.is_single_sequence() ? num_split_tiles(c, launch) : 1));
    why += split.cluster_log2 == 0
               ? std::string(" thread blocks")
               : concat(" clusters of ", 1 << split.cluster_log2, " thread blocks");
  } else if (split.active()) {
    why += concat("; keys of a tile are split into up to ", split.num_splits, " num_splits");
  } else if (split.direct) {
    why += "; each tile has a thread block at once";
  }
  if (problem.batch_invariant) why += "; the same for every batch";
  if (problem.head_dim_v > kMaxColumnsV) {
    why += concat("; a launch for every ", kMaxColumnsV, " columns of the values");
  }
  return why;
}

}  // namespace

Status check_forward(const Problem& p) {
  if (p.dtype != DType::float16 && p.dtype != DType::bfloat16) {
    return unsupported(name_of(p.dtype), " is not among its element types (float16, bfloat16)");
  }
  FA3_TRY(check_cache_scales(p));
  if (p.has_e4m3() && p.o.dtype == DType::float32) {
    return unsupported("an output of float32 over keys and values of float8_e4m3");
  }
  if (p.has_e4m3() && (p.head_dim % kE4m3Step != 0 || p.head_dim_v % kE4m3Step != 0)) {
    return unsupported("head dims over float8_e4m3 must be multiples of ", kE4m3Step, ", got ",
                       p.head_dim, " and ", p.head_dim_v);
  }
  if (select_kernel(shape_of(p), table_of(p)) == kNoKernel) {
    return unsupported("no kernel for head dim ", p.head_dim, "; the largest have 256");
  }
  return check_row_numbers(p);
}

Status plan_forward(const Problem& problem, Plan* plan) {
  if (problem.dtype == DType::float8_e4m3) return plan_e4m3(problem, plan);
  FA3_TRY(check_forward(problem));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  ForwardLaunch launch = launch_of(problem);
  FA3_TRY(check_layouts(launch));
  int num_sms = 0;
  FA3_TRY(cuda::count_sms(problem.device_index, &num_sms));
  const Choice choice = choose(problem, num_sms, &launch);
  const auto& [c, max_keys, max_rows, why] = choice.compiled(problem);
  const SplitKv& split = launch.split;
  const int64_t num_tiles = forward_num_tiles(c, launch);
  if (num_tiles > kMaxTiles / std::max(split.num_splits, 1)) {
    return unsupported("more than 2^30 tiles of queries, or parts of them");
  }
  if (launch.pack.rows(launch.q.rows) > kMaxRows) {
    return unsupported("more than 2^30 rows of queries, counted for each of the ",
                       launch.pack.heads(), " heads that share a tile");
  }

  plan->engine = "hopper";
  plan->variant = choice.number();
  plan->block_q = c.block_m;
  plan->block_k = c.block_n;
  plan->packed_heads = launch.pack.heads();
  plan->num_splits = split.num_splits;
  plan->num_tasks = split.ctas > 0 ? split.ctas : num_tiles * split.num_splits;
  plan->workspace_bytes = nothing_to_do(launch) ? 0 : forward_workspace_bytes(c, launch);
  if (plan->wants_words) {
    plan->kernel = concat("forward ", name_of(problem.dtype), " d", c.head_dim, "/", c.head_dim_v,
                          " ", c.block_m, "x", c.block_n, mask_name(launch.mask));
    plan->why = reasons(problem, c.with(c.element, choice.variant), why, launch);
  }
  return {};
}

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  if (problem.dtype == DType::float8_e4m3) return run_e4m3(problem, plan, workspace, stream);
  if (nothing_to_do(launch_of(problem))) return {};
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const Choice choice = Choice::of(plan.variant);
  const ForwardKernel kernel = choice.kernel(problem);
  for (int64_t column = 0; error == cudaSuccess && column < problem.head_dim_v;
       column += kMaxColumnsV) {
    ForwardLaunch launch = launch_of(problem, column);
    launch.pack = {std::countr_zero(uint64_t(plan.packed_heads))};
    launch.split.num_splits = int(plan.num_splits);
    launch.split.groups_log2 = choice.groups_log2;
    launch.split.cluster_log2 = choice.cluster_log2;
    launch.split.direct = choice.direct;
    if (launch.split.num_splits == SplitKv::kStreamK) launch.split.ctas = int(plan.num_tasks);
    launch.workspace = workspace;
    error = launch_forward(kernel, launch, static_cast<cudaStream_t>(stream));
  }
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  return {StatusCode::device_error, concat("hopper forward: ", cudaGetErrorString(error))};
}

}  // namespace fa3::hopper
