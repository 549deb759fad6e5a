// SPDX-License-Identifier: Apache-2.0
// The quantizer. Head dims that are multiples of 32, of 16-bit numbers with a scale for each block,
// stream (quantize_stream.cuh). For all others there are the kernels here: x is read once, and once
// more for its means and for scales that blocks share; a block of kDescaleRows rows stays in the
// registers of a CTA between its largest number and its rounding. What is computed:
// docs/numerics.md.
#include "engine/cuda/kernels/kernels.h"

#include <algorithm>

#include "core/error.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/quantize_stream.cuh"
#include "engine/cuda/kernels/quantize_sums.cuh"
#include "engine/cuda/tile/row_owner.h"

namespace fa3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumWarps = 2;    // few, so that all SMs have some
constexpr int kRowsAhead = 16;  // loads that a lane has under way while it adds up rows
constexpr int kSumsAhead = 32;  // the same, of blocks' sums
constexpr int kFoursCtas = 8;   // of an SM
constexpr int kClearingWarps = 8;

// A lane's channels in the first row of a block; the next row is `stride` numbers further.
template <class T>
struct Column {
  T* first;
  int64_t stride;

  __device__ Column(const Operand& x, const Block& block, const RowLane& at)
      : first(x.at<T>(block.b, block.first_row, block.head) + at.channel()), stride(x.row_stride) {}
  __device__ T* row(int i) const { return first + i * stride; }
};

template <class T>
__device__ Packed<T> load_row(const Column<T>& x, const Block& block, int row, const RowLane& at) {
  if (!at.has_row() || row >= block.num_rows) return {};
  return load_packed(x.row(row));
}

// The tables have no rows behind those of the block: a spare one, which has none, is not rotated.
__device__ bool is_rotated(const QuantizeProblem& p, const Block& block) {
  return p.rotary.dim > 0 && block.num_rows > 0;
}
__device__ int64_t position(const Block& block, int row) {
  return block.index * kRows + min(row, block.num_rows - 1);
}

// sums = the rows of a block, one after the other. Lanes that would share a row have one head each;
// blockIdx is (heads, block, batch).
template <class T>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    add_up_blocks(const __grid_constant__ StreamParams s) {
  follow_kernel_before();
  const QuantizeProblem& p = s.p;
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
      if (is_rotated(p, block)) rotate(p.rotary, position(block, first + r), at, &row);
      if (first + r >= block.num_rows) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum.x[c] = __fadd_rn(sum.x[c], row.x[c]);
    }
  }
  if (!mine) return;
  float* const to = s.parts.sums + block.place(p, s.blocks) * p.head_dim + at.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) to[c] = sum.x[c];
}

// Sums of streamed tensors: blockIdx is (fours of all heads, block, batch).
template <class T>
__global__ void __launch_bounds__(kFoursThreads, kFoursCtas)
    add_up_fours(const __grid_constant__ StreamParams s) {
  follow_kernel_before();
  add_up<T>(s, blockIdx.z, blockIdx.y, blockIdx.x);
}

// blockIdx is the head, a thread has a channel.
__global__ void __launch_bounds__(kMostChannels)
    find_means(const __grid_constant__ StreamParams s) {
  follow_kernel_before();
  __shared__ alignas(16) float means[kMostChannels];
  find_mean<kSumsAhead>(s, blockIdx.x, means);
}

// The maximum over the CTA.
template <int kWarps>
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

// CTAs of an SM: 32 warps of 64 registers. Rows of four passes want 85; those of more than 128
// channels are faster with 64 and some spilled, or with 128 where they are float32.
template <class T>
constexpr int ctas_at_once(int passes, int warps) {
  if (warps == 16) return sizeof(T) == sizeof(float) ? 1 : 2;
  return passes == 2 ? 4 : 3;
}

// One block of rows. A lane has kPasses rows; blockIdx is (head, block, batch).
template <class T, int kPasses, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarpSize, ctas_at_once<T>(kPasses, kWarps))
    quantize_blocks(const __grid_constant__ QuantizeProblem p,
                    const __grid_constant__ Mixing mixing, QuantizerParts parts, int64_t blocks,
                    Step step) {
  __shared__ uint32_t words[kRows * kPasses * kWarps];  // a row has at most as many
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
    mean = unpacked(load_packed(parts.means + (block.sequence * p.heads + block.head) * p.head_dim +
                                at.channel()));
  }
  Channels rows[kPasses];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = first_row + i * rows_of_pass;
    rows[i] = unpacked(packed[i]);
    if (is_rotated(p, block)) rotate(p.rotary, position(block, row), at, &rows[i]);
    if (p.centred) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) rows[i].x[c] = __fsub_rn(rows[i].x[c], mean.x[c]);
    }
    if (p.hadamard) mix(mixing, at, &rows[i]);
    if (at.has_row() && row < block.num_rows) largest = fmaxf(largest, largest_of(&rows[i]));
  }
  float scale;
  if (step == Step::write) {
    scale = *p.descale.at(block.sequence, block.head, 0);
  } else {
    largest = largest_of_all<kWarps>(largest);
    if (step == Step::find_largest) {
      if (threadIdx.x == 0) parts.largest[block.place(p, blocks)] = largest;
      return;
    }
    scale = scale_of(largest);
    if (threadIdx.x == 0) *p.descale.at(block.sequence, block.head, block.index) = scale;
  }
  const float inverse = __fdiv_rn(1.0f, scale);
  if (p.y_transposed.on) {
    const TurnedRows turned(words, p.head_dim);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int row = first_row + i * rows_of_pass;
      if (!at.has_row() || row >= kRows) continue;
      uint2* const to = turned.pair(row, int(at.channel()) / 4);
      if (row < block.num_rows) {
        store_e4m3(rows[i], inverse, to);
      } else {
        *to = {0, 0};
      }
    }
    __syncthreads();
    return store_transposed(p, block, turned, int(threadIdx.x), int(blockDim.x));
  }
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
  const float scale = scale_of(largest_of_all<kThreads / kWarpSize>(mine));
  const bool per_head = p.descale.scaling == Scaling::per_head;
  const int64_t b = per_head ? blockIdx.x / p.heads : 0;
  if (threadIdx.x == 0) *p.descale.at(b, per_head ? blockIdx.x % p.heads : 0, 0) = scale;
}

// A warp has a row of y.
__global__ void __launch_bounds__(kClearingWarps* kWarpSize)
    clear_unused(const __grid_constant__ QuantizeProblem p) {
  follow_kernel_before();
  const int64_t number = int64_t{blockIdx.x} * kClearingWarps + threadIdx.x / kWarpSize;
  if (number >= p.lengths.total) return;
  OwnedRow row{.b = 0, .row = 0, .from = number, .used = false};
  if (p.batch > 0) row = owned_row(p.lengths, p.batch, number);
  if (row.used) return;
  const int64_t entry = p.lengths.packed() ? 0 : row.b, parts = p.head_dim / kChannels;
  for (int64_t i = threadIdx.x % kWarpSize; i < p.heads * parts; i += kWarpSize) {
    auto* const to = p.y.at<uint8_t>(entry, row.from, i / parts) + i % parts * kChannels;
    *reinterpret_cast<uint2*>(to) = {0, 0};
  }
}

// What a call needs again and again.
struct Launch {
  const QuantizeProblem& p;
  Mixing mixing;
  QuantizerParts parts;
  cudaStream_t stream;
};

template <class T, int kPasses, int kWarps>
void launch_blocks(const Launch& l, Step step, int64_t blocks) {
  if (l.p.batch * l.p.heads * blocks == 0) return;
  const dim3 grid(unsigned(l.p.heads), unsigned(blocks), unsigned(l.p.batch));
  quantize_blocks<T, kPasses, kWarps>
      <<<grid, kWarps * kWarpSize, 0, l.stream>>>(l.p, l.mixing, l.parts, blocks, step);
}

// Passes over a block's rows: 2 or 4, so that all of them last in registers.
template <class T>
void launch_blocks(const Launch& l, Step step, int64_t blocks) {
  const int64_t rows_of_warp = kWarpSize / (l.p.head_dim / kChannels);
  if (8 * rows_of_warp * 2 >= kRows) return launch_blocks<T, 2, 8>(l, step, blocks);
  if (8 * rows_of_warp * 4 >= kRows) return launch_blocks<T, 4, 8>(l, step, blocks);
  launch_blocks<T, 4, 16>(l, step, blocks);
}

template <class T>
cudaError_t launch_means(StreamParams* s, cudaStream_t stream) {
  const QuantizeProblem& p = s->p;
  const int64_t heads = p.batch * p.heads;
  const auto parts_of = [](int64_t all, int64_t each) {
    return static_cast<unsigned>((all + each - 1) / each);
  };
  cudaError_t error = cudaSuccess;
  if (heads > 0 && s->blocks > 0) {
    const int64_t rows_of_warp = kWarpSize / (p.head_dim / kChannels);
    dim3 grid(parts_of(p.heads, rows_of_warp * kSumWarps), s->blocks, unsigned(p.batch));
    const auto* kernel = reinterpret_cast<const void*>(add_up_blocks<T>);
    int threads = kSumWarps * kWarpSize;
    if constexpr (sizeof(T) == 2) {
      if (p.rotary.dim == 0 && p.head_dim % 4 == 0) {
        kernel = reinterpret_cast<const void*>(add_up_fours<T>);
        threads = kFoursThreads;
        grid.x = parts_of(p.heads * (p.head_dim / 4), kFoursThreads);
      }
    }
    error = launch(kernel, grid, threads, 0, s, {.pdl = true}, stream);
  }
  if (error != cudaSuccess) return error;
  const int threads = int(parts_of(p.head_dim, kWarpSize)) * kWarpSize;
  return launch(reinterpret_cast<const void*>(find_means), dim3(unsigned(heads)), threads, 0, s,
                {.pdl = true}, stream);
}

template <class T>
void launch_apart(const Launch& l) {
  const QuantizeProblem& p = l.p;
  const int64_t blocks = blocks_of(p), heads = p.batch * p.heads;
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

// Whether x and y may be read and written 16 bytes at a time, and each block of rows has a scale.
bool streams(const QuantizeProblem& p) {
  const auto is_vectors = [](const Operand& y) {
    constexpr int64_t kBytes = 16;
    return reinterpret_cast<uintptr_t>(y.data) % kBytes == 0 && y.batch_stride % kBytes == 0 &&
           y.row_stride % kBytes == 0 && y.head_stride % kBytes == 0;
  };
  const int64_t blocks = blocks_of(p);
  constexpr int64_t kMostBlocks = int64_t{1} << 30;
  return p.x.dtype != DType::float32 && p.head_dim % kOwned == 0 && p.rotary.dim == 0 &&
         p.descale.scaling == Scaling::per_block && p.num_descale_blocks == blocks &&
         (p.y_transposed.on || is_vectors(p.y)) && blocks > 0 &&
         capped_product(p.batch, p.heads, blocks) - 1 < kMostBlocks;
}

// CTAs of the widest head dim fill an SM kCtas at a time, narrower ones more.
template <class T, int kPasses, int kMostDim, int kCtas>
cudaError_t launch_stream(StreamParams* s, int sms, cudaStream_t stream) {
  constexpr int kMostThreads = stream_threads(kMostDim, kPasses) + kWarpSize;
  const int threads = stream_threads(s->p.head_dim, kPasses) + kWarpSize;
  const int64_t blocks = s->p.batch * s->p.heads * s->blocks;
  const int64_t ctas = std::min<int64_t>(blocks, int64_t{sms} * (kMostThreads * kCtas / threads));
  return launch(reinterpret_cast<const void*>(quantize_stream<T, kPasses, kMostThreads, kCtas>),
                dim3(unsigned(ctas)), threads, kStreamStages * stream_stage_bytes(s->p.head_dim), s,
                {.pdl = true}, stream);
}

template <class T>
cudaError_t launch_stream(StreamParams* s, cudaStream_t stream) {
  int sms = 0;
  if (!count_sms(s->p.device_index, &sms).ok()) return cudaErrorInvalidDevice;
  if (s->p.head_dim <= 128) return launch_stream<T, 1, 128, 3>(s, sms, stream);
  // Two rows of a thread, mixed, would want too many registers.
  if (s->p.hadamard) return launch_stream<T, 1, 256, 1>(s, sms, stream);
  return launch_stream<T, 2, 256, 2>(s, sms, stream);
}

template <class T>
cudaError_t launch(const Launch& l) {
  if (const cudaError_t error = clear_unused_rows(l.p, l.stream); error != cudaSuccess) {
    return error;
  }
  StreamParams s{l.p, l.mixing, l.parts, unsigned(blocks_of(l.p)), l.p.centred};
  if (l.p.centred) {
    const cudaError_t error = launch_means<T>(&s, l.stream);
    if (error != cudaSuccess) return error;
  }
  if constexpr (sizeof(T) == 2) {
    if (streams(l.p)) return launch_stream<T>(&s, l.stream);
  }
  launch_apart<T>(l);
  return cudaPeekAtLastError();
}

// Vectors of 8 numbers: 16 bytes where they have two each.
bool is_aligned(const Operand& x, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         x.batch_stride % kChannels == 0 && x.row_stride % kChannels == 0 &&
         x.head_stride % kChannels == 0;
}

}  // namespace

cudaError_t clear_unused_rows(const QuantizeProblem& p, cudaStream_t stream) {
  if (p.lengths.alike()) return cudaSuccess;
  QuantizeProblem params = p;
  const int64_t ctas = (p.lengths.total + kClearingWarps - 1) / kClearingWarps;
  return launch(reinterpret_cast<const void*>(clear_unused), dim3(unsigned(ctas)),
                kClearingWarps * kWarpSize, 0, &params, {.pdl = true}, stream);
}

Status plan_quantize(const QuantizeProblem& p, Plan* plan) {
  if (p.head_dim % kChannels != 0 || p.head_dim > kMostChannels) {
    return unsupported("a head dim of ", p.head_dim, "; multiples of 8 up to 256 are");
  }
  if (!p.rotary.interleaved && p.rotary.dim / 2 % kChannels != 0) {
    return unsupported("a rotation of ", p.rotary.dim / 2, " pairs; multiples of 8 are");
  }
  // The rules of transposed rows say more.
  if (!is_aligned(p.x, 16) || !(p.y_transposed.on || is_aligned(p.y, 8))) {
    return unsupported("x and y whose rows are not aligned to 8 numbers; copy them");
  }
  const int64_t blocks = std::max(blocks_of(p), p.num_descale_blocks);
  constexpr int64_t kMost = 65535;  // of a grid, in its second and third dimension
  if (blocks > kMost || p.batch > kMost || p.heads > kMost) {
    return unsupported("more than ", kMost, " blocks of rows, heads or sequences");
  }
  constexpr int64_t kMostHeads = int64_t{1} << 31;
  if (p.centred && p.batch * p.heads >= kMostHeads) {
    return unsupported("more than 2^31 heads of sequences, centred");
  }
  *plan = {.engine = "hopper",
           .kernel = "quantizer",
           .block_q = kRows,
           .num_tasks = p.batch * p.heads * blocks,
           .workspace_bytes =
               fa3::bytes_of([&](WorkspaceAllocator& allocator) { allocate(p, allocator); }),
           .why = "Blocks of the rows that share a scale stay in registers."};
  return {};
}

Status run_quantize(const QuantizeProblem& p, const Plan&, void* workspace, void* stream) {
  const DeviceScope scope(p.device_index);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    WorkspaceAllocator allocator(workspace);
    const Launch l{p, Mixing(p), allocate(p, allocator), static_cast<cudaStream_t>(stream)};
    error = p.x.dtype == DType::float32   ? launch<float>(l)
            : p.x.dtype == DType::float16 ? launch<__half>(l)
                                          : launch<__nv_bfloat16>(l);
  }
  return finish(error, "quantize");
}

}  // namespace fa3::cuda
