// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/latent_kernel.h"

#include "engine/hopper/latent/latent_kernel.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36hopper11LatentShapeE = fa3::hopper::LatentShape;

namespace fa3::hopper {
namespace {

template <LatentShape C>
LatentKernel kernel() {
  static_assert(sizeof(LatentSmem<C>) <= kMaxSmemBytes);
  return {reinterpret_cast<const void*>(&latent_kernel<C>), C.threads(),
          int(sizeof(LatentSmem<C>))};
}

template <int Rows, int HeadDim>
LatentKernel of_type(DType dtype, bool is_group128) {
  if (is_group128) return kernel<LatentShape{Rows, HeadDim, Element::kBf16, true}>();
  return dtype == DType::float16 ? kernel<LatentShape{Rows, HeadDim, Element::kFp16}>()
                                 : kernel<LatentShape{Rows, HeadDim, Element::kBf16}>();
}

template <int Rows>
LatentKernel of_head_dim(int64_t head_dim, DType dtype, bool is_group128) {
  return head_dim == 576 ? of_type<Rows, 576>(dtype, is_group128)
                         : of_type<Rows, 512>(dtype, is_group128);
}

}  // namespace

LatentKernel latent_kernel_of(int rows, int64_t head_dim, DType dtype, bool is_group128) {
  return rows == 16   ? of_head_dim<16>(head_dim, dtype, is_group128)
         : rows == 32 ? of_head_dim<32>(head_dim, dtype, is_group128)
                      : of_head_dim<64>(head_dim, dtype, is_group128);
}

}  // namespace fa3::hopper
