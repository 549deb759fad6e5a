// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan_forward.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/macros.h"
#include "engine/cuda/device.h"
#include "engine/hopper/choose_row.h"
#include "engine/hopper/choose_stream.h"
#include "engine/hopper/compiled_cache.h"
#include "engine/hopper/compiled_decode.h"
#include "engine/hopper/count_tiles.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/launch.h"
#include "engine/hopper/plan_e4m3.h"
#include "engine/hopper/stream/compiled_stream.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kE4m3Step = 16;  // of head dims: 16 bytes of a copy

// What a plan keeps as its variant.
struct Choice {
  int row;  // of table_of()
  Variant variant;
  int rows_log2;  // of a cut into runs
  int cluster_log2 = 0;
  bool numbered = false;

  static constexpr int kVariants = int(Variant::kStreamTile) + 1;
  static constexpr int kKernels = int(kForwardTable.size()) * kVariants;

  static constexpr int kRowsLog2s = 32, kClusterLog2s = 8;  // more than there are

  bool streams() const { return variant == Variant::kStream || variant == Variant::kStreamTile; }

  int number() const {
    const int cut = (int(numbered) * kClusterLog2s + cluster_log2) * kRowsLog2s + rows_log2;
    return cut * kKernels + row * kVariants + int(variant);
  }
  static Choice of(int number) {
    const int kernel = number % kKernels, cut = number / kKernels;
    return {kernel / kVariants, Variant(kernel % kVariants), cut % kRowsLog2s,
            cut / kRowsLog2s % kClusterLog2s, cut / kRowsLog2s >= kClusterLog2s};
  }
  const CompiledForward& compiled(const Problem& p) const {
    if (streams()) return kStreamTable[size_t(row)];
    if (variant == Variant::kDecode) return kDecodeTable[size_t(row)];
    return table_of(p)[size_t(row)];
  }
  ForwardKernel kernel(const Problem& p) const {
    const Element element = element_of(p.dtype);
    if (streams()) return stream_kernel_at(row, element, variant);
    if (variant == Variant::kDecode) return decode_kernel_at(row, element);
    return (p.has_e4m3() ? cache_kernel_at : forward_kernel_at)(row, element, variant);
  }
};

// The pack and the cut go into the launch.
Choice choose(const Problem& problem, int multiprocessors, ForwardLaunch* launch) {
  const StreamChoice stream = choose_stream(problem, multiprocessors, launch);
  if (stream.row != kNoRow) {
    return {stream.row, stream.variant, launch->cut.rows_log2, launch->cut.cluster_log2};
  }
  const int row = choose_row_and_cut(problem, multiprocessors, launch);
  const int rows_log2 = launch->cut.rows_log2;
  const int decode_row = choose_decode_row(problem, row, *launch);
  if (decode_row != kNoRow) return {decode_row, Variant::kDecode, rows_log2};
  const bool needs_general = launch->cut.active() || table_of(problem)[size_t(row)].config.widens();
  const Variant least = needs_general ? Variant::kGeneral : Variant::kDense;
  return {.row = row,
          .variant = std::max(variant_of(problem), least),
          .rows_log2 = rows_log2,
          .numbered = launch->cut.numbered};
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
  const KeyCut& cut = launch.cut;
  std::string why =
      concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ", of_the_row);
  if (c.widens()) {
    why += concat("; all becomes float16 ", c.streams() ? "in registers" : "in shared memory");
  }
  if (gathers_keys(c, launch)) why += "; threads copy keys, row by row";
  if (launch.pack.heads() > 1) {
    why += concat("; ", launch.pack.heads(), " query heads share a tile");
  }
  if (cut.parts == KeyCut::kRuns) {
    why += concat(
        c.has_tiles() ? "; keys of each tile are dealt to " : "; keys are cut into runs for ",
        cut.blocks / (c.has_tiles() ? num_cut_tiles(c, launch) : 1));
    why += cut.cluster_log2 == 0 ? std::string(" thread blocks")
                                 : concat(" clusters of ", 1 << cut.cluster_log2, " thread blocks");
  } else if (cut.active()) {
    why += concat("; keys of a tile are cut into up to ", cut.parts, " parts");
  } else if (cut.numbered) {
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
  if (choose_row(shape_of(p), table_of(p)) == kNoRow) {
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
  int multiprocessors = 0;
  FA3_TRY(cuda::count_multiprocessors(problem.device_index, &multiprocessors));
  const Choice choice = choose(problem, multiprocessors, &launch);
  const auto& [c, max_keys, max_rows, why] = choice.compiled(problem);
  const KeyCut& cut = launch.cut;
  const int64_t num_tiles = forward_num_tiles(c, launch);
  if (num_tiles > kMaxTiles / std::max(cut.parts, 1)) {
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
  plan->num_splits = cut.parts;
  plan->num_tasks = cut.blocks > 0 ? cut.blocks : num_tiles * cut.parts;
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
    launch.cut.parts = int(plan.num_splits);
    launch.cut.rows_log2 = choice.rows_log2;
    launch.cut.cluster_log2 = choice.cluster_log2;
    launch.cut.numbered = choice.numbered;
    if (launch.cut.parts == KeyCut::kRuns) launch.cut.blocks = int(plan.num_tasks);
    launch.workspace = workspace;
    error = launch_forward(kernel, launch, static_cast<cudaStream_t>(stream));
  }
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  return {StatusCode::device_error, concat("hopper forward: ", cudaGetErrorString(error))};
}

}  // namespace fa3::hopper
