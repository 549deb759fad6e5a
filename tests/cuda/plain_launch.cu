// SPDX-License-Identifier: Apache-2.0
#include "cuda/plain_launch.h"

#include "cuda/plain_params.h"

namespace fa3::hopper {
namespace {

template <int HeadDim, Element E>
cudaError_t launch(const ForwardCall& a, cudaStream_t stream) {
  constexpr int kBlockN = HeadDim <= 128 ? 128 : 64;  // a consumer thread has 232 registers
  using Forward = PlainForward<E, HeadDim, kBlockN>;
  const auto kernel = plain_kernel<E, HeadDim, kBlockN>;
  PlainParams params{};
  if (!plain_params<Forward>(a, E, &params)) return cudaErrorInvalidValue;
  constexpr int kBytes = sizeof(typename Forward::Smem);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<params.order.num_tiles(), Forward::kThreads, kBytes, stream>>>(params);
  return cudaPeekAtLastError();
}

template <int HeadDim>
cudaError_t launch(Element element, const ForwardCall& a, cudaStream_t stream) {
  return element == Element::kBf16 ? launch<HeadDim, Element::kBf16>(a, stream)
                                   : launch<HeadDim, Element::kFp16>(a, stream);
}

}  // namespace

cudaError_t launch_plain(int head_dim, Element element, const ForwardCall& a, cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return launch<64>(element, a, stream);
    case 128:
      return launch<128>(element, a, stream);
    case 256:
      return launch<256>(element, a, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace fa3::hopper
