// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/verify_cases.h"

#include <fmt/format.h>

namespace fa3::cli {
namespace {

struct Lengths {
  int64_t q, k;
};

fa3_options causal() {
  fa3_options options = default_options();
  options.causal = 1;
  return options;
}

fa3_options windowed(int64_t left, int64_t right) {
  fa3_options options = default_options();
  options.window_left = left;
  options.window_right = right;
  return options;
}

fa3_options softcapped(float cap) {
  fa3_options options = default_options();
  options.softcap = cap;
  return options;
}

// Two heads, one length: small, for features that do not depend on the shape.
Shape square(int64_t seqlen, int64_t head_dim) {
  return {.batch = 1,
          .heads = 2,
          .kv_heads = 2,
          .seqlen_q = seqlen,
          .seqlen_k = seqlen,
          .head_dim = head_dim,
          .head_dim_v = head_dim};
}

Shape with_lengths(Lengths lengths) {
  Shape shape = square(lengths.q, 64);
  shape.seqlen_k = lengths.k;
  return shape;
}

class Grid {
 public:
  explicit Grid(Depth depth) : depth_(depth) {}

  // The values for this depth: the first alone, then some more, then all.
  template <class T>
  std::vector<T> pick(std::vector<T> quick, const std::vector<T>& normal,
                      const std::vector<T>& full) const {
    if (depth_ != Depth::quick) quick.insert(quick.end(), normal.begin(), normal.end());
    if (depth_ == Depth::full) quick.insert(quick.end(), full.begin(), full.end());
    return quick;
  }

  void add(VerifyCase verify_case) { cases_.push_back(std::move(verify_case)); }
  std::vector<VerifyCase> take() { return std::move(cases_); }

 private:
  Depth depth_;
  std::vector<VerifyCase> cases_;
};

void add_shapes(Grid* grid) {
  for (int64_t head_dim : grid->pick<int64_t>({64, 128}, {32, 96, 256}, {80, 192, 512})) {
    grid->add({"dense", square(200, head_dim), default_options()});
  }
  for (int64_t head_dim : grid->pick<int64_t>({40}, {1, 17, 65}, {3, 100, 113, 250})) {
    grid->add({"odd head dim", square(129, head_dim), default_options()});
  }
  const Shape shape = square(128, 64);
  for (int64_t head_dim_v : grid->pick<int64_t>({128}, {16, 65}, {256, 512})) {
    Shape wide = shape;
    wide.head_dim_v = head_dim_v;
    grid->add({"dv != d", wide, causal()});
  }
}

void add_lengths(Grid* grid) {
  using L = std::vector<Lengths>;
  const L lengths = grid->pick<Lengths>(
      {{1, 300}, {65, 127}, {203, 113}}, {{17, 63}, {64, 64}, {128, 257}, {239, 100}, {2, 799}},
      {{1, 4099}, {63, 1023}, {799, 203}, {1024, 1024}, {1023, 64}, {2048, 2048}});
  for (const Lengths& length : lengths) {
    grid->add({"lengths", with_lengths(length), default_options()});
    grid->add({"causal", with_lengths(length), causal()});
  }
  for (const Lengths& length : grid->pick<Lengths>({{5, 0}, {0, 5}, {1, 1}}, {{0, 0}}, {})) {
    // One key or none: gradients of Q and K are rounding noise around zero, so forward only.
    grid->add({"no keys, no queries", with_lengths(length), causal(), Layout::bshd, false, false});
  }
}

void add_windows(Grid* grid) {
  using W = std::pair<int64_t, int64_t>;
  for (const auto& [left, right] : grid->pick<W>({{31, 0}, {16, 16}}, {{-1, 5}, {64, -1}, {3, 100}},
                                                 {{1, 0}, {0, 1}, {127, 128}})) {
    grid->add({"window", with_lengths({150, 199}), windowed(left, right)});
    grid->add({"window", with_lengths({199, 150}), windowed(left, right)});
  }
}

void add_heads(Grid* grid) {
  using H = std::pair<int64_t, int64_t>;
  for (const auto& [heads, kv_heads] :
       grid->pick<H>({{4, 2}, {6, 1}}, {{8, 2}, {3, 1}}, {{12, 4}, {16, 1}})) {
    for (const fa3_options& options : {default_options(), causal()}) {
      Shape shape = square(100, 64);
      shape.batch = 2;
      shape.heads = heads;
      shape.kv_heads = kv_heads;
      grid->add({"gqa, mqa", shape, options});
      shape.seqlen_q = 1;
      shape.seqlen_k = 500;
      grid->add({"decode", shape, options, Layout::bshd, false, false});
    }
  }
}

void add_scores(Grid* grid) {
  for (float cap : grid->pick<float>({15.0f}, {1.0f, 50.0f}, {0.3f})) {
    grid->add({"softcap", square(130, 64), softcapped(cap)});
  }
  for (float scale : grid->pick<float>({1.0f}, {0.01f}, {3.0f})) {
    VerifyCase scaled{"scale", square(130, 64), causal()};
    scaled.options.scale = scale;
    grid->add(scaled);
  }
  for (const fa3_options& options :
       grid->pick<fa3_options>({causal()}, {default_options()}, {windowed(9, 0)})) {
    grid->add({"sink", with_lengths({140, 70}), options, Layout::bshd, true});
  }
  for (float p : grid->pick<float>({0.1f}, {0.5f}, {0.9f})) {
    VerifyCase dropped{"dropout", square(130, 64), causal()};
    dropped.options.dropout_p = p;
    dropped.options.dropout_seed = 1;
    grid->add(dropped);
  }
  grid->add({"heads first", square(130, 64), causal(), Layout::bhsd});
}

}  // namespace

std::string case_text(const VerifyCase& verify_case) {
  const Shape& shape = verify_case.shape;
  const fa3_options& options = verify_case.options;
  std::string text = fmt::format("b{} h{}/{} s{}x{} d{}", shape.batch, shape.heads, shape.kv_heads,
                                 shape.seqlen_q, shape.seqlen_k, shape.head_dim);
  if (shape.head_dim_v != shape.head_dim) text += fmt::format(" dv{}", shape.head_dim_v);
  if (options.causal) text += " causal";
  if (options.window_left >= 0 || options.window_right >= 0) {
    text += fmt::format(" window {},{}", options.window_left, options.window_right);
  }
  if (options.softcap > 0) text += fmt::format(" softcap {}", options.softcap);
  if (options.scale != FA3_SCALE_AUTO) text += fmt::format(" scale {}", options.scale);
  if (options.dropout_p > 0) text += fmt::format(" dropout {}", options.dropout_p);
  if (verify_case.sink) text += " sink";
  if (verify_case.layout == Layout::bhsd) text += " bhsd";
  return text;
}

std::vector<VerifyCase> verify_cases(Depth depth) {
  Grid grid(depth);
  add_shapes(&grid);
  add_lengths(&grid);
  add_windows(&grid);
  add_heads(&grid);
  add_scores(&grid);
  return grid.take();
}

}  // namespace fa3::cli
