// SPDX-License-Identifier: Apache-2.0
//
// Attention inside a C++ engine: causal, 8 query heads that share 2 key/value heads.
#include <fa3/attention.h>

#include <cstdio>
#include <random>
#include <vector>

int main() {
  const int64_t batch = 2, seq = 300, heads = 8, kv_heads = 2, dim = 64;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto tensor = [&](int64_t h) {
    std::vector<float> values(static_cast<size_t>(batch * seq * h * dim));
    for (float& value : values) value = normal(random);
    return values;
  };
  const std::vector<float> q = tensor(heads), k = tensor(kv_heads), v = tensor(kv_heads);
  std::vector<float> o(q.size());

  fa3::ForwardArgs args;
  args.q = fa3::bshd(q.data(), FA3_FLOAT32, batch, seq, heads, dim);
  args.k = fa3::bshd(k.data(), FA3_FLOAT32, batch, seq, kv_heads, dim);
  args.v = fa3::bshd(v.data(), FA3_FLOAT32, batch, seq, kv_heads, dim);
  args.o = fa3::bshd(o.data(), FA3_FLOAT32, batch, seq, heads, dim);
  args.options.causal = 1;

  fa3::Workspace workspace;  // keep one per thread: it allocates once
  if (const fa3::Status status = fa3::forward(args, workspace); !status.ok()) {
    std::fprintf(stderr, "fa3: %s\n", status.message().c_str());
    return 1;
  }
  // The first query sees only the first key, so its output is that key's value row.
  std::printf("o[0] = %.6f, v[0] = %.6f, workspace %zu bytes\n", o[0], v[0], workspace.bytes());
  return o[0] == v[0] ? 0 : 1;
}
