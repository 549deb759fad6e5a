// SPDX-License-Identifier: Apache-2.0
//
// What engines are told of strides that lead nowhere, and of threads.
#include "api/describe/rules/operand_rules.h"

#include <gtest/gtest.h>

#include "core/threads.h"

namespace fa3::api {
namespace {

fa3_tensor tensor(fa3_device_type device, int64_t rows) {
  return {nullptr, FA3_FLOAT16, device, 0, 4, {1, rows, 3, 8}, {rows * 24, 24, 8, 1}};
}

TEST(Strides, of_a_single_row_or_sequence_are_zero) {
  const fa3_tensor one = tensor(FA3_CPU, 1);
  EXPECT_EQ(stride_of(one, 0), 0);
  EXPECT_EQ(stride_of(one, 1), 0);
  EXPECT_EQ(stride_of(one, 2), 8);
}

// Nothing may be added to the null pointer of an empty tensor; engines that want strides pick some.
TEST(Strides, of_an_empty_tensor_are_zero) {
  EXPECT_EQ(stride_of(tensor(FA3_CPU, 0), 2), 0);
  EXPECT_EQ(stride_of(tensor(FA3_CUDA, 0), 2), 0);
}

TEST(Threads, are_those_asked_for_else_all_of_the_cpu_else_the_caller) {
  for (const auto& [asked, device, expected] : {std::tuple{3, FA3_CPU, 3},
                                                {3, FA3_CUDA, 3},
                                                {0, FA3_CPU, available_threads()},
                                                {0, FA3_CUDA, 1}}) {
    int threads = 0;
    EXPECT_TRUE(resolve_threads(asked, device, &threads).ok());
    EXPECT_EQ(threads, expected);
  }
}

}  // namespace
}  // namespace fa3::api
