// SPDX-License-Identifier: Apache-2.0
//
// A decode kernel's sources on the machine, with all lanes: launched as in the library, all CTAs of
// the grid beside each other. Scores are zero, so a row's log-sum-exp is the logarithm of how many
// keys its splits, CTAs and warps have counted: one that is lost, read too early or reduced twice
// shows there, also where it went through memory that nobody watches.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/hopper/decode/decode_kernel.cuh"
#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "launch/host_runtime.h"
#include "launch/shape.h"
#include "machine.h"

namespace fa3::hopper {

using machine::Fault;
using machine::Pace;

struct DecodeCase {
  const char* name;
  int seqlen_q, heads, kv_heads;
  std::vector<int32_t> keys;  // of each sequence
  SplitKv split;              // .ctas: clusters
  int page_size = 0;          // 0: no pages
  int right = 0;              // of the window; below 0 it ends before the diagonal
};

struct DecodeTrial {
  DecodeCase shape;
  unsigned seed = 0;
  Pace pace;
  Fault fault = Fault::kNone;
  bool fault_is_in_cluster = false;  // of the barrier that counts rows; else of the stages'
};

// What a kernel stores with plain stores: how often, and what last.
template <class T>
class Stored {
 public:
  Stored(size_t count, T nothing)
      : memory(count, nothing), last(count), times(count), untouched_(memory) {}

  // After each warp's turn: what it has stored is taken away.
  void look() {
    if (same(0, memory.size())) return;
    for (size_t i = 0; i < memory.size(); ++i) {
      if (same(i, 1)) continue;
      last[i] = memory[i];
      memory[i] = untouched_[i];
      ++times[i];
    }
  }

  std::vector<T> memory, last;
  std::vector<int> times;

 private:
  bool same(size_t first, size_t count) const {
    return std::memcmp(&memory[first], &untouched_[first], count * sizeof(T)) == 0;
  }

  const std::vector<T> untouched_;
};

template <Kernel C>
class DecodeRun {
  using Stages = DecodeStages<C>;

 public:
  explicit DecodeRun(const DecodeTrial& trial)
      : trial_(trial),
        shape_(trial_.shape),
        lse_(size_t(sequences() * shape_.heads * shape_.seqlen_q),
             std::bit_cast<float>(kNotStored)),
        o_(lse_.memory.size() * C.shape.head_dim_v, kNoOutput) {
    const ForwardPlan plan =
        plan_launch({C, nullptr, int(sizeof(DecodeSmem<C>))}, call(), tiling(), machine::kSms);
    workspace_.resize(size_t(plan.workspace.bytes), 0xff);  // NaN
    machine::on_launch = [this](const void*, dim3 grid, const void* params, bool pdl) {
      grid_ = grid, pdl_ = pdl;
      params_ = *static_cast<const ForwardParams*>(params);
    };
    const cudaError_t error =
        launch_forward(plan, {.v = plan.call.v, .o = plan.call.o}, workspace_.data(), nullptr);
    if (error != cudaSuccess) {
      problem_ = "the launch failed";
      return;
    }
    by_cp_async_ = plan.kv_loader == KvPath::kCpAsync;
    run(plan.cluster);
  }

  bool by_cp_async() const { return by_cp_async_; }
  int ctas() const { return int(grid_.x * grid_.y * grid_.z); }

  // "" if everything was done, and once.
  const std::string& problem() const { return problem_; }

 private:
  static constexpr uint32_t kNotStored = 0x7fc0cdcd;
  static constexpr uint16_t kNoOutput = 0xcdcd;

  int sequences() const { return int(shape_.keys.size()); }
  int most_keys() const { return *std::max_element(shape_.keys.begin(), shape_.keys.end()); }
  int pages_of_sequence() const { return (most_keys() + shape_.page_size - 1) / shape_.page_size; }
  // Entries of K and V: pages, or one for each sequence.
  int entries() const {
    return shape_.page_size > 0 ? sequences() * pages_of_sequence() : sequences();
  }
  int rows_of_entry() const { return shape_.page_size > 0 ? shape_.page_size : most_keys(); }
  bool is_e5m2() const { return trial_.seed % 2 == 1; }  // of quantized caches
  int group() const { return shape_.heads / shape_.kv_heads; }

  Tiling tiling() const { return {most_packed(group(), true), Scheduler::kStreamK, shape_.split}; }

  ForwardCall call() {
    // Pages in another order than their numbers'.
    for (int i = 0; shape_.page_size > 0 && i < entries(); ++i) pages_.push_back(entries() - 1 - i);
    const DecodeCase& s = shape_;
    ForwardCall a;
    a.q = dense_span(&q_, sequences(), s.seqlen_q, s.heads, C.shape.head_dim);
    a.k = dense_span(&k_, entries(), rows_of_entry(), s.kv_heads, C.shape.head_dim,
                     bytes_of(C.types().stored));
    a.v = dense_span(&v_, entries(), rows_of_entry(), s.kv_heads, C.shape.head_dim_v,
                     bytes_of(C.types().stored));
    a.o = dense_span(o_.memory.data(), sequences(), s.seqlen_q, s.heads, C.shape.head_dim_v);
    a.head_dim_v = C.shape.head_dim_v;
    a.lse = {lse_.memory.data(), {int64_t{s.heads} * s.seqlen_q, s.seqlen_q, 1}};
    a.scale = 1;
    a.mask.right = s.right;
    a.seqlen_q = s.seqlen_q;
    a.seqlen_k = most_keys();
    a.varlen = true;
    a.sequences = sequences();
    a.lengths_q = {.max = s.seqlen_q, .total = sequences() * s.seqlen_q};
    a.lengths_k = {.seqused = s.keys.data(),
                   .max = most_keys(),
                   .total = sequences() * most_keys(),
                   .varlen = true};
    if (s.page_size > 0) {
      a.places = {.page_table = pages_.data(),
                  .table_stride = pages_of_sequence(),
                  .page_size = s.page_size,
                  .entries = sequences(),
                  .pages = entries(),
                  .elsewhere = true};
    }
    a.heads_per_kv_head = group();
    a.cache_is_e5m2 = is_e5m2();
    return a;
  }

  machine::Setting setting() {
    machine::Setting setting{.seed = trial_.seed, .pace = trial_.pace, .fault = trial_.fault};
    setting.pdl = pdl_;
    const int64_t rows = int64_t{entries()} * rows_of_entry();
    const int bytes = bytes_of(C.types().stored);
    setting.tensors = {
        {&k_, kAddressOfK, rows, shape_.kv_heads, C.shape.head_dim, bytes, rows_of_entry()},
        {&v_, kAddressOfV, rows, shape_.kv_heads, C.shape.head_dim_v, bytes, rows_of_entry()}};
    using Smem = DecodeSmem<C>;
    constexpr size_t kArrived = offsetof(Smem, reduce) + offsetof(ClusterReduceSmem<C>, arrived);
    const size_t first = trial_.fault_is_in_cluster ? kArrived : offsetof(Smem, barriers);
    setting.kv = {.first_full = machine::kSmemBase + uint32_t(first),
                  .stages = trial_.fault_is_in_cluster ? 1 : Stages::kWarps * Stages::kStages};
    setting.after_step = [this] {
      lse_.look();
      o_.look();
    };
    return setting;
  }

  void run(int cluster) {
    params_.cp_async.k.data = reinterpret_cast<const unsigned char*>(kAddressOfK);
    params_.cp_async.v.data = reinterpret_cast<const unsigned char*>(kAddressOfV);
    const machine::Setting how = setting();
    ptx::has_dequantized[0] = ptx::has_dequantized[1] = false;
    const machine::Outcome outcome =
        machine::run_ctas(how, Stages::kWarps, {.grid = grid_, .count = ctas(), .cluster = cluster},
                          [this] { decode_kernel<C>(params_); });
    problem_ = outcome.error;
    if (problem_.empty()) check_rows();
    if (problem_.empty()) check_loads(outcome);
    if (problem_.empty()) check_counters();
    if (C.dequantizes() && !ptx::has_dequantized_only(is_e5m2())) complain("of another type: keys");
  }

  template <class... Parts>
  void complain(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    if (problem_.empty()) problem_ = text.str();
  }

  // Every row of O and of the LSE is stored once, from all keys that it sees.
  void check_rows() {
    for (int b = 0; b < sequences(); ++b) {
      for (int head = 0; head < shape_.heads; ++head) {
        for (int row = 0; row < shape_.seqlen_q; ++row) check_row(b, head, row);
      }
    }
  }
  void check_row(int b, int head, int row) {
    const int keys = shape_.keys[size_t(b)];
    const MaskRuleOf<int> mask{.right = shape_.right};
    const int seen = std::max(0, mask.keys_of(row, shape_.seqlen_q, keys).end);
    const float expected = seen == 0 ? -kInfinity : std::log(float(seen));
    const size_t at = size_t((b * shape_.heads + head) * shape_.seqlen_q + row);
    const float lse = lse_.last[at];
    const auto place = [&] {
      return " of sequence " + std::to_string(b) + ", head " + std::to_string(head) + ", row " +
             std::to_string(row);
    };
    if (lse_.times[at] != 1) complain("stored ", lse_.times[at], " times: the LSE", place());
    constexpr float kTolerance = 1e-4f;
    if (lse != expected && !(std::abs(lse - expected) < kTolerance)) {
      complain("wrong keys: the LSE", place(), " is that of ", std::exp(lse), " of ", seen);
    }
    const size_t o_row = size_t((b * shape_.seqlen_q + row) * shape_.heads + head);
    for (int column = 0; column < C.shape.head_dim_v; ++column) {
      const int times = o_.times[o_row * C.shape.head_dim_v + size_t(column)];
      if (times != 1) complain("stored ", times, " times: column ", column, " of O", place());
    }
  }

  // Lane 0 loads its share of each row of keys once for each pack of heads, in whichever warp.
  void check_loads(const machine::Outcome& outcome) {
    constexpr int kBytes = bytes_of(C.types().stored), kMatrixRows = 8, kMmaKeys = 16;
    constexpr int kPieceRows = 1024 / Stages::kK.row_bytes();
    constexpr int kOfK =
        C.shape.head_dim * kBytes / (kQuadLanes * tile::kChunkBytes) * (kPieceRows / kMatrixRows);
    constexpr int kOfV = C.shape.head_dim_v * kBytes / (2 * tile::kChunkBytes);
    std::map<std::tuple<const void*, int, int, int>, int> loads;
    for (const auto& of_warp : outcome.loads) {
      for (const machine::Content& c : of_warp) {
        // Zeros behind the last key: by threads, and of boxes of no page.
        if (c.tensor == nullptr || c.batch < 0) continue;
        const auto [sequence, key] = key_of(c);
        if (key < shape_.keys[size_t(sequence)]) ++loads[{c.tensor, c.head, sequence, key}];
      }
    }
    const int packs = group() / tiling().pack.heads();
    for (int b = 0; b < sequences(); ++b) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (int key = 0; key < shape_.keys[size_t(b)]; key += kPieceRows) {
          const auto check = [&](const void* tensor, const char* name, int count) {
            const auto load = loads.extract({tensor, head, b, key});
            const int found = load ? load.mapped() : 0;
            if (found == count) return;
            complain("loaded ", found, " times, not ", count, ": ", name, " of sequence ", b,
                     ", head ", head, ", key ", key);
          };
          check(&k_, "K", packs * kOfK);
          if (key % kMmaKeys == 0) check(&v_, "V", packs * kOfV);
        }
      }
    }
    for (const auto& [place, count] : loads) {
      const auto& [tensor, head, b, key] = place;
      complain("loaded ", count, " times, not at all: ", tensor == &k_ ? "K" : "V", " of sequence ",
               b, ", head ", head, ", key ", key);
    }
  }
  std::pair<int, int> key_of(const machine::Content& c) const {
    if (shape_.page_size == 0) return {c.batch, c.row};
    const int entry = entries() - 1 - c.batch;
    return {entry / pages_of_sequence(), entry % pages_of_sequence() * shape_.page_size + c.row};
  }

  // Whoever counts the last split leaves zero.
  void check_counters() {
    const SplitCounters& counts = params_.counts;
    const int64_t bytes = reinterpret_cast<unsigned char*>(counts.cells) - workspace_.data();
    for (int64_t i = 0; i < (int64_t(workspace_.size()) - bytes) / 8; ++i) {
      const uint64_t cell = counts.cells[i];
      const bool counted = cell >> SplitCounters::kBits == counts.launch;
      if (counted && (cell & SplitCounters::kMost) != 0) complain("a counter was left at work");
    }
  }

  const DecodeTrial trial_;
  const DecodeCase& shape_;
  char q_ = 0, k_ = 0, v_ = 0;  // stand for tensors
  Stored<float> lse_;
  Stored<uint16_t> o_;
  std::vector<int32_t> pages_;
  std::vector<unsigned char> workspace_;
  ForwardParams params_{};
  dim3 grid_;
  bool pdl_ = false, by_cp_async_ = false;
  std::string problem_;
};

}  // namespace fa3::hopper
