// SPDX-License-Identifier: Apache-2.0
//
// The ring through the C ABI: ranks are threads, and fake_nccl carries their rows. Results are
// compared with one call over the whole.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ring/fake_nccl.h"

namespace fa3::test {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 16, kDimV = 8;
const float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int layout = FA3_RING_ZIGZAG;
  int64_t left = -1, right = -1;
  bool causal = false;
  float softcap = 0;
  bool has_d_lse = false;
};

std::vector<float> numbers(int64_t count, unsigned seed) {
  std::vector<float> found;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    found.push_back(2 * (static_cast<float>(seed >> 8) / static_cast<float>(1 << 24) - 0.5f));
  }
  return found;
}

// Tensors of some rows: of the whole, or of a rank's part.
struct Tensors {
  int64_t rows = 0;
  std::vector<float> q, k, v, d_o, d_lse, o, lse, dq, dk, dv;

  explicit Tensors(int64_t of = 0) : rows(of) {
    q = numbers(kBatch * rows * kHeads * kDim, 1);
    k = numbers(kBatch * rows * kKvHeads * kDim, 2);
    v = numbers(kBatch * rows * kKvHeads * kDimV, 3);
    d_o = numbers(kBatch * rows * kHeads * kDimV, 4);
    d_lse = numbers(kBatch * rows * kHeads, 5);
    o.assign(size_t(kBatch * rows * kHeads * kDimV), NAN);
    lse.assign(size_t(kBatch * rows * kHeads), NAN);
    dq.assign(q.size(), NAN);
    dk.assign(k.size(), NAN);
    dv.assign(v.size(), NAN);
  }
};

fa3_tensor view(std::vector<float>& data, int64_t rows, int64_t heads, int64_t dim) {
  return bshd(data.data(), FA3_FLOAT32, kBatch, rows, heads, dim);
}
fa3_tensor lse_view(std::vector<float>& data, int64_t rows) {
  return contiguous(data.data(), FA3_FLOAT32, {kBatch, kHeads, rows});
}

ForwardArgs forward_of(Tensors& t, const Case& of) {
  ForwardArgs args;
  args.options.causal = of.causal ? 1 : 0;
  args.options.window_left = of.left;
  args.options.window_right = of.right;
  args.options.softcap = of.softcap;
  args.options.num_threads = 1;
  args.q = view(t.q, t.rows, kHeads, kDim);
  args.k = view(t.k, t.rows, kKvHeads, kDim);
  args.v = view(t.v, t.rows, kKvHeads, kDimV);
  args.o = view(t.o, t.rows, kHeads, kDimV);
  args.lse = lse_view(t.lse, t.rows);
  return args;
}

BackwardArgs backward_of(Tensors& t, const Case& of) {
  const ForwardArgs from = forward_of(t, of);
  BackwardArgs args;
  args.options = from.options;
  args.q = from.q;
  args.k = from.k;
  args.v = from.v;
  args.o = from.o;
  args.lse = from.lse;
  args.d_o = view(t.d_o, t.rows, kHeads, kDimV);
  if (of.has_d_lse) args.d_lse = lse_view(t.d_lse, t.rows);
  args.dq = view(t.dq, t.rows, kHeads, kDim);
  args.dk = view(t.dk, t.rows, kKvHeads, kDim);
  args.dv = view(t.dv, t.rows, kKvHeads, kDimV);
  return args;
}

// Copies rows between the whole and a part: (b, s, h, d), or (b, h, s) as one row a head.
void copy_rows(const std::vector<float>& from, int64_t from_rows, const std::vector<int64_t>& rows,
               std::vector<float>* to, int64_t width) {
  const auto to_rows = int64_t(rows.size());
  to->resize(size_t(kBatch * to_rows * width));
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < to_rows; ++i) {
      const float* row = from.data() + (b * from_rows + rows[size_t(i)]) * width;
      std::copy(row, row + width, to->data() + (b * to_rows + i) * width);
    }
  }
}
std::vector<float> heads_last(const std::vector<float>& lse, int64_t rows) {
  std::vector<float> found(lse.size());
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        found[size_t((b * rows + i) * kHeads + h)] = lse[size_t((b * kHeads + h) * rows + i)];
      }
    }
  }
  return found;
}
std::vector<float> heads_first(const std::vector<float>& lse, int64_t rows) {
  std::vector<float> found(lse.size());
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        found[size_t((b * kHeads + h) * rows + i)] = lse[size_t((b * rows + i) * kHeads + h)];
      }
    }
  }
  return found;
}

Ring ring_of(void* comm, int64_t seqlen, int layout) {
  Ring ring;
  ring.comm = comm;
  ring.seqlen = seqlen;
  ring.layout = layout;
  ring.library = FA3_FAKE_NCCL;
  return ring;
}

// Both passes of a rank, with workspaces of exactly what was asked for.
Status both_passes(Tensors& t, const Case& of, const Ring& ring) {
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
Status on_all_ranks(int world, const std::function<Status(int)>& body) {
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

std::vector<int64_t> rows_held(const Ring& ring, int world, int rank) {
  int64_t bounds[4];
  EXPECT_TRUE(rows_of_rank(ring, world, rank, bounds).ok());
  std::vector<int64_t> rows;
  for (int i : {0, 2}) {
    for (int64_t row = bounds[i]; row < bounds[i + 1]; ++row) rows.push_back(row);
  }
  return rows;
}

Tensors part_of(const Tensors& whole, const std::vector<int64_t>& rows) {
  Tensors part(int64_t(rows.size()));
  copy_rows(whole.q, whole.rows, rows, &part.q, kHeads * kDim);
  copy_rows(whole.k, whole.rows, rows, &part.k, kKvHeads * kDim);
  copy_rows(whole.v, whole.rows, rows, &part.v, kKvHeads * kDimV);
  copy_rows(whole.d_o, whole.rows, rows, &part.d_o, kHeads * kDimV);
  copy_rows(heads_last(whole.d_lse, whole.rows), whole.rows, rows, &part.d_lse, kHeads);
  part.d_lse = heads_first(part.d_lse, part.rows);
  return part;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  constexpr float kTolerance = 2e-5f;  // some dozens of float32 roundings of numbers about 1
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;  // also infinities
    ASSERT_NEAR(got[i], expected[i], kTolerance) << what << " at " << i;
  }
}

void expect_the_whole(const Case& of, int world, int64_t seqlen) {
  Tensors whole(seqlen);
  Workspace workspace;
  ASSERT_TRUE(forward(forward_of(whole, of), workspace).ok());
  ASSERT_TRUE(backward(backward_of(whole, of), workspace).ok());

  const Comms comms(world);
  std::vector<Tensors> parts;
  std::vector<std::vector<int64_t>> rows;
  for (int rank = 0; rank < world; ++rank) {
    rows.push_back(rows_held(ring_of(comms[rank], seqlen, of.layout), world, rank));
    parts.push_back(part_of(whole, rows.back()));
  }
  const Status status = on_all_ranks(world, [&](int rank) {
    return both_passes(parts[size_t(rank)], of, ring_of(comms[rank], seqlen, of.layout));
  });
  ASSERT_TRUE(status.ok()) << status.message();

  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::vector<float> expected;
    const auto compare = [&](const std::vector<float>& got, const std::vector<float>& of_whole,
                             int64_t width, const char* what) {
      copy_rows(of_whole, seqlen, rows[rank], &expected, width);
      expect_near(got, expected, what);
    };
    Tensors& part = parts[rank];
    compare(part.o, whole.o, kHeads * kDimV, "o");
    compare(heads_last(part.lse, part.rows), heads_last(whole.lse, seqlen), kHeads, "lse");
    compare(part.dq, whole.dq, kHeads * kDim, "dq");
    compare(part.dk, whole.dk, kKvHeads * kDim, "dk");
    compare(part.dv, whole.dv, kKvHeads * kDimV, "dv");
  }
}

std::string text_of(const Case& of) {
  return std::string(of.layout == FA3_RING_ZIGZAG ? "zigzag" : "contiguous") + ", window " +
         std::to_string(of.left) + ", " + std::to_string(of.right) + (of.causal ? ", causal" : "");
}

const Case kCases[] = {
    {},
    {.causal = true},
    {.causal = true, .has_d_lse = true},
    {.left = 9, .causal = true},
    {.left = 3, .right = 2},
    {.causal = true, .softcap = 2.0f},
    {.layout = FA3_RING_CONTIGUOUS, .causal = true},
    {.layout = FA3_RING_CONTIGUOUS, .left = 9, .causal = true},
    {.layout = FA3_RING_CONTIGUOUS, .left = 20, .right = 5, .has_d_lse = true},
};

TEST(Ring, IsOneCallOverTheWhole) {
  for (const Case& of : kCases) {
    for (int world : {1, 2, 4}) {
      for (int64_t seqlen : {48, 59}) {
        SCOPED_TRACE(text_of(of) + ", " + std::to_string(world) + " ranks, " +
                     std::to_string(seqlen) + " rows");
        expect_the_whole(of, world, seqlen);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Parts of one row and of none; calls of one key, which is not the only one.
TEST(Ring, FewerRowsThanRanks) {
  for (const Case& of : kCases) {
    for (int world : {2, 3, 5}) {
      for (int64_t seqlen : {0, 1, 3, 9}) {
        SCOPED_TRACE(text_of(of) + ", " + std::to_string(world) + " ranks, " +
                     std::to_string(seqlen) + " rows");
        expect_the_whole(of, world, seqlen);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// 16-bit outputs are rounded once: no further from float32 than half a unit in the last place.
TEST(Ring, RoundsOnce) {
  constexpr int kWorld = 4;
  constexpr int64_t kRows = 64;
  const Case of = {.causal = true};
  const auto upper = [](const std::vector<float>& from) {
    std::vector<uint16_t> found;
    for (float x : from) {
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      found.push_back(uint16_t(bits >> 16));
    }
    return found;
  };
  Tensors whole(kRows);
  const Comms comms(kWorld);
  const Status status = on_all_ranks(kWorld, [&](int rank) {
    const Ring ring = ring_of(comms[rank], kRows, of.layout);
    Tensors part = part_of(whole, rows_held(ring, kWorld, rank));
    std::vector<uint16_t> q = upper(part.q), k = upper(part.k), v = upper(part.v);
    std::vector<uint16_t> narrow(part.o.size());
    for (const bool is_wide : {true, false}) {
      ForwardArgs args = forward_of(part, of);
      args.q.data = q.data();
      args.k.data = k.data();
      args.v.data = v.data();
      for (fa3_tensor* x : {&args.q, &args.k, &args.v}) x->dtype = FA3_BFLOAT16;
      if (!is_wide) {
        args.o.dtype = FA3_BFLOAT16;
        args.o.data = narrow.data();
        args.lse = {};
      }
      size_t bytes = 0;
      Workspace workspace;
      Status ended = workspace_size(args, ring, &bytes);
      if (ended.ok()) ended = workspace.reserve(bytes);
      if (ended.ok()) ended = forward(args, ring, workspace.data(), bytes);
      if (!ended.ok()) return ended;
    }
    for (size_t i = 0; i < narrow.size(); ++i) {
      const uint32_t bits = uint32_t(narrow[i]) << 16;
      float rounded;
      std::memcpy(&rounded, &bits, 4);
      EXPECT_LE(std::abs(rounded - part.o[i]), std::ldexp(std::abs(part.o[i]), -8)) << i;
    }
    return Status{};
  });
  ASSERT_TRUE(status.ok()) << status.message();
}

// Under a window keys of the neighbour alone travel, and of these only those that are seen.
TEST(Ring, SendsOnlyKeysThatAreSeen) {
  constexpr int kWorld = 4;
  constexpr int64_t kRows = 64;
  const Case of = {.layout = FA3_RING_CONTIGUOUS, .left = 3, .causal = true};
  Tensors whole(kRows);
  const Comms comms(kWorld);
  const Status status = on_all_ranks(kWorld, [&](int rank) {
    const Ring ring = ring_of(comms[rank], kRows, of.layout);
    Tensors part = part_of(whole, rows_held(ring, kWorld, rank));
    const ForwardArgs args = forward_of(part, of);
    size_t bytes = 0;
    Workspace workspace;
    Status ended = workspace_size(args, ring, &bytes);
    if (ended.ok()) ended = workspace.reserve(bytes);
    return ended.ok() ? forward(args, ring, workspace.data(), bytes) : ended;
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fake_nccl_bytes(comms[0]), size_t(3 * 3 * kBatch * kKvHeads * (kDim + kDimV) * 4));
}

// ---- Refusals ----

class RingRefusal : public testing::Test {
 protected:
  static constexpr int64_t kRows = 32;
  Comms comms_{2};
  Tensors part_{kRows / 2};
  ForwardArgs forward_ = forward_of(part_, {.causal = true});
  BackwardArgs backward_ = backward_of(part_, {.causal = true});
  Ring ring_ = ring_of(comms_[0], kRows, FA3_RING_ZIGZAG);

  template <class Args>
  void expect(const Args& args, StatusCode code, const std::string& words) const {
    size_t bytes = 0;
    const Status status = workspace_size(args, ring_, &bytes);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
};

TEST_F(RingRefusal, NoLibrary) {
  ring_.library = "/nowhere/libnccl.so";
  expect(forward_, StatusCode::unsupported,
         "ring: expected libnccl, which was not found at /nowhere/libnccl.so");
}

TEST_F(RingRefusal, ALibraryWithoutNcclsFunctions) {
  ring_.library = "libm.so.6";
  expect(forward_, StatusCode::unsupported, "the libnccl that was found lacks functions");
}

TEST_F(RingRefusal, NoCommunicator) {
  ring_.comm = nullptr;
  expect(forward_, StatusCode::invalid_argument, "ring.comm: expected an ncclComm_t");
}

TEST_F(RingRefusal, ACommunicatorThatHasFailed) {
  fake_nccl_fail(comms_[0], -1);
  expect(forward_, StatusCode::device_error, "the communicator failed: NCCL: unhandled system");
}

TEST_F(RingRefusal, AnotherLayout) {
  ring_.layout = 7;
  expect(forward_, StatusCode::invalid_argument, "ring.layout: expected FA3_RING_ZIGZAG");
}

TEST_F(RingRefusal, OtherRows) {
  ring_.seqlen = 40;
  expect(forward_, StatusCode::invalid_argument, "q: expected 20 rows, those of rank 0 of 2");
  ring_.seqlen = -1;
  expect(forward_, StatusCode::invalid_argument, "ring.seqlen: expected the rows");
}

TEST_F(RingRefusal, KeysThatAreNotContiguous) {
  std::vector<float> padded(size_t(2 * kBatch * kRows * kKvHeads * kDim));
  forward_.k.data = padded.data();
  for (int dim : {0, 1, 2}) forward_.k.stride[dim] *= 2;
  expect(forward_, StatusCode::invalid_argument, "k: expected (batch, seq, heads, dim) memory");
}

TEST_F(RingRefusal, WhatARingDoesNotTake) {
  std::vector<float> sink(kHeads);
  ForwardArgs args = forward_;
  args.sink = contiguous(sink.data(), FA3_FLOAT32, {kHeads});
  expect(args, StatusCode::unsupported, "sink: expected none in a ring");
  args = forward_;
  args.options.dropout_p = 0.5f;
  expect(args, StatusCode::unsupported, "dropout_p: expected 0 in a ring");
  args = forward_;
  args.options.attention_chunk = 8;
  expect(args, StatusCode::unsupported, "attention_chunk: expected 0");
  args = forward_;
  args.options.window_left = 3;
  args.options.window_shift = 1;
  expect(args, StatusCode::unsupported, "window_shift: expected 0");
  std::vector<int32_t> used(kBatch);
  args = forward_;
  args.options.seqused_k = contiguous(used.data(), FA3_INT32, {kBatch});
  expect(args, StatusCode::unsupported, "seqused_k: expected none in a ring");
  args = forward_;
  args.o_partial = args.o;
  args.lse_partial = args.lse;
  expect(args, StatusCode::unsupported, "o_partial: expected none");
  backward_.accumulate_dq = 1;
  expect(backward_, StatusCode::unsupported, "accumulate_dq, accumulate_dkv: expected 0");
}

TEST_F(RingRefusal, GradientsOf16Bits) {
  for (fa3_tensor* x : {&backward_.q, &backward_.k, &backward_.v, &backward_.o, &backward_.d_o,
                        &backward_.dq, &backward_.dk, &backward_.dv}) {
    x->dtype = FA3_BFLOAT16;
  }
  expect(backward_, StatusCode::invalid_argument, "dq: expected float32 in a ring");
}

TEST_F(RingRefusal, AWorkspaceThatIsTooSmall) {
  const Status status = forward(forward_, ring_, nullptr, 0);
  EXPECT_EQ(status.code(), StatusCode::workspace_too_small) << status.message();
  EXPECT_NE(status.message().find("the ring's workspace_size"), std::string::npos);
}

TEST_F(RingRefusal, NothingIsSentByACallThatIsWrong) {
  size_t bytes = 0;
  ASSERT_TRUE(workspace_size(forward_, ring_, &bytes).ok());
  Workspace workspace;
  ASSERT_TRUE(workspace.reserve(bytes).ok());
  forward_.v.data = nullptr;
  const Status status = forward(forward_, ring_, workspace.data(), bytes);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.message();
  EXPECT_EQ(fake_nccl_messages(comms_[0]), 0u);
}

TEST_F(RingRefusal, StructsOfAnotherSize) {
  ring_.struct_size = 17;
  expect(forward_, StatusCode::invalid_argument, "ring: expected struct_size");
  size_t bytes = 0;
  EXPECT_EQ(fa3_ring_forward_workspace_size(&forward_, nullptr, &bytes), FA3_INVALID_ARGUMENT);
  EXPECT_STREQ(fa3_last_error(), "ring: expected a struct, got a null pointer");
}

TEST_F(RingRefusal, RowsOfARankThatIsNotThere) {
  int64_t rows[4];
  EXPECT_EQ(rows_of_rank(ring_, 2, 2, rows).message(), "rank: expected [0, 2), got 2");
  EXPECT_EQ(rows_of_rank(ring_, 0, 0, rows).message(), "world: expected at least one rank, got 0");
  EXPECT_EQ(rows_of_rank(ring_, 2, 0, nullptr).message(),
            "rows: expected a place for four numbers, got null");
}

// A message that fails ends the call with NCCL's words, and leaves no group open.
TEST_F(RingRefusal, AMessageThatFails) {
  fake_nccl_fail(comms_[0], 1);
  const Status status = both_passes(part_, {.causal = true}, ring_);
  EXPECT_EQ(status.code(), StatusCode::device_error) << status.message();
  EXPECT_NE(status.message().find("ring: sending failed: NCCL: unhandled system error (this rank "
                                  "was to fail)"),
            std::string::npos)
      << status.message();
  expect_the_whole({.causal = true}, 1, 16);
  expect_the_whole({.causal = true}, 2, 16);
}

}  // namespace
}  // namespace fa3::test
