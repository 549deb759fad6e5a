// SPDX-License-Identifier: Apache-2.0
//
// The forward kernels that numeric cases take: of each row, and those with outputs.
#pragma once

#include <utility>

#include "engine/ampere/forward/forward_kernel.cuh"
#include "engine/ampere/kernels/forward.h"

namespace fa3::ampere {

inline constexpr int kFp16Row = 1;
constexpr ForwardConfig config_of(int row, Element element) {
  const ForwardConfig c = kernel_of(kForward[size_t(row)], element);
  return kHasScoreFunction && !c.dropout ? c.with_score_function() : c;
}

template <int... Rows>
auto kernel_at(int row, bool fp16, std::integer_sequence<int, Rows...>) {
  static constexpr void (*kKernels[])(ForwardParams) = {
      &forward_kernel<config_of(Rows, Element::kBf16)>...};
  return fp16 ? &forward_kernel<config_of(kFp16Row, Element::kFp16)> : kKernels[row];
}

// Kernels with outputs are those that some case takes.
struct OutputKernel {
  int row;
  cuda::Outputs outputs;
};
inline constexpr OutputKernel kOutputKernels[] = {
    {1, {cuda::Gate::kPairs, cuda::GateType::kBf16, true}},
    {1, {.max_logit = true}},
    {1, {cuda::Gate::kColumns, cuda::GateType::kBf16, true}},
    {2, {cuda::Gate::kColumns, cuda::GateType::kFp16, true}},
    {6, {cuda::Gate::kPairs, cuda::GateType::kFp32, false}},
    {7, {cuda::Gate::kRows, cuda::GateType::kFp32, true}},
    {10, {cuda::Gate::kColumns, cuda::GateType::kBf16, true}},
    {13, {cuda::Gate::kRows, cuda::GateType::kBf16, true}},
    {16, {cuda::Gate::kPairs, cuda::GateType::kBf16, true}},
};
constexpr ForwardConfig config_of(const OutputKernel& k) {
  ForwardConfig c = config_of(k.row, Element::kBf16);
  c.outputs = k.outputs;
  return c;
}
template <int... Kernels>
auto kernel_with(int row, const cuda::Outputs& outputs, std::integer_sequence<int, Kernels...>) {
  void (*found)(ForwardParams) = nullptr;
  ((kOutputKernels[Kernels].row == row && kOutputKernels[Kernels].outputs == outputs
        ? void(found = &forward_kernel<config_of(kOutputKernels[Kernels])>)
        : void()),
   ...);
  return found;
}

}  // namespace fa3::ampere
