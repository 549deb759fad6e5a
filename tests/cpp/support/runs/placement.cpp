// SPDX-License-Identifier: Apache-2.0
#include "support/runs/placement.h"

#include <algorithm>
#include <cstring>

namespace fa3::test {
namespace {

constexpr size_t kAlignment = 256;
constexpr std::byte kFill{0xff};  // four of them are a NaN, in every float type

// Around a copy on a device: more than the rows by which a tile may pass the end of a tensor.
constexpr size_t kDeviceGuard = 64 << 10;

bool is_fill(std::byte b) {
  return b == kFill;
}

}  // namespace

GuardedWorkspace::GuardedWorkspace(size_t bytes)
    : bytes_(bytes), memory_(bytes + 3 * kAlignment, kFill) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  first_ = kAlignment + (kAlignment - address % kAlignment) % kAlignment + 1;
}

void* GuardedWorkspace::data() {
  return memory_.data() + first_;
}

bool GuardedWorkspace::guards_intact() const {
  const auto begin = memory_.begin();
  const auto first = static_cast<std::ptrdiff_t>(first_);
  return std::all_of(begin, begin + first, is_fill) &&
         std::all_of(begin + first + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), is_fill);
}

void claim(fa3_device_type memory, fa3_tensor* view) {
  view->device_type = memory;
  view->device_index = memory == FA3_CUDA ? DeviceMemory::kDevice : 0;
}

void Placement::place(const std::byte* before, std::byte* after, size_t bytes, fa3_tensor* view) {
  claim(memory_, view);
  if (memory_ == FA3_CPU || view->data == nullptr) return;
  Copy copy{.device = DeviceMemory(bytes + 2 * kDeviceGuard),
            .before = before,
            .after = after,
            .bytes = bytes};
  copy.device.write(kDeviceGuard, before, bytes);
  view->data = copy.device.data() + kDeviceGuard + (static_cast<std::byte*>(view->data) - before);
  copies_.push_back(std::move(copy));
}

void Placement::input(const Tensor& tensor, fa3_tensor* view) {
  place(tensor.memory().data(), nullptr, tensor.memory().size(), view);
}

void Placement::input(const std::vector<int32_t>& lengths, fa3_tensor* view) {
  place(reinterpret_cast<const std::byte*>(lengths.data()), nullptr,
        lengths.size() * sizeof(int32_t), view);
}

void Placement::input(const fa3_tensor& numbers, fa3_tensor* view) {
  if (numbers.data == nullptr) return;
  int64_t count = 1;
  for (int dim = 0; dim < numbers.rank; ++dim) count *= numbers.shape[dim];
  place(static_cast<const std::byte*>(numbers.data), nullptr,
        static_cast<size_t>(count) * sizeof(int32_t), view);
}

void Placement::output(Tensor* tensor, fa3_tensor* view) {
  place(tensor->memory().data(), tensor->memory().data(), tensor->memory().size(), view);
}

void* Placement::workspace(size_t bytes) {
  if (memory_ == FA3_CPU) return workspaces_.emplace_back(bytes).data();
  Copy copy{.device = DeviceMemory(bytes + 2 * kDeviceGuard),
            .before = nullptr,
            .after = nullptr,
            .bytes = bytes};
  void* data = copy.device.data() + kDeviceGuard;
  copies_.push_back(std::move(copy));
  return data;
}

std::string Placement::fetch(const Copy& copy) {
  std::vector<std::byte> found(copy.bytes + 2 * kDeviceGuard);
  copy.device.read(0, found.data(), found.size());
  const auto first = found.begin() + kDeviceGuard;
  const auto end = first + static_cast<std::ptrdiff_t>(copy.bytes);
  if (!std::all_of(found.begin(), first, is_fill) || !std::all_of(end, found.end(), is_fill)) {
    return copy.before == nullptr ? "memory outside the workspace was written"
                                  : "device memory around a tensor was written";
  }
  if (copy.after != nullptr) {
    std::copy(first, end, copy.after);
  } else if (copy.before != nullptr && !std::equal(first, end, copy.before)) {
    return "an input was written";
  }
  return "";
}

std::string Placement::fetch() {
  std::string problem;
  for (const GuardedWorkspace& workspace : workspaces_) {
    if (!workspace.guards_intact()) problem = "memory outside the workspace was written";
  }
  for (const Copy& copy : copies_) {
    const std::string found = fetch(copy);
    if (problem.empty()) problem = found;
  }
  return problem;
}

}  // namespace fa3::test
