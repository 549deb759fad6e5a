// SPDX-License-Identifier: Apache-2.0
// The table of kernels that are built again for a check, in place of the library's: those in bf16,
// since what is checked knows no element type.
#include <cstdlib>

#include "engine/hopper/instances/kernel_at.h"
#include "engine/hopper/instances/row_kernel.h"

namespace fa3::hopper {
namespace {

template <class Table>
ForwardKernel bf16_kernel_at(int row, Element element, Variant variant) {
  if (element != Element::kBf16) std::abort();
  return kernel_at<Table, Element::kBf16>(row, variant);
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element, Variant variant) {
  return bf16_kernel_at<ForwardEntries>(row, element, variant);
}

ForwardKernel cache_kernel_at(int row, Element element, Variant variant) {
  return bf16_kernel_at<CacheEntries>(row, element, variant);
}

ForwardKernel stream_k_kernel_at(int row, Element element) {
  return bf16_kernel_at<StreamKEntries>(row, element, Variant::kStreamK);
}

ForwardKernel decode_kernel_at(int row, Element element, Variant variant) {
  return bf16_kernel_at<DecodeEntries>(row, element, variant);
}

ForwardKernel dropout_kernel_at(int row, Element element) {
  return bf16_kernel_at<DropoutEntries>(row, element, Variant::kDense);
}

// Checks name the rows of tables: nothing chooses a kernel.
ForwardKernel kernel_at(const Row&, Element) {
  std::abort();
}

// No check that runs these kernels has a block mask, or goes on from a partial result.
ForwardKernel mask_kernel_at(int, Element, Variant) {
  std::abort();
}
ForwardKernel continued_kernel_at(int, Element) {
  std::abort();
}

ForwardKernel e4m3_kernel_at(int row, Element output) {
  return bf16_kernel_at<E4m3Entries>(row, output, Variant::kDense);
}

}  // namespace fa3::hopper
