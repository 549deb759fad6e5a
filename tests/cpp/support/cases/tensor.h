// SPDX-License-Identifier: Apache-2.0
//
// Tensors for tests: any layout, with guard memory before, after and between their elements.
//
// All memory of a fresh tensor holds poison, a NaN with a payload of its own. So an element that a
// call did not write, or a guard that it did write, can be told from any computed value, and an
// input element that a call should not have read shows up as NaN in the result.
#pragma once

#include <fa3/fa3.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fa3::test {

// Packed tensors have batch 1 and rows that belong to many sequences.
struct Shape {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t heads = 1;
  int64_t dim = 1;

  int64_t size() const { return batch * rows * heads * dim; }
  bool operator==(const Shape&) const = default;
};

// Plain numbers in (batch, row, head, dim) order: what oracles return and comparisons read.
struct Values {
  Shape shape;
  std::vector<double> numbers;

  Values() = default;
  explicit Values(Shape s) : shape(s), numbers(static_cast<size_t>(s.size())) {}

  double* row(int64_t b, int64_t row, int64_t head) {
    return numbers.data() + ((b * shape.rows + row) * shape.heads + head) * shape.dim;
  }
  const double* row(int64_t b, int64_t row, int64_t head) const {
    return const_cast<Values*>(this)->row(b, row, head);
  }
};

enum class Layout {
  bshd,    // contiguous
  bhsd,    // heads before rows
  padded,  // unaligned, with gaps after every head, row and batch entry
  spaced,  // such gaps too, but every row aligned to 16 bytes
  qkv,     // the middle third of a packed (batch, row, 3, head, dim) buffer
};
constexpr Layout kLayouts[] = {Layout::bshd, Layout::bhsd, Layout::padded, Layout::spaced,
                               Layout::qkv};
const char* name_of(Layout layout);

class Tensor {
 public:
  Tensor() = default;
  Tensor(Shape shape, fa3_dtype dtype, Layout layout = Layout::bshd);

  const Shape& shape() const { return shape_; }
  fa3_dtype dtype() const { return dtype_; }

  // Every byte, guards included; views lie within.
  const std::vector<std::byte>& memory() const { return memory_; }
  std::vector<std::byte>& memory() { return memory_; }

  // Views for the library.
  fa3_tensor dense() const;        // (batch, rows, heads, dim)
  fa3_tensor packed() const;       // (rows, heads, dim)
  fa3_tensor dense_lse() const;    // (batch, heads, rows), of a tensor with dim 1
  fa3_tensor packed_lse() const;   // (heads, rows)
  fa3_tensor head_vector() const;  // (heads), of a tensor with batch, rows and dim 1

  float get(int64_t b, int64_t row, int64_t head, int64_t c) const;
  void set(int64_t b, int64_t row, int64_t head, int64_t c, float value);
  void fill_row(int64_t b, int64_t row, float value);  // every head and column of the row

  // Normal numbers times `gain`, rounded to the dtype, in every element.
  void randomize(uint64_t seed, double gain = 1);
  // Everything that is not an element becomes `value`.
  void fill_guards(float value);
  void poison();

  Values values() const;
  // Bits of every element in (batch, row, head, dim) order, without the guards.
  std::vector<uint32_t> element_bits() const;

  // "" or a sentence about the first element that still holds poison, or guard that does not.
  std::string find_unwritten() const;
  std::string find_damaged_guard() const;
  // Whether no bit changed since poison().
  bool untouched() const;

 private:
  int64_t offset(int64_t b, int64_t row, int64_t head, int64_t c) const;
  fa3_tensor view(std::initializer_list<int64_t> shape,
                  std::initializer_list<int64_t> stride) const;
  template <class Visitor>
  void for_each_row(Visitor&& visit) const;
  void copy_elements(const std::vector<std::byte>& from);  // memory of the same layout
  size_t element_bytes() const;
  uint32_t load_bits(int64_t at) const;
  void store_bits(int64_t at, uint32_t bits);
  void store(int64_t at, float value);
  uint32_t poison_bits() const;

  Shape shape_;
  fa3_dtype dtype_ = FA3_FLOAT32;
  int64_t batch_stride_ = 0, row_stride_ = 0, head_stride_ = 0;
  int64_t first_ = 0;  // of the view, in elements
  std::vector<std::byte> memory_;
};

// "(batch 1, row 2, head 0, col 7)"
std::string coordinates(int64_t b, int64_t row, int64_t head, int64_t c);

}  // namespace fa3::test
