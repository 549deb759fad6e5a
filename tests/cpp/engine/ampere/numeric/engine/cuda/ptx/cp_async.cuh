// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers.
#pragma once

#include "lanes.cuh"

namespace fa3::cuda {

struct LateCopy {
  unsigned char* to;
  std::vector<unsigned char> bytes;
};

// Of each thread, its groups of copies, the newest last; the last one is still open.
inline std::map<unsigned, std::vector<std::vector<LateCopy>>>& late_copies() {
  static std::map<unsigned, std::vector<std::vector<LateCopy>>> copies;
  return copies;
}

inline std::vector<std::vector<LateCopy>>& own_late_copies() {
  auto& own = late_copies()[blockIdx.x << 16 | threadIdx.x];
  if (own.empty()) own.emplace_back();
  return own;
}

inline void copy_late(uint32_t smem, const void* global, int width, int bytes) {
  if (smem % unsigned(width) != 0) throw std::logic_error("cp.async: a misaligned address");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(global) % unsigned(width) != 0) {
    throw std::logic_error("cp.async: a misaligned source");
  }
  LateCopy copy{machine::smem_at(smem), std::vector<unsigned char>(size_t(width))};
  if (bytes > 0) std::memcpy(copy.bytes.data(), global, size_t(bytes));
  std::memset(copy.to, 0xff, size_t(width));  // NaN
  own_late_copies().back().push_back(std::move(copy));
}

inline void cp_async_16(uint32_t smem, const void* global, bool exists) {
  copy_late(smem, global, 16, exists ? 16 : 0);
}
template <int Width>
void cp_async_first(uint32_t smem, const void* global, int bytes) {
  copy_late(smem, global, Width, bytes);
}
inline void cp_async_commit_group() {
  own_late_copies().emplace_back();
}
inline void arrive(size_t left_open) {
  auto& own = own_late_copies();
  while (own.size() > left_open) {
    for (const LateCopy& copy : own.front()) {
      std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
    }
    own.erase(own.begin());
  }
}
template <int Newest>
void cp_async_wait_group() {
  arrive(Newest + 1);
}
inline void cp_async_wait_all() {
  arrive(0);
}

}  // namespace fa3::cuda
