// SPDX-License-Identifier: Apache-2.0
//
// Quantization in blocks of FA3_DESCALE_ROWS rows, each a task: rows are loaded as floats, rotated,
// centred and multiplied by the Hadamard matrix in scratch memory, then scaled and rounded.
//
//   centred:                  sums of blocks -> means -> blocks
//   one scale for more rows:  largest numbers of blocks -> scales -> blocks
//
// Every sum has a fixed order (docs/numerics.md), and this file is compiled without contraction of
// products and sums, so that all engines give the same bits.
#include "engine/cpu/caches/caches.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float_environment.h"
#include "engine/cpu/caches/hadamard.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

constexpr int64_t kBlock = FA3_DESCALE_ROWS;

struct QuantizeWorkspace {
  float* sums = nullptr;     // (batch, heads, blocks, dim), if centred
  float* means = nullptr;    // (batch, heads, dim), if centred; as they are subtracted
  float* largest = nullptr;  // (batch, heads, blocks), if blocks share scales
  ThreadMemory threads;      // (kBlock, dim) floats each
};

int64_t blocks_of(const QuantizeProblem& p) {
  return descale_blocks(p.lengths.max);
}

QuantizeWorkspace allocate(const QuantizeProblem& p, WorkspaceAllocator& allocator) {
  QuantizeWorkspace workspace;
  if (p.centred) {
    workspace.sums = allocator.take<float>(p.batch, p.heads, blocks_of(p), p.head_dim);
    workspace.means = allocator.take<float>(p.batch, p.heads, p.head_dim);
  }
  if (p.descale.scaling != Scaling::per_block) {
    workspace.largest = allocator.take<float>(p.batch, p.heads, blocks_of(p));
  }
  workspace.threads = take_thread_memory(allocator, p.num_threads, [&](WorkspaceAllocator& thread) {
    thread.take<float>(kBlock, p.head_dim);
  });
  return workspace;
}

// (x0, x1) -> (x0 cos - x1 sin, x1 cos + x0 sin) for every pair of the row.
void rotate(const Rotary& rotary, int64_t position, float* row) {
  const float* cos = rotary.cos + position * rotary.cos_stride;
  const float* sin = rotary.sin + position * rotary.sin_stride;
  const int64_t pairs = rotary.dim / 2;
  const int64_t step = rotary.interleaved ? 2 : 1;
  float* second = row + (rotary.interleaved ? 1 : pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    const float x0 = row[i * step], x1 = second[i * step];
    row[i * step] = x0 * cos[i] - x1 * sin[i];
    second[i * step] = x1 * cos[i] + x0 * sin[i];
  }
}

// row -> H diag(signs) row.
void mix(const std::vector<float>& signs, float* row) {
  multiply_by_signs(signs, row);
  multiply_by_hadamard(static_cast<int64_t>(signs.size()), row);
}

class Quantizer {
 public:
  Quantizer(const QuantizeProblem& problem, const QuantizeWorkspace& workspace, int num_threads)
      : p_(problem), workspace_(workspace), num_threads_(num_threads) {
    if (p_.hadamard) signs_ = random_signs(p_.seed, p_.head_dim);
  }

  void run() const {
    if (p_.centred) {
      for_each_block([&](const Block& block, int worker) { add_up(block, worker); });
      for_each_head([&](int64_t b, int64_t head) { find_mean(b, head); });
    }
    if (p_.descale.scaling == Scaling::per_block) {
      for_each_block([&](const Block& block, int worker) {
        const float* rows = transformed(block, worker);
        const float scale = scale_of(largest_of(rows, block.num_rows));
        *p_.descale.at(block.b, block.head, block.index) = scale;
        write(block, rows, scale);
      });
      fill_spare_descales();
    } else {
      for_each_block([&](const Block& block, int worker) {
        workspace_.largest[block.task] = largest_of(transformed(block, worker), block.num_rows);
      });
      find_shared_scales();
      for_each_block([&](const Block& block, int worker) {
        write(block, transformed(block, worker), *p_.descale.at(block.b, block.head, 0));
      });
    }
    if (p_.y_transposed.on) return fill_spare_places();
    for_each_unused_row(p_.lengths, p_.batch, [&](int64_t b, int64_t row) {
      for (int64_t head = 0; head < p_.heads; ++head) {
        std::fill_n(p_.y.at<Float8E4M3>(b, row, head), p_.head_dim, Float8E4M3{});
      }
    });
  }

 private:
  struct Block {
    int64_t task, b, head, index;
    int64_t first_row;  // of the sequence
    int64_t tensor_row;
    int64_t num_rows;  // may be 0
  };

  template <class Visitor>
  void for_each_block(Visitor&& visit) const {
    const int64_t blocks = blocks_of(p_);
    parallel_for(p_.batch * p_.heads * blocks, num_threads_, [&](int64_t task, int worker) {
      const int64_t b = task / blocks / p_.heads, first_row = task % blocks * kBlock;
      const Rows rows = p_.lengths.rows_of(b);
      visit(Block{.task = task,
                  .b = b,
                  .head = task / blocks % p_.heads,
                  .index = task % blocks,
                  .first_row = first_row,
                  .tensor_row = rows.begin + first_row,
                  .num_rows = std::clamp<int64_t>(rows.used - first_row, 0, kBlock)},
            worker);
    });
  }

  template <class Visitor>
  void for_each_head(Visitor&& visit) const {
    parallel_for(p_.batch * p_.heads, num_threads_,
                 [&](int64_t task, int) { visit(task / p_.heads, task % p_.heads); });
  }

  float* mean_of(int64_t b, int64_t head) const {
    return workspace_.means + (b * p_.heads + head) * p_.head_dim;
  }

  // The block's rows as floats, rotated.
  float* loaded(const Block& block, int worker) const {
    WorkspaceAllocator allocator = workspace_.threads[worker];
    auto* rows = allocator.take<float>(kBlock, p_.head_dim);
    visit_dtype(p_.x.dtype, [&]<class T>(T) {
      for (int64_t r = 0; r < block.num_rows; ++r) {
        float* row = rows + r * p_.head_dim;
        load_row(p_.x.at<T>(block.b, block.tensor_row + r, block.head), p_.head_dim, row);
        if (p_.rotary.dim > 0) rotate(p_.rotary, block.first_row + r, row);
      }
    });
    return rows;
  }

  // ... and centred and mixed: what is to be quantized.
  const float* transformed(const Block& block, int worker) const {
    float* rows = loaded(block, worker);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* row = rows + r * p_.head_dim;
      if (p_.centred) {
        const float* mean = mean_of(block.b, block.head);
        for (int64_t c = 0; c < p_.head_dim; ++c) row[c] -= mean[c];
      }
      if (p_.hadamard) mix(signs_, row);
    }
    return rows;
  }

  // The block's sums, row by row.
  void add_up(const Block& block, int worker) const {
    const float* rows = loaded(block, worker);
    float* sums = workspace_.sums + block.task * p_.head_dim;
    std::fill_n(sums, p_.head_dim, 0.0f);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      for (int64_t c = 0; c < p_.head_dim; ++c) sums[c] += rows[r * p_.head_dim + c];
    }
  }

  // The sums of the blocks, block by block, over the number of rows. A mean that is not finite is
  // of no use: that channel stays where it is.
  void find_mean(int64_t b, int64_t head) const {
    const int64_t used = p_.lengths.rows_of(b).used;
    float* mean = mean_of(b, head);
    std::fill_n(mean, p_.head_dim, 0.0f);
    for (int64_t block = 0; block < descale_blocks(used); ++block) {
      const int64_t task = (b * p_.heads + head) * blocks_of(p_) + block;
      for (int64_t c = 0; c < p_.head_dim; ++c) {
        mean[c] += workspace_.sums[task * p_.head_dim + c];
      }
    }
    float* out = p_.mean.at(b, head);
    for (int64_t c = 0; c < p_.head_dim; ++c) {
      mean[c] /= static_cast<float>(std::max<int64_t>(used, 1));
      if (!std::isfinite(mean[c])) mean[c] = 0.0f;
      out[c] = mean[c];
    }
    if (p_.hadamard) mix(signs_, out);
  }

  // The largest finite number.
  float largest_of(const float* rows, int64_t num_rows) const {
    float largest = 0.0f;
    for (int64_t i = 0; i < num_rows * p_.head_dim; ++i) {
      const float size = std::abs(rows[i]);
      largest = size > largest && size < HUGE_VALF ? size : largest;
    }
    return largest;
  }

  static float scale_of(float largest) { return std::max(largest / 448.0f, kSmallestScale); }

  void write(const Block& block, const float* rows, float scale) const {
    const float inverse = 1.0f / scale;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const float* from = rows + r * p_.head_dim;
      if (p_.y_transposed.on) {
        auto* to = transposed_at(block.b, block.tensor_row + r, block.head);
        for (int64_t c = 0; c < p_.head_dim; ++c) {
          to[c * p_.y_transposed.channel_stride] = from_float<Float8E4M3>(from[c] * inverse);
        }
        continue;
      }
      auto* to = p_.y.at<Float8E4M3>(block.b, block.tensor_row + r, block.head);
      for (int64_t c = 0; c < p_.head_dim; ++c) to[c] = from_float<Float8E4M3>(from[c] * inverse);
    }
  }

  Float8E4M3* transposed_at(int64_t b, int64_t row, int64_t head) const {
    return p_.y_transposed.at<Float8E4M3>(p_.y, b, row, head, 0);
  }

  // Behind the last row, where rows lie side by side.
  void fill_spare_places() const {
    for_each_head([&](int64_t b, int64_t head) {
      for (int64_t row = p_.lengths.max; row < transposed_places(p_.lengths.max); ++row) {
        for (int64_t c = 0; c < p_.head_dim; ++c) {
          transposed_at(b, row, head)[c * p_.y_transposed.channel_stride] = {};
        }
      }
    });
  }

  // The blocks that the caller's tensor has beyond the longest sequence.
  void fill_spare_descales() const {
    if (blocks_of(p_) >= p_.num_descale_blocks) return;
    for_each_head([&](int64_t b, int64_t head) {
      for (int64_t i = blocks_of(p_); i < p_.num_descale_blocks; ++i) {
        *p_.descale.at(b, head, i) = kSmallestScale;
      }
    });
  }

  void find_shared_scales() const {
    const bool per_head = p_.descale.scaling == Scaling::per_head;
    const int64_t scales = per_head ? p_.batch * p_.heads : 1;
    const int64_t shared_by = per_head ? blocks_of(p_) : p_.batch * p_.heads * blocks_of(p_);
    for (int64_t i = 0; i < scales; ++i) {
      float largest = 0.0f;
      for (int64_t block = 0; block < shared_by; ++block) {
        largest = std::max(largest, workspace_.largest[i * shared_by + block]);
      }
      const int64_t b = per_head ? i / p_.heads : 0;
      *p_.descale.at(b, i - b * p_.heads, 0) = scale_of(largest);
    }
  }

  const QuantizeProblem& p_;
  const QuantizeWorkspace& workspace_;
  int num_threads_;
  std::vector<float> signs_;
};

}  // namespace

Status plan_quantize(const QuantizeProblem& problem, Plan* plan) {
  *plan = {.engine = "cpu",
           .kernel = "quantizer",
           .block_q = kBlock,
           .num_tasks = capped_product(problem.batch, problem.heads, blocks_of(problem)),
           .num_threads = problem.num_threads,
           .workspace_bytes =
               bytes_of([&](WorkspaceAllocator& allocator) { allocate(problem, allocator); }),
           .why = "Blocks of the rows that share a scale."};
  return {};
}

Status run_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace, void*) {
  const DefaultFloatEnvironment environment;
  WorkspaceAllocator allocator(workspace);
  const QuantizeWorkspace parts = allocate(problem, allocator);
  Quantizer(problem, parts, plan.num_threads).run();
  return {};
}

}  // namespace fa3::cpu
