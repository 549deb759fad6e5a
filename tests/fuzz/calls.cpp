// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "core/dtype.h"

namespace fa3::fuzz {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzzer: %s; last error: %s\n", what, fa3_last_error());
  std::abort();
}

int64_t extent(FuzzedDataProvider& bytes) {
  constexpr int64_t kSpecial[] = {0, -1, 1, INT32_MAX, INT64_MAX, INT64_MIN, int64_t{1} << 40};
  if (bytes.ConsumeIntegralInRange(0, 15) != 0) return bytes.ConsumeIntegralInRange(1, 20);
  return bytes.ConsumeBool() ? bytes.PickValueInArray(kSpecial) : bytes.ConsumeIntegral<int64_t>();
}

float real(FuzzedDataProvider& bytes) {
  float value = 0;
  const auto bits = bytes.ConsumeIntegral<uint32_t>();
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool Memory::back(fa3_tensor* view) {
  view->data = nullptr;
  if (view->rank <= 0 || view->rank > FA3_MAX_RANK) return view->rank == 0;
  if (view->dtype < FA3_FLOAT32 || view->dtype > FA3_INT32) return false;
  const int64_t item = size_of(static_cast<DType>(view->dtype));
  __int128 last = 0;
  for (int dim = 0; dim < view->rank; ++dim) {
    if (view->shape[dim] <= 0) return view->shape[dim] == 0;
    if (view->stride[dim] < 0 && view->shape[dim] > 1) return false;
    last += static_cast<__int128>(view->shape[dim] - 1) * view->stride[dim];
    if (last >= kMost) return false;
  }
  auto& block = blocks_.emplace_back(static_cast<size_t>((static_cast<int64_t>(last) + 1) * item));
  // Numbers between 1 and 2 in every floating type, and small ones as int32.
  for (size_t i = 0; i < block.size(); ++i) {
    const auto in_item = static_cast<int64_t>(i) % item;
    if (view->dtype != FA3_INT32 && in_item == item - 1) block[i] = 0x3f;
    if (view->dtype == FA3_INT32 && in_item == 0) block[i] = static_cast<char>(i / 4 % 5);
    if (view->dtype != FA3_INT32 && in_item == item - 2) block[i] = static_cast<char>(i * 7 % 128);
  }
  view->data = block.data();
  return true;
}

void* Memory::workspace(size_t bytes) {
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
  workspaces_.emplace_back(memory, std::free);
  return memory;
}

fa3_tensor dense(int32_t dtype, std::vector<int64_t> shape) {
  fa3_tensor view{};
  view.dtype = dtype;
  view.device_type = FA3_CPU;
  view.rank = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    view.shape[dim] = shape[static_cast<size_t>(dim)];
    view.stride[dim] = stride;
    if (__builtin_mul_overflow(stride, view.shape[dim], &stride)) stride = 1;
  }
  return view;
}

}  // namespace fa3::fuzz
