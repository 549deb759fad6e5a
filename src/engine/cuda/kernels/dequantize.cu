// SPDX-License-Identifier: Apache-2.0
// The quantizer's inverse, limited by memory: each number is read once, as a byte, and written
// once. What is computed: docs/numerics.md.
//
// A CTA has 64 rows of a head. Four or eight neighbouring lanes have a row, each of them chunks of
// 8 channels that lie as many chunks apart: so a warp reads and writes whole sectors, and of the
// Hadamard matrix only two or three strides go from lane to lane. Head dims other than 64, 96, 128,
// 192 and 256 have one chunk a lane, as the quantizer has.
#include <algorithm>

#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/kernels/quantize_block.cuh"
#include "engine/cuda/tile/row_owner.h"

namespace fa3::cuda {
namespace {

constexpr int kMostTensors = 3;
constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr int kPitch = kRows + 4;  // bytes from channel to channel: lanes meet in no bank

// Tensors of one head dim and one wide type.
struct DequantizeParams {
  QuantizeProblem p[kMostTensors];
  Mixing mixing[kMostTensors];
  unsigned tiles[kMostTensors];   // CTAs
  unsigned blocks[kMostTensors];  // of kRows rows, of an entry of x
};

int64_t entries_of(const QuantizeProblem& p) {
  return p.lengths.packed() ? 1 : p.batch;
}

__host__ __device__ int64_t rows_of_entry(const QuantizeProblem& p) {
  return p.lengths.packed() ? p.lengths.total : p.lengths.max;
}

// Copies values that lie transposed: a byte for each channel and place of 64 keys.
__device__ void load_transposed(const QuantizeProblem& p, int64_t entry, int64_t head,
                                int64_t first_row, uint32_t* words) {
  constexpr int kParts = kRows / kTransposedKeys;
  const int64_t places = transposed_places(p.lengths.max) - first_row;
  const auto* y = p.y.at<uint8_t>(entry, 0, head) + first_row;
  for (int i = int(threadIdx.x); i < int(p.head_dim) * kParts; i += kThreads) {
    const int channel = i / kParts, place = i % kParts * kTransposedKeys;
    if (place >= places) continue;
    const auto keys =
        *reinterpret_cast<const uint4*>(y + channel * p.y_transposed.channel_stride + place);
    uint32_t* const to = words + (channel * kPitch + place) / int(sizeof(uint32_t));
    to[0] = keys.x, to[1] = keys.y, to[2] = keys.z, to[3] = keys.w;
  }
  __syncthreads();
}

// 8 channels of a key.
__device__ uint2 gather(const uint32_t* words, int channel, int row) {
  const auto* bytes =
      reinterpret_cast<const uint8_t*>(words) + channel * kPitch + int(transposed_place(row));
  uint32_t two[2] = {};
#pragma unroll
  for (int i = 0; i < kChannels; ++i) two[i / 4] |= uint32_t{bytes[i * kPitch]} << i % 4 * 8;
  return {two[0], two[1]};
}

__device__ Channels numbers_of(uint2 bytes) {
  Channels to;
#pragma unroll
  for (int i = 0; i < kChannels; i += 2) {
    const uint32_t word = i < 4 ? bytes.x : bytes.y;
    const auto pair = static_cast<__nv_fp8x2_storage_t>(word >> i % 4 * 8);
    const float2 two = __half22float2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
    to.x[i] = two.x;
    to.x[i + 1] = two.y;
  }
  return to;
}

// How a row lies on lanes. kLanes of 0: one chunk a lane, as many lanes as the head dim has.
template <int kLanes, int kChunks>
struct RowShape {
  static constexpr int kDim = kLanes * kChunks * kChannels;
  static constexpr int kAhead = kLanes == 0 ? 4 : 1;  // rows of a lane
  static constexpr int kCtas = kLanes == 8 ? 7 : 8;

  static __device__ int block(const Mixing& mixing) {
    return kLanes == 0 ? mixing.block : kDim & -kDim;
  }
  static __device__ int block_of_lanes(const Mixing& mixing) {
    return kLanes == 0 ? mixing.block : min(block(mixing), kLanes * kChannels);
  }
};

// H, strides growing; the signs are left. Every lane of the warp must call it.
template <int kLanes, int kChunks>
__device__ void turn_back(const Mixing& mixing, const RowLane& at, Channels (&x)[kChunks]) {
  using Shape = RowShape<kLanes, kChunks>;
#pragma unroll
  for (Channels& chunk : x) {
#pragma unroll
    for (int stride = 1; stride < kChannels; stride *= 2) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        if ((i & stride) != 0) continue;
        const float a = chunk.x[i], b = chunk.x[i + stride];
        chunk.x[i] = __fadd_rn(a, b);
        chunk.x[i + stride] = __fsub_rn(a, b);
      }
    }
  }
#pragma unroll
  for (int bit = 0; kChannels << bit < Shape::block_of_lanes(mixing); ++bit) {
    const int partner = at.in_warp(at.lane ^ 1 << bit);
    // other + mine or other - mine, rounded once.
    const float sign = __uint_as_float(0x3f800000u | unsigned(at.lane) >> bit << 31);
#pragma unroll
    for (Channels& chunk : x) {
#pragma unroll
      for (float& mine : chunk.x) {
        const float other = __shfl_sync(kAllLanes, mine, partner);
        mine = __fmaf_rn(mine, sign, other);
      }
    }
  }
#pragma unroll
  for (int stride = 1; stride < kChunks; stride *= 2) {
    if (stride * kLanes * kChannels >= Shape::block(mixing)) break;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      if ((j & stride) != 0) continue;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const float a = x[j].x[i], b = x[j + stride].x[i];
        x[j].x[i] = __fadd_rn(a, b);
        x[j + stride].x[i] = __fsub_rn(a, b);
      }
    }
  }
#pragma unroll
  for (Channels& chunk : x) {
#pragma unroll
    for (float& mine : chunk.x) mine = __fmul_rn(mine, mixing.factor);
  }
}

__device__ uint32_t pair_of(float a, float b, const __half*) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ uint32_t pair_of(float a, float b, const __nv_bfloat16*) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Bit i of `negated` changes the sign of number i, behind the rounding, which knows no sign.
template <class T>
__device__ void store(const Channels& row, unsigned negated, T* to) {
  uint32_t words[kChannels / 2];
#pragma unroll
  for (int i = 0; i < kChannels; i += 2) {
    const uint32_t signs = (negated >> i & 1) << 15 | (negated >> (i + 1) & 1) << 31;
    words[i / 2] = pair_of(row.x[i], row.x[i + 1], to) ^ signs;
  }
  *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
}

__device__ void store(const Channels& row, unsigned negated, float* to) {
  uint32_t words[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    words[i] = __float_as_uint(row.x[i]) ^ (negated >> i & 1) << 31;
  }
  auto* const fours = reinterpret_cast<uint4*>(to);
  fours[0] = {words[0], words[1], words[2], words[3]};
  fours[1] = {words[4], words[5], words[6], words[7]};
}

// What all channels of a row share.
struct RowScale {
  bool used = false;
  float scale = 0.0f;
  const float* mean = nullptr;
};

// A CTA's rows, several of which each lane has loaded at a time.
template <class T, int kLanes, int kChunks>
class Tile {
  using Shape = RowShape<kLanes, kChunks>;

 public:
  __device__ Tile(const QuantizeProblem& p, const Mixing& mixing, int64_t entry, int64_t head,
                  int64_t first_row, const uint32_t* transposed)
      : p_(p),
        mixing_(mixing),
        at_(kLanes == 0 ? p.head_dim : kLanes * kChannels),
        head_(head),
        first_row_(first_row),
        y_(p.y.at<uint8_t>(entry, first_row, head)),
        x_(p.x.at<T>(entry, first_row, head)),
        transposed_(transposed) {
    const int64_t left = rows_of_entry(p) - first_row;
    rows_ = left < kRows ? int(left) : kRows;
    if (p.lengths.packed()) return;
    const int64_t used = p.lengths.clamped_rows_of(entry).used - first_row;
    used_ = used < 0 ? 0 : used < rows_ ? int(used) : rows_;
    if (used_ > 0) same_ = scale_of(entry, first_row);
  }

  __device__ void run() {
    const int first = int(threadIdx.x) / kWarpSize * at_.rows, at_once = kWarps * at_.rows;
#pragma unroll 1
    for (int i = first; i < kRows; i += Shape::kAhead * at_once) {
      uint2 bytes[Shape::kAhead][kChunks];
#pragma unroll
      for (int r = 0; r < Shape::kAhead; ++r) load(i + r * at_once + at_.row, bytes[r]);
#pragma unroll
      for (int r = 0; r < Shape::kAhead; ++r) write(i + r * at_once + at_.row, bytes[r]);
    }
  }

 private:
  __device__ bool has(int row) const {
    return at_.has_row() && row < rows_;
  }
  __device__ int chunk(int j) const {
    return j * at_.lanes + at_.lane;
  }

  // A used row; `row` counts from the start of its sequence.
  __device__ RowScale scale_of(int64_t sequence, int64_t row) const {
    return {true, *p_.descale.at(sequence, head_, row / kDescaleRows),
            p_.centred ? p_.mean.at(sequence, head_) : nullptr};
  }

  __device__ RowScale scale_of(int row) const {
    if (!has(row)) return {};
    if (!p_.lengths.packed()) return row < used_ ? same_ : RowScale{};
    if (p_.batch == 0) return {};
    const OwnedRow owned = owned_row(p_.lengths, p_.batch, first_row_ + row);
    return owned.used ? scale_of(owned.b, owned.row) : RowScale{};
  }

  __device__ void load(int row, uint2 (&bytes)[kChunks]) const {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      bytes[j] = {};
      if (!has(row)) continue;
      if (transposed_ != nullptr) {
        bytes[j] = gather(transposed_, chunk(j) * kChannels, row);
      } else {
        const uint8_t* const y = y_ + row * p_.y.row_stride;
        bytes[j] = __ldg(reinterpret_cast<const uint2*>(y) + chunk(j));
      }
    }
  }

  // All lanes of the warp come here, also those whose row does not exist or is not used.
  __device__ void write(int row, const uint2 (&bytes)[kChunks]) const {
    const RowScale of = scale_of(row);
    Channels x[kChunks];
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      x[j] = numbers_of(of.used ? bytes[j] : uint2{});
#pragma unroll
      for (float& number : x[j].x) number = __fmul_rn(number, of.scale);
      if (of.mean == nullptr) continue;
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        x[j].x[i] = __fadd_rn(x[j].x[i], of.mean[chunk(j) * kChannels + i]);
      }
    }
    if (p_.hadamard) turn_back<kLanes>(mixing_, at_, x);
    if (!has(row)) return;
    T* const to = x_ + row * p_.x.row_stride;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const unsigned negated = p_.hadamard && of.used ? mixing_.negated[chunk(j)] : 0;
      store(x[j], negated, to + chunk(j) * kChannels);
    }
  }

  const QuantizeProblem& p_;
  const Mixing& mixing_;
  RowLane at_;
  int64_t head_, first_row_;
  const uint8_t* y_;
  T* x_;
  const uint32_t* transposed_;
  int rows_, used_ = 0;
  RowScale same_;  // of all used rows, if they are of one sequence
};

template <class T, int kLanes, int kChunks>
__global__ void __launch_bounds__(kThreads, RowShape<kLanes, kChunks>::kCtas)
    dequantize_tiles(const __grid_constant__ DequantizeParams d) {
  extern __shared__ uint32_t words[];  // of transposed values
  unsigned index = blockIdx.x;
  int tensor = 0;
  for (; tensor < kMostTensors - 1 && index >= d.tiles[tensor]; ++tensor) index -= d.tiles[tensor];
  const QuantizeProblem& p = d.p[tensor];
  const unsigned heads = unsigned(p.heads), place = index / heads, head = index % heads;
  const unsigned entry = place / d.blocks[tensor];
  const int64_t first_row = int64_t{place % d.blocks[tensor]} * kRows;
  const bool turned = p.y_transposed.on;
  if (turned) load_transposed(p, entry, head, first_row, words);
  Tile<T, kLanes, kChunks>(p, d.mixing[tensor], entry, head, first_row, turned ? words : nullptr)
      .run();
}

template <class T, int kLanes, int kChunks>
cudaError_t launch_tiles(DequantizeParams* d, cudaStream_t stream) {
  unsigned tiles = 0;
  bool turned = false;
  for (int i = 0; i < kMostTensors; ++i) {
    tiles += d->tiles[i];
    turned = turned || d->p[i].y_transposed.on;
  }
  const int smem = turned ? int(d->p[0].head_dim) * kPitch : 0;
  return launch(reinterpret_cast<const void*>(dequantize_tiles<T, kLanes, kChunks>), dim3(tiles),
                kThreads, smem, d, {}, stream);
}

template <class T>
cudaError_t launch_tiles(DequantizeParams* d, cudaStream_t stream) {
  switch (d->p[0].head_dim) {
    case 64:
      return launch_tiles<T, 4, 2>(d, stream);
    case 96:
      return launch_tiles<T, 4, 3>(d, stream);
    case 128:
      return launch_tiles<T, 4, 4>(d, stream);
    case 192:
      return launch_tiles<T, 8, 3>(d, stream);
    case 256:
      return launch_tiles<T, 8, 4>(d, stream);
    default:
      return launch_tiles<T, 0, 1>(d, stream);
  }
}

cudaError_t launch_tiles(DequantizeParams* d, cudaStream_t stream) {
  switch (d->p[0].x.dtype) {
    case DType::float16:
      return launch_tiles<__half>(d, stream);
    case DType::bfloat16:
      return launch_tiles<__nv_bfloat16>(d, stream);
    default:
      return launch_tiles<float>(d, stream);
  }
}

int64_t blocks_of(const QuantizeProblem& p) {
  return descale_blocks(rows_of_entry(p));
}

bool is_aligned(const Operand& x, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         x.batch_stride % kChannels == 0 && x.row_stride % kChannels == 0 &&
         x.head_stride % kChannels == 0;
}

Status check(const QuantizeProblem& p) {
  constexpr int64_t kMostDim = kWarpSize * kChannels;
  if (p.head_dim % kChannels != 0 || p.head_dim > kMostDim) {
    return unsupported("a head dim of ", p.head_dim, "; multiples of 8 up to ", kMostDim, " are");
  }
  // The rules of transposed rows say more.
  if (!is_aligned(p.x, 16) || !(p.y_transposed.on || is_aligned(p.y, 8))) {
    return unsupported("x and y whose rows are not aligned to 8 numbers; copy them");
  }
  constexpr int64_t kMostTiles = int64_t{1} << 29;
  if (capped_product(entries_of(p), p.heads, blocks_of(p)) > kMostTiles) {
    return unsupported("more than ", kMostTiles, " blocks of 64 rows");
  }
  return {};
}

bool is_one_launch(std::span<const QuantizeProblem> problems) {
  return std::ranges::all_of(problems, [&](const QuantizeProblem& p) {
    return p.head_dim == problems[0].head_dim && p.x.dtype == problems[0].x.dtype;
  });
}

cudaError_t launch_tiles(std::span<const QuantizeProblem> problems, cudaStream_t stream) {
  DequantizeParams d{};
  for (size_t i = 0; i < problems.size(); ++i) {
    const QuantizeProblem& p = problems[i];
    d.p[i] = p;
    d.mixing[i] = Mixing(p);
    d.blocks[i] = unsigned(blocks_of(p));
    d.tiles[i] = unsigned(entries_of(p) * p.heads * blocks_of(p));
  }
  return launch_tiles(&d, stream);
}

}  // namespace

Status run_dequantize(const DequantizeProblem& problem, void* stream) {
  for (const QuantizeProblem& p : problem.tensors) FA3_TRY(check(p));
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const size_t at_once = is_one_launch(problem.tensors) ? problem.tensors.size() : 1;
  for (size_t i = 0; i < problem.tensors.size() && error == cudaSuccess; i += at_once) {
    error = launch_tiles(problem.tensors.subspan(i, at_once), static_cast<cudaStream_t>(stream));
  }
  return finish(error, "dequantize");
}

}  // namespace fa3::cuda
