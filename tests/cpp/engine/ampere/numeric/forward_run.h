// SPDX-License-Identifier: Apache-2.0
//
// A forward call computed by the kernels' own sources on the host (runtime.h), through the engine's
// plan and launch, beside the textbook in double precision. Tensors have padding of NaN, which must
// not be read, or change nothing. Next: forward_numeric_test.cpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/dropout/dropout.h"
#include "core/problem.h"
#include "engine/ampere/launch/launch.h"
#include "engine/ampere/plan/forward_plan.h"
#include "forward_kernels.h"
#include "numeric_case.h"
#include "random_map.h"
#include "runtime.h"

namespace fa3::ampere {

class NumericRun {
 public:
  explicit NumericRun(const NumericCase& c)
      : c_(c),
        q_entries_(c.cu_q.empty() ? c.batch : 1),
        q_rows_(c.cu_q.empty() ? c.seqlen_q : total_q()),
        k_entries_(c.cu_k.empty() ? std::max(c.batch, most(c.batch_index) + 1) : 1),
        k_rows_(c.cu_k.empty() ? c.seqlen_k : total_k()),
        pages_of_entry_(c.page_size > 0 ? (c.seqlen_k + c.page_size - 1) / c.page_size : 0),
        q_(q_entries_, q_rows_, c.heads_q, c.d, c.pad, c.offset, c.dtype, kNan16),
        k_(key_tensors(), key_tensor_rows(), c.heads_k, c.d, c.pad, c.offset, c.dtype, kNan16),
        v_(key_tensors(), key_tensor_rows(), c.heads_k, c.dv, c.pad, c.offset, c.dtype, kNan16),
        k8_(key_tensors(), key_tensor_rows(), c.heads_k, c.d, c.pad, c.offset, c.cache, kNan8),
        v8_(key_tensors(), key_tensor_rows(), c.heads_k, c.dv, c.pad, c.offset, c.cache, kNan8),
        o_(q_entries_, q_rows_, c.heads_q, c.dv, c.pad, c.offset, c.dtype, kUntouched),
        o32_(q_entries_, q_rows_, c.heads_q, c.dv, c.pad, c.offset, DType::float32, kUntouched32),
        gate_(q_entries_, q_rows_, c.heads_q, c.gate == cuda::Gate::kRows ? 1 : c.dv, c.pad,
              c.offset, c.gate_dtype, kNan16),
        gate32_(q_entries_, q_rows_, c.heads_q, c.gate == cuda::Gate::kRows ? 1 : c.dv, c.pad,
                c.offset, DType::float32, std::numeric_limits<float>::quiet_NaN()),
        max_logits_(size_t(c.batch * c.heads_q), -std::numeric_limits<float>::infinity()),
        lse_(size_t(q_entries_ * q_rows_ * c.heads_q), kUntouched32),
        sinks_(size_t(c.heads_q)) {
    if (c.block_mask) {
      map_ = RandomMap(c.map_by_sequence ? c.batch : 1, c.map_by_head ? c.heads_q : 1, c.seqlen_q,
                       c.seqlen_k);
    }
    fill();
    describe();
  }

  // What went wrong, or "".
  std::string problem() {
    run();
    if (error_.empty()) check();
    return error_;
  }
  std::string words() const { return words_; }

 private:
  static constexpr uint16_t kNan16 = 0xffff, kUntouched = 0x1234;
  static constexpr uint8_t kNan8 = 0xff;
  static constexpr float kUntouched32 = -12345.0f;

  static int most(const std::vector<int32_t>& of) {
    int32_t result = -1;
    for (int32_t x : of) result = std::max(result, x);
    return result;
  }
  int64_t total_q() const { return c_.cu_q.back() + 3; }  // three rows are nobody's
  int64_t total_k() const { return c_.cu_k.back() + 2; }
  bool paged() const { return c_.page_size > 0; }
  int64_t key_tensors() const { return paged() ? k_entries_ * pages_of_entry_ + 1 : k_entries_; }
  int64_t key_tensor_rows() const { return paged() ? c_.page_size : k_rows_; }

  uint16_t narrow(double x) const {
    return c_.dtype == DType::bfloat16 ? from_float<BFloat16>(float(x)).bits
                                       : from_float<Float16>(float(x)).bits;
  }
  double widen(uint16_t bits) const {
    return c_.dtype == DType::bfloat16 ? double(to_float(BFloat16{bits}))
                                       : double(to_float(Float16{bits}));
  }

  void fill() {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    const auto fill_rows = [&](Padded<uint16_t>& t, int64_t batches, int64_t rows,
                               double deviation) {
      for (int64_t b = 0; b < batches; ++b) {
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t head = 0; head < t.heads; ++head) {
            for (int64_t i = 0; i < t.columns; ++i) {
              t.at(b, row, head, i) = narrow(deviation * normal(random));
            }
          }
        }
      }
    };
    fill_rows(q_, q_entries_, q_rows_, c_.deviation);
    fill_rows(k_, key_tensors(), key_tensor_rows(), 1);
    fill_rows(v_, key_tensors(), key_tensor_rows(), 1);
    quantize(k_, k8_);
    quantize(v_, v8_);
    for (int i = 0; i < c_.batch * c_.heads_k; ++i) {
      k_scales_.push_back(0.25f * float(i + 1));
      v_scales_.push_back(2.0f / float(i + 1));
    }
    for (float& sink : sinks_) sink = float(2 * normal(random));
    fill_gate([&] { return float(6 * normal(random)); });
    for (int64_t i = 0; i < k_entries_ * pages_of_entry_; ++i) {
      table_.push_back(int32_t(k_entries_ * pages_of_entry_ - 1 - i));
    }
    if (c_.loud_key < 0) return;
    for (int64_t i = 0; i < c_.d; ++i) {  // like the first query, so that its product is large
      k_.at(0, c_.loud_key, 0, i) = narrow(c_.loudness * widen(q_.at(0, 0, 0, i)));
    }
  }

  template <class Draw>
  void fill_gate(const Draw& draw) {
    for (int64_t b = 0; b < q_entries_; ++b) {
      for (int64_t row = 0; row < q_rows_; ++row) {
        for (int64_t head = 0; head < c_.heads_q; ++head) {
          for (int64_t i = 0; i < gate_.columns; ++i) {
            const float x = draw();
            gate_.at(b, row, head, i) = c_.gate_dtype == DType::float16
                                            ? from_float<Float16>(x).bits
                                            : from_float<BFloat16>(x).bits;
            gate32_.at(b, row, head, i) = x;
          }
        }
      }
    }
  }
  double gate_factor(int64_t entry, int64_t row, int64_t head, int64_t column) {
    if (c_.gate == cuda::Gate::kNone) return 1;
    const int64_t i = c_.gate == cuda::Gate::kRows ? 0 : column;
    const uint16_t bits = gate_.at(entry, row, head, i);
    const float logit = c_.gate_dtype == DType::float32   ? gate32_.at(entry, row, head, i)
                        : c_.gate_dtype == DType::float16 ? to_float(Float16{bits})
                                                          : to_float(BFloat16{bits});
    return 1 / (1 + std::exp(-double(logit)));
  }

  bool quantized() const { return c_.cache != DType::float32; }

  // The 16-bit numbers become those that are stored.
  void quantize(Padded<uint16_t>& wide, Padded<uint8_t>& narrow8) {
    if (!quantized()) return;
    for (int64_t b = 0; b < key_tensors(); ++b) {
      for (int64_t row = 0; row < key_tensor_rows(); ++row) {
        for (int64_t head = 0; head < wide.heads; ++head) {
          for (int64_t i = 0; i < wide.columns; ++i) {
            uint16_t& x = wide.at(b, row, head, i);
            uint8_t& stored = narrow8.at(b, row, head, i);
            if (c_.cache == DType::float8_e4m3) {
              stored = from_float<Float8E4M3>(float(widen(x))).bits;
              x = narrow(double(to_float(Float8E4M3{stored})));
            } else {
              stored = from_float<Float8E5M2>(float(widen(x))).bits;
              x = narrow(double(to_float(Float8E5M2{stored})));
            }
          }
        }
      }
    }
  }
  double scale_of(const std::vector<float>& scales, int b, int64_t kv_head) const {
    return quantized() ? double(scales[size_t(b * c_.heads_k + kv_head)]) : 1;
  }

  void describe() {
    Problem& p = p_;
    p.batch = c_.batch;
    p.heads_q = c_.heads_q;
    p.heads_k = c_.heads_k;
    p.head_dim = c_.d;
    p.head_dim_v = c_.dv;
    p.dtype = p.kv_dtype = c_.dtype;
    const auto lengths = [](int max, int64_t total, const std::vector<int32_t>& cu,
                            const std::vector<int32_t>& used) {
      Lengths l;
      l.max = max;
      l.total = total;
      l.varlen = !cu.empty() || !used.empty();
      l.in_one_tensor = !cu.empty();
      l.cu_seqlens = cu.empty() ? nullptr : cu.data();
      l.seqused = used.empty() ? nullptr : used.data();
      return l;
    };
    p.lengths_q = lengths(c_.seqlen_q, q_entries_ * q_rows_, c_.cu_q, c_.used_q);
    p.lengths_k = lengths(c_.seqlen_k, k_entries_ * k_rows_, c_.cu_k, c_.used_k);
    if (!c_.left.empty()) {
      p.lengths_k.left_padding = c_.left.data();
      p.lengths_k.padded_left = p.lengths_k.varlen = true;
    }
    p.scale = 1 / std::sqrt(float(c_.d));
    p.softcap = c_.softcap;
    p.mask = c_.mask;
    p.block_mask = map_.mask();
    p.q = q_.operand;
    p.k = k_.operand;
    p.v = v_.operand;
    p.o = c_.float_output ? o32_.operand : o_.operand;
    if (quantized()) {
      p.kv_dtype = c_.cache;
      p.k = k8_.operand;
      p.v = v8_.operand;
      const auto scales = [&](const std::vector<float>& of) {
        return Descales<const float>{.data = of.data(),
                                     .scaling = Scaling::per_head,
                                     .batch_stride = c_.heads_k,
                                     .head_stride = 1};
      };
      p.k_quantization.descale = scales(k_scales_);
      p.v_quantization.descale = scales(v_scales_);
    }
    if (!c_.cu_q.empty()) p.q.batch_stride = p.o.batch_stride = 0;
    if (!c_.cu_k.empty()) p.k.batch_stride = p.v.batch_stride = 0;
    if (paged()) {
      p.key_places = {.page_table = table_.data(),
                      .table_stride = pages_of_entry_,
                      .page_size = c_.page_size,
                      .entries = k_entries_,
                      .pages = key_tensors(),
                      .elsewhere = true};
    }
    if (!c_.batch_index.empty()) {
      p.key_places.batch_index = c_.batch_index.data();
      p.key_places.indexed = true;
    }
    if (!c_.batch_index.empty() || !c_.left.empty()) {
      p.key_places.elsewhere = true;
      p.key_places.entries = k_entries_;
    }
    p.lse = {lse_.data(), c_.heads_q * q_rows_, q_rows_, 1};
    if (c_.sink) p.sink = sinks_.data(), p.has_sink = true;
    if (c_.gate != cuda::Gate::kNone) {
      p.gate = {.on = true,
                .per_row = c_.gate == cuda::Gate::kRows,
                .logits = c_.gate_dtype == DType::float32 ? gate32_.operand : gate_.operand};
      if (!c_.cu_q.empty()) p.gate.logits.batch_stride = 0;
    }
    if (c_.max_logit) p.max_logit = {true, max_logits_.data(), c_.heads_q, 1};
    p.dropout = {.threshold = dropout_threshold(c_.dropout), .seed = 11, .offset = 5};
    p.device = FA3_CUDA;
    if (c_.function != nullptr) p.score = &function_;
  }

  void run() {
    const int row = int(select_kernel(p_, c_.smem_of_sm) - kForward.data());
    const bool fp16 = c_.dtype == DType::float16;  // of one row alone
    if (fp16 && row != kFp16Row) error_ = "no fp16 kernel of row " + std::to_string(row);
    ForwardConfig config = config_of(row, cuda::element_of(c_.dtype));
    config.outputs = cuda::call_of(p_).outputs();
    if (c_.num_splits > 1) config.outputs = {.max_logit = c_.max_logit};  // as plan_forward()
    const auto kernel =
        config.outputs.any()
            ? kernel_with(row, config.outputs,
                          std::make_integer_sequence<int, int(std::size(kOutputKernels))>())
            : kernel_at(row, fp16, std::make_integer_sequence<int, int(kForward.size())>());
    if (kernel == nullptr) {
      error_ = "kOutputKernels has none of row " + std::to_string(row) + ", gate " +
               std::to_string(int(config.outputs.gate));
      return;
    }
    const ForwardPlan plan = plan_launch({config, machine::add_kernel(kernel)}, cuda::call_of(p_),
                                         select_pack(p_, config), 2, c_.num_splits);
    words_ = std::to_string(plan.k_width) + " bytes, " +
             std::to_string(plan.schedule.pack.heads()) + " heads, row " + std::to_string(row);
    if (plan.partials.any()) words_ += ", " + std::to_string(plan.schedule.num_splits) + " splits";
    std::vector<float> workspace(size_t(plan.partials.bytes()) / sizeof(float), kUntouched32);
    const cuda::ScoreCaptures captures{};
    launch_forward(plan, c_.function ? &captures : nullptr, workspace.data(), nullptr);
    if (error_.empty()) error_ = machine::take_launch_error();
    if (plan.partials.any() && error_.empty()) merge(plan.partials, workspace.data());
  }

  // What cuda/kernels/merge.cu does with partial results, all of which must be written.
  void merge(const PartialResults& partials, float* workspace) {
    WorkspaceAllocator allocator(workspace);
    const auto [o, lse] = partials.carve(allocator);
    for (int64_t row = 0; row < q_entries_ * q_rows_ * c_.heads_q; ++row) {
      const int64_t entry = row / (q_rows_ * c_.heads_q), head = row / q_rows_ % c_.heads_q;
      const int64_t query = row % q_rows_;
      double most = -std::numeric_limits<double>::infinity(), sum = 0;
      std::vector<double> total(size_t(c_.dv));
      for (int64_t i = 0; i < partials.num_splits; ++i) {
        const double of_split = double(lse[i * partials.lse_stride() + row]);
        if (of_split == double(kUntouched32)) error_ = "a partial result is not written";
        most = std::max(most, of_split);
      }
      for (int64_t i = 0; i < partials.num_splits; ++i) {
        const double of_split = double(lse[i * partials.lse_stride() + row]);
        const double weight = of_split == most ? 1 : std::exp(of_split - most);
        if (weight == 0 || std::isinf(most)) continue;
        const float* const values =
            o + i * partials.o_stride() +
            ((entry * q_rows_ + query) * c_.heads_q + head) * partials.pitch;
        sum += weight;
        for (int j = 0; j < c_.dv; ++j) total[size_t(j)] += weight * double(values[j]);
      }
      lse_[size_t(row)] = float(std::isinf(most) ? most : most + std::log(sum));
      for (int j = 0; j < c_.dv; ++j) {
        const double factor = gate_factor(entry, query, head, j);
        const double value = sum == 0 ? 0 : total[size_t(j)] / sum * factor;
        if (c_.float_output)
          o32_.at(entry, query, head, j) = float(value);
        else
          o_.at(entry, query, head, j) = narrow(value);
      }
    }
  }

  // ---- The textbook ----

  const uint16_t* key_row(Padded<uint16_t>& t, int b, int64_t row, int64_t head) {
    return row_at<uint16_t>(t.operand, p_.key_places, b, row, head);
  }

  void check() {
    expected_max_logits_.assign(max_logits_.size(), -std::numeric_limits<double>::infinity());
    std::vector<bool> owned(size_t(q_entries_ * q_rows_));
    for (int b = 0; b < c_.batch; ++b) {
      const Rows q = p_.lengths_q.rows_of(b), k = p_.lengths_k.rows_of(b);
      for (int64_t row = 0; row < q.owned; ++row) {
        owned[size_t(entry_of(b) * q_rows_ + q.begin + row)] = true;
        for (int head = 0; head < c_.heads_q; ++head) check_row(b, row, head, q, k);
      }
    }
    for (size_t i = 0; i < owned.size(); ++i) {
      if (owned[i]) continue;
      for (int head = 0; head < c_.heads_q; ++head) {
        compare(int64_t(i) / q_rows_, int64_t(i) % q_rows_, head,
                std::vector<double>(size_t(c_.dv)), -std::numeric_limits<double>::infinity());
      }
    }
    for (size_t i = 0; c_.max_logit && i < max_logits_.size() && error_.empty(); ++i) {
      const double got = double(max_logits_[i]), expected = expected_max_logits_[i];
      if (got != expected && !(std::abs(got - expected) <= 1e-5 * (1 + std::abs(expected)))) {
        error_ = "max_logit " + std::to_string(i) + ": " + std::to_string(got) + ", expected " +
                 std::to_string(expected);
      }
    }
  }
  int64_t entry_of(int b) const { return c_.cu_q.empty() ? b : 0; }

  double score(int b, int64_t q_row, int64_t key, int head) {
    const int64_t kv_head = head / p_.group();
    const uint16_t* const k = key_row(k_, int(c_.cu_k.empty() ? b : 0), key, kv_head);
    double sum = 0;
    for (int i = 0; i < c_.d; ++i) sum += widen(q_.at(entry_of(b), q_row, head, i)) * widen(k[i]);
    sum *= double(p_.scale) * scale_of(k_scales_, b, kv_head);
    double& most = expected_max_logits_[size_t(b * c_.heads_q + head)];
    most = std::max(most, sum);
    return c_.softcap == 0 ? sum : double(c_.softcap) * std::tanh(sum / double(c_.softcap));
  }

  void check_row(int b, int64_t row, int head, const Rows& q, const Rows& k) {
    std::vector<double> o(size_t(c_.dv));
    double lse = -std::numeric_limits<double>::infinity();
    if (row < q.used) {
      const KeyRange range = p_.mask.keys_of(row, q.used, k.used);
      std::vector<double> scores;
      bool sees = c_.sink;
      for (int64_t key = range.begin; key < range.end; ++key) {
        const bool shown = map_.shows(b, head, int(row), int(key));
        double found = shown ? score(b, q.begin + row, k.begin + key, head) : lse;
        if (shown && c_.function) found = c_.function(found, b, head, int(row), int(key));
        scores.push_back(found);
        sees |= found != lse;
      }
      double most = lse;
      for (double s : scores) most = std::max(most, s);
      if (c_.sink) most = std::max(most, double(sinks_[size_t(head)]));
      double sum = c_.sink ? std::exp(double(sinks_[size_t(head)]) - most) : 0;
      for (double s : scores) sum += sees ? std::exp(s - most) : 0;
      const DropoutHead draws = p_.dropout.head(p_.dropout.call_key(), b, head);
      DropoutRow kept(p_.dropout, draws, row);
      for (size_t i = 0; i < scores.size(); ++i) {
        const int64_t key = range.begin + int64_t(i);
        if (scores[i] == -std::numeric_limits<double>::infinity()) continue;
        if (p_.dropout.on() && !kept.keeps(key)) continue;
        const uint16_t* const v =
            key_row(v_, int(c_.cu_k.empty() ? b : 0), k.begin + key, head / p_.group());
        const double weight = std::exp(scores[i] - most) / sum *
                              (p_.dropout.on() ? p_.dropout.scale() : 1) *
                              scale_of(v_scales_, b, head / p_.group());
        for (int j = 0; j < c_.dv; ++j) o[size_t(j)] += weight * widen(v[j]);
      }
      if (sees) lse = most + std::log(sum);
      for (int j = 0; sees && j < c_.dv; ++j) {
        o[size_t(j)] *= gate_factor(entry_of(b), q.begin + row, head, j);
      }
    }
    compare(entry_of(b), q.begin + row, head, o, lse);
  }

  void compare(int64_t entry, int64_t row, int head, const std::vector<double>& o, double lse) {
    const double unit = c_.dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
    const auto place = [&] {
      return " of entry " + std::to_string(entry) + ", row " + std::to_string(row) + ", head " +
             std::to_string(head);
    };
    for (int j = 0; j < c_.dv && error_.empty(); ++j) {
      const double got = c_.float_output ? double(o32_.at(entry, row, head, j))
                                         : widen(o_.at(entry, row, head, j));
      const double expected = o[size_t(j)];
      if (!(std::abs(got - expected) <= 4 * unit * (std::abs(expected) + 0.5))) {
        error_ = "column " + std::to_string(j) + place() + ": " + std::to_string(got) +
                 ", expected " + std::to_string(expected);
      }
    }
    const double got = double(lse_[size_t((entry * c_.heads_q + head) * q_rows_ + row)]);
    if (error_.empty() && got != lse && !(std::abs(got - lse) <= 1e-4 * (1 + std::abs(lse)))) {
      error_ = "LSE" + place() + ": " + std::to_string(got) + ", expected " + std::to_string(lse);
    }
  }

  const NumericCase c_;
  const int64_t q_entries_, q_rows_, k_entries_, k_rows_, pages_of_entry_;
  Padded<uint16_t> q_, k_, v_;
  Padded<uint8_t> k8_, v8_;
  std::vector<float> k_scales_, v_scales_;
  Padded<uint16_t> o_;
  Padded<float> o32_;
  Padded<uint16_t> gate_;
  Padded<float> gate32_;
  std::vector<float> max_logits_;
  std::vector<double> expected_max_logits_;
  std::vector<float> lse_, sinks_;
  std::vector<int32_t> table_;
  RandomMap map_;
  const fa3_score_function function_{};
  Problem p_;
  std::string error_, words_;
};

}  // namespace fa3::ampere
