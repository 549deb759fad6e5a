// SPDX-License-Identifier: Apache-2.0
//
// Attention in GPU memory: causal, 16 query heads that share 4 key/value heads.
#include <cuda_runtime_api.h>
#include <fa3/attention.h>

#include <cstdio>
#include <vector>

int main() {
  const int64_t batch = 2, seq = 4096, heads = 16, kv_heads = 4, dim = 128;
  const auto tensor = [&](int64_t h) {  // (batch, seq, h, dim) in GPU memory, all ones
    const std::vector<uint16_t> ones(batch * seq * h * dim, 0x3f80);  // 1 in bfloat16
    void* data = nullptr;
    cudaMalloc(&data, ones.size() * 2);
    cudaMemcpy(data, ones.data(), ones.size() * 2, cudaMemcpyHostToDevice);
    return fa3::bshd(data, FA3_BFLOAT16, batch, seq, h, dim, {FA3_CUDA, 0});
  };

  fa3::ForwardArgs args;  // bhsd() and strided() describe other layouts
  args.q = tensor(heads);
  args.k = tensor(kv_heads);
  args.v = tensor(kv_heads);
  args.o = tensor(heads);
  args.options.causal = 1;

  size_t bytes = 0;
  void* workspace = nullptr;  // the caller owns all memory
  fa3::Status status = fa3::workspace_size(args, &bytes);
  cudaMalloc(&workspace, bytes);
  if (status.ok()) status = fa3::forward(args, workspace, bytes, /*stream=*/nullptr);
  if (!status.ok()) {
    std::fprintf(stderr, "fa3: %s\n", status.message().c_str());
    return 1;
  }
  uint16_t first = 0;  // the mean of ones is one
  cudaMemcpy(&first, args.o.data, 2, cudaMemcpyDeviceToHost);
  std::printf("o[0] = 0x%04x in bfloat16, expected 0x3f80\n", first);
  return first == 0x3f80 ? 0 : 1;
}
