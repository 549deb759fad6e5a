// SPDX-License-Identifier: Apache-2.0
// The variants of ablated_kernel.cuh behind a C entry, for benchmarks/ablation.py. fp16, as the
// paper's Table 2.
#include <iterator>

#include "ablation/ablated_kernel.cuh"
#include "cuda/plain_params.h"
#include "cuda/rival_problem.h"

namespace fa3::hopper {
namespace {

struct Ablation {
  const char* name;
  int head_dim, block_n, stages, threads, smem_bytes;
  void (*kernel)(PlainParams);
  bool (*params_of)(const ForwardCall&, Element, PlainParams*);
};

template <int HeadDim, int BlockN, int Stages = 4, int Lag = 1, bool Producer = true,
          bool PingPong_ = false, bool Reallocates = true>
constexpr Ablation variant(const char* name) {
  constexpr Element kE = Element::kFp16;
  using Forward = Ablated<kE, HeadDim, BlockN, Stages, Lag, Producer, PingPong_, Reallocates>;
  return {name,
          HeadDim,
          BlockN,
          Stages,
          Forward::kThreads,
          sizeof(typename Forward::Smem),
          ablated_kernel<kE, HeadDim, BlockN, Stages, Lag, Producer, PingPong_, Reallocates>,
          plain_params<Forward>};
}

constexpr bool kWithout = false, kWith = true;

const Ablation kVariants[] = {
    variant<128, 128>("tutorial"),
    variant<128, 128, 4, 1, kWith, kWith>("ping-pong"),
    variant<128, 128, 4, 0>("no pipelining"),
    variant<128, 128, 4, 1, kWithout>("no producer"),
    variant<128, 128, 4, 0, kWithout>("no producer, no pipelining"),
    variant<128, 128, 4, 1, kWith, kWithout, kWithout>("no register reallocation"),
    variant<128, 96, 4, 2>("three stages of the pipeline"),
    // Stages of shared memory, and tiles.
    variant<128, 128, 2>("tutorial"),
    variant<128, 128, 6>("tutorial"),
    variant<128, 64, 4>("tutorial"),
    variant<128, 64, 8>("tutorial"),
    variant<128, 96, 4>("tutorial"),
    variant<128, 160, 4>("tutorial"),
    variant<64, 64, 4>("tutorial"),
    variant<64, 128, 4>("tutorial"),
    variant<64, 128, 8>("tutorial"),
    variant<64, 176, 4>("tutorial"),
    variant<256, 48, 4>("tutorial"),
    variant<256, 64, 2>("tutorial"),
    variant<256, 64, 4>("tutorial"),
    variant<256, 80, 4>("tutorial"),
};

}  // namespace
}  // namespace fa3::hopper

FA3_RIVAL int ablation_count() {
  return int(std::size(fa3::hopper::kVariants));
}

FA3_RIVAL const char* ablation_name(int variant) {
  return fa3::hopper::kVariants[variant].name;
}

// {head dim, keys a step, stages, threads, registers a thread, bytes a thread spills}
FA3_RIVAL int ablation_numbers(int variant, int numbers[6]) {
  const auto& v = fa3::hopper::kVariants[variant];
  cudaFuncAttributes found{};
  const cudaError_t error = cudaFuncGetAttributes(&found, reinterpret_cast<const void*>(v.kernel));
  const int values[] = {v.head_dim, v.block_n,     v.stages,
                        v.threads,  found.numRegs, int(found.localSizeBytes)};
  for (int i = 0; i < 6; ++i) numbers[i] = values[i];
  return error;
}

FA3_RIVAL int ablation_run(int variant, const RivalProblem* p, void* stream) {
  using namespace fa3::hopper;
  const Ablation& v = kVariants[variant];
  if (p->dtype != FA3_FLOAT16 || p->head_dim != v.head_dim) return cudaErrorInvalidValue;
  PlainParams params{};
  if (!v.params_of(call_of(*p), Element::kFp16, &params)) return cudaErrorInvalidValue;
  const cudaError_t error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(v.kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, v.smem_bytes);
  if (error != cudaSuccess) return error;
  v.kernel<<<params.order.num_tiles(), v.threads, v.smem_bytes, cudaStream_t(stream)>>>(params);
  return cudaPeekAtLastError();
}
