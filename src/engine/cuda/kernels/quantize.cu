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
constexpr int kThreads = 256;
constexpr int kSumWarps = 2;    // few, so that all SMs have some
constexpr int kRowsAhead = 16;  // loads that a lane has under way while it adds up rows
constexpr int kSumsAhead = 32;  // the same, of blocks' sums
constexpr int kMostChannels = kWarpSize * kChannels;

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

// The blocks' sums, one after the other, over the number of rows; blockIdx is the head, a thread
// has a channel.
__global__ void __launch_bounds__(kMostChannels)
    find_means(const __grid_constant__ QuantizeProblem p, const __grid_constant__ Mixing mixing,
               Parts parts, int64_t blocks) {
  __shared__ alignas(16) float means[kMostChannels];
  const int64_t head = blockIdx.x;
  const int channel = static_cast<int>(threadIdx.x);
  const bool mine = channel < p.head_dim;
  const float* const sums = parts.sums + head * blocks * p.head_dim + channel;
  float mean = 0.0f;
  for (int64_t first = 0; first < blocks; first += kSumsAhead) {
    float ahead[kSumsAhead];
#pragma unroll
    for (int i = 0; i < kSumsAhead; ++i) {
      ahead[i] = mine && first + i < blocks ? sums[(first + i) * p.head_dim] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSumsAhead; ++i) mean = __fadd_rn(mean, ahead[i]);  // + 0 changes nothing
  }
  mean = __fdiv_rn(mean, static_cast<float>(p.lengths.max > 0 ? p.lengths.max : 1));
  if (!is_finite(mean)) mean = 0.0f;
  means[channel] = mean;
  if (mine) parts.means[head * p.head_dim + channel] = mean;
  __syncthreads();
  if (channel >= kWarpSize) return;
  const RowLane at(p.head_dim);
  Channels row{};
  if (at.row == 0) row = unpacked(load_packed(means + at.channel()));
  if (p.hadamard) mix(mixing, at, &row);
  if (at.row != 0) return;
  float* const to = p.mean.at(head / p.heads, head % p.heads) + at.channel();
#pragma unroll
  for (int c = 0; c < kChannels; ++c) to[c] = row.x[c];
}

__device__ float scale_of(float largest) {
  return fmaxf(__fdiv_rn(largest, 448.0f), kSmallestScale);
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

// The e4m3 numbers of a block, a row for each row of x, on their way to the side of channels.
// Columns are turned by the row's number, so that lanes of several rows meet in few banks.
class TurnedRows {
 public:
  __device__ TurnedRows(uint32_t* words, int64_t dim) : words_(words), columns_(int(dim) / 4) {}

  // 8 channels, from an even column on.
  __device__ uint2* pair(int row, int column) const {
    return reinterpret_cast<uint2*>(words_ + row * columns_ + turned(row, column));
  }
  // Four channels of the 16 rows from `first` on: x[c] are those of channel c.
  __device__ void gather(int first, int column, uint32_t (&x)[4][4]) const {
    const uint32_t* const rows = words_ + first * columns_ + turned(first, column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t keys[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        keys[j] = rows[(2 * i + j / 2 * 8 + j % 2) * columns_];  // transposed_place() is 4 i + j
      }
      const uint32_t a = __byte_perm(keys[0], keys[1], 0x5140);
      const uint32_t b = __byte_perm(keys[2], keys[3], 0x5140);
      const uint32_t c = __byte_perm(keys[0], keys[1], 0x7362);
      const uint32_t d = __byte_perm(keys[2], keys[3], 0x7362);
      x[0][i] = __byte_perm(a, b, 0x5410);
      x[1][i] = __byte_perm(a, b, 0x7632);
      x[2][i] = __byte_perm(c, d, 0x5410);
      x[3][i] = __byte_perm(c, d, 0x7632);
    }
  }

 private:
  __device__ int turned(int row, int column) const {
    return (column + row / kTransposedKeys * 8) % columns_;
  }

  uint32_t* words_;
  int columns_;
};
static_assert(transposed_place(0) == 0 && transposed_place(1) == 1 && transposed_place(8) == 2 &&
              transposed_place(9) == 3 && transposed_place(2) == 4);

// The rows of a block, as channels of 16 neighbouring places each; four lanes have a channel.
__device__ void store_transposed(const QuantizeProblem& p, const Block& block,
                                 const TurnedRows& rows) {
  constexpr int kParts = kRows / kTransposedKeys;
  const int64_t places = transposed_places(p.lengths.max) - block.index * kRows;
  auto* const y = p.y.at<uint8_t>(block.b, 0, block.head) + block.index * kRows;
  for (int i = int(threadIdx.x); i < int(p.head_dim) / 4 * kParts; i += int(blockDim.x)) {
    const int first = i % kParts * kTransposedKeys, column = i / kParts;
    if (first >= places) continue;
    uint32_t x[4][4];
    rows.gather(first, column, x);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      uint8_t* const to = y + (column * 4 + c) * p.y_transposed.channel_stride + first;
      *reinterpret_cast<uint4*>(to) = {x[c][0], x[c][1], x[c][2], x[c][3]};
    }
  }
}

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
                    const __grid_constant__ Mixing mixing, Parts parts, int64_t blocks, Step step) {
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
    largest = largest_of_all<kWarps>(largest);
    if (step == Step::find_largest) {
      if (threadIdx.x == 0) parts.largest[block.place(p, blocks)] = largest;
      return;
    }
    scale = scale_of(largest);
    if (threadIdx.x == 0) *p.descale.at(block.b, block.head, block.index) = scale;
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
    return store_transposed(p, block, turned);
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

// What a call needs again and again.
struct Launch {
  const QuantizeProblem& p;
  Mixing mixing;
  Parts parts;
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
    const unsigned threads = parts_of(p.head_dim, kWarpSize) * kWarpSize;
    find_means<<<unsigned(heads), threads, 0, l.stream>>>(p, l.mixing, l.parts, blocks);
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
