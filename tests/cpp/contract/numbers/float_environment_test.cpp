// SPDX-License-Identifier: Apache-2.0
//
// A caller's floating-point environment (rounding mode, flush to zero, on Arm another float16)
// changes no bit of a result, whichever threads compute it, and the caller finds it as it was.
#include <gtest/gtest.h>

#include <cfenv>
#include <functional>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "contract/fixture.h"

namespace fa3::test {
namespace {

// The control register, and a setting where subnormal numbers are zero, as operands and as results.
#if defined(__SSE2__)
unsigned control() {
  return _mm_getcsr() & ~0x3fu;
}
void set_unusual_control() {
  _mm_setcsr(_mm_getcsr() | 0x8040);
}
#elif defined(__aarch64__)
uint64_t control() {
  uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_control(uint64_t bits) {
  asm volatile("msr fpcr, %0" : : "r"(bits) : "memory");
}
// And float16 has no infinities: the code is a number, 65536.
void set_unusual_control() {
  constexpr uint64_t kFlush = 1 << 24, kAlternativeHalf = 1 << 26;
  set_control(control() | kFlush | kAlternativeHalf);
}
#else
int control() {
  return 0;
}
void set_unusual_control() {}
#endif

class FloatEnvironment : public EngineTest {
 protected:
  void SetUp() override { std::fegetenv(&mine_); }
  void TearDown() override { restore(); }

  void restore() const {
#if defined(__aarch64__)
    set_control(0);
#endif
    std::fesetenv(&mine_);
  }

  std::fenv_t mine_;
};
FA3_FOR_EVERY_ENGINE(FloatEnvironment);

// Values around the smallest normal number, so that flushing to zero shows.
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
      set_unusual_control,
  };
  for (size_t i = 0; i < std::size(environments); ++i) {
    for (int num_threads : {1, 3}) {
      const Case c = fragile_case(num_threads);
      environments[i]();
      const int rounding = std::fegetround();
      const auto control_before = control();
      const ForwardRun run = run_forward(engine(), c, inputs);
      const BackwardRun gradient = run_backward(engine(), c, inputs, run);
      EXPECT_EQ(std::fegetround(), rounding);
      EXPECT_EQ(control(), control_before);
      restore();
      EXPECT_EQ(run.problem + gradient.problem, "");
      EXPECT_TRUE(bits_equal("o", run.o, want.o)) << "environment " << i << "; " << c;
      EXPECT_TRUE(bits_equal("lse", run.lse, want.lse)) << "environment " << i << "; " << c;
      EXPECT_TRUE(bits_equal("dq", gradient.dq, want_gradient.dq)) << "environment " << i;
      EXPECT_TRUE(bits_equal("dk", gradient.dk, want_gradient.dk)) << "environment " << i;
      EXPECT_TRUE(bits_equal("dv", gradient.dv, want_gradient.dv)) << "environment " << i;
    }
  }
}

// Head dims whose square roots are rounded, and whose inverses are.
TEST_P(FloatEnvironment, of_the_caller_leaves_the_default_scale) {
  for (int64_t dim : {7, 24, 31, 48, 80, 96, 160}) {
    for (const Case& c : in_each_dtype(dense_case(1, 5, 40, 1, 1, dim, dim))) {
      const Inputs inputs = make_inputs(c);
      const ForwardRun want = forward(c, inputs);
      for (int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
        std::fesetround(mode);
        const ForwardRun run = run_forward(engine(), c, inputs);
        restore();
        EXPECT_TRUE(bits_equal("o", run.o, want.o)) << "rounding mode " << mode << "; " << c;
        EXPECT_TRUE(bits_equal("lse", run.lse, want.lse)) << "rounding mode " << mode << "; " << c;
      }
    }
  }
}

TEST_P(FloatEnvironment, of_the_caller_leaves_infinities_of_float16) {
  for (int64_t seqlen_q : {1, 70}) {
    Case c = dense_case(1, seqlen_q, 40, 1, 1, 64, 64, FA3_FLOAT16);
    if (!does(c)) continue;
    Inputs inputs = make_inputs(c);
    inputs.v.set(0, 7, 0, 3, std::numeric_limits<double>::infinity());
    set_unusual_control();
    const ForwardRun run = run_forward(engine(), c, inputs);
    restore();
    EXPECT_EQ(run.problem, "");
    EXPECT_EQ(run.o.get(0, 0, 0, 3), std::numeric_limits<double>::infinity()) << c;
  }
}

}  // namespace
}  // namespace fa3::test
