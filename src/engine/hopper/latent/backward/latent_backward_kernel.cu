// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/backward/latent_backward_kernel.cuh"

namespace fa3::hopper {
namespace {

template <int HeadDim>
LatentBackwardKernel of_head_dim(DType dtype) {
  constexpr int kBytes = int(sizeof(LatentBackwardSmem<HeadDim>));
  static_assert(kBytes <= kMaxSmemBytes);
  const auto function = dtype == DType::float16 ? &latent_backward_kernel<HeadDim, Element::kFp16>
                                                : &latent_backward_kernel<HeadDim, Element::kBf16>;
  return {reinterpret_cast<const void*>(function), kLatentBackwardThreads, kBytes};
}

}  // namespace

LatentBackwardKernel latent_backward_kernel_of(int64_t head_dim, DType dtype) {
  return head_dim == 576 ? of_head_dim<576>(dtype) : of_head_dim<512>(dtype);
}

}  // namespace fa3::hopper
