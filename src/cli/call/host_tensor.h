// SPDX-License-Identifier: Apache-2.0
//
// Memory that the command owns, with a shape: what files are read into and engines write to.
// Next: operands.h, which gathers the tensors of one attention call.
#pragma once

#include <fa3/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fa3::cli {

// Which axis order the memory of a rank 4 tensor has: (batch, seq, heads, dim) or heads first.
enum class Layout { bshd, bhsd };

// Throws where this machine has not that many bytes free: code 3, instead of being killed for them.
void require_memory(const std::string& what, int64_t bytes);
// What all of these take; 2^63 - 1 where that is more.
int64_t sum_of_bytes(std::span<const int64_t> parts);

class HostTensor {
 public:
  HostTensor() = default;  // absent
  // Uninitialised memory; throws CommandError if the system has none.
  HostTensor(fa3_dtype dtype, std::vector<int64_t> shape);
  // A shape without memory, for calls that only ask.
  static HostTensor shape_only(fa3_dtype dtype, std::vector<int64_t> shape);

  bool present() const { return !shape_.empty(); }
  fa3_dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const;
  int64_t bytes() const;
  std::byte* data() const { return memory_.get(); }

  // Row-major, as the memory is; an absent tensor gives an absent view.
  fa3_tensor view() const;
  // (batch, seq, heads, dim) over rank 4 memory of the given layout, without a copy.
  fa3_tensor attention_view(Layout layout) const;

  // All bits set: NaN in every floating type, so that an element nobody wrote is seen.
  void poison();
  HostTensor converted(fa3_dtype dtype) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  fa3_dtype dtype_ = FA3_FLOAT32;
  std::vector<int64_t> shape_;
  std::unique_ptr<std::byte, Free> memory_;
};

// Reads element i of `data` as a float.
float element(const std::byte* data, fa3_dtype dtype, int64_t i);
// Rounds `value` to `dtype` into element i.
void set_element(std::byte* data, fa3_dtype dtype, int64_t i, float value);

std::string shape_text(const std::vector<int64_t>& shape);  // "(1, 282, 12, 32)"
const char* short_name(fa3_dtype dtype);                    // "fp32", "fp16", "bf16"

}  // namespace fa3::cli
