// SPDX-License-Identifier: Apache-2.0
#include "support/tensor.h"

#include <fa3/tensor.h>

#include <bit>
#include <cstring>

#include "core/dtype.h"
#include "support/random.h"

namespace fa3::test {
namespace {

constexpr int64_t kGuard = 64;  // elements before and after every tensor

// Calls visit(b, row, head, c) for every element.
template <class Visitor>
void for_each_element(const Shape& shape, Visitor&& visit) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t c = 0; c < shape.dim; ++c) visit(b, row, head, c);
      }
    }
  }
}

}  // namespace

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::bshd:
      return "bshd";
    case Layout::bhsd:
      return "bhsd";
    case Layout::padded:
      return "padded";
    case Layout::spaced:
      return "spaced";
    case Layout::qkv:
      return "qkv";
  }
  return "?";
}

std::string coordinates(int64_t b, int64_t row, int64_t head, int64_t c) {
  return "(batch " + std::to_string(b) + ", row " + std::to_string(row) + ", head " +
         std::to_string(head) + ", col " + std::to_string(c) + ")";
}

Tensor::Tensor(Shape shape, fa3_dtype dtype, Layout layout) : shape_(shape), dtype_(dtype) {
  first_ = kGuard;
  head_stride_ = shape.dim;
  row_stride_ = shape.heads * shape.dim;
  batch_stride_ = shape.rows * row_stride_;
  if (layout == Layout::bhsd) {
    row_stride_ = shape.dim;
    head_stride_ = shape.rows * shape.dim;
    batch_stride_ = shape.heads * head_stride_;
  } else if (layout == Layout::padded) {
    head_stride_ = shape.dim + 3;
    row_stride_ = shape.heads * head_stride_ + 5;
    batch_stride_ = shape.rows * row_stride_ + 11;
    first_ += 1;
  } else if (layout == Layout::spaced) {
    head_stride_ = (shape.dim + 7) / 8 * 8 + 8;
    row_stride_ = shape.heads * head_stride_ + 24;
    batch_stride_ = shape.rows * row_stride_ + 40;
  } else if (layout == Layout::qkv) {
    row_stride_ *= 3;
    batch_stride_ *= 3;
    first_ += shape.heads * shape.dim;
  }
  allocation_ = first_ + shape.batch * batch_stride_ + kGuard;
  memory_.resize(static_cast<size_t>(allocation_ * size_of(static_cast<DType>(dtype))));
  poison();
}

int64_t Tensor::offset(int64_t b, int64_t row, int64_t head, int64_t c) const {
  return first_ + b * batch_stride_ + row * row_stride_ + head * head_stride_ + c;
}

fa3_tensor Tensor::view(std::initializer_list<int64_t> shape,
                        std::initializer_list<int64_t> stride) const {
  const std::byte* data = memory_.data() + first_ * size_of(static_cast<DType>(dtype_));
  return strided(data, dtype_, shape, stride);
}

fa3_tensor Tensor::dense() const {
  return view({shape_.batch, shape_.rows, shape_.heads, shape_.dim},
              {batch_stride_, row_stride_, head_stride_, 1});
}

fa3_tensor Tensor::packed() const {
  return view({shape_.rows, shape_.heads, shape_.dim}, {row_stride_, head_stride_, 1});
}

fa3_tensor Tensor::dense_lse() const {
  return view({shape_.batch, shape_.heads, shape_.rows},
              {batch_stride_, head_stride_, row_stride_});
}

fa3_tensor Tensor::packed_lse() const {
  return view({shape_.heads, shape_.rows}, {head_stride_, row_stride_});
}

fa3_tensor Tensor::head_vector() const {
  return view({shape_.heads}, {head_stride_});
}

uint32_t Tensor::load_bits(int64_t at) const {
  const auto size = static_cast<size_t>(size_of(static_cast<DType>(dtype_)));
  uint32_t bits = 0;  // little-endian
  std::memcpy(&bits, memory_.data() + static_cast<size_t>(at) * size, size);
  return bits;
}

void Tensor::store_bits(int64_t at, uint32_t bits) {
  const auto size = static_cast<size_t>(size_of(static_cast<DType>(dtype_)));
  std::memcpy(memory_.data() + static_cast<size_t>(at) * size, &bits, size);
}

void Tensor::store(int64_t at, float value) {
  switch (dtype_) {
    case FA3_FLOAT16:
      return store_bits(at, from_float<Float16>(value).bits);
    case FA3_BFLOAT16:
      return store_bits(at, from_float<BFloat16>(value).bits);
    case FA3_FLOAT8_E4M3:
      return store_bits(at, from_float<Float8E4M3>(value).bits);
    default:
      return store_bits(at, std::bit_cast<uint32_t>(value));
  }
}

// A NaN that no arithmetic makes.
uint32_t Tensor::poison_bits() const {
  switch (dtype_) {
    case FA3_FLOAT16:
      return 0x7eadu;
    case FA3_BFLOAT16:
      return 0x7fedu;
    case FA3_FLOAT8_E4M3:
      return 0xffu;
    default:
      return 0x7fdeadbeu;
  }
}

float Tensor::get(int64_t b, int64_t row, int64_t head, int64_t c) const {
  const uint32_t bits = load_bits(offset(b, row, head, c));
  switch (dtype_) {
    case FA3_FLOAT16:
      return to_float(Float16{static_cast<uint16_t>(bits)});
    case FA3_BFLOAT16:
      return to_float(BFloat16{static_cast<uint16_t>(bits)});
    case FA3_FLOAT8_E4M3:
      return to_float(Float8E4M3{static_cast<uint8_t>(bits)});
    default:
      return std::bit_cast<float>(bits);
  }
}

void Tensor::set(int64_t b, int64_t row, int64_t head, int64_t c, float value) {
  store(offset(b, row, head, c), value);
}

void Tensor::fill_row(int64_t b, int64_t row, float value) {
  for (int64_t head = 0; head < shape_.heads; ++head) {
    for (int64_t c = 0; c < shape_.dim; ++c) set(b, row, head, c, value);
  }
}

void Tensor::randomize(uint64_t seed, double gain) {
  Random random(seed);
  for_each_element(shape_, [&](int64_t b, int64_t row, int64_t head, int64_t c) {
    set(b, row, head, c, static_cast<float>(gain * random.normal()));
  });
}

void Tensor::fill_guards(float value) {
  Tensor filled = *this;
  for (int64_t at = 0; at < allocation_; ++at) filled.store(at, value);
  for_each_element(shape_, [&](int64_t b, int64_t row, int64_t head, int64_t c) {
    const int64_t at = offset(b, row, head, c);
    filled.store_bits(at, load_bits(at));
  });
  memory_ = std::move(filled.memory_);
}

void Tensor::poison() {
  for (int64_t at = 0; at < allocation_; ++at) store_bits(at, poison_bits());
}

Values Tensor::values() const {
  Values values(shape_);
  size_t i = 0;
  for_each_element(shape_, [&](int64_t b, int64_t row, int64_t head, int64_t c) {
    values.numbers[i++] = get(b, row, head, c);
  });
  return values;
}

std::vector<uint32_t> Tensor::element_bits() const {
  std::vector<uint32_t> bits;
  bits.reserve(static_cast<size_t>(shape_.size()));
  for_each_element(shape_, [&](int64_t b, int64_t row, int64_t head, int64_t c) {
    bits.push_back(load_bits(offset(b, row, head, c)));
  });
  return bits;
}

std::string Tensor::find_unwritten() const {
  std::string found;
  for_each_element(shape_, [&](int64_t b, int64_t row, int64_t head, int64_t c) {
    if (found.empty() && load_bits(offset(b, row, head, c)) == poison_bits()) {
      found = coordinates(b, row, head, c) + " was not written";
    }
  });
  return found;
}

std::string Tensor::find_damaged_guard() const {
  Tensor guards = *this;
  for_each_element(shape_, [&](int64_t b, int64_t row, int64_t head, int64_t c) {
    guards.store_bits(offset(b, row, head, c), poison_bits());
  });
  for (int64_t at = 0; at < allocation_; ++at) {
    if (guards.load_bits(at) != poison_bits()) {
      return "memory outside the tensor was written, " + std::to_string(at - first_) +
             " elements after its first element";
    }
  }
  return "";
}

bool Tensor::untouched() const {
  for (int64_t at = 0; at < allocation_; ++at) {
    if (load_bits(at) != poison_bits()) return false;
  }
  return true;
}

}  // namespace fa3::test
