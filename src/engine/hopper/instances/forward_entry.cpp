// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/row_kernel.h"

#include "engine/hopper/config/config_text.h"
#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/instances/kernel_at.h"
#include "engine/hopper/kernels/forward.h"

namespace fa3::hopper {
namespace {

template <class Table>
bool find_kernel(const ForwardConfig& config, ForwardKernel* kernel) {
  for (const Variant variant : Table::kVariants) {
    for (int row = 0; row < Table::kRows; ++row) {
      *kernel = kernel_at<Table>(row, config.element, variant);
      if (fields_of(kernel->config) == fields_of(config)) return true;
    }
  }
  return false;
}

template <class... Tables>
ForwardKernel find_kernel_in(const ForwardConfig& config) {
  ForwardKernel kernel{};
  return (find_kernel<Tables>(config, &kernel) || ...) ? kernel : ForwardKernel{config, nullptr, 0};
}

ForwardKernel find_kernel(const Row& row, Element element) {
  const ForwardConfig config = kernel_of(row, element);
  if (row.built) {
    return find_kernel_in<ForwardEntries, CacheEntries, DecodeEntries, StreamKEntries, E4m3Entries,
                          DropoutEntries, MaskEntries, ContinuedEntries>(config);
  }
  const int ctas_per_sm =
      config.is_decode() ? decode_shape(config).ctas_per_sm : config.ctas_per_sm;
  return {config, nullptr, smem_bytes_of_each(ctas_per_sm)};
}

}  // namespace

ForwardKernel kernel_at(const Row& row, Element element) {
  static const auto kKernels = [] {
    std::array<std::array<ForwardKernel, 2>, kForward.size()> kernels;
    for (size_t i = 0; i < kForward.size(); ++i) {
      for (const Element e : {Element::kFp16, Element::kBf16}) {
        kernels[i][e == Element::kBf16] = find_kernel(kForward[i], e);
      }
    }
    return kernels;
  }();
  return kKernels[size_t(&row - kForward.data())][element == Element::kBf16];
}

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
