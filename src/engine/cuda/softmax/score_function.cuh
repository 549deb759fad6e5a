// SPDX-License-Identifier: Apache-2.0
// A score function that is compiled at run time (launch/score_program.h): its text is the body of
// ScoreFunction::of(), which may use what stands in this file; in a backward pass there are those
// of slope() and of ScoreGradient::of() (score_gradient.cuh) too. Kernels of the library's own
// tables have none; FA3_SCORE_FUNCTION says that this compilation has. Also compiles as plain C++:
// that is how text is tested on the host.
#pragma once

#include "engine/cuda/softmax/score_captures.h"

#if !defined(__CUDACC__) && !defined(__device__)
#define __device__
#define __forceinline__ inline
#endif

namespace fa3::cuda {

// What the two 16-bit types of captured tensors are in memory.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

namespace score {

__device__ __forceinline__ float from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Loaded numbers as the function computes with them: float, int or bool.
__device__ __forceinline__ float number_of(float x) {
  return x;
}
__device__ __forceinline__ float number_of(Bfloat x) {
  return from_bits(uint32_t{x.bits} << 16);
}
__device__ __forceinline__ float number_of(Half x) {
#ifdef __CUDACC__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return float(__builtin_bit_cast(_Float16, x.bits));
#endif
}
__device__ __forceinline__ double number_of(double x) {
  return x;
}
__device__ __forceinline__ bool number_of(bool x) {
  return x;
}
template <class Int>
__device__ __forceinline__ int number_of(Int x) {
  return int(x);
}

template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a != a ? a : b > a || b != b ? b : a;  // NaN, if either is
}
template <class T>
__device__ __forceinline__ T minimum(T a, T b) {
  return a != a ? a : b < a || b != b ? b : a;
}
template <class T>
__device__ __forceinline__ T absolute(T x) {
  return x < T(0) ? -x : x;
}
__device__ __forceinline__ float absolute(float x) {
  return fabsf(x);
}
template <class T>
__device__ __forceinline__ T sign(T x) {
  return T(x > T(0)) - T(x < T(0));
}

// Towards minus infinity, and 0 where the divisor is: integers have nothing else to be.
__device__ __forceinline__ int floor_div(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return int(0u - unsigned(a));
  const int quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}
__device__ __forceinline__ int truncated_div(int a, int b) {
  return b == 0 ? 0 : b == -1 ? int(0u - unsigned(a)) : a / b;
}
__device__ __forceinline__ int remainder(int a, int b) {
  if (b == 0 || b == -1) return 0;
  const int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
__device__ __forceinline__ float remainder(float a, float b) {
  return a - floorf(a / b) * b;
}
__device__ __forceinline__ int shift_left(int a, int b) {
  return b < 0 || b > 31 ? 0 : int(unsigned(a) << b);
}
__device__ __forceinline__ int shift_right(int a, int b) {
  return a >> (b < 0 || b > 31 ? 31 : b);
}
// For numbers below 2^22, two instructions of full rate, where a conversion has an eighth of it.
__device__ __forceinline__ float small_to_float(int x) {
  constexpr int kBits = 0x4b400000;  // 1.5 * 2^23, whose last place is 1
  return from_bits(uint32_t(kBits + x)) - from_bits(kBits);
}
__device__ __forceinline__ int to_int(float x) {
  return x >= 2147483648.0f    ? 2147483647
         : x >= -2147483648.0f ? int(x)
         : x != x              ? 0
                               : -2147483647 - 1;
}
__device__ __forceinline__ int to_int(bool x) {
  return x;
}

// By the hardware's 2^x and log2 on a GPU.
#ifdef __CUDACC__
__device__ __forceinline__ float exponential2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float logarithm2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Volatile: it is not to move behind the products that are waited for.
__device__ __forceinline__ uint32_t load_pair(const void* place) {
  uint32_t pair;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(pair) : "l"(place));
  return pair;
}
#else
inline uint32_t load_pair(const void* place) {
  const auto* const halves = static_cast<const uint16_t*>(place);
  return halves[0] | uint32_t{halves[1]} << 16;
}
inline float exponential2(float x) {
  return exp2f(x);
}
inline float logarithm2(float x) {
  return log2f(x);
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float reciprocal(float x) {
  return 1.0f / x;
}
#endif
__device__ __forceinline__ float exponential(float x) {
  return exponential2(x * 1.44269504f);
}
__device__ __forceinline__ float logarithm(float x) {
  return logarithm2(x) * 0.693147181f;
}
__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(1.0f + exponential(-x));
}
// Near zero an odd polynomial, within 1e-7 of itself (soft_cap.h): 1 - 2 / (e^2x + 1) cancels
// there.
constexpr float kNear = 0.4f;
__device__ __forceinline__ float tangent_near_zero(float x) {
  const float square = x * x;
  return x *
         (0.99999990f + square * (-0.33331362f + square * (0.13270977f + square * -0.047553603f)));
}
__device__ __forceinline__ float tangent_anywhere(float x) {
  const float size = absolute(x);
  const float large = 1.0f - 2.0f * reciprocal(exponential2(size * 2.88539008f) + 1.0f);
  return size <= kNear ? tangent_near_zero(x) : x < 0.0f ? -large : large;
}

}  // namespace score

// Where load_of_key() finds its element; nothing of this: in memory.
struct Pair {
  const uint32_t* word = nullptr;  // of it and its neighbour,
  bool second = false;             // of which it is the second
  const void** place = nullptr;    // becomes its address, and nothing is loaded
  int* tile = nullptr;             // of load_of_score(): becomes its other indices, likewise
};

// Where load_run() finds the elements of a thread's keys in a block.
struct Run {
  const void* first;  // of the first key
  bool is_inside;     // all are elements of the tensor, which lie beside each other
};
#ifdef FA3_SCORE_CLAMPED_RUN  // a text that adds to the score loads by load_clamped_run(), once
inline constexpr bool kLoadsClampedRun = true;
#else
inline constexpr bool kLoadsClampedRun = false;
#endif

// Where load_clamped_run() finds the element of one key. What is at another one, `last`, tells of
// those between, for indices never turn back: that they lie beside each other, or are one element.
struct ClampedRun {
  const char* element;
  int step;  // to the next key's, in bytes; 0: elements do not lie beside each other

  __device__ __forceinline__ bool goes_on(const ClampedRun& last, int keys) const {
    return step != 0 && last.step != 0 && last.element - element == int64_t{step} * keys;
  }
  __device__ __forceinline__ bool stays(const ClampedRun& last) const {
    return step != 0 && last.step != 0 && last.element == element;
  }
};

// What a function's body sees: the captured tensors, and tanh.
struct ScoreFunction {
  const ScoreCaptures& captures;
  // Not null: all tangents are those near zero, and this becomes the largest argument.
  float* reach = nullptr;
  Pair pair{};
  float* step = nullptr;              // becomes that of a line
  Run* run = nullptr;                 // of load_run(): becomes where it is, and nothing is loaded,
  const Run* in_run = nullptr;        // or where it was found to be,
  int column = 0;                     // and the key in it; of the last one where it is looked for
  ClampedRun* clamped_run = nullptr;  // of load_clamped_run(), likewise

  // x, which changes by a step from key to key.
  __device__ __forceinline__ float linear(float x, float its_step) const {
    if (step != nullptr) *step = its_step;
    return x;
  }
  // Two lines that meet: x changes by one step up to some key, by another behind it.
  __device__ __forceinline__ float piecewise_linear(float x, float its_step) const {
    return linear(x, its_step);
  }

  // x, which knows nothing of q_idx.
  __device__ __forceinline__ float key_term(float x) const { return x; }

  __device__ __forceinline__ float tangent(float x) const {
    if (reach == nullptr) return score::tangent_anywhere(x);
    *reach = fmaxf(*reach, fabsf(x));  // NaN is not the largest: either way keeps it
    return score::tangent_near_zero(x);
  }

  // The element of tensor `Number` at these indices: one for each of its dimensions. Negative ones
  // count from the end, then all are clamped.
  template <class T, int Number, class... Indices>
  __device__ __forceinline__ auto load(Indices... indices) const {
    return score::number_of(element<T, Number>(indices...));
  }

  // The same of 16 bits, whose last index is kv_idx and whose others know nothing of it. A forward
  // loads two neighbours at once, a block ahead.
  template <class T, int Number, class... Indices>
  __device__ __forceinline__ float load_of_key(int kv_idx, Indices... others) const {
    static_assert(sizeof(T) == sizeof(uint16_t));
    if (pair.place != nullptr) {
      *pair.place = &element<T, Number>(others..., Unclamped{kv_idx});
      return 0.0f;
    }
    if (pair.word == nullptr) return load<T, Number>(others..., unsigned(kv_idx));
    return score::number_of(T{uint16_t(*pair.word >> (pair.second ? 16 : 0))});
  }
  // The same of the element whose last two indices are q_idx and kv_idx, where the others know
  // nothing of either: such elements make tiles like the scores.
  template <class T, int Number, class... Indices>
  __device__ __forceinline__ float load_of_score(int q_idx, int kv_idx, Indices... others) const {
    static_assert(sizeof...(Indices) <= kTileIndices);
    if (pair.tile != nullptr) {
      int dim = 0;
      ((pair.tile[dim] = within(others, captures.tensors[Number].extent[dim]), ++dim), ...);
      return 0.0f;
    }
    return load_of_key<T, Number>(kv_idx, others..., unsigned(q_idx));
  }
  // The same of an element whose last index changes by Step from key to key, where the others know
  // nothing of kv_idx.
  template <class T, int Number, int Step, class... Indices>
  __device__ __forceinline__ auto load_run(int last, Indices... others) const {
    if (in_run != nullptr) {
      return score::number_of(static_cast<const T*>(in_run->first)[Step * column]);
    }
    if (run != nullptr) {
      const ScoreCaptures::Tensor& tensor = captures.tensors[Number];
      constexpr int kDim = sizeof...(Indices);
      const unsigned extent = unsigned(tensor.extent[kDim]);
      const bool is_inside = unsigned(last) < extent && unsigned(last + Step * column) < extent;
      *run = {&element<T, Number>(others..., Unclamped{is_inside ? last : 0}),
              is_inside && tensor.stride[kDim] == 1};
      return score::number_of(T{});
    }
    return load<T, Number>(others..., last);
  }
  // The same where bounds may hold the index, which then stays, and nothing turns it back.
  template <class T, int Number, int Step, class... Indices>
  __device__ __forceinline__ auto load_clamped_run(int last, Indices... others) const {
    if (clamped_run == nullptr || in_run != nullptr) {
      return load_run<T, Number, Step>(last, others...);
    }
    const bool is_beside = last >= 0 && captures.tensors[Number].stride[sizeof...(Indices)] == 1;
    *clamped_run = {reinterpret_cast<const char*>(&element<T, Number>(others..., unsigned(last))),
                    is_beside ? Step * int(sizeof(T)) : 0};
    return score::number_of(T{});
  }
  static constexpr int kTileIndices = ScoreCaptures::kDims - 2;

  // Those indices where the tensor's elements are: 0 along what it repeats.
  __device__ __forceinline__ void place_tile(int (&indices)[kTileIndices]) const {
#pragma unroll
    for (int dim = 0; dim < kTileIndices; ++dim) {
      if (captures.tensors[kTileTensor].stride[dim] == 0) indices[dim] = 0;
    }
  }

  // Whether the elements of these keys lie beside each other, each two in a word.
  template <int Number>
  __device__ __forceinline__ bool has_pairs(int first_key, int keys) const {
    return first_key % 2 == 0 && first_key + keys <= captures.tensors[Number].extent_of_pairs;
  }

  __device__ __forceinline__ float of(float score, int b, int h, int q_idx, int kv_idx) const;
  // d of / d score.
  __device__ __forceinline__ float slope(float score, int b, int h, int q_idx, int kv_idx) const;

  // Whether all tangents of a warp's scores are near zero: then apply() gets a function that
  // takes no others, for a third of the time, and else this one. score_of(function, i): the i-th of
  // the thread's.
  template <int Count, class ScoreOf, class Apply>
  __device__ __forceinline__ void choose([[maybe_unused]] const ScoreOf& score_of,
                                         const Apply& apply) const {
#ifdef FA3_SCORE_HAS_TANGENT
    float reach[4] = {};  // as many chains of dependent instructions
#pragma unroll
    for (int i = 0; i < Count; ++i) score_of(ScoreFunction{captures, &reach[i % 4]}, i);
    const float largest = fmaxf(fmaxf(reach[0], reach[1]), fmaxf(reach[2], reach[3]));
    if (__all_sync(0xffffffff, largest <= score::kNear)) {
      float unread = 0.0f;
      apply(ScoreFunction{captures, &unread});
      return;
    }
#endif
    apply(*this);
  }

 protected:
  // An index of a dimension whose elements lie beside each other, which is known to be within it.
  struct Unclamped {
    int index;
  };

  template <class T, int Number, class... Indices>
  __device__ __forceinline__ const T& element(Indices... indices) const {
    static_assert(Number < ScoreCaptures::kMost && sizeof...(Indices) <= ScoreCaptures::kDims);
    const ScoreCaptures::Tensor& tensor = captures.tensors[Number];
    int64_t place = 0;
    int dim = 0;
    ((place += offset(indices, tensor.extent[dim], tensor.stride[dim]), ++dim), ...);
    return static_cast<const T*>(tensor.data)[place];
  }
  template <class Index>
  __device__ __forceinline__ static int64_t offset(Index index, int extent, int stride) {
    return int64_t{within(index, extent)} * stride;
  }
  __device__ __forceinline__ static int64_t offset(Unclamped key, int, int) {
    return key.index;
  }

  // Known to be at least 0.
  __device__ __forceinline__ static int within(unsigned index, int extent) {
    return int(index < unsigned(extent) ? index : unsigned(extent) - 1);
  }
  __device__ __forceinline__ static int within(int index, int extent) {
    const int from_begin = index < 0 ? index + extent : index;
    return from_begin < 0 ? 0 : from_begin < extent ? from_begin : extent - 1;
  }
};

}  // namespace fa3::cuda
