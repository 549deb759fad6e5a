// SPDX-License-Identifier: Apache-2.0
//
// Calls of the C ABI over addresses of a GPU's memory, where nothing lies: for a CUDA runtime that
// only counts (counting_runtime.h).
#pragma once

#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace fa3::test {

inline void* address(int number) {
  return reinterpret_cast<void*>(uintptr_t{0x100000000} * static_cast<uintptr_t>(number + 1));
}

inline fa3_tensor on_gpu(int number, fa3_dtype dtype, std::initializer_list<int64_t> shape) {
  fa3_tensor tensor = contiguous(address(number), dtype, shape);
  tensor.device_type = FA3_CUDA;
  return tensor;
}

inline fa3_tensor halves(int number, std::initializer_list<int64_t> shape) {
  return on_gpu(number, FA3_BFLOAT16, shape);
}

// New tokens of sequences whose keys lie in pages, and whose lengths are on the device.
inline ForwardArgs decoding_step(int64_t sequences = 1, int64_t tokens = 1) {
  ForwardArgs step;
  step.q = halves(0, {sequences, tokens, 64, 128});
  step.k = halves(1, {512, 16, 8, 128});
  step.v = halves(2, {512, 16, 8, 128});
  step.o = halves(3, {sequences, tokens, 64, 128});
  step.page_table = on_gpu(4, FA3_INT32, {sequences, 512});
  step.options.seqused_k = on_gpu(5, FA3_INT32, {sequences});
  step.options.causal = 1;
  return step;
}

inline ForwardArgs causal_prompt() {
  ForwardArgs prompt;
  prompt.q = halves(0, {1, 4096, 16, 128});
  prompt.k = halves(1, {1, 4096, 16, 128});
  prompt.v = halves(2, {1, 4096, 16, 128});
  prompt.o = halves(3, {1, 4096, 16, 128});
  prompt.options.causal = 1;
  return prompt;
}

inline ForwardArgs step_on(int device) {
  ForwardArgs step = decoding_step();
  for (fa3_tensor* tensor :
       {&step.q, &step.k, &step.v, &step.o, &step.page_table, &step.options.seqused_k}) {
    tensor->device_index = device;
  }
  return step;
}

inline fa3_status run(const ForwardArgs& args) {
  return fa3_forward(&args, address(6), size_t{1} << 28, nullptr);
}

inline ForwardArgs over_quantized_cache(ForwardArgs step) {
  step.k = on_gpu(1, FA3_FLOAT8_E4M3, {512, 16, 8, 128});
  step.v = on_gpu(2, FA3_FLOAT8_E4M3, {512, 16, 8, 128});
  return step;
}

inline ForwardArgs in_e4m3(ForwardArgs prompt) {
  for (fa3_tensor* tensor : {&prompt.q, &prompt.k, &prompt.v}) tensor->dtype = FA3_FLOAT8_E4M3;
  return prompt;
}

// New tokens over the pages of a batch, by every array that may say where they are.
inline ForwardArgs many_tokens_of_few_splits() {
  ForwardArgs step = decoding_step(64, 1);
  step.q = halves(0, {8192, 32, 128});
  step.o = halves(3, {8192, 32, 128});
  step.options.cu_seqlens_q = on_gpu(7, FA3_INT32, {65});
  step.num_splits = 4;
  return step;
}

inline std::string words_of(const ForwardArgs& args) {
  char words[1024] = "";
  EXPECT_EQ(fa3_forward_plan_text(&args, words, sizeof words, nullptr), FA3_OK) << fa3_last_error();
  return words;
}

}  // namespace fa3::test
