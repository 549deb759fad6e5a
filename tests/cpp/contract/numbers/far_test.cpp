// SPDX-License-Identifier: Apache-2.0
//
// Rows so far apart that their offsets pass 2^32 elements: every address is computed in 64 bits.
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include "contract/fixture.h"
#include "core/dtype.h"
#include "support/memory/sparse_memory.h"

namespace fa3::test {
namespace {

class FarMemory : public EngineTest {};
FA3_FOR_EVERY_ENGINE(FarMemory);

constexpr int64_t kRowStride = int64_t{1} << 25;  // elements; 140 rows of them are 2^32 and more

// A (1, rows, 1, dim) tensor, spread out.
struct FarTensor {
  Shape shape;
  fa3_dtype dtype;
  int64_t element_bytes;
  SparseMemory memory;

  FarTensor(fa3_device_type where, Shape s, fa3_dtype type)
      : shape(s),
        dtype(type),
        element_bytes(size_of(static_cast<DType>(type))),
        memory(where, static_cast<size_t>(s.rows * kRowStride * element_bytes)) {}

  fa3_tensor view(fa3_device_type where) const {
    fa3_tensor far = strided(memory.data(), dtype, {1, shape.rows, 1, shape.dim},
                             {shape.rows * kRowStride, kRowStride, shape.dim, 1});
    claim(where, &far);
    return far;
  }
  // Rows of a contiguous tensor in host memory, there and back.
  std::byte* near_row(const fa3_tensor& near, int64_t row) const {
    return static_cast<std::byte*>(near.data) + row * near.stride[1] * element_bytes;
  }
  size_t row_bytes() const { return static_cast<size_t>(shape.dim * element_bytes); }
  static size_t at(int64_t row, int64_t element_bytes) {
    return static_cast<size_t>(row * kRowStride * element_bytes);
  }
  void write(const Tensor& from) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      memory.write(at(row, element_bytes), near_row(from.dense(), row), row_bytes());
    }
  }
  void read(Tensor* to) const {
    for (int64_t row = 0; row < shape.rows; ++row) {
      memory.read(at(row, element_bytes), near_row(to->dense(), row), row_bytes());
    }
  }
};

TEST_P(FarMemory, offsets_beyond_two_to_the_32_change_no_bit) {
  const fa3_device_type where = engine().memory;
  const Case c = dense_case(1, 130, 140, 1, 1, 64, 64, FA3_BFLOAT16);
  if (!does(c)) return;
  const Inputs inputs = make_inputs(c);
  const ForwardRun near = forward(c, inputs);
  FarTensor q(where, c.q_shape(), c.dtype), k(where, c.k_shape(), c.dtype);
  FarTensor v(where, c.v_shape(), c.dtype), o(where, c.o_shape(), c.dtype);
  q.write(inputs.q);
  k.write(inputs.k);
  v.write(inputs.v);

  Tensor got(c.o_shape(), c.dtype), lse(c.lse_shape(), FA3_FLOAT32);
  fa3_forward_params params = forward_params(engine().id, c, inputs, got, lse);
  params.q = q.view(where);
  params.k = k.view(where);
  params.v = v.view(where);
  params.o = o.view(where);
  Placement placement(where);
  placement.output(&lse, &params.lse);
  size_t bytes = 0;
  ASSERT_EQ(fa3_forward_workspace_size(&params, &bytes), FA3_OK) << fa3_last_error();
  ASSERT_EQ(fa3_forward(&params, placement.workspace(bytes), bytes, nullptr), FA3_OK)
      << fa3_last_error();
  EXPECT_EQ(placement.fetch(), "");
  o.read(&got);
  EXPECT_TRUE(bits_equal("o", got, near.o));
  EXPECT_TRUE(bits_equal("lse", lse, near.lse));
}

}  // namespace
}  // namespace fa3::test
