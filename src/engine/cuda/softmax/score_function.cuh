// SPDX-License-Identifier: Apache-2.0
// A score function that is compiled at run time (launch/score_program.h): its pieces are the bodies
// of ScoreFunction::text() and indices(), which may use what stands in this file and in
// score_words.cuh; in a backward pass there are those of slope() and of ScoreGradient::of()
// (score_gradient.cuh) too. Kernels of the library's own tables have none. Also compiles as plain
// C++: that is how text is tested on the host.
#pragma once

#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/score_words.cuh"

namespace fa3::cuda {

// What an element is to a function: a float, double, int or bool.
using ScoreNumber = decltype(score::number_of(ScoreElement{}));

// One of two neighbours of 16 bits in a word.
template <class T = ScoreElement>
__device__ __forceinline__ ScoreNumber element_of_pair(uint32_t word, bool second) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  return score::number_of(__builtin_bit_cast(T, uint16_t(word >> (second ? 16 : 0))));
}

// Where the elements of a thread's keys in a block are.
struct Run {
  const void* first;  // of the first key
  bool is_inside;     // all are elements of the tensor, which lie beside each other

  // The element of the key that is this many behind the first.
  __device__ __forceinline__ ScoreNumber element(int column) const {
    return score::number_of(static_cast<const ScoreElement*>(first)[kScore.step * column]);
  }
};

// Where the element of one key is, if bounds may hold its index. What is at another one, `last`,
// tells of those between, for indices never turn back: that they lie beside each other, or are one
// element.
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

// {number, step}: what is added for a key, and by how much that changes to the next one.
struct ScoreLine {
  float number, step;
};

// What a function's bodies see: the captured tensors, and tanh.
struct ScoreFunction {
  const ScoreCaptures& captures;
  // Not null: all tangents are those near zero, and this becomes the largest argument.
  float* reach = nullptr;

  __device__ __forceinline__ float tangent(float x) const {
    if (reach == nullptr) return score::tangent_anywhere(x);
    *reach = fmaxf(*reach, fabsf(x));  // NaN is not the largest: either way keeps it
    return score::tangent_near_zero(x);
  }

  // The element of tensor `Number` at these indices: one for each of its dimensions. Negative ones
  // count from the end, then all are clamped.
  template <class T, int Number, class... Indices>
  __device__ __forceinline__ auto load(Indices... indices) const {
    return score::number_of(element_at<T, Number>(indices...));
  }

  // The pieces of a function. A program has one text(), by its ScoreKind: the new score, or what is
  // added to it. Templates: compilers ask for no body where a branch is not taken.
  template <ScoreKind>
  __device__ __forceinline__ float text(float score, ScoreNumber x, int b, int h, int q_idx,
                                        int kv_idx) const;
  template <ScoreKind>
  __device__ __forceinline__ float text(ScoreNumber x, int b, int h, int q_idx, int kv_idx) const;
  template <ScoreKind>
  __device__ __forceinline__ float text(int b, int h, int kv_idx) const;
  template <ScoreKind>
  __device__ __forceinline__ ScoreLine text(int b, int h, int q_idx, int kv_idx) const;
  // And one indices(), by the ElementKind: it returns at(i, ...), where At is one of the classes
  // below.
  template <class At>
  __device__ __forceinline__ typename At::Result indices(const At& at, int b, int h) const;
  template <class At>
  __device__ __forceinline__ typename At::Result indices(const At& at, int b, int h,
                                                         int q_idx) const;
  template <class At>
  __device__ __forceinline__ typename At::Result indices(const At& at, int b, int h, int q_idx,
                                                         int kv_idx) const;
  // d of / d score.
  __device__ __forceinline__ float slope(float score, int b, int h, int q_idx, int kv_idx) const;

  // The new score, where x is read from memory, or is at hand.
  __device__ __forceinline__ float of(float score, int b, int h, int q_idx, int kv_idx) const {
    return of_element(x_at(b, h, q_idx, kv_idx), score, b, h, q_idx, kv_idx);
  }
  template <ScoreKind Kind = kScore.kind>
  __device__ __forceinline__ float of_element(ScoreNumber x, float score, int b, int h, int q_idx,
                                              int kv_idx) const {
    if constexpr (Kind == ScoreKind::kAny) {
      return text<Kind>(score, x, b, h, q_idx, kv_idx);
    } else {
      return score + added<Kind>(x, b, h, q_idx, kv_idx);
    }
  }
  // What the function adds, if it does nothing else.
  template <ScoreKind Kind = kScore.kind>
  __device__ __forceinline__ float added(ScoreNumber x, int b, int h, int q_idx, int kv_idx) const {
    if constexpr (Kind == ScoreKind::kKeyTerm) {
      return text<Kind>(b, h, kv_idx);
    } else if constexpr (Kind == ScoreKind::kAdded) {
      return text<Kind>(x, b, h, q_idx, kv_idx);
    } else {
      return line<Kind>(b, h, q_idx, kv_idx).number;
    }
  }

  template <ScoreKind Kind = kScore.kind>
  __device__ __forceinline__ ScoreLine line(int b, int h, int q_idx, int kv_idx) const {
    if constexpr (Kind == ScoreKind::kRowLine || Kind == ScoreKind::kRowLines) {
      return text<Kind>(b, h, q_idx, kv_idx);
    } else {
      return {};  // never called
    }
  }

  __device__ __forceinline__ ScoreNumber x_at(int b, int h, int q_idx, int kv_idx) const {
    if constexpr (kScore.element == ElementKind::kNone) {
      return {};
    } else {
      return place(Memory{*this, q_idx, kv_idx}, b, h, q_idx, kv_idx);
    }
  }
  // What `at` makes of the element's indices.
  template <class At>
  __device__ __forceinline__ typename At::Result place(const At& at, int b, int h, int q_idx,
                                                       int kv_idx) const {
    if constexpr (kScore.element == ElementKind::kOfScore) {
      return indices(at, b, h);
    } else if constexpr (kScore.element == ElementKind::kOfKey) {
      return indices(at, b, h, q_idx);
    } else {
      return indices(at, b, h, q_idx, kv_idx);
    }
  }

  // Reads the element.
  struct Memory {
    using Result = ScoreNumber;
    const ScoreFunction& f;
    int q_idx, kv_idx;

    template <class... Indices>
    __device__ __forceinline__ ScoreNumber operator()(Indices... i) const {
      if constexpr (kScore.element == ElementKind::kOfScore) {
        return f.load<ScoreElement, kScore.tensor>(i..., unsigned(q_idx), unsigned(kv_idx));
      } else if constexpr (kScore.element == ElementKind::kOfKey) {
        return f.load<ScoreElement, kScore.tensor>(i..., unsigned(kv_idx));
      } else {
        return f.load<ScoreElement, kScore.tensor>(i...);
      }
    }
  };
  // Its address, if it is that of a score or key within the tensor's last dimension.
  struct Address {
    using Result = const void*;
    const ScoreFunction& f;
    int q_idx, kv_idx;

    template <class... Indices>
    __device__ __forceinline__ const void* operator()(Indices... i) const {
      if constexpr (kScore.element == ElementKind::kOfScore) {
        return &f.element_at<ScoreElement, kScore.tensor>(i..., unsigned(q_idx), Unclamped{kv_idx});
      } else {
        return &f.element_at<ScoreElement, kScore.tensor>(i..., Unclamped{kv_idx});
      }
    }
  };
  // The indices before those of the query and the key, where the tensor's elements are: 0 along
  // what it repeats.
  struct Tile {
    static constexpr int kIndices = ScoreCaptures::kDims - 2;
    struct Result {
      int index[kIndices];
    };
    const ScoreFunction& f;
    bool repeats = true;  // false: where each element is another one

    template <class... Indices>
    __device__ __forceinline__ Result operator()(Indices... i) const {
      static_assert(sizeof...(Indices) <= kIndices);
      const ScoreCaptures::Tensor& tensor = f.captures.tensors[kScore.tensor];
      Result found{};
      int dim = 0;
      ((found.index[dim] = within(i, tensor.extent[dim]), ++dim), ...);
#pragma unroll
      for (int d = 0; d < kIndices; ++d) {
        if (repeats && tensor.stride[d] == 0) found.index[d] = 0;
      }
      return found;
    }
  };
  // Where the elements from this key to the one `column` keys behind it are.
  struct RunAt {
    using Result = Run;
    const ScoreFunction& f;
    int column;

    template <class... Indices>
    __device__ __forceinline__ Run operator()(Indices... i) const {
      const ScoreCaptures::Tensor& tensor = f.captures.tensors[kScore.tensor];
      constexpr int kDim = sizeof...(Indices) - 1;
      const unsigned extent = unsigned(tensor.extent[kDim]);
      const int last = last_of(i...);
      const bool is_inside =
          unsigned(last) < extent && unsigned(last + kScore.step * column) < extent;
      return {&f.element_in_row(Unclamped{is_inside ? last : 0}, i...),
              is_inside && tensor.stride[kDim] == 1};
    }
  };
  struct ClampedRunAt {
    using Result = ClampedRun;
    const ScoreFunction& f;

    template <class... Indices>
    __device__ __forceinline__ ClampedRun operator()(Indices... i) const {
      const int last = last_of(i...);
      const bool is_beside =
          last >= 0 && f.captures.tensors[kScore.tensor].stride[sizeof...(Indices) - 1] == 1;
      return {reinterpret_cast<const char*>(&f.element_in_row(unsigned(last), i...)),
              is_beside ? kScore.step * int(sizeof(ScoreElement)) : 0};
    }
  };

  // Whether the elements of these keys lie beside each other, each two in a word.
  __device__ __forceinline__ bool has_pairs(int first_key, int keys) const {
    return first_key % 2 == 0 &&
           first_key + keys <= captures.tensors[kScore.tensor].extent_of_pairs;
  }

  // Whether all tangents of a warp's scores are near zero: then apply() gets a function that
  // takes no others, for a third of the time, and else this one. score_of(function, i): the i-th of
  // the thread's.
  template <int Count, class ScoreAt, class Apply>
  __device__ __forceinline__ void choose([[maybe_unused]] const ScoreAt& score_of,
                                         const Apply& apply) const {
    if constexpr (kScore.repeats_tangents) {
      float reach[4] = {};  // as many chains of dependent instructions
#pragma unroll
      for (int i = 0; i < Count; ++i) score_of(ScoreFunction{captures, &reach[i % 4]}, i);
      const float largest = fmaxf(fmaxf(reach[0], reach[1]), fmaxf(reach[2], reach[3]));
      // A lambda with a template's argument: hosts have no __all_sync().
      const auto all_near = [](auto x) { return __all_sync(0xffffffff, x <= score::kNear); };
      if (all_near(largest)) {
        float unread = 0.0f;
        apply(ScoreFunction{captures, &unread});
        return;
      }
    }
    apply(*this);
  }

 protected:
  // An index of a dimension whose elements lie beside each other, which is known to be within it.
  struct Unclamped {
    int index;
  };

  template <class T, int Number, class... Indices>
  __device__ __forceinline__ const T& element_at(Indices... indices) const {
    static_assert(Number < ScoreCaptures::kMost && sizeof...(Indices) <= ScoreCaptures::kDims);
    const ScoreCaptures::Tensor& tensor = captures.tensors[Number];
    int64_t place = 0;
    int dim = 0;
    ((place += offset(indices, tensor.extent[dim], tensor.stride[dim]), ++dim), ...);
    return static_cast<const T*>(tensor.data)[place];
  }
  // The element of x, with `last` in place of the last index.
  template <class Last, class... Indices>
  __device__ __forceinline__ const ScoreElement& element_in_row(Last last,
                                                                Indices... indices) const {
    static_assert(sizeof...(Indices) <= ScoreCaptures::kDims);
    constexpr int kLast = sizeof...(Indices) - 1;
    const ScoreCaptures::Tensor& tensor = captures.tensors[kScore.tensor];
    int64_t place = 0;
    int dim = 0;
    ((place += dim < kLast ? offset(indices, tensor.extent[dim], tensor.stride[dim])
                           : offset(last, tensor.extent[dim], tensor.stride[dim]),
      ++dim),
     ...);
    return static_cast<const ScoreElement*>(tensor.data)[place];
  }
  template <class... Indices>
  __device__ __forceinline__ static int last_of(Indices... indices) {
    int last = 0;
    ((last = int(indices)), ...);
    return last;
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
