// SPDX-License-Identifier: Apache-2.0
// A score function of the caller's (cuda/softmax/score_function.cuh) on the scores of a stage, in
// decode kernels that are compiled at run time. Next: warp_rows.cuh.
#pragma once

#include "engine/cuda/softmax/score_function.cuh"
#include "engine/hopper/decode/warp_rows.cuh"
#include "engine/hopper/decode/work_tiles.cuh"

namespace fa3::hopper {

template <Kernel C>
struct FunctionRows {
  // first: the stage's first key. Sequences of a decode call are batch entries of Q. Rows and keys
  // that do not exist have scores too, which count for nothing.
  static __device__ __forceinline__ void apply(WarpRows<C>& rows, const ForwardParams& params,
                                               const DecodeTile& item, int first) {
    constexpr int kCount = WarpRows<C>::kScores;
    const cuda::PackGqa pack = params.output.pack;
    const auto score_of = [&](const ScoreFunction& f, int i) {
      const int row = rows.row_of(i);
      return f.of(rows.natural_score(i), item.queries.batch, pack.head(item.queries.pack, row),
                  pack.query(row), first + rows.key_of(i));
    };
    const ScoreFunction function{params.score.captures};
    function.choose<kCount>(score_of, [&](const ScoreFunction& f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) rows.set_score(i, score_of(f, i));
    });
  }
};

}  // namespace fa3::hopper
