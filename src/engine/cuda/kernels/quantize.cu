// SPDX-License-Identifier: Apache-2.0
// The quantizer's kernels, limited by memory bandwidth: x is read once, and once more for its means
// and for scales that blocks share. A block of kDescaleRows rows stays in the registers of a
// CTA between its largest number and its rounding. What is computed: docs/numerics.md.
#include "engine/cuda/kernels/quantize.h"

#include <algorithm>

#include "core/error.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/kernels/quantize_row.cuh"

namespace fa3::cuda {
namespace {

constexpr int kRows = kDescaleRows;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kSumWarps = 2;    // few, so that all SMs have some
constexpr int kRowsAhead = 16;  // loads that a lane has under way while it adds up rows

struct Parts {
  float* sums = nullptr;     // (batch, heads, blocks, dim), if centred
  float* means = nullptr;    // (batch, heads, dim), if centred; as they are subtracted
  float* largest = nullptr;  // (batch, heads, blocks), if blocks share scales
};

int64_t blocks_of(const QuantizeProblem& p) {
  return descale_blocks(p.lengths.max);
}

Parts allocate(const QuantizeProblem& p, WorkspaceAllocator& allocator) {
  Parts parts;
  if (p.centred) {
    parts.sums = allocator.take<float>(p.batch, p.heads, blocks_of(p), p.head_dim);
    parts.means = allocator.take<float>(p.batch, p.heads, p.head_dim);
  }
  if (p.descale.scaling != Scaling::per_block) {
    parts.largest = allocator.take<float>(p.batch, p.heads, blocks_of(p));
  }
  return parts;
}

// A block of rows of a head.
struct Block {
  int64_t b, head, index;
  int num_rows;

  __device__ Block(const QuantizeProblem& p, int64_t sequence, int64_t h, int64_t i)
      : b(sequence), head(h), index(i) {
    const int64_t left = p.lengths.max - index * kRows;
    num_rows = static_cast<int>(left < 0 ? 0 : left < kRows ? left : kRows);
  }
  __device__ int64_t place(const QuantizeProblem& p, int64_t blocks) const {
    return (b * p.heads + head) * blocks + index;
  }
};

// A lane's channels in the first row of a block; the next row is `stride` numbers further.
template <class T>
struct Column {
  T* first;
  int64_t stride;

  __device__ Column(const Operand& x, const Block& block, const RowLane& at)
      : first(x.at<T>(block.b, block.index * kRows, block.head) + at.channel()),
        stride(x.row_stride) {}
  __device__ T* row(int i) const { return first + i * stride; }
};

template <class T>
__device__ Packed<T> load_row(const Column<T>& x, const Block& block, int row, const RowLane& at) {
  if (!at.has_row() || row >= block.num_rows) return {};
  return load_packed(x.row(row));
}

__device__ int64_t position(const Block& block, int row) {
  return block.index * kRows + min(row, max(block.num_rows - 1, 0));
}

// sums = the rows of a block, one after the other. Lanes that would share a row have one head each;
// blockIdx is (heads, block, batch).
template <class T>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    add_up_blocks(const __grid_constant__ QuantizeProblem p, float* sums, int64_t blocks) {
  const RowLane at(p.head_dim);
  const int head =
      (static_cast<int>(blockIdx.x) * kSumWarps + threadIdx.x / kWarpSize) * at.rows + at.row;
  const bool mine = at.has_row() && head < p.heads;
  const Block block(p, blockIdx.z, mine ? head : 0, blockIdx.y);
  const Column<T> x(p.x, block, at);
  Channels sum{};
  for (int first = 0; first < kRows; first += kRowsAhead) {
    Packed<T> packed[kRowsAhead];
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r) packed[r] = load_row(x, block, first + r, at);
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r) {
      Channels row = unpacked(packed[r]);
      if (p.rotary.dim > 0) rotate(p.rotary, position(block, first + r), at, &row);
      if (first + r >= block.num_rows) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum.x[c] = __fadd_rn(sum.x[c], row.x[c]);
    }
  }
  if (!mine) return;
  float* const to = sums + block.place(p, blocks) * p.head_dim + at.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) to[c] = sum.x[c];
}

// The blocks' sums, one after the other, over the number of rows. A head for each row of a warp.
__global__ void __launch_bounds__(kWarpSize)
    find_means(const __grid_constant__ QuantizeProblem p, const __grid_constant__ Mixing mixing,
               Parts parts, int64_t blocks) {
  const RowLane at(p.head_dim);
  const int64_t i = int64_t{blockIdx.x} * at.rows + at.row;
  const bool mine = at.has_row() && i < p.batch * p.heads;
  const int64_t head = mine ? i : 0;
  Channels mean{};
#pragma unroll 8
  for (int64_t block = 0; block < blocks; ++block) {
    const Channels sum =
        unpacked(load_packed(parts.sums + (head * blocks + block) * p.head_dim + at.channel()));
#pragma unroll
    for (int c = 0; c < kChannels; ++c) mean.x[c] = __fadd_rn(mean.x[c], sum.x[c]);
  }
  const auto count = static_cast<float>(p.lengths.max > 0 ? p.lengths.max : 1);
  float* const kept = parts.means + head * p.head_dim + at.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    mean.x[c] = __fdiv_rn(mean.x[c], count);
    if (!is_finite(mean.x[c])) mean.x[c] = 0.0f;
    if (mine) kept[c] = mean.x[c];
  }
  if (p.hadamard) mix(mixing, at, &mean);
  if (!mine) return;
  float* const to = p.mean.at(head / p.heads, head % p.heads) + at.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) to[c] = mean.x[c];
}

__device__ float scale_of(float largest) {
  return fmaxf(__fdiv_rn(largest, 448.0f), kSmallestScale);
}

// The maximum over the CTA.
__device__ float largest_of_all(float largest) {
  __shared__ unsigned of_warps[kWarps];
  const unsigned of_warp = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
  of_warps[threadIdx.x / kWarpSize] = of_warp;
  __syncthreads();
  unsigned result = 0;
  for (unsigned bits : of_warps) result = max(result, bits);
  return __uint_as_float(result);
}

enum class Step { scale_and_write, find_largest, write };

// CTAs of an SM that keep some 32 KiB of loads under way.
constexpr int blocks_at_once(int passes) {
  return passes == 2 ? 4 : passes == 4 ? 3 : 2;
}

// One block of rows; a lane has kPasses rows.
template <class T, int kPasses>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kPasses))
    quantize_blocks(const __grid_constant__ QuantizeProblem p,
                    const __grid_constant__ Mixing mixing, Parts parts, int64_t blocks, Step step) {
  const RowLane at(p.head_dim);
  const Block block(p, blockIdx.z, blockIdx.x, blockIdx.y);
  const int first_row = static_cast<int>(threadIdx.x) / kWarpSize * at.rows + at.row;
  const int rows_of_pass = kWarps * at.rows;
  const Column<T> x(p.x, block, at);
  Packed<T> packed[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    packed[i] = load_row(x, block, first_row + i * rows_of_pass, at);
  }
  Channels mean{};
  if (p.centred && at.has_row()) {
    mean = unpacked(
        load_packed(parts.means + (block.b * p.heads + block.head) * p.head_dim + at.channel()));
  }
  Channels rows[kPasses];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = first_row + i * rows_of_pass;
    rows[i] = unpacked(packed[i]);
    if (p.rotary.dim > 0) rotate(p.rotary, position(block, row), at, &rows[i]);
    if (p.centred) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) rows[i].x[c] = __fsub_rn(rows[i].x[c], mean.x[c]);
    }
    if (p.hadamard) mix(mixing, at, &rows[i]);
    if (at.has_row() && row < block.num_rows) largest = fmaxf(largest, largest_of(&rows[i]));
  }
  float scale;
  if (step == Step::write) {
    scale = *p.descale.at(block.b, block.head, 0);
  } else {
    largest = largest_of_all(largest);
    if (step == Step::find_largest) {
      if (threadIdx.x == 0) parts.largest[block.place(p, blocks)] = largest;
      return;
    }
    scale = scale_of(largest);
    if (threadIdx.x == 0) *p.descale.at(block.b, block.head, block.index) = scale;
  }
  const float inverse = __fdiv_rn(1.0f, scale);
  const Column<uint8_t> y(p.y, block, at);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = first_row + i * rows_of_pass;
    if (!at.has_row() || row >= block.num_rows) continue;
    store_e4m3(rows[i], inverse, y.row(row));
  }
}

// Scale blockIdx.x, from the largest numbers of the `count` blocks that share it.
__global__ void __launch_bounds__(kThreads)
    share_scale(const __grid_constant__ QuantizeProblem p, const float* largest, int64_t count) {
  float mine = 0.0f;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    mine = fmaxf(mine, largest[blockIdx.x * count + i]);
  }
  const float scale = scale_of(largest_of_all(mine));
  const bool per_head = p.descale.scaling == Scaling::per_head;
  const int64_t b = per_head ? blockIdx.x / p.heads : 0;
  if (threadIdx.x == 0) *p.descale.at(b, per_head ? blockIdx.x % p.heads : 0, 0) = scale;
}

// What a call needs again and again.
struct Launch {
  const QuantizeProblem& p;
  Mixing mixing;
  Parts parts;
  cudaStream_t stream;
};

template <class T, int kPasses>
void launch_blocks(const Launch& l, Step step, int64_t blocks) {
  if (l.p.batch * l.p.heads * blocks == 0) return;
  const dim3 grid(unsigned(l.p.heads), unsigned(blocks), unsigned(l.p.batch));
  quantize_blocks<T, kPasses>
      <<<grid, kThreads, 0, l.stream>>>(l.p, l.mixing, l.parts, blocks, step);
}

template <class T>
void launch_blocks(const Launch& l, Step step, int64_t blocks) {
  const int64_t rows_of_pass = kWarps * (kWarpSize / (l.p.head_dim / kChannels));
  const int64_t passes = (kRows + rows_of_pass - 1) / rows_of_pass;
  if (passes <= 2) return launch_blocks<T, 2>(l, step, blocks);
  if (passes <= 4) return launch_blocks<T, 4>(l, step, blocks);
  launch_blocks<T, 8>(l, step, blocks);
}

template <class T>
void launch(const Launch& l) {
  const QuantizeProblem& p = l.p;
  const int64_t blocks = blocks_of(p), heads = p.batch * p.heads;
  const int64_t rows_of_warp = kWarpSize / (p.head_dim / kChannels);
  const auto parts_of = [](int64_t all, int64_t each) {
    return static_cast<unsigned>((all + each - 1) / each);
  };
  if (p.centred && heads > 0) {
    if (blocks > 0) {
      const dim3 grid(parts_of(p.heads, rows_of_warp * kSumWarps), unsigned(blocks),
                      unsigned(p.batch));
      add_up_blocks<T><<<grid, kSumWarps * kWarpSize, 0, l.stream>>>(p, l.parts.sums, blocks);
    }
    find_means<<<parts_of(heads, rows_of_warp), kWarpSize, 0, l.stream>>>(p, l.mixing, l.parts,
                                                                          blocks);
  }
  if (p.descale.scaling == Scaling::per_block) {
    return launch_blocks<T>(l, Step::scale_and_write, p.num_descale_blocks);
  }
  launch_blocks<T>(l, Step::find_largest, blocks);
  const bool per_head = p.descale.scaling == Scaling::per_head;
  const int64_t scales = per_head ? heads : 1, shared_by = per_head ? blocks : heads * blocks;
  if (scales > 0) {
    share_scale<<<static_cast<unsigned>(scales), kThreads, 0, l.stream>>>(p, l.parts.largest,
                                                                          shared_by);
  }
  launch_blocks<T>(l, Step::write, blocks);
}

// Vectors of 8 numbers: 16 bytes where they have two each.
bool is_aligned(const Operand& x, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         x.batch_stride % kChannels == 0 && x.row_stride % kChannels == 0 &&
         x.head_stride % kChannels == 0;
}

}  // namespace

Status plan_quantize(const QuantizeProblem& p, Plan* plan) {
  if (p.lengths.packed() || p.lengths.varlen) return unsupported("sequences of unequal lengths");
  if (p.head_dim % kChannels != 0 || p.head_dim > kWarpSize * kChannels) {
    return unsupported("a head dim of ", p.head_dim, "; multiples of 8 up to 256 are");
  }
  if (!p.rotary.interleaved && p.rotary.dim / 2 % kChannels != 0) {
    return unsupported("a rotation of ", p.rotary.dim / 2, " pairs; multiples of 8 are");
  }
  if (!is_aligned(p.x, 16) || !is_aligned(p.y, 8)) {
    return unsupported("x and y whose rows are not aligned to 8 numbers; copy them");
  }
  const int64_t blocks = std::max(blocks_of(p), p.num_descale_blocks);
  constexpr int64_t kMost = 65535;  // of a grid, in its second and third dimension
  if (blocks > kMost || p.batch > kMost || p.heads > kMost) {
    return unsupported("more than ", kMost, " blocks of rows, heads or sequences");
  }
  *plan = {
      .engine = "hopper",
      .kernel = "quantizer",
      .block_q = kRows,
      .num_tasks = p.batch * p.heads * blocks,
      .workspace_bytes = bytes_of([&](WorkspaceAllocator& allocator) { allocate(p, allocator); }),
      .why = "Blocks of the rows that share a scale stay in registers."};
  return {};
}

Status run_quantize(const QuantizeProblem& p, const Plan&, void* workspace, void* stream) {
  const DeviceScope scope(p.device_index);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    WorkspaceAllocator allocator(workspace);
    const Launch l{p, Mixing(p), allocate(p, allocator), static_cast<cudaStream_t>(stream)};
    p.x.dtype == DType::float32   ? launch<float>(l)
    : p.x.dtype == DType::float16 ? launch<__half>(l)
                                  : launch<__nv_bfloat16>(l);
    error = cudaPeekAtLastError();
  }
  return finish(error, "quantize");
}

}  // namespace fa3::cuda
