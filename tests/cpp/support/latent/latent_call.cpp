// SPDX-License-Identifier: Apache-2.0
#include "support/latent/latent_call.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/dtype.h"
#include "support/latent/numbers.h"
#include "support/limits.h"
#include "support/random.h"

namespace fa3::test {
namespace {

constexpr int kRope = 64, kByteRow = 656;
constexpr int kGroups = 4, kGroupChannels = 128, kScaleOffset = 512, kRopeOffset = 528;
constexpr int64_t kUnownedRows = 3;
constexpr int64_t kWholeSequence = INT64_MAX;  // as a token

void fill(std::vector<uint16_t>* numbers, size_t count, fa3_dtype dtype, double spread,
          Random& random) {
  numbers->resize(count);
  for (uint16_t& x : *numbers) x = narrow(spread * random.normal(), dtype);
}

}  // namespace

std::string describe(const LatentCase& c) {
  std::ostringstream text;
  text << (c.bytes()                ? "group128"
           : c.dtype == FA3_FLOAT16 ? "fp16"
                                    : "bf16")
       << " d" << c.dim << " t" << c.tokens << " h" << c.heads << " pages of " << c.page_size
       << ", keys";
  for (const int32_t n : c.keys) text << ' ' << n;
  if (c.packed()) text << ", packed";
  if (c.sparse()) text << ", top " << c.top;
  if (c.causal) text << ", causal";
  if (c.sink) text << ", sink";
  if (c.scale != 1) text << ", scales of " << c.scale;
  if (c.scale_octaves > 0) text << ", " << c.scale_octaves << " octaves of scales";
  if (c.zero_scales) text << ", scales of 0";
  text << ", splits " << c.num_splits << (c.batch_invariant ? ", invariant" : "") << ", seed "
       << c.seed;
  return text.str();
}

LatentCall::LatentCall(const LatentCase& call, fa3_device_type memory) : c_(call) {
  for (int64_t b = 0; b < c_.batch(); ++b) {
    starts_.push_back(int32_t(query_rows_));
    const int64_t own = c_.packed() ? c_.queries[size_t(b)] : c_.tokens;
    for (int64_t token = 0; token < own; ++token) queries_.push_back({b, token, query_rows_++});
  }
  starts_.push_back(int32_t(query_rows_));
  for (int64_t i = 0; c_.packed() && i < kUnownedRows; ++i) {
    queries_.push_back({c_.sparse() ? 0 : -1, 0, query_rows_++});
  }
  Random random(c_.seed);
  const int64_t own = c_.query_apart ? kValues : c_.dim;
  fill(&q_, size_t(query_rows_ * c_.heads * own), c_.dtype, c_.spread, random);
  fill(&q_rope_, size_t(c_.query_apart ? query_rows_ * c_.heads * kRope : 0), c_.dtype, c_.spread,
       random);
  for (int64_t h = 0; h < c_.heads; ++h) {
    const double some[] = {random.normal(), -kInfinity, kInfinity, 1e4, -1e4};
    sink_.push_back(float(some[random.below(5)]));
  }
  c_.sparse() ? fill_indices() : fill_keys();
  describe_params(memory);
}

int64_t LatentCall::row_bytes() const {
  return c_.bytes() ? kByteRow : 2 * (c_.rope_apart ? kValues : c_.dim);
}

std::byte* LatentCall::row_of(int64_t slot) {
  return cache_.data() + slot / c_.page_size * page_stride_ + slot % c_.page_size * row_bytes();
}

// Twice the same where a slot is named twice.
void LatentCall::write_row(int64_t slot) {
  Random random(c_.seed * 1'000'003 + uint64_t(slot));
  std::byte* const row = row_of(slot);
  const auto put = [&](std::byte* at, int64_t count, fa3_dtype dtype) {
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t x = narrow(random.normal(), dtype);
      std::memcpy(at + 2 * i, &x, sizeof(x));
    }
  };
  if (!c_.bytes()) {
    put(row, row_bytes() / 2, c_.dtype);
    auto* const apart = reinterpret_cast<std::byte*>(rope_.data() + slot * kRope);
    if (c_.rope_apart) put(apart, kRope, c_.dtype);
    return;
  }
  for (int c = 0; c < kValues; ++c) {  // any byte but NaN
    row[c] = std::byte(random.below(0x7f) | random.below(2) << 7);
  }
  for (int group = 0; group < kGroups; ++group) {
    double of_group = c_.scale * (0.001 + 0.01 * random.uniform());
    if (c_.scale_octaves > 0) of_group *= std::exp2(c_.scale_octaves * random.uniform());
    const float scale = c_.zero_scales && group == 0 ? 0 : float(of_group);
    std::memcpy(row + kScaleOffset + 4 * group, &scale, sizeof(scale));
  }
  if (c_.dim > kValues) put(row + kRopeOffset, kRope, FA3_BFLOAT16);  // else they stay NaN
}

// To 11 bits, whatever the exponent.
double rounded(double x) {
  int exponent;
  const double mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 11)), exponent - 11);
}

std::vector<double> LatentCall::key_of(int64_t slot) {
  std::vector<double> key;
  const std::byte* const row = row_of(slot);
  const auto get = [&](const std::byte* at, int64_t count, fa3_dtype dtype) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t x;
      std::memcpy(&x, at + 2 * i, sizeof(x));
      key.push_back(widen(x, dtype));
    }
  };
  if (c_.bytes()) {
    for (int c = 0; c < kValues; ++c) {
      float scale;
      std::memcpy(&scale, row + kScaleOffset + c / kGroupChannels * 4, sizeof(scale));
      const double number = to_float(Float8E4M3{uint8_t(row[c])});
      key.push_back(c_.rounded_keys ? rounded(number * rounded(scale)) : number * scale);
    }
    if (c_.dim > kValues) get(row + kRopeOffset, kRope, FA3_BFLOAT16);
    return key;
  }
  get(row, row_bytes() / 2, c_.dtype);
  if (c_.rope_apart) {
    get(reinterpret_cast<const std::byte*>(rope_.data() + slot * kRope), kRope, c_.dtype);
  }
  return key;
}

// Each sequence has pages of its own, in any order, and entries behind them that name none.
void LatentCall::fill_keys() {
  const int32_t longest = c_.keys.empty() ? 0 : *std::max_element(c_.keys.begin(), c_.keys.end());
  const int64_t each = std::max<int64_t>((longest + c_.page_size - 1) / c_.page_size, 1);
  entries_ = each + 2;
  pages_ = c_.batch() * each + 1;
  page_stride_ = (c_.page_size + 1) * row_bytes();
  cache_.resize(size_t(pages_ * page_stride_ - row_bytes()), std::byte{0xff});
  rope_.resize(size_t(c_.rope_apart ? slots() * kRope : 0), 0xffff);
  Random random(c_.seed + 1);
  std::vector<int32_t> order(size_t(pages_ - 1));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[size_t(random.below(int64_t(i)))]);
  }
  const int32_t nowhere[] = {-1, INT_MIN, INT_MAX, 2147480000, int32_t(pages_ - 1)};
  for (int64_t b = 0; b < c_.batch(); ++b) {
    for (int64_t i = 0; i < entries_; ++i) {
      const bool counts = i * c_.page_size < c_.keys[size_t(b)];
      table_.push_back(!counts       ? nowhere[random.below(5)]
                       : c_.one_page ? 0
                                     : order[size_t(b * each + i)]);
    }
    for (const int64_t slot : slots_of({b, kWholeSequence, 0})) write_row(slot);
  }
}

void LatentCall::fill_indices() {
  pages_ = std::max<int64_t>(300 / c_.page_size, 1) + 1;
  page_stride_ = (c_.page_size + 1) * row_bytes();
  cache_.resize(size_t(pages_ * page_stride_ - row_bytes()), std::byte{0xff});
  rope_.resize(size_t(c_.rope_apart ? slots() * kRope : 0), 0xffff);
  Random random(c_.seed + 1);
  // Slot 0, which loaders may read where an index names none, and the last page.
  const int64_t of_nan = slots() - c_.page_size;
  const int32_t nowhere[] = {-1, INT_MIN, INT_MAX, int32_t(slots()), 2147480000};
  for (int64_t row = 0; row < query_rows_; ++row) {
    const int64_t some[] = {c_.top, random.below(c_.top + 1), c_.top + 5, -7};
    const int64_t count = c_.no_index_counts ? 0 : some[random.below(4)];
    counts_.push_back(int32_t(count));
    const bool none = random.one_in(8);
    for (int64_t i = 0; i < c_.top; ++i) {
      int64_t slot = 1 + random.below(of_nan - 1);
      if (none || random.one_in(8)) slot = nowhere[random.below(5)];
      if (c_.has_count && i >= count) slot = of_nan;
      indices_.push_back(int32_t(slot));
    }
  }
  for (const Query& query : queries_) {
    for (const int64_t slot : slots_of(query)) write_row(slot);
  }
}

// The slots of the keys that a query sees.
std::vector<int64_t> LatentCall::slots_of(const Query& query) const {
  std::vector<int64_t> slots_seen;
  if (query.sequence < 0) return slots_seen;
  if (c_.sparse()) {
    const int64_t count = c_.has_count ? counts_[size_t(query.row)] : c_.top;
    for (int64_t i = 0; i < std::min(count, c_.top); ++i) {
      const int64_t slot = indices_[size_t(query.row * c_.top + i)];
      if (slot >= 0 && slot < slots()) slots_seen.push_back(slot);
    }
    return slots_seen;
  }
  const int64_t b = query.sequence;
  const int64_t own = c_.packed() ? c_.queries[size_t(b)] : c_.tokens;
  int64_t end = c_.keys[size_t(b)];
  if (c_.causal && query.token < own) end -= own - 1 - query.token;
  for (int64_t key = 0; key < end; ++key) {
    const int64_t page = table_[size_t(b * entries_ + key / c_.page_size)];
    slots_seen.push_back(page * c_.page_size + key % c_.page_size);
  }
  return slots_seen;
}

void LatentCall::describe_params(fa3_device_type memory) {
  fa3_mla_forward_params& p = params_;
  fa3_mla_forward_params_init(&p);
  const int64_t h = c_.heads, b = c_.batch(), t = c_.tokens, rows = query_rows_;
  const auto by_query = [&](const void* host, int32_t dtype, int64_t n) {
    const size_t bytes = size_t(rows * h * n) * (dtype == FA3_FLOAT32 ? 4 : 2);
    return c_.packed() ? place(host, bytes, dtype, {rows, h, n}, {h * n, n, 1}, memory)
                       : place(host, bytes, dtype, {b, t, h, n}, {t * h * n, h * n, n, 1}, memory);
  };
  const auto scalars = [&] {
    const size_t bytes = size_t(rows * h) * 4;
    return c_.packed() ? place(nullptr, bytes, FA3_FLOAT32, {h, rows}, {rows, 1}, memory)
                       : place(nullptr, bytes, FA3_FLOAT32, {b, h, t}, {h * t, t, 1}, memory);
  };
  const auto integers = [&](const std::vector<int32_t>& x, std::vector<int64_t> shape,
                            std::vector<int64_t> stride) {
    return place(x.data(), 4 * x.size(), FA3_INT32, std::move(shape), std::move(stride), memory);
  };
  p.q = by_query(q_.data(), c_.dtype, c_.query_apart ? kValues : c_.dim);
  if (c_.query_apart) p.q_rope = by_query(q_rope_.data(), c_.dtype, kRope);
  const int64_t element = c_.bytes() ? 1 : 2, of_row = row_bytes() / element;
  p.cache.rows = place(cache_.data(), cache_.size(), c_.bytes() ? FA3_FLOAT8_E4M3 : c_.dtype,
                       {pages_, c_.page_size, of_row}, {page_stride_ / element, of_row, 1}, memory);
  if (c_.rope_apart) {
    p.cache.rope = place(rope_.data(), 2 * rope_.size(), c_.dtype, {pages_, c_.page_size, kRope},
                         {c_.page_size * kRope, kRope, 1}, memory);
  }
  if (c_.sparse()) {
    p.indices = c_.packed() ? integers(indices_, {rows, c_.top}, {c_.top, 1})
                            : integers(indices_, {b, t, c_.top}, {t * c_.top, c_.top, 1});
    if (c_.has_count) {
      p.index_count =
          c_.packed() ? integers(counts_, {rows}, {1}) : integers(counts_, {b, t}, {t, 1});
    }
  } else {
    // The last entries are behind the table's shape.
    p.page_table = integers(table_, {b, entries_ - 1}, {entries_, 1});
    p.seqused_k = integers(c_.keys, {b}, {1});
    if (c_.packed()) {
      p.cu_seqlens_q = integers(starts_, {b + 1}, {1});
      p.max_seqlen_q = *std::max_element(c_.queries.begin(), c_.queries.end());
    }
  }
  if (c_.sink) p.sink = place(sink_.data(), 4 * sink_.size(), FA3_FLOAT32, {h}, {1}, memory);
  first_output_ = memory_.size();
  p.o = by_query(nullptr, c_.wide_output ? int32_t{FA3_FLOAT32} : int32_t{c_.dtype}, kValues);
  p.lse = scalars();
  p.max = scalars();
  p.causal = c_.causal;
  p.lse_with_sink = c_.lse_with_sink;
  p.empty_lse = c_.infinite_empty_lse;
  p.num_splits = c_.num_splits;
  p.batch_invariant = c_.batch_invariant;
}

std::string LatentCall::compare() {
  for (size_t i = 0; std::vector<std::byte>* const out : {&o_, &lse_, &max_}) {
    const GuardedMemory& from = memory_[first_output_ + i++];
    out->resize(from.bytes());
    from.read(out->data());
  }
  error_ = size_ = 0;
  for (const Query& query : queries_) {
    if (std::string said = compare_query(query); !said.empty()) return said;
  }
  constexpr double kMostRmse = 0.004;
  const double rmse = size_ > 0 ? std::sqrt(error_ / size_) : 0;
  return rmse > kMostRmse ? "o: a relative RMSE of " + std::to_string(rmse) : "";
}

std::string LatentCall::compare_query(const Query& query) {
  std::vector<std::vector<double>> keys;
  for (const int64_t slot : slots_of(query)) keys.push_back(key_of(slot));
  for (int64_t head = 0; head < c_.heads; ++head) {
    if (std::string said = compare_row(query, head, expect(query, head, keys)); !said.empty()) {
      return said + " in row " + std::to_string(query.row) + ", head " + std::to_string(head);
    }
  }
  return "";
}

LatentCall::Expected LatentCall::expect(const Query& query, int64_t head,
                                        const std::vector<std::vector<double>>& keys) const {
  const int64_t own = c_.query_apart ? kValues : c_.dim, row = query.row * c_.heads + head;
  const auto q = [&](int c) {
    return widen(c < own ? q_[size_t(row * own + c)] : q_rope_[size_t(row * kRope + c - own)],
                 c_.dtype);
  };
  Expected e{.o = std::vector<double>(kValues), .lse = -kInfinity, .max = -kInfinity};
  std::vector<double> weights;
  for (const std::vector<double>& key : keys) {
    double score = 0;
    for (int c = 0; c < c_.dim; ++c) score += key[size_t(c)] * q(c);
    weights.push_back(score / std::sqrt(double(c_.dim)));
    e.max = std::max(e.max, weights.back());
  }
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - e.max);
  if (!keys.empty()) e.lse = e.max + std::log(sum);
  const double sink = c_.sink && query.sequence >= 0 ? sink_[size_t(head)] : -kInfinity;
  const double kept = keys.empty() ? 0 : 1 / (1 + std::exp(sink - e.lse));
  for (size_t i = 0; kept > 0 && i < keys.size(); ++i) {
    for (int c = 0; c < kValues; ++c)
      e.o[size_t(c)] += kept * weights[i] / sum * keys[i][size_t(c)];
  }
  if (c_.lse_with_sink) {
    const double most = std::max(e.lse, sink);
    if (std::isfinite(most)) sum = std::exp(e.lse - most) + std::exp(sink - most);
    e.lse = std::isfinite(most) ? most + std::log(sum) : most;
  }
  if (e.lse == -kInfinity && c_.infinite_empty_lse) e.lse = kInfinity;
  return e;
}

std::string LatentCall::compare_row(const Query& query, int64_t head, const Expected& expected) {
  const auto off = [](const char* what, double right, double found) {
    std::ostringstream text;
    text << what << ": expected " << right << ", got " << found;
    return text.str();
  };
  const int64_t of = query.row / c_.tokens, token = query.row % c_.tokens;
  const int64_t at =
      c_.packed() ? head * query_rows_ + query.row : (of * c_.heads + head) * c_.tokens + token;
  const auto near = [at](const std::vector<std::byte>& found, double right, float* x) {
    std::memcpy(x, found.data() + 4 * at, sizeof(*x));
    return *x == right || std::abs(*x - right) <= 1e-4 + 2e-5 * std::abs(right);
  };
  float x = 0;
  if (!near(lse_, expected.lse, &x)) return off("lse", expected.lse, x);
  if (!near(max_, expected.max, &x)) return off("max", expected.max, x);
  const bool is_zero = std::ranges::count(expected.o, 0.0) == kValues;
  double size = 1;
  for (const double right : expected.o) size = std::max(size, std::abs(right));
  for (int c = 0; c < kValues; ++c) {
    const double right = expected.o[size_t(c)], found = output(query.row, head, c);
    const double distance = std::abs(found - right), most = 0.02 * size + 0.02 * std::abs(right);
    if (is_zero ? found != 0 : !(distance <= most)) return off("o", right, found);
    error_ += distance * distance, size_ += right * right;
  }
  return "";
}

double LatentCall::output(int64_t row, int64_t head, int64_t c) const {
  const int64_t at = (row * c_.heads + head) * kValues + c;
  if (c_.wide_output) {
    float x;
    std::memcpy(&x, o_.data() + 4 * at, sizeof(x));
    return x;
  }
  uint16_t x;
  std::memcpy(&x, o_.data() + 2 * at, sizeof(x));
  return widen(x, c_.dtype);
}

}  // namespace fa3::test
