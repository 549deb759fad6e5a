// SPDX-License-Identifier: Apache-2.0
// Quantizing, appending to caches and merging results, in device memory; and sums of a backward.
#pragma once

#include <cuda_runtime_api.h>
#include <fa3/status.h>

#include <span>

#include "core/append.h"
#include "core/dequantize.h"
#include "core/latent.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engine/cuda/softmax/outputs.h"

namespace fa3::cuda {

// Bits as on the CPU. Any CUDA device that converts to e4m3 would do.
Status plan_quantize(const QuantizeProblem& problem, Plan* plan);
Status run_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace,
                    void* stream);

// Up to three tensors at once, or UNSUPPORTED where they are better quantized one by one.
Status plan_quantize_together(std::span<const QuantizeProblem> problems, Plan* plan);
Status run_quantize_together(std::span<const QuantizeProblem> problems, void* workspace,
                             void* stream);

// The inverse: what e4m3 numbers stand for, with the CPU's bits.
Status run_dequantize(const DequantizeProblem& problem, void* stream);

// Any CUDA device would do.
Status run_append(const AppendProblem& problem, void* stream);

// Rows of latent caches, with the bits of the CPU engine. Any CUDA device would do.
Status run_mla_append(const MlaAppendProblem& problem, void* stream);
Status run_mla_gather(const MlaGatherProblem& problem, void* stream);

// Merges partial attention over disjoint key sets, and gates the merged rows. Any CUDA device would
// do.
Status run_merge(const MergeProblem& problem, void* stream, const GateParams& gate = {});

// Queues a launch before the forward kernel that raises these.
cudaError_t clear_max_logits(const MaxLogitParams& to, int64_t sequences, int heads,
                             cudaStream_t stream);

// The sinks' gradients, from what preprocess has summed for each query block.
struct SinkSums {
  const float* sums;  // by query block, in QueryScratch's order; zero for blocks without rows
  int batches;        // QueryScratch's batch entries
  int heads;
  int q_blocks;
  float* d_sink;  // one for each query head
};

// Queues a launch behind preprocess: a CTA for each head.
cudaError_t sum_sink_gradients(const SinkSums& sums, cudaStream_t stream);

}  // namespace fa3::cuda
