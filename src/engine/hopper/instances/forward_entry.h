// SPDX-License-Identifier: Apache-2.0
// A built kernel as the launcher sees it, and where to get it.
#pragma once

#include "engine/hopper/tables/forward_table.h"

namespace fa3::hopper {

struct ForwardKernel {
  ForwardConfig config;
  const void* function;  // for cudaLaunchKernel
  int smem_bytes;
};

// Defined by the generated source file of row `Row` (forward_entry.cuh).
template <int Row, Element E, Variant V>
ForwardKernel forward_entry();

// The kernel of a row of kForwardTable for an element type.
ForwardKernel forward_kernel_at(int row, Element element, Variant variant);

// The same for a row of kCacheTable, which has no dense kernels.
template <int Row, Element E, Variant V>
ForwardKernel cache_entry();
ForwardKernel cache_kernel_at(int row, Element element, Variant variant);

// The same for a row of kStreamKTable.
template <int Row, Element E>
ForwardKernel stream_k_entry();
ForwardKernel stream_k_kernel_at(int row, Element element);

// The same for a row of kDecodeTable.
template <int Row, Element E, Variant V>
ForwardKernel decode_entry();
ForwardKernel decode_kernel_at(int row, Element element, Variant variant);

// The same for a row of kDropoutTable.
template <int Row, Element E>
ForwardKernel dropout_entry();
ForwardKernel dropout_kernel_at(int row, Element element);

// The same for a row of kMaskTable.
template <int Row, Element E, Variant V>
ForwardKernel mask_entry();
ForwardKernel mask_kernel_at(int row, Element element, Variant variant);

// The same for a row of kContinuedTable.
template <int Row, Element E>
ForwardKernel continued_entry();
ForwardKernel continued_kernel_at(int row, Element element);

// The same for a row of kE4m3Table and O's type.
template <int Row, Element E>
ForwardKernel e4m3_entry();
ForwardKernel e4m3_kernel_at(int row, Element output);

}  // namespace fa3::hopper
