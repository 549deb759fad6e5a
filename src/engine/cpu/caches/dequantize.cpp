// SPDX-License-Identifier: Apache-2.0
//
// The quantizer's inverse: a row of e4m3 numbers is scaled and gets its mean in float32, is turned
// back by the Hadamard matrix and the signs, and rounded once. Compiled without contraction of
// products and sums, so that all engines give the same bits.
#include <vector>

#include "core/float_environment.h"
#include "engine/cpu/caches/caches.h"
#include "engine/cpu/caches/hadamard.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

// What row `row` of a sequence stands for; `from` is where the tensor has it.
void load_numbers(const QuantizeProblem& p, int64_t b, int64_t row, int64_t from, int64_t head,
                  std::vector<float>* numbers) {
  const auto dim = static_cast<size_t>(p.head_dim);
  numbers->resize(dim);
  const Float8E4M3* y = p.y_transposed.on ? p.y_transposed.at<Float8E4M3>(p.y, b, from, head, 0)
                                          : p.y.at<Float8E4M3>(b, from, head);
  const int64_t stride = p.y_transposed.on ? p.y_transposed.channel_stride : 1;
  const float scale = *p.descale.at(b, head, row / kDescaleRows);
  const float* const mean = p.centred ? p.mean.at(b, head) : nullptr;
  for (size_t c = 0; c < dim; ++c, y += stride) {
    (*numbers)[c] = to_float(*y) * scale;
    if (mean != nullptr) (*numbers)[c] += mean[c];
  }
}

void dequantize(const QuantizeProblem& p) {
  std::vector<float> signs;
  if (p.hadamard) signs = random_signs(p.seed, p.head_dim);
  const int64_t blocks = descale_blocks(p.lengths.max);
  parallel_for(p.batch * p.heads * blocks, p.num_threads, [&](int64_t task, int) {
    const int64_t b = task / blocks / p.heads, head = task / blocks % p.heads;
    const int64_t first = task % blocks * kDescaleRows;
    const Rows rows = p.lengths.rows_of(b);
    std::vector<float> numbers;
    for (int64_t row = first; row < std::min(rows.used, first + kDescaleRows); ++row) {
      load_numbers(p, b, row, rows.begin + row, head, &numbers);
      if (p.hadamard) {
        multiply_by_hadamard(p.head_dim, numbers.data());
        multiply_by_signs(signs, numbers.data());
      }
      visit_dtype(p.x.dtype, [&]<class T>(T) {
        store_row(numbers.data(), p.head_dim, p.x.at<T>(b, rows.begin + row, head));
      });
    }
  });
  zero_unused_rows(p.x, p.lengths, p.batch, p.heads, p.head_dim);
}

}  // namespace

Status run_dequantize(const DequantizeProblem& problem, void*) {
  const DefaultFloatEnvironment environment;
  for (const QuantizeProblem& p : problem.tensors) dequantize(p);
  return {};
}

}  // namespace fa3::cpu
