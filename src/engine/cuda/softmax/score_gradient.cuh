// SPDX-License-Identifier: Apache-2.0
// The gradients of what a score function captures, in a backward pass that is compiled at run time:
// the text is the body of ScoreGradient::of(). See score_function.cuh.
#pragma once

#include "engine/cuda/ptx/add_to_memory.cuh"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/score_function.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"
#include "engine/cuda/softmax/distance_sums.cuh"
#endif

namespace fa3::cuda {

inline constexpr bool kKeepsScores = kScore.keeps_scores;

// What the body of a gradient sees: of() adds to the gradients of captured tensors, `gradient`
// being that of what the function returned, and `score` what the function was given, if the body
// names it (else nothing). For each tensor a sum over all scores of a thread, or over those of a
// key, is kept beside its address until it is added there.
struct ScoreGradient : ScoreFunction {
  struct Sum {
    float value = 0.0f;
    float* place = nullptr;  // null: there is none
  };
  const ScoreGradientParams& params;
  Sum of_tile[ScoreCaptures::kMost];
  Sum of_key[2][ScoreCaptures::kMost];  // a thread's keys
  int key = 0;                          // which of them comes next
#ifdef FA3_SCORE_FUNCTION
  DistanceSums of_distances;  // one tensor's
  int element = 0;            // of the thread's accumulator, which comes next
#endif
  bool counts =
      true;  // whether the next score does: where P is 0 no slope matters, infinite or not

  __device__ __forceinline__ explicit ScoreGradient(const ScoreGradientParams& p)
      : ScoreFunction{p.captures}, params(p) {}

  // To the gradient of the element that load<T, Number>(indices...) reads.
  template <int Number, class... Indices>
  __device__ __forceinline__ void add(float value, Indices... indices) {
    float* const place = place_of<Number>(indices...);
    if (place != nullptr && counts) add_to_memory(place, value);
  }
  // Like add() where no index depends on q_idx, or on kv_idx either. Once a tensor.
  template <int Number, class... Indices>
  __device__ __forceinline__ void add_for_key(float value, Indices... indices) {
    add_to(of_key[key][Number], value, place_of<Number>(indices...));
  }
  template <int Number, class... Indices>
  __device__ __forceinline__ void add_for_tile(float value, Indices... indices) {
    add_to(of_tile[Number], value, place_of<Number>(indices...));
  }
  // Like add() where the last index changes by Step from key to key and -Step from query to query,
  // and no other depends on either. For one tensor.
  template <int Number, int Step, class... Indices>
  __device__ __forceinline__ void add_for_distance(float value, int last, Indices... others) {
#ifdef FA3_SCORE_FUNCTION
    constexpr int kDim = sizeof...(Indices);
    of_distances.take(element, counts ? value : 0.0f, place_of<Number>(others..., 0), last, Step,
                      params.captures.tensors[Number].extent[kDim]);
#else
    add<Number>(value, others..., last);
#endif
  }

  __device__ __forceinline__ void of(float gradient, float score, int b, int h, int q_idx,
                                     int kv_idx);

#ifdef FA3_SCORE_FUNCTION
  // Behind the last score of a tile of 16 keys or more, in all lanes of a warp: sums for the tile
  // are a warp's, those for a key a quad's.
  __device__ __forceinline__ void add_sums() const {
    const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
    for (int number = 0; number < ScoreCaptures::kMost; ++number) {
      add_sum(of_tile[number], kWarpSize, lane);
      for (const auto& mine : of_key) add_sum(mine[number], kQuadLanes, lane);
    }
    of_distances.finish();
  }
#endif

 private:
#ifdef FA3_SCORE_FUNCTION
  __device__ __forceinline__ static void add_sum(const Sum& sum, int lanes, int lane) {
    if (sum.place == nullptr) return;
    float value = sum.value;
#pragma unroll
    for (int distance = 1; distance < lanes; distance *= 2) {
      value += __shfl_xor_sync(0xffffffff, value, distance);
    }
    if (lane % lanes == 0 && value != 0.0f) add_to_memory(sum.place, value);
  }
#endif
  __device__ __forceinline__ void add_to(Sum& sum, float value, float* place) {
    sum.value += counts ? value : 0.0f;
    sum.place = place;
  }
  template <int Number, class... Indices>
  __device__ __forceinline__ float* place_of(Indices... indices) const {
    static_assert(Number < ScoreCaptures::kMost && sizeof...(Indices) <= ScoreCaptures::kDims);
    const ScoreCaptures::Tensor& tensor = params.captures.tensors[Number];
    const ScoreGradientParams::Gradient& gradient = params.gradients[Number];
    int64_t place = 0;
    int dim = 0;
    ((place += int64_t{within(indices, tensor.extent[dim])} * gradient.stride[dim], ++dim), ...);
    return gradient.data == nullptr ? nullptr : gradient.data + place;
  }
};

#ifdef FA3_SCORE_FUNCTION
// What is kept of a score in 16 bits until its dP is there: the function's slope; or the score
// itself, if gradients of captured tensors ask for it: then the slope is computed again. Scores are
// kept in float16, whose steps are an eighth of bfloat16's, to its largest number: slopes may
// change much faster than what they are slopes of.
template <Element E>
struct KeptScores {
  static __device__ __forceinline__ float of(const ScoreFunction& function, float score, int b,
                                             int h, int q_idx, int kv_idx) {
    if constexpr (kKeepsScores) return fminf(fmaxf(score, -kLargest), kLargest);
    return function.slope(score, b, h, q_idx, kv_idx);
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return pack_pair<kElement>(low, high);
  }
  static __device__ __forceinline__ void unpack(uint32_t pair, float (&kept)[2]) {
    unpack_pair<kElement>(pair, kept[0], kept[1]);
  }
  static __device__ __forceinline__ float slope(const ScoreFunction& function, float kept, int b,
                                                int h, int q_idx, int kv_idx) {
    if constexpr (kKeepsScores) return function.slope(kept, b, h, q_idx, kv_idx);
    return kept;
  }

 private:
  static constexpr Element kElement = kKeepsScores ? Element::kFp16 : E;
  static constexpr float kLargest = 65504.0f;
};
#endif

}  // namespace fa3::cuda
