// SPDX-License-Identifier: Apache-2.0
// One launch of the latent backward, how the cache's gradient lies while it is summed, and the
// kernels that this build has. Next: latent_backward_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/latent.h"
#include "core/macros.h"
#include "engine/cuda/tile/divisor.h"
#include "engine/hopper/latent/backward/integer_sums.h"

namespace fa3::hopper {

inline constexpr int kGradientRows = 64;  // heads of a CTA: rows of one wgmma
inline constexpr int kGradientKeys = 64;  // of a block

struct LatentBackwardParams {
  MlaBackwardProblem problem;
  float scale_log2 = 1;
  // A power of two near 1 / scale. P times it, and dS times it and the scale, are the operands of
  // 16 bits: small gradients stay normal numbers of float16.
  float weight_factor = 1;
  cuda::Divisor page_size, tokens;  // rows of a page, tokens of a batch entry
  int row_tiles = 1;                // CTAs of a token
  float* sums = nullptr;       // (rows of the cache, head_dim), in the order of column_of_sum()
  float* sink_sums = nullptr;  // (heads, tokens of all entries)
  // Instead of `sums` in deterministic calls, in the order of column_of_integer_sum(); and of each
  // row of the cache.
  int64_t* integer_sums = nullptr;
  RowBound* bounds = nullptr;
  RowScale* scales = nullptr;

  FA3_HD int64_t cache_rows() const {
    return problem.keys.cache.pages * problem.keys.cache.page_size;
  }
  FA3_HD int64_t all_tokens() const { return problem.batch * problem.lengths_q.max; }
};

// The column whose sum lies at a place of a row. Of 16 columns a lane of an accumulator has two
// pairs, whose sums lie together: it adds 16 bytes at once, and a quad adds 64 bytes in a row.
FA3_HD constexpr int column_of_sum(int place) {
  const int lane = place % 16 / 4, pair = place % 4 / 2;
  return place / 16 * 16 + pair * 8 + lane * 2 + place % 2;
}

// As column_of_sum(), where sums are integers. A lane adds 8 bytes at once, a quad 32 in a row.
FA3_HD constexpr int column_of_integer_sum(int place) {
  return place / 8 * 8 + place % 4 * 2 + place % 8 / 4;
}

struct LatentBackwardKernel {
  const void* function = nullptr;
  int threads = 0;
  int smem_bytes = 0;
};

// dtype: float16 or bfloat16.
LatentBackwardKernel latent_backward_kernel_of(int64_t head_dim, DType dtype, bool deterministic);

// Queues the kernels that find bounds and scales of integer sums.
cudaError_t scale_integer_sums(const LatentBackwardParams& params, cudaStream_t stream);

// Queues the kernel that writes d_cache from the sums.
cudaError_t store_cache_gradient(const LatentBackwardParams& params, cudaStream_t stream);

}  // namespace fa3::hopper
