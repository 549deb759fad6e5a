// SPDX-License-Identifier: Apache-2.0
//
// A caller's floating-point environment (rounding mode, flush to zero) changes no bit of a result,
// whichever threads compute it, and the caller finds it as it was.
#include <gtest/gtest.h>

#include <cfenv>
#include <functional>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "engine/fixture.h"

namespace fa3::test {
namespace {

class FloatEnvironment : public EngineTest {
 protected:
  void SetUp() override { std::fegetenv(&mine_); }
  void TearDown() override { std::fesetenv(&mine_); }

  std::fenv_t mine_;
};
FA3_FOR_EVERY_ENGINE(FloatEnvironment);

// Values around the smallest normal number, so that flushing to zero shows; a scale without
// rounding.
Case fragile_case(int num_threads) {
  Case c = dense_case(2, 70, 90, 2, 1, 64, 64);
  c.scale = 0.125f;
  c.num_threads = num_threads;
  return c;
}

Inputs fragile_inputs(const Case& c) {
  Inputs inputs = make_inputs(c);
  for (Tensor* tensor : {&inputs.v, &inputs.d_o}) {
    const Shape& shape = tensor->shape();
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t head = 0; head < shape.heads; ++head) {
          for (int64_t col = 0; col < shape.dim / 2; ++col) {
            tensor->set(b, row, head, col, tensor->get(b, row, head, col) * 0x1p-126f);
          }
        }
      }
    }
  }
  return inputs;
}

TEST_P(FloatEnvironment, of_the_caller_changes_nothing_and_comes_back) {
  const Case serial = fragile_case(1);
  if (!does_backward(serial)) return;
  const Inputs inputs = fragile_inputs(serial);
  const ForwardRun want = forward(serial, inputs);
  const BackwardRun want_gradient = backward(serial, inputs, want);

  const std::function<void()> environments[] = {
    [] { std::fesetround(FE_UPWARD); },
    [] { std::fesetround(FE_TOWARDZERO); },
#if defined(__SSE2__)
    [] { _mm_setcsr(_mm_getcsr() | 0x8040); },  // flush to zero, denormals are zero
#endif
  };
  for (size_t i = 0; i < std::size(environments); ++i) {
    for (int num_threads : {1, 3}) {
      const Case c = fragile_case(num_threads);
      environments[i]();
      const int rounding = std::fegetround();
#if defined(__SSE2__)
      const unsigned control = _mm_getcsr() & ~0x3fu;
#endif
      const ForwardRun run = run_forward(engine(), c, inputs);
      const BackwardRun gradient = run_backward(engine(), c, inputs, run);
      EXPECT_EQ(std::fegetround(), rounding);
#if defined(__SSE2__)
      EXPECT_EQ(_mm_getcsr() & ~0x3fu, control);
#endif
      std::fesetenv(&mine_);
      EXPECT_EQ(run.problem + gradient.problem, "");
      EXPECT_TRUE(bits_equal("o", run.o, want.o)) << "environment " << i << "; " << c;
      EXPECT_TRUE(bits_equal("lse", run.lse, want.lse)) << "environment " << i << "; " << c;
      EXPECT_TRUE(bits_equal("dq", gradient.dq, want_gradient.dq)) << "environment " << i;
      EXPECT_TRUE(bits_equal("dk", gradient.dk, want_gradient.dk)) << "environment " << i;
      EXPECT_TRUE(bits_equal("dv", gradient.dv, want_gradient.dv)) << "environment " << i;
    }
  }
}

}  // namespace
}  // namespace fa3::test
