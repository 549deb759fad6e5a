// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/backward/latent_backward_kernel.cuh"

namespace fa3::hopper {
namespace {

template <int HeadDim, class Sums>
LatentBackwardKernel of_sums(DType dtype) {
  constexpr int kBytes = int(sizeof(LatentBackwardSmem<HeadDim>));
  static_assert(kBytes <= kMaxSmemBytes);
  const auto function = dtype == DType::float16
                            ? &latent_backward_kernel<HeadDim, Element::kFp16, Sums>
                            : &latent_backward_kernel<HeadDim, Element::kBf16, Sums>;
  return {reinterpret_cast<const void*>(function), kLatentBackwardThreads, kBytes};
}

template <int HeadDim>
LatentBackwardKernel of_head_dim(DType dtype, bool deterministic) {
  return deterministic ? of_sums<HeadDim, IntegerSums>(dtype) : of_sums<HeadDim, FloatSums>(dtype);
}

}  // namespace

LatentBackwardKernel latent_backward_kernel_of(int64_t head_dim, DType dtype, bool deterministic) {
  return head_dim == 576 ? of_head_dim<576>(dtype, deterministic)
                         : of_head_dim<512>(dtype, deterministic);
}

}  // namespace fa3::hopper
