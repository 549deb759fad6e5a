// SPDX-License-Identifier: Apache-2.0
#include "support/latent/gradient_call.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "support/latent/numbers.h"
#include "support/limits.h"
#include "support/random.h"

namespace fa3::test {
namespace {

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}
double log_of_both(double a, double b) {
  const double most = std::max(a, b);
  return std::isfinite(most) ? most + std::log(std::exp(a - most) + std::exp(b - most)) : most;
}

}  // namespace

std::string describe(const GradientCase& c) {
  std::ostringstream text;
  text << (c.dtype == FA3_FLOAT16 ? "fp16" : "bf16") << " d" << c.dim << " b" << c.batch << " t"
       << c.tokens << " h" << c.heads << ", " << c.rows << " rows in pages of " << c.page_size
       << ", top " << c.top;
  if (c.has_count) text << ", counts";
  if (c.gap > 0) text << ", gaps of " << c.gap;
  if (c.one_row) text << ", one row";
  if (c.sink) text << ", sink" << (c.lse_with_sink ? " in the LSE" : "");
  if (c.has_d_lse) text << ", d_lse";
  if (c.wide) text << ", wide";
  if (c.deterministic) text << ", deterministic";
  text << ", scale " << c.scale << ", spread " << c.spread << ", seed " << c.seed;
  return text.str();
}

GradientCall::GradientCall(const GradientCase& call, fa3_device_type memory)
    : c_(call), scale_(call.scale > 0 ? call.scale : std::pow(double(call.dim), -0.5)) {
  fill();
  for (int64_t query = 0; query < c_.queries(); ++query) {
    for (int64_t head = 0; head < c_.heads; ++head) compute(query, head);
  }
  describe_params(memory);
}

// The last page of the cache is of NaN.
void GradientCall::fill() {
  Random random(c_.seed);
  const auto some = [&](int64_t count, double spread) {
    std::vector<uint16_t> numbers(static_cast<size_t>(count));
    for (uint16_t& x : numbers) x = narrow(spread * random.normal(), c_.dtype);
    return numbers;
  };
  const int64_t each = c_.queries() * c_.heads,
                of_nan = (c_.rows + c_.page_size - 1) / c_.page_size;
  pages_ = of_nan + 1;
  q_ = some(each * c_.dim, c_.spread);
  d_o_ = some(each * kValues, c_.of_d_o);
  o_.resize(d_o_.size());
  lse_.resize(size_t(each));
  for (int64_t i = 0; i < each; ++i) d_lse_.push_back(float(random.normal()));
  for (int64_t h = 0; h < c_.heads; ++h) {
    const double sinks[] = {random.normal(), -kInfinity, kInfinity, 1e4, -1e4, 3 * random.normal()};
    const auto drawn = float(sinks[random.below(6)]);
    sink_.push_back(c_.all_sinks != 0 ? c_.all_sinks : drawn);
  }
  const int32_t nowhere[] = {-1, INT_MIN, INT_MAX, int32_t(slots()), 2147480000};
  for (int64_t query = 0; query < c_.queries(); ++query) {
    const int64_t some_counts[] = {c_.top, random.below(c_.top + 1), c_.top + 5, -7};
    const int64_t count = some_counts[random.below(4)];
    counts_.push_back(int32_t(count));
    const bool none = random.one_in(8);
    for (int64_t i = 0; i < c_.top; ++i) {
      int64_t slot = c_.one_row ? c_.rows / 2 : random.below(c_.rows);
      if (none || i % 64 < c_.gap || random.one_in(8)) slot = nowhere[random.below(5)];
      if (c_.has_count && i >= count) slot = of_nan * c_.page_size;
      indices_.push_back(int32_t(slot));
    }
  }
  cache_.assign(size_t((pages_ * (c_.page_size + 1) - 1) * c_.dim), 0xffff);
  for (int64_t query = 0; query < c_.queries(); ++query) {
    for (const int64_t slot : slots_of(query)) {
      Random of_row(c_.seed * 1'000'003 + uint64_t(slot));
      const int64_t row = slot / c_.page_size * (c_.page_size + 1) + slot % c_.page_size;
      for (int c = 0; c < c_.dim; ++c) {
        cache_[size_t(row * c_.dim + c)] = narrow(of_row.normal(), c_.dtype);
      }
    }
  }
  has_keys_.resize(size_t(c_.queries()));
  is_named_.resize(size_t(slots()));
  for (int64_t query = 0; query < c_.queries(); ++query) {
    for (const int64_t slot : slots_of(query)) {
      has_keys_[size_t(query)] = is_named_[size_t(slot)] = true;
    }
  }
  dq_.resize(q_.size());
  d_cache_.resize(size_t(slots() * c_.dim));
  dsink_.resize(size_t(c_.heads));
}

// The slots of the keys that a query sees.
std::vector<int64_t> GradientCall::slots_of(int64_t query) const {
  std::vector<int64_t> seen;
  const int64_t count = c_.has_count ? std::min<int64_t>(counts_[size_t(query)], c_.top) : c_.top;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = indices_[size_t(query * c_.top + i)];
    if (slot >= 0 && slot < slots()) seen.push_back(slot);
  }
  return seen;
}

// Writes O and the LSE of one row, and adds its gradients.
void GradientCall::compute(int64_t query, int64_t head) {
  const size_t row = size_t(query * c_.heads + head);
  const auto wide = [&](const std::vector<uint16_t>& from, size_t first, int64_t count) {
    std::vector<double> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(widen(from[first + size_t(i)], c_.dtype));
    return numbers;
  };
  const std::vector<double> q = wide(q_, row * size_t(c_.dim), c_.dim);
  const std::vector<double> d_o = wide(d_o_, row * kValues, kValues);
  const double sink = c_.sink ? sink_[size_t(head)] : -kInfinity;
  const std::vector<int64_t> slots_seen = slots_of(query);
  std::vector<std::vector<double>> keys;
  std::vector<double> scores;
  double lse = -kInfinity;
  for (const int64_t slot : slots_seen) {
    const int64_t of = slot / c_.page_size * (c_.page_size + 1) + slot % c_.page_size;
    keys.push_back(wide(cache_, size_t(of * c_.dim), c_.dim));
    scores.push_back(scale_ * dot(q.data(), keys.back().data(), c_.dim));
  }
  if (!scores.empty()) {
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double s : scores) sum += std::exp(s - most);
    lse = most + std::log(sum);
  }
  const double both = log_of_both(lse, sink);
  const bool in_lse = c_.sink && c_.lse_with_sink;
  lse_[row] = float(in_lse ? both : lse);
  std::vector<double> o(kValues);
  for (size_t i = 0; i < keys.size(); ++i) {
    const double p = std::exp(scores[i] - both);
    for (int c = 0; c < kValues; ++c) o[size_t(c)] += p * keys[i][size_t(c)];
  }
  // The call reads O as it is saved: where dS nearly cancels, its rounding is what is left.
  for (int c = 0; c < kValues; ++c) {
    o_[row * kValues + size_t(c)] = narrow(o[size_t(c)], c_.dtype);
    o[size_t(c)] = widen(o_[row * kValues + size_t(c)], c_.dtype);
  }
  const double d_lse = c_.has_d_lse ? d_lse_[row] : 0;
  const double delta = dot(o.data(), d_o.data(), kValues);
  if (c_.sink && std::isfinite(sink) && (in_lse || !keys.empty())) {
    dsink_[size_t(head)] -= std::exp(sink - both) * (delta - (in_lse ? d_lse : 0));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const double p = std::exp(scores[i] - both);
    const double of_lse = std::isfinite(lse) ? std::exp(scores[i] - (in_lse ? both : lse)) : 0;
    const double ds = p * (dot(d_o.data(), keys[i].data(), kValues) - delta) + of_lse * d_lse;
    double* const dk = d_cache_.data() + slots_seen[i] * c_.dim;
    for (int c = 0; c < c_.dim; ++c) {
      dq_[row * size_t(c_.dim) + size_t(c)] += scale_ * ds * keys[i][size_t(c)];
      dk[c] += scale_ * ds * q[size_t(c)] + (c < kValues ? p * d_o[size_t(c)] : 0);
    }
  }
}

void GradientCall::describe_params(fa3_device_type memory) {
  fa3_mla_backward_params& p = params_;
  fa3_mla_backward_params_init(&p);
  const int64_t h = c_.heads, b = c_.batch, t = c_.tokens, d = c_.dim, all = c_.queries();
  const auto by_query = [&](const void* host, int32_t dtype, int64_t n) {
    const size_t bytes = size_t(all * h * n) * (dtype == FA3_FLOAT32 ? 4 : 2);
    return b == 0 ? place(host, bytes, dtype, {t, h, n}, {h * n, n, 1}, memory)
                  : place(host, bytes, dtype, {b, t, h, n}, {t * h * n, h * n, n, 1}, memory);
  };
  const auto scalars = [&](const std::vector<float>& x) {  // a query's heads lie together
    return b == 0 ? place(x.data(), 4 * x.size(), FA3_FLOAT32, {h, t}, {1, h}, memory)
                  : place(x.data(), 4 * x.size(), FA3_FLOAT32, {b, h, t}, {t * h, 1, h}, memory);
  };
  const auto integers = [&](const std::vector<int32_t>& x, int64_t n) {
    std::vector<int64_t> shape{t}, stride{n};
    if (b > 0) shape = {b, t}, stride = {t * n, n};
    if (&x == &indices_) shape.push_back(n), stride.push_back(1);
    return place(x.data(), 4 * x.size(), FA3_INT32, shape, stride, memory);
  };
  const auto cache = [&](const void* host, int32_t dtype) {
    const size_t size = dtype == FA3_FLOAT32 ? 4 : 2;
    return place(host, cache_.size() * size, dtype, {pages_, c_.page_size, d},
                 {(c_.page_size + 1) * d, d, 1}, memory);
  };
  const int32_t of_outputs = c_.wide ? int32_t{FA3_FLOAT32} : int32_t{c_.dtype};
  p.q = by_query(q_.data(), c_.dtype, d);
  p.cache = cache(cache_.data(), c_.dtype);
  p.indices = integers(indices_, c_.top);
  if (c_.has_count) p.index_count = integers(counts_, 1);
  p.o = by_query(o_.data(), c_.dtype, kValues);
  p.d_o = by_query(d_o_.data(), c_.dtype, kValues);
  p.lse = scalars(lse_);
  if (c_.has_d_lse) p.d_lse = scalars(d_lse_);
  if (c_.sink) p.sink = place(sink_.data(), 4 * sink_.size(), FA3_FLOAT32, {h}, {1}, memory);
  first_output_ = memory_.size();
  p.dq = by_query(nullptr, of_outputs, d);
  p.d_cache = cache(nullptr, of_outputs);
  if (c_.sink) p.dsink = place(nullptr, 4 * sink_.size(), FA3_FLOAT32, {h}, {1}, memory);
  if (c_.scale > 0) p.scale = c_.scale;
  p.lse_with_sink = c_.lse_with_sink;
  p.deterministic = c_.deterministic;
}

std::vector<std::byte> GradientCall::gradients() const {
  std::vector<std::byte> all;
  for (size_t i = first_output_; i < memory_.size(); ++i) {
    std::vector<std::byte> bytes(memory_[i].bytes());
    memory_[i].read(bytes.data());
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

std::vector<double> GradientCall::numbers(size_t output, int32_t dtype) const {
  const GuardedMemory& from = memory_[first_output_ + output];
  std::vector<std::byte> bytes(from.bytes());
  from.read(bytes.data());
  std::vector<double> all;
  const size_t size = dtype == FA3_FLOAT32 ? 4 : 2;
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    float wide;
    uint16_t bits;
    std::memcpy(&bits, &bytes[i * size], sizeof(bits));
    if (size == 4) std::memcpy(&wide, &bytes[i * size], sizeof(wide));
    all.push_back(size == 4 ? wide : widen(bits, fa3_dtype(dtype)));
  }
  return all;
}

std::vector<bool> GradientCall::are_finite() const {
  std::vector<bool> all;
  for (const auto& of : {numbers(0, params_.dq.dtype), numbers(1, params_.d_cache.dtype)}) {
    for (const double x : of) all.push_back(std::isfinite(x));
  }
  return all;
}

std::string GradientCall::compare() {
  error_ = 0;
  // Of dS and of P; a sink far above leaves that little of both.
  const double of_scores = scale_ * 20 * std::exp(-c_.all_sinks);
  const double of_weights = std::max(of_scores, std::exp(-double{c_.all_sinks}));
  if (std::string said = compare_all("dq", dq_, numbers(0, params_.dq.dtype), has_keys_, of_scores);
      !said.empty()) {
    return said;
  }
  const std::vector<double> padded = numbers(1, params_.d_cache.dtype);
  std::vector<double> found;
  for (size_t i = 0; i < padded.size(); ++i) {
    const bool in_gap = int64_t(i) / c_.dim % (c_.page_size + 1) == c_.page_size;
    if (in_gap && !std::isnan(padded[i])) return "d_cache: wrote between pages";
    if (!in_gap) found.push_back(padded[i]);
  }
  if (std::string said = compare_all("d_cache", d_cache_, found, is_named_, of_weights);
      !said.empty()) {
    return said;
  }
  return c_.sink ? compare_all("dsink", dsink_, numbers(2, FA3_FLOAT32), {true}, 1) : "";
}

// Errors of 16 bits: of P, dS and O. Where dS nearly cancels, those of its two terms are left,
// whose gradients `size` is in proportion to. What does not count, queries without keys and rows
// that nobody names, is 0.
std::string GradientCall::compare_all(const char* what, const std::vector<double>& right,
                                      const std::vector<double>& found,
                                      const std::vector<bool>& counts, double size) {
  constexpr double kMostRmse = 0.01, kMost = 0.04;
  const double least = 0.1 * c_.of_d_o * std::max(1.0f, c_.spread) * size;
  double squares = 0, errors = 0, largest = 0;
  for (const double x : right) {
    squares += x * x;
    largest = std::max(largest, std::abs(x));
  }
  const auto off = [&](size_t i) {
    std::ostringstream text;
    text << what << "[" << i << "]: expected " << right[i] << ", got " << found[i];
    return text.str();
  };
  if (right.size() != found.size()) return std::string(what) + ": another number of elements";
  for (size_t i = 0; i < right.size(); ++i) {
    const double error = std::abs(right[i] - found[i]);
    if (!counts[i / (right.size() / counts.size())] && found[i] != 0) return off(i);
    if (!(error <= kMost * (largest + least))) return off(i);
    errors += error * error;
  }
  if (right.empty()) return "";
  const double whole = std::sqrt(squares / double(right.size())) + least;
  const double rmse = std::sqrt(errors / double(right.size())) / whole;
  error_ = std::max(error_, rmse);
  return rmse <= kMostRmse ? ""
                           : std::string(what) + ": a relative RMSE of " + std::to_string(rmse);
}

}  // namespace fa3::test
