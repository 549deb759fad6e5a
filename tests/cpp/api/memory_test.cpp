// SPDX-License-Identifier: Apache-2.0
//
// The overlap rules against sets of bytes, on random views.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "api/describe/rules/overlap.h"

namespace fa3::api {
namespace {

constexpr int64_t kBytes = 4096;

class Views {
 public:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // Up to three dimensions whose strides are at least what lies within, often with padding.
  fa3_tensor nested() {
    fa3_tensor view{};
    view.dtype = below(2) == 0 ? FA3_FLOAT32 : FA3_FLOAT16;
    view.rank = 3;
    int64_t span = 1;
    for (int dim = 2; dim >= 0; --dim) {
      view.shape[dim] = 1 + below(4);
      view.stride[dim] = span + (below(2) == 0 ? 0 : below(5));
      span += (view.shape[dim] - 1) * view.stride[dim];
    }
    return view;
  }
  fa3_tensor any() {
    fa3_tensor view = nested();
    for (int dim = 0; dim < 3; ++dim) {
      if (below(3) == 0) view.stride[dim] = below(12);
    }
    return view;
  }
  void place(fa3_tensor* view, int64_t reach) {
    view->data = memory_ + below(reach) * size_of(static_cast<DType>(view->dtype));
  }

  std::vector<bool> bytes_of(const fa3_tensor& view) const {
    std::vector<bool> used(kBytes);
    const int64_t size = size_of(static_cast<DType>(view.dtype));
    const int64_t first = static_cast<char*>(view.data) - memory_;
    for (int64_t i = 0; i < view.shape[0] * view.shape[1] * view.shape[2]; ++i) {
      const int64_t at = i / view.shape[2] / view.shape[1] * view.stride[0] +
                         i / view.shape[2] % view.shape[1] * view.stride[1] +
                         i % view.shape[2] * view.stride[2];
      for (int64_t byte = 0; byte < size; ++byte) {
        used[static_cast<size_t>(first + at * size + byte)] = true;
      }
    }
    return used;
  }
  bool share(const fa3_tensor& a, const fa3_tensor& b) const {
    const std::vector<bool> in_a = bytes_of(a), in_b = bytes_of(b);
    for (size_t i = 0; i < in_a.size(); ++i) {
      if (in_a[i] && in_b[i]) return true;
    }
    return false;
  }

 private:
  std::mt19937 random_{11};
  alignas(16) char memory_[kBytes] = {};
};

TEST(Overlap, is_never_missed) {
  Views views;
  int meetings = 0;
  for (int i = 0; i < 20000; ++i) {
    fa3_tensor a = views.any(), b = views.any();
    views.place(&a, 60);
    views.place(&b, 60);
    const bool share = views.share(a, b);
    meetings += share ? 1 : 0;
    if (share) {
      ASSERT_FALSE(check_no_overlap({"a", a}, {"b", b}).ok()) << i;
    }
  }
  EXPECT_GT(meetings, 1000);
}

// Unevenly padded thirds of a buffer, and the like: same strides, other places.
TEST(Overlap, is_exact_for_views_of_the_same_strides) {
  Views views;
  int apart = 0;
  for (int i = 0; i < 20000; ++i) {
    fa3_tensor a = views.nested();
    fa3_tensor b = a;
    for (int dim = 0; dim < 3; ++dim) b.shape[dim] = 1 + views.below(a.shape[dim]);
    views.place(&a, 40);
    views.place(&b, 40);
    const bool share = views.share(a, b);
    apart += share ? 0 : 1;
    EXPECT_EQ(check_no_overlap({"a", a}, {"b", b}).ok(), !share) << i;
  }
  EXPECT_GT(apart, 1000);
}

TEST(Overlap, costs_the_same_for_any_extents) {
  char memory[64];
  fa3_tensor a{};
  a.data = memory;
  a.dtype = FA3_FLOAT32;
  a.rank = 3;
  a.shape[0] = int64_t{1} << 40;
  a.shape[1] = a.shape[2] = 3;
  a.stride[0] = 11;
  a.stride[1] = 3;
  a.stride[2] = 1;
  fa3_tensor b = a;
  b.data = memory + 36;  // the two elements of padding
  b.shape[1] = b.shape[2] = 1;
  EXPECT_TRUE(check_no_overlap({"a", a}, {"b", b}).ok());
  b.data = memory + 32;
  EXPECT_FALSE(check_no_overlap({"a", a}, {"b", b}).ok());
}

}  // namespace
}  // namespace fa3::api
