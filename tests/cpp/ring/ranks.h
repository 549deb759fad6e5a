// SPDX-License-Identifier: Apache-2.0
//
// A ring of the C ABI whose ranks are threads, and whose rows fake_nccl carries; and what it has to
// give: textbook attention in float64 over the whole.
#pragma once

#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "ring/fake_nccl.h"

namespace fa3::test {

inline constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kDimV = 8;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int layout = FA3_RING_ZIGZAG;
  int64_t left = -1, right = -1;
  bool causal = false;
  float softcap = 0;
  bool has_d_lse = false;
  bool has_sink = false;
  std::vector<int32_t> starts{};  // of packed documents, and the end of the last one

  bool is_packed() const { return !starts.empty(); }
  int64_t batch() const { return is_packed() ? 1 : 2; }
};

inline std::vector<float> numbers(int64_t count, unsigned seed) {
  std::vector<float> found;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    found.push_back(2 * (static_cast<float>(seed >> 8) / static_cast<float>(1 << 24) - 0.5f));
  }
  return found;
}

// Tensors of some rows: of the whole, or of a rank's part.
struct Tensors {
  int64_t batch = 1, rows = 0;
  std::vector<float> q, k, v, d_o, d_lse, sink, o, lse, dq, dk, dv, dsink;

  Tensors(int64_t sequences, int64_t of) : batch(sequences), rows(of) {
    q = numbers(batch * rows * kHeads * kDim, 1);
    k = numbers(batch * rows * kKvHeads * kDim, 2);
    v = numbers(batch * rows * kKvHeads * kDimV, 3);
    d_o = numbers(batch * rows * kHeads * kDimV, 4);
    d_lse = numbers(batch * rows * kHeads, 5);
    sink = {0.5f, -1.0f, -kInfinity, 2.0f};
    dsink.assign(kHeads, NAN);
    o.assign(size_t(batch * rows * kHeads * kDimV), NAN);
    lse.assign(size_t(batch * rows * kHeads), NAN);
    dq.assign(q.size(), NAN);
    dk.assign(k.size(), NAN);
    dv.assign(v.size(), NAN);
  }
};

inline fa3_tensor view(const Tensors& of, std::vector<float>& data, int64_t heads, int64_t dim) {
  return bshd(data.data(), FA3_FLOAT32, of.batch, of.rows, heads, dim);
}
inline fa3_tensor lse_view(const Tensors& of, std::vector<float>& data) {
  return contiguous(data.data(), FA3_FLOAT32, {of.batch, kHeads, of.rows});
}
inline fa3_tensor sink_view(std::vector<float>& data) {
  return contiguous(data.data(), FA3_FLOAT32, {kHeads});
}

inline ForwardArgs forward_of(Tensors& t, const Case& of) {
  ForwardArgs args;
  args.options.causal = of.causal ? 1 : 0;
  args.options.window_left = of.left;
  args.options.window_right = of.right;
  args.options.softcap = of.softcap;
  args.options.num_threads = 1;
  args.q = view(t, t.q, kHeads, kDim);
  args.k = view(t, t.k, kKvHeads, kDim);
  args.v = view(t, t.v, kKvHeads, kDimV);
  args.o = view(t, t.o, kHeads, kDimV);
  args.lse = lse_view(t, t.lse);
  if (of.has_sink) args.sink = sink_view(t.sink);
  return args;
}

inline BackwardArgs backward_of(Tensors& t, const Case& of) {
  const ForwardArgs from = forward_of(t, of);
  BackwardArgs args;
  args.options = from.options;
  args.q = from.q;
  args.k = from.k;
  args.v = from.v;
  args.o = from.o;
  args.lse = from.lse;
  args.d_o = view(t, t.d_o, kHeads, kDimV);
  if (of.has_d_lse) args.d_lse = lse_view(t, t.d_lse);
  args.dq = view(t, t.dq, kHeads, kDim);
  args.dk = view(t, t.dk, kKvHeads, kDim);
  args.dv = view(t, t.dv, kKvHeads, kDimV);
  if (of.has_sink) {
    args.sink = from.sink;
    args.dsink = sink_view(t.dsink);
  }
  return args;
}

// Some rows of all sequences: of (b, s, width) numbers.
inline std::vector<float> rows_of(const Tensors& whole, const std::vector<float>& from,
                                  const std::vector<int64_t>& rows, int64_t width) {
  std::vector<float> found;
  for (int64_t b = 0; b < whole.batch; ++b) {
    for (int64_t i : rows) {
      const float* row = from.data() + (b * whole.rows + i) * width;
      found.insert(found.end(), row, row + width);
    }
  }
  return found;
}
// A rank's rows of (b, h, s) numbers.
inline std::vector<float> rows_of_heads(const Tensors& whole, const std::vector<float>& from,
                                        const std::vector<int64_t>& rows) {
  std::vector<float> found;
  for (int64_t line = 0; line < whole.batch * kHeads; ++line) {
    for (int64_t i : rows) found.push_back(from[size_t(line * whole.rows + i)]);
  }
  return found;
}

inline Ring ring_of(void* comm, int64_t seqlen, const Case& of) {
  Ring ring;
  ring.comm = comm;
  ring.seqlen = seqlen;
  ring.layout = of.layout;
  ring.library = FA3_FAKE_NCCL;
  ring.cu_seqlens = of.is_packed() ? of.starts.data() : nullptr;
  ring.num_documents = of.is_packed() ? int32_t(of.starts.size()) - 1 : 0;
  return ring;
}

// Both passes of a rank, with workspaces of exactly what was asked for.
inline Status both_passes(Tensors& t, const Case& of, const Ring& ring) {
  const ForwardArgs forward_args = forward_of(t, of);
  const BackwardArgs backward_args = backward_of(t, of);
  const auto run = [&](const auto& args, const auto& call) {
    size_t bytes = 0;
    Status status = workspace_size(args, ring, &bytes);
    if (!status.ok()) return status;
    Workspace workspace;
    status = workspace.reserve(bytes);
    if (bytes > 0) std::memset(workspace.data(), 0xff, bytes);  // NaN: nothing is taken for zero
    return status.ok() ? call(args, ring, workspace.data(), bytes) : status;
  };
  const Status status = run(forward_args, [](const auto&... x) { return forward(x...); });
  if (!status.ok()) return status;
  return run(backward_args, [](const auto&... x) { return backward(x...); });
}

// Runs body(rank) on a thread for each rank; the first failure.
inline Status on_all_ranks(int world, const std::function<Status(int)>& body) {
  std::vector<Status> ended(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { ended[size_t(rank)] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& status : ended) {
    if (!status.ok()) return status;
  }
  return {};
}

class Comms {
 public:
  explicit Comms(int world) : comms_(fake_nccl_world(world)) {}
  ~Comms() { fake_nccl_destroy(comms_); }
  Comms(const Comms&) = delete;
  Comms& operator=(const Comms&) = delete;
  void* operator[](int rank) const { return comms_[rank]; }

 private:
  void** comms_;
};

inline std::vector<int64_t> rows_held(const Ring& ring, int world, int rank) {
  std::vector<fa3_ring_piece> pieces;
  EXPECT_TRUE(pieces_of_rank(ring, world, rank, &pieces).ok());
  std::vector<int64_t> rows;
  for (const fa3_ring_piece& of : pieces) {
    const int64_t start = ring.num_documents > 0 ? ring.cu_seqlens[of.document] : 0;
    for (int64_t i = of.begin; i < of.end; ++i) rows.push_back(start + i);
  }
  return rows;
}

inline Tensors part_of(const Tensors& whole, const std::vector<int64_t>& rows) {
  Tensors part(whole.batch, int64_t(rows.size()));
  part.q = rows_of(whole, whole.q, rows, kHeads * kDim);
  part.k = rows_of(whole, whole.k, rows, kKvHeads * kDim);
  part.v = rows_of(whole, whole.v, rows, kKvHeads * kDimV);
  part.d_o = rows_of(whole, whole.d_o, rows, kHeads * kDimV);
  part.d_lse = rows_of_heads(whole, whole.d_lse, rows);
  return part;
}

// float32 that a ring has computed, of numbers about 1: some dozens of its roundings.
inline constexpr double kTolerance = 2e-5;

inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                        const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;  // also infinities
    ASSERT_NEAR(got[i], expected[i], kTolerance) << what << " at " << i;
  }
}

// As packed tensors are in fa3.h: without a batch, and with lengths.
template <class Args>
void pack(Args* args, std::vector<int32_t>& starts, std::initializer_list<fa3_tensor*> tensors) {
  args->options.cu_seqlens_q = args->options.cu_seqlens_k =
      contiguous(starts.data(), FA3_INT32, {int64_t(starts.size())});
  for (fa3_tensor* tensor : tensors) {
    if (tensor->rank == 0) continue;
    tensor->rank -= 1;
    std::copy(tensor->shape + 1, tensor->shape + 1 + tensor->rank, tensor->shape);
    std::copy(tensor->stride + 1, tensor->stride + 1 + tensor->rank, tensor->stride);
  }
}

// Both passes over the whole at once, in float64.
inline void attend_at_once(Tensors& whole, Case of) {
  ForwardArgs f = forward_of(whole, of);
  BackwardArgs b = backward_of(whole, of);
  f.options.engine = b.options.engine = FA3_ENGINE_REFERENCE;
  if (of.is_packed()) {
    pack(&f, of.starts, {&f.q, &f.k, &f.v, &f.o, &f.lse});
    pack(&b, of.starts, {&b.q, &b.k, &b.v, &b.o, &b.lse, &b.d_o, &b.d_lse, &b.dq, &b.dk, &b.dv});
  }
  Workspace workspace;
  Status status = forward(f, workspace);
  ASSERT_TRUE(status.ok()) << status.message();
  status = backward(b, workspace);
  ASSERT_TRUE(status.ok()) << status.message();
}

inline void expect_the_whole(const Case& of, int world, int64_t seqlen) {
  Tensors whole(of.batch(), seqlen);
  attend_at_once(whole, of);
  if (testing::Test::HasFatalFailure()) return;

  const Comms comms(world);
  std::vector<Tensors> parts;
  std::vector<std::vector<int64_t>> rows;
  for (int rank = 0; rank < world; ++rank) {
    rows.push_back(rows_held(ring_of(comms[rank], seqlen, of), world, rank));
    parts.push_back(part_of(whole, rows.back()));
  }
  const Status status = on_all_ranks(world, [&](int rank) {
    return both_passes(parts[size_t(rank)], of, ring_of(comms[rank], seqlen, of));
  });
  ASSERT_TRUE(status.ok()) << status.message();

  std::vector<float> dsink(kHeads);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto of_whole = [&](const std::vector<float>& from, int64_t width) {
      return rows_of(whole, from, rows[rank], width);
    };
    Tensors& part = parts[rank];
    expect_near(part.o, of_whole(whole.o, kHeads * kDimV), "o");
    expect_near(part.lse, rows_of_heads(whole, whole.lse, rows[rank]), "lse");
    expect_near(part.dq, of_whole(whole.dq, kHeads * kDim), "dq");
    expect_near(part.dk, of_whole(whole.dk, kKvHeads * kDim), "dk");
    expect_near(part.dv, of_whole(whole.dv, kKvHeads * kDimV), "dv");
    for (size_t head = 0; head < dsink.size(); ++head) dsink[head] += part.dsink[head];
  }
  if (of.has_sink) expect_near(dsink, whole.dsink, "dsink");
}

}  // namespace fa3::test
