// SPDX-License-Identifier: Apache-2.0
#include "support/cases/tensor.h"

#include <fa3/tensor.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "core/dtype.h"
#include "support/random.h"

namespace fa3::test {
namespace {

constexpr int64_t kGuard = 64;  // elements before and after every tensor

// Calls action with `memory` as words of `size` bytes.
template <class Action>
auto as_words(std::vector<std::byte>& memory, size_t size, Action&& action) {
  const auto call = [&]<class Word>(Word) {
    return action(std::span(reinterpret_cast<Word*>(memory.data()), memory.size() / sizeof(Word)));
  };
  return size == 1 ? call(uint8_t{}) : size == 2 ? call(uint16_t{}) : call(uint32_t{});
}

template <class Action>
auto as_words(const std::vector<std::byte>& memory, size_t size, Action&& action) {
  return as_words(
      const_cast<std::vector<std::byte>&>(memory), size,
      [&]<class Word>(std::span<Word> words) { return action(std::span<const Word>(words)); });
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
  const int64_t allocation = first_ + shape.batch * batch_stride_ + kGuard;
  memory_.resize(static_cast<size_t>(allocation) * element_bytes());
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

size_t Tensor::element_bytes() const {
  return static_cast<size_t>(size_of(static_cast<DType>(dtype_)));
}

// Calls visit(b, row, head, where in the memory the columns begin) for every row.
template <class Visitor>
void Tensor::for_each_row(Visitor&& visit) const {
  for (int64_t b = 0; b < shape_.batch; ++b) {
    for (int64_t row = 0; row < shape_.rows; ++row) {
      for (int64_t head = 0; head < shape_.heads; ++head) {
        visit(b, row, head, static_cast<size_t>(offset(b, row, head, 0)));
      }
    }
  }
}

uint32_t Tensor::load_bits(int64_t at) const {
  uint32_t bits = 0;  // little-endian
  std::memcpy(&bits, memory_.data() + static_cast<size_t>(at) * element_bytes(), element_bytes());
  return bits;
}

void Tensor::store_bits(int64_t at, uint32_t bits) {
  std::memcpy(memory_.data() + static_cast<size_t>(at) * element_bytes(), &bits, element_bytes());
}

void Tensor::store(int64_t at, float value) {
  switch (dtype_) {
    case FA3_FLOAT16:
      return store_bits(at, from_float<Float16>(value).bits);
    case FA3_BFLOAT16:
      return store_bits(at, from_float<BFloat16>(value).bits);
    case FA3_FLOAT8_E4M3:
      return store_bits(at, from_float<Float8E4M3>(value).bits);
    case FA3_FLOAT8_E5M2:
      return store_bits(at, from_float<Float8E5M2>(value).bits);
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
    case FA3_FLOAT8_E5M2:
      return 0xfeu;
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
    case FA3_FLOAT8_E5M2:
      return to_float(Float8E5M2{static_cast<uint8_t>(bits)});
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
  for_each_row([&](int64_t, int64_t, int64_t, size_t at) {
    for (int64_t c = 0; c < shape_.dim; ++c) {
      store(static_cast<int64_t>(at) + c, static_cast<float>(gain * random.normal()));
    }
  });
}

void Tensor::fill_guards(float value) {
  const std::vector<std::byte> elements = memory_;
  store(0, value);
  as_words(memory_, element_bytes(), [](auto words) { std::ranges::fill(words, words[0]); });
  copy_elements(elements);
}

void Tensor::poison() {
  as_words(memory_, element_bytes(), [&]<class Word>(std::span<Word> words) {
    std::ranges::fill(words, static_cast<Word>(poison_bits()));
  });
}

void Tensor::copy_elements(const std::vector<std::byte>& from) {
  const size_t size = element_bytes(), bytes = static_cast<size_t>(shape_.dim) * size;
  for_each_row([&](int64_t, int64_t, int64_t, size_t at) {
    std::memcpy(memory_.data() + at * size, from.data() + at * size, bytes);
  });
}

Values Tensor::values() const {
  Values values(shape_);
  size_t i = 0;
  for_each_row([&](int64_t b, int64_t row, int64_t head, size_t) {
    for (int64_t c = 0; c < shape_.dim; ++c) values.numbers[i++] = get(b, row, head, c);
  });
  return values;
}

std::vector<uint32_t> Tensor::element_bits() const {
  std::vector<uint32_t> bits;
  bits.reserve(static_cast<size_t>(shape_.size()));
  as_words(memory_, element_bytes(), [&](auto words) {
    for_each_row([&](int64_t, int64_t, int64_t, size_t at) {
      const auto row = words.subspan(at, static_cast<size_t>(shape_.dim));
      bits.insert(bits.end(), row.begin(), row.end());
    });
  });
  return bits;
}

std::string Tensor::find_unwritten() const {
  std::string found;
  as_words(memory_, element_bytes(), [&](auto words) {
    for_each_row([&](int64_t b, int64_t row, int64_t head, size_t at) {
      const auto columns = words.subspan(at, static_cast<size_t>(shape_.dim));
      const auto first = std::ranges::find(columns, poison_bits());
      if (found.empty() && first != columns.end()) {
        found = coordinates(b, row, head, first - columns.begin()) + " was not written";
      }
    });
  });
  return found;
}

std::string Tensor::find_damaged_guard() const {
  Tensor guards = *this;
  guards.poison();
  guards.copy_elements(memory_);  // so that only guards can differ
  const auto differ = std::ranges::mismatch(memory_, guards.memory_);
  if (differ.in1 == memory_.end()) return "";
  const int64_t at = (differ.in1 - memory_.begin()) / static_cast<int64_t>(element_bytes());
  return "memory outside the tensor was written, " + std::to_string(at - first_) +
         " elements after its first element";
}

bool Tensor::untouched() const {
  return as_words(memory_, element_bytes(), [&](auto words) {
    return std::ranges::all_of(words, [&](auto bits) { return bits == poison_bits(); });
  });
}

}  // namespace fa3::test
