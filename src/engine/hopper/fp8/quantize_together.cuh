// SPDX-License-Identifier: Apache-2.0
// q, k and v quantized by one launch. A CTA has an SM to itself: one thread takes tasks in the
// order of quantize_order.h and has TMA bring their blocks of rows to shared memory, as many at
// once as fit, and groups of four warps add them up or quantize them. Next: quantize_together.cu.
#pragma once

#include "engine/hopper/config/sm90.h"
#include "engine/hopper/fp8/quantize_order.h"
#include "engine/hopper/fp8/quantize_tile.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/relaxed.cuh"
#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper {

struct TogetherParams {
  StreamParams tensors[QuantizeOrder::kMostTensors];
  CUtensorMap maps[QuantizeOrder::kMostTensors];  // of x: a box is a block of rows
  QuantizeOrder order;
  unsigned* taken;  // how many times kAtOnce tasks are
};

// A task, its rows and where they lie.
struct QuantizeItem {
  QuantizeTask::Kind kind;  // kNothing: the last one
  int tensor;
  Block block;
};

// Registers limit the groups, and shared memory the blocks under way.
template <int kDim>
struct TogetherShape {
  static constexpr int kGroups = kDim <= 64 ? 5 : kDim <= 128 ? 4 : kDim <= 192 ? 3 : 2;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  // What the launch gives each thread, and what the groups have when the producer has given back.
  static constexpr int kProducerRegisters = kDim <= 64 ? 40 : 32;
  static constexpr int kAtFirst = (1 << 16) / kThreads / 8 * 8;
  static constexpr int kGroupRegisters =
      (kAtFirst + (kAtFirst - kProducerRegisters) / kGroups) / 8 * 8;
  static constexpr uint32_t kBlockBytes = kRows * kDim * 2;
  static constexpr int kFit =
      (kMaxSmemBytes - 4096 - kGroups * int(sizeof(GroupSmem<kDim>))) / int(kBlockBytes);
  static constexpr int kStages = kFit < 20 ? kFit : 20;
  static constexpr unsigned kAtOnce = 512 / kDim;  // tasks taken together
  // No task that is asked for waits for a place that one of its own batch leaves.
  static_assert(kAtOnce <= kStages && kGroups <= kStages);
};

template <int kDim>
struct TogetherSmem {
  using Shape = TogetherShape<kDim>;
  alignas(kSmemAlignment) unsigned char rows[Shape::kStages][Shape::kBlockBytes];
  GroupSmem<kDim> groups[Shape::kGroups];
  QuantizeItem items[Shape::kStages];
  PipelineBarriers<Shape::kStages> barriers;
  unsigned read;  // how many items groups have begun
};

// The warp that takes tasks and asks for their rows. Several lanes have a task each: to find out
// about one takes a thread as long as a group needs for it.
template <int kDim>
class QuantizeProducer {
  using Shape = TogetherShape<kDim>;

 public:
  __device__ QuantizeProducer(const TogetherParams& t, TogetherSmem<kDim>& smem,
                              Pipeline<Shape::kStages> pipeline)
      : t_(t), smem_(smem), pipeline_(pipeline), lane_(thread_in_block() % kWarpSize) {}

  __device__ void run() {
    const auto all = unsigned(t_.order.tasks());
    unsigned next = take();
#pragma unroll 1
    for (;;) {
      const unsigned first = __shfl_sync(kAllLanes, next, 0) * Shape::kAtOnce;
      if (first >= all) break;
      next = take();
      give(first + lane_, all);
    }
    if (lane_ >= Shape::kGroups) return;
    number_ += lane_;
    wait_empty();
    smem_.items[stage()].kind = QuantizeTask::kNothing;
    ptx::mbarrier_arrive(pipeline_.full(stage()));
  }

 private:
  __device__ unsigned take() const {
    return lane_ == 0 ? ptx::count_on(t_.taken) : 0;
  }
  __device__ uint32_t stage() const {
    return number_ % uint32_t{Shape::kStages};
  }
  __device__ void wait_empty() const {
    ptx::mbarrier_wait_parity(pipeline_.empty(stage()), number_ / uint32_t{Shape::kStages} % 2 ^ 1);
  }

  __device__ void give(unsigned i, unsigned all) {
    QuantizeTask task;
    if (lane_ < Shape::kAtOnce && i < all) task = t_.order.task(int(i));
    const bool exists = task.kind != QuantizeTask::kNothing;
    Block block;
    if (exists) block = Block(t_.tensors[task.tensor].p, task.sequence, task.head, task.block);
    const unsigned existing = __ballot_sync(kAllLanes, exists);
    const uint32_t after = number_ + uint32_t(__popc(existing));
    number_ += uint32_t(__popc(existing & ((1u << lane_) - 1)));
    if (exists) give(task, block);
    __syncwarp();
    number_ = after;
  }

  __device__ void give(const QuantizeTask& task, const Block& block) {
    const uint32_t full = pipeline_.full(stage());
    wait_empty();
    smem_.items[stage()] = {task.kind, task.tensor, block};
    if (task.kind == QuantizeTask::kMean || block.num_rows == 0) {
      ptx::mbarrier_arrive(full);
    } else {
      // What is added up is read again, everything else is not.
      const bool once = task.kind == QuantizeTask::kTile;
      ptx::mbarrier_arrive_expect_tx(full, Shape::kBlockBytes);
      ptx::cp_async_bulk_tensor_load(ptx::cvta_to_shared(smem_.rows[stage()]), t_.maps[task.tensor],
                                     {.column = 0,
                                      .row = 0,
                                      .head = task.head,
                                      .batch = int(block.b),
                                      .inner = int(block.first_row)},
                                     full, once);
    }
  }

  const TogetherParams& t_;
  TogetherSmem<kDim>& smem_;
  const Pipeline<Shape::kStages> pipeline_;
  const unsigned lane_;
  uint32_t number_ = 0;  // of the next item
};

// A group of warps that does one task after the other.
template <class T, int kDim>
class QuantizeConsumer {
  using Shape = TogetherShape<kDim>;

 public:
  __device__ QuantizeConsumer(const TogetherParams& t, TogetherSmem<kDim>& smem,
                              Pipeline<Shape::kStages> pipeline)
      : t_(t), smem_(smem), pipeline_(pipeline) {}

  __device__ void run() {
    const uint32_t read = ptx::cvta_to_shared(&smem_.read);
#pragma unroll 1
    for (int turn = 0;; ++turn) {
      const QuantizeGroup group;
      unsigned& next = of(group).next[turn % 2];
      if (group.thread == 0) next = ptx::count_on_shared(read);
      group.meet();
      const uint32_t number = next;
      stage_ = number % uint32_t{Shape::kStages};
      const uint32_t parity = number / uint32_t{Shape::kStages} % 2;
      // Until another group has left the stage's last item, that one's phase would pass for ours.
      ptx::mbarrier_wait_parity(pipeline_.empty(stage_), parity ^ 1);
      ptx::mbarrier_wait_parity(pipeline_.full(stage_), parity);
      const QuantizeItem item = smem_.items[stage_];
      if (item.kind == QuantizeTask::kNothing) return;
      const StreamParams& s = t_.tensors[item.tensor];
      if (item.kind == QuantizeTask::kSum) {
        add_up(s, item.block, group);
      } else if (item.kind == QuantizeTask::kMean) {
        release(group);
        find_mean(s, item.block, group);
      } else {
        quantize(s, item.block, group);
      }
    }
  }

 private:
  __device__ GroupSmem<kDim>& of(const QuantizeGroup& group) const {
    return smem_.groups[group.number];
  }

  // By all lanes of a warp, when it has read the stage.
  __device__ void release(const QuantizeGroup& group) const {
    __syncwarp();
    if (group.thread % kWarpSize == 0) pipeline_.release(stage_);
  }

  __device__ void quantize(const StreamParams& s, const Block& block, const QuantizeGroup& group) {
    const QuantizeProblem& p = s.p;
    // Most blocks have no rows where one sequence is far longer than the others.
    if (block.num_rows == 0 && !p.y_transposed.on) {
      release(group);
      if (group.thread == 0) *descale(p, block) = kSmallestScale;
      return;
    }
    const bool brings_mean = p.centred && group.thread < kDim / 4;
    const float4* from = nullptr;
    float4 mean{};
    if (brings_mean) {
      from = reinterpret_cast<const float4*>(p.mean.at(block.sequence, block.head)) + group.thread;
      mean = ptx::load_relaxed(from);
    }
    QuantizeTileThread<T, kDim> tile(s, block, group);
    tile.read(smem_.rows[stage_]);
    release(group);
    if (brings_mean) {
      while (!ptx::is_set(mean)) mean = ptx::load_relaxed(from);
      reinterpret_cast<float4*>(of(group).means)[group.thread] = mean;
    }
    __syncwarp();
    if (p.centred) group.meet();
    tile.write(of(group));
  }

  // A thread has a channel, or as many as the group has threads too few.
  __device__ void add_up(const StreamParams& s, const Block& block, const QuantizeGroup& group) {
    constexpr TileLayout kLayout{kRows, kDim};
    for (int channel = int(group.thread); channel < kDim; channel += kGroupThreads) {
      const unsigned char* const rows = smem_.rows[stage_];
      float sum = 0.0f;
      const auto add = [&](int row) {
        sum = __fadd_rn(sum, static_cast<float>(*reinterpret_cast<const T*>(
                                 rows + kLayout.element_offset(row, channel))));
      };
      if (block.num_rows == kRows) {
#pragma unroll 16
        for (int row = 0; row < kRows; ++row) add(row);
      } else {
        for (int row = 0; row < block.num_rows; ++row) add(row);
      }
      ptx::store_relaxed(s.parts.sums + block.place(s.p, s.blocks) * kDim + channel, sum);
    }
    release(group);
  }

  // Its blocks' sums, one after the other, over the number of rows; and once more as the rows are
  // mixed.
  __device__ void find_mean(const StreamParams& s, const Block& block, const QuantizeGroup& group) {
    constexpr int kAhead = 32;
    const QuantizeProblem& p = s.p;
    const float* const sums = s.parts.sums + block.place(p, s.blocks) * kDim;  // of block 0
    for (int channel = int(group.thread); channel < kDim; channel += kGroupThreads) {
      float mean = 0.0f;
      const float* from = sums + channel;
#pragma unroll 1
      for (int left = int(s.blocks); left > 0; left -= kAhead) {
        float ahead[kAhead];
        bool all;
        do {
          asm volatile("" : "+l"(from));  // one address, and not one for each sum
          all = true;
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            ahead[i] = 0.0f;
            if (i < left) ahead[i] = ptx::load_relaxed(from + i * kDim);
          }
#pragma unroll
          for (float sum : ahead) all = all && ptx::is_set(sum);
        } while (!all);
#pragma unroll
        for (float sum : ahead) mean = __fadd_rn(mean, sum);  // + 0 changes nothing
        from += kAhead * kDim;
      }
      of(group).means[channel] = mean_of(p, block.sequence, mean);
    }
    group.meet();
    if (group.thread >= kWarpSize) return;
    const RowLane at(kDim);
    Channels row{};
    if (at.row == 0) row = unpacked(load_packed(of(group).means + at.channel()));
    if (p.hadamard) cuda::mix(s.mixing, at, &row);
    if (at.row != 0) return;
    auto* const to = reinterpret_cast<float4*>(p.mean.at(block.sequence, block.head)) + at.lane * 2;
    ptx::store_relaxed(to, {row.x[0], row.x[1], row.x[2], row.x[3]});
    ptx::store_relaxed(to + 1, {row.x[4], row.x[5], row.x[6], row.x[7]});
  }

  const TogetherParams& t_;
  TogetherSmem<kDim>& smem_;
  const Pipeline<Shape::kStages> pipeline_;
  uint32_t stage_ = 0;
};

template <class T, int kDim>
__global__ void __launch_bounds__(TogetherShape<kDim>::kThreads, 1)
    quantize_together(const __grid_constant__ TogetherParams t) {
  using Shape = TogetherShape<kDim>;
  using Smem = TogetherSmem<kDim>;
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  static_assert(sizeof(Smem) <= kMaxSmemBytes);
  Smem& smem = *reinterpret_cast<Smem*>(raw_smem);
  const Pipeline<Shape::kStages> pipeline{ptx::cvta_to_shared(&smem.barriers)};
  if (threadIdx.x == 0) {
    pipeline.init(kGroupWarps);
    ptx::fence_mbarrier_init();
    smem.read = 0;
  }
  __syncthreads();
  follow_kernel_before();
  if (int(threadIdx.x) < Shape::kGroups * kGroupThreads) {
    ptx::setmaxnreg_inc<Shape::kGroupRegisters>();
    QuantizeConsumer<T, kDim>(t, smem, pipeline).run();
  } else {
    ptx::setmaxnreg_dec<Shape::kProducerRegisters>();
    if (threadIdx.x / kWarpSize == Shape::kGroups * kGroupWarps) {
      QuantizeProducer<kDim>(t, smem, pipeline).run();
    }
  }
}

// What quantize_together() finds before it begins: no sum, no mean, no task taken.
struct TogetherStart {
  float4* sums;  // of all tensors
  int64_t fours;
  ChannelMeans<float> means[QuantizeOrder::kMostTensors];
  int heads[QuantizeOrder::kMostTensors], sequences[QuantizeOrder::kMostTensors];
  int head_fours;  // of a head's mean
  unsigned* taken;
};

__global__ void __launch_bounds__(256)
    start_quantizing(const __grid_constant__ TogetherStart start) {
  follow_kernel_before();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const float unset = __uint_as_float(ptx::kUnset);
  const float4 four{unset, unset, unset, unset};
  for (int64_t i = first; i < start.fours; i += step) start.sums[i] = four;
  for (int tensor = 0; tensor < QuantizeOrder::kMostTensors; ++tensor) {
    const int64_t of_sequence = int64_t{start.heads[tensor]} * start.head_fours;
    for (int64_t i = first; i < start.sequences[tensor] * of_sequence; i += step) {
      const int64_t in_sequence = i % of_sequence;
      float* const head = start.means[tensor].at(i / of_sequence, in_sequence / start.head_fours);
      reinterpret_cast<float4*>(head)[in_sequence % start.head_fours] = four;
    }
  }
  if (first == 0) *start.taken = 0;
}

}  // namespace fa3::hopper
