// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/forward_entry.h"

#include "engine/hopper/instances/kernel_at.h"

namespace fa3::hopper {

ForwardKernel forward_kernel_at(int row, Element element, Variant variant) {
  return kernel_at<ForwardEntries>(row, element, variant);
}

ForwardKernel cache_kernel_at(int row, Element element, Variant variant) {
  return kernel_at<CacheEntries>(row, element, variant);
}

ForwardKernel stream_k_kernel_at(int row, Element element) {
  return kernel_at<StreamKEntries>(row, element, Variant::kStreamK);
}

ForwardKernel decode_kernel_at(int row, Element element, Variant variant) {
  return kernel_at<DecodeEntries>(row, element, variant);
}

ForwardKernel dropout_kernel_at(int row, Element element) {
  return kernel_at<DropoutEntries>(row, element, Variant::kDense);
}

ForwardKernel mask_kernel_at(int row, Element element, Variant variant) {
  return kernel_at<MaskEntries>(row, element, variant);
}

ForwardKernel continued_kernel_at(int row, Element element) {
  return kernel_at<ContinuedEntries>(row, element, Variant::kDense);
}

ForwardKernel e4m3_kernel_at(int row, Element output) {
  return kernel_at<E4m3Entries>(row, output, Variant::kDense);
}

}  // namespace fa3::hopper
