// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/latent_kernel.h"

#include <cstdlib>

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

// Checks compile this file with another number (latent_shape.h).
#ifndef FA3_LATENT_BYTE_LOADS
#define FA3_LATENT_BYTE_LOADS 0
#endif

template <int Rows, int HeadDim, int ByteLoads = FA3_LATENT_BYTE_LOADS>
constexpr LatentShape group128_shape() {
  LatentShape shape{Rows, HeadDim, Element::kBf16, true};
  if (shape.converts()) shape.byte_loads = ByteLoads;
  return shape;
}

template <int Rows, int HeadDim>
LatentKernel group128_kernel() {
  return kernel<group128_shape<Rows, HeadDim>()>();
}
#ifdef FA3_LATENT_COMPARES_LOADS  // a check's: all of them, and the environment says which
template <int HeadDim, int... ByteLoads>
LatentKernel wide_group128_kernel() {
  const char* const asked = std::getenv("FA3_LATENT_BYTE_LOADS");
  const int byte_loads = asked == nullptr ? 0 : std::atoi(asked);
  LatentKernel found;
  ((byte_loads == ByteLoads
        ? void(found = kernel<group128_shape<kRowsPerWarpgroup, HeadDim, ByteLoads>()>())
        : void()),
   ...);
  return found;
}
template <>
LatentKernel group128_kernel<64, 576>() {
  return wide_group128_kernel<576, 0, 1, 2, 5, 6, 9, 10, 13, 14>();
}
template <>
LatentKernel group128_kernel<64, 512>() {
  return wide_group128_kernel<512, 0, 1, 2, 5, 6, 9, 10, 13, 14>();
}
#endif

template <int Rows, int HeadDim>
LatentKernel of_type(DType dtype, bool is_group128) {
  if (is_group128) return group128_kernel<Rows, HeadDim>();
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
