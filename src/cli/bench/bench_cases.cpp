// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_cases.h"

#include "cli/flags.h"
#include "core/threads.h"

namespace fa3::cli {
namespace {

constexpr int64_t kFollow = -1;

std::vector<int64_t> or_follow(const std::vector<int64_t>& values) {
  return values.empty() ? std::vector{kFollow} : values;
}

int64_t followed(int64_t value, int64_t like) {
  return value == kFollow ? like : value;
}

// Replaces every case by one per value.
template <class Values, class Set>
void expand(std::vector<BenchCase>* cases, const Values& values, Set&& set) {
  std::vector<BenchCase> expanded;
  for (const BenchCase& base : *cases) {
    for (const auto& value : values) set(expanded.emplace_back(base), value);
  }
  *cases = std::move(expanded);
}

}  // namespace

std::vector<BenchCase> sweep(const SweepFlags& flags) {
  using Case = BenchCase;
  using Name = std::string;
  std::vector<Case> all = {{}};
  expand(&all, flags.pass, [](Case& c, const Name& name) { c.backward = name == "bwd"; });
  expand(&all, flags.dtype, [](Case& c, const Name& name) { c.dtype = dtype_of(name); });
  expand(&all, flags.threads,
         [](Case& c, int64_t n) { c.threads = n > 0 ? static_cast<int>(n) : available_threads(); });
  expand(&all, flags.batch, [](Case& c, int64_t n) { c.shape.batch = n; });
  expand(&all, flags.heads, [](Case& c, int64_t n) { c.shape.heads = n; });
  expand(&all, or_follow(flags.kv_heads),
         [](Case& c, int64_t n) { c.shape.kv_heads = followed(n, c.shape.heads); });
  expand(&all, flags.seqlen, [](Case& c, int64_t n) { c.shape.seqlen_q = n; });
  expand(&all, or_follow(flags.seqlen_k),
         [](Case& c, int64_t n) { c.shape.seqlen_k = followed(n, c.shape.seqlen_q); });
  expand(&all, flags.head_dim, [](Case& c, int64_t n) { c.shape.head_dim = n; });
  expand(&all, or_follow(flags.head_dim_v),
         [](Case& c, int64_t n) { c.shape.head_dim_v = followed(n, c.shape.head_dim); });
  expand(&all, flags.causal, [](Case& c, int64_t on) { c.causal = on == 1; });
  expand(&all, flags.engine, [](Case& c, const Name& name) { c.engine = name; });
  return all;
}

}  // namespace fa3::cli
