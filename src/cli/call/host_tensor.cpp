// SPDX-License-Identifier: Apache-2.0
#include "cli/call/host_tensor.h"

#include <cstring>
#include <new>

#include "cli/bench/machine.h"
#include "cli/exit_code.h"
#include "cli/text.h"
#include "core/dtype.h"
#include "core/error.h"

namespace fa3::cli {
namespace {

constexpr std::align_val_t kAlignment{64};

// Bytes of a row-major tensor; throws where strides or sizes would overflow.
int64_t checked_bytes(fa3_dtype dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = size_of(static_cast<DType>(dtype));
  bool empty = false;
  for (int64_t extent : shape) {
    empty = empty || extent == 0;
    if (extent < 0 || (extent > 0 && __builtin_mul_overflow(bytes, extent, &bytes))) {
      throw CommandError(kExitBadInput, concat("shape ", shape_text(shape),
                                               ": expected a size below 2^63 bytes, got more"));
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace

void require_memory(const std::string& what, int64_t bytes) {
  const int64_t available = available_memory_bytes();
  if (available <= 0 || bytes <= available) return;
  throw CommandError(kExitUnsupported,
                     concat(what, ": expected at most ", bytes_text(available),
                            ", which this machine has free, got ", bytes_text(bytes)));
}

int64_t sum_of_bytes(std::span<const int64_t> parts) {
  int64_t sum = 0;
  for (int64_t part : parts) {
    if (__builtin_add_overflow(sum, part, &sum)) return INT64_MAX;
  }
  return sum;
}

void HostTensor::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, kAlignment);
}

HostTensor HostTensor::shape_only(fa3_dtype dtype, std::vector<int64_t> shape) {
  checked_bytes(dtype, shape);
  HostTensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  return tensor;
}

HostTensor::HostTensor(fa3_dtype dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)) {
  const int64_t size = checked_bytes(dtype_, shape_);
  const std::string what = concat("tensor ", shape_text(shape_));
  require_memory(what, size);
  // At least one byte, so that an empty tensor has a pointer too.
  const auto allocated = static_cast<size_t>(size > 0 ? size : 1);
  memory_.reset(static_cast<std::byte*>(::operator new(allocated, kAlignment, std::nothrow)));
  if (memory_ == nullptr) {
    throw CommandError(kExitUnsupported,
                       concat(what, ": the system gives no ", bytes_text(size), " of memory"));
  }
}

int64_t HostTensor::elements() const {
  int64_t count = present() ? 1 : 0;
  for (int64_t extent : shape_) count *= extent;
  return count;
}

int64_t HostTensor::bytes() const {
  return elements() * size_of(static_cast<DType>(dtype_));
}

fa3_tensor HostTensor::view() const {
  fa3_tensor view{};
  if (!present()) return view;
  view.data = data();
  view.dtype = dtype_;
  view.device_type = FA3_CPU;
  view.rank = static_cast<int32_t>(shape_.size());
  int64_t step = 1;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    view.shape[dim] = shape_[static_cast<size_t>(dim)];
    view.stride[dim] = step;
    step *= view.shape[dim];
  }
  return view;
}

fa3_tensor HostTensor::attention_view(Layout layout) const {
  if (!present()) return {};
  return layout == Layout::bshd ? bshd(data(), dtype_, shape_[0], shape_[1], shape_[2], shape_[3])
                                : bhsd(data(), dtype_, shape_[0], shape_[1], shape_[2], shape_[3]);
}

void HostTensor::poison() {
  if (data() != nullptr) std::memset(data(), 0xff, static_cast<size_t>(bytes()));
}

HostTensor HostTensor::converted(fa3_dtype dtype) const {
  HostTensor out(dtype, shape_);
  const int64_t count = elements();
  for (int64_t i = 0; i < count; ++i) set_element(out.data(), dtype, i, element(data(), dtype_, i));
  return out;
}

float element(const std::byte* data, fa3_dtype dtype, int64_t i) {
  if (dtype == FA3_FLOAT8_E4M3) return to_float(reinterpret_cast<const Float8E4M3*>(data)[i]);
  return visit_dtype(static_cast<DType>(dtype),
                     [&]<class T>(T) { return to_float(reinterpret_cast<const T*>(data)[i]); });
}

void set_element(std::byte* data, fa3_dtype dtype, int64_t i, float value) {
  if (dtype == FA3_FLOAT8_E4M3) {
    reinterpret_cast<Float8E4M3*>(data)[i] = from_float<Float8E4M3>(value);
    return;
  }
  visit_dtype(static_cast<DType>(dtype),
              [&]<class T>(T) { reinterpret_cast<T*>(data)[i] = from_float<T>(value); });
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += concat(i == 0 ? "" : ", ", shape[i]);
  return text + ")";
}

const char* short_name(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_FLOAT32:
      return "fp32";
    case FA3_FLOAT16:
      return "fp16";
    case FA3_BFLOAT16:
      return "bf16";
    case FA3_FLOAT8_E4M3:
      return "e4m3";
    case FA3_FLOAT8_E5M2:
      return "e5m2";
    case FA3_INT32:
      return "int32";
  }
  return "unknown";
}

}  // namespace fa3::cli
