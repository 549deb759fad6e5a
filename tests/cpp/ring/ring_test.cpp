// SPDX-License-Identifier: Apache-2.0
//
// The ring through the C ABI: ranks are threads, and fake_nccl carries their rows. Results are
// compared with textbook attention in float64 over the whole.
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

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kDimV = 8;
const float kInfinity = std::numeric_limits<float>::infinity();

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

fa3_tensor view(const Tensors& of, std::vector<float>& data, int64_t heads, int64_t dim) {
  return bshd(data.data(), FA3_FLOAT32, of.batch, of.rows, heads, dim);
}
fa3_tensor lse_view(const Tensors& of, std::vector<float>& data) {
  return contiguous(data.data(), FA3_FLOAT32, {of.batch, kHeads, of.rows});
}
fa3_tensor sink_view(std::vector<float>& data) {
  return contiguous(data.data(), FA3_FLOAT32, {kHeads});
}

ForwardArgs forward_of(Tensors& t, const Case& of) {
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

BackwardArgs backward_of(Tensors& t, const Case& of) {
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
std::vector<float> rows_of(const Tensors& whole, const std::vector<float>& from,
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
// The same of (b, h, s) numbers.
std::vector<float> rows_of_heads(const Tensors& whole, const std::vector<float>& from,
                                 const std::vector<int64_t>& rows) {
  std::vector<float> found;
  for (int64_t line = 0; line < whole.batch * kHeads; ++line) {
    for (int64_t i : rows) found.push_back(from[size_t(line * whole.rows + i)]);
  }
  return found;
}

Ring ring_of(void* comm, int64_t seqlen, const Case& of) {
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
  std::vector<int64_t> rows;
  for (int document = 0; document < std::max(ring.num_documents, 1); ++document) {
    int64_t bounds[4];
    EXPECT_TRUE(rows_of_rank(ring, world, rank, bounds, document).ok());
    for (int i : {0, 2}) {
      for (int64_t row = bounds[i]; row < bounds[i + 1]; ++row) rows.push_back(row);
    }
  }
  return rows;
}

Tensors part_of(const Tensors& whole, const std::vector<int64_t>& rows) {
  Tensors part(whole.batch, int64_t(rows.size()));
  part.q = rows_of(whole, whole.q, rows, kHeads * kDim);
  part.k = rows_of(whole, whole.k, rows, kKvHeads * kDim);
  part.v = rows_of(whole, whole.v, rows, kKvHeads * kDimV);
  part.d_o = rows_of(whole, whole.d_o, rows, kHeads * kDimV);
  part.d_lse = rows_of_heads(whole, whole.d_lse, rows);
  return part;
}

// float32 that a ring has computed, of numbers about 1: some dozens of its roundings.
constexpr double kTolerance = 2e-5;

void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
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
void attend_at_once(Tensors& whole, Case of) {
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

void expect_the_whole(const Case& of, int world, int64_t seqlen) {
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

std::string text_of(const Case& of) {
  return std::string(of.layout == FA3_RING_ZIGZAG ? "zigzag" : "contiguous") + ", window " +
         std::to_string(of.left) + ", " + std::to_string(of.right) + (of.causal ? ", causal" : "") +
         (of.has_sink ? ", sink" : "") +
         (of.is_packed() ? ", documents at " + testing::PrintToString(of.starts) : "");
}

const Case kCases[] = {
    {},
    {.causal = true},
    {.causal = true, .has_d_lse = true},
    {.left = 9, .causal = true},
    {.left = 3, .right = 2},
    {.causal = true, .softcap = 2.0f},
    {.has_sink = true},
    {.left = 9, .causal = true, .has_d_lse = true, .has_sink = true},
    {.layout = FA3_RING_CONTIGUOUS, .causal = true},
    {.layout = FA3_RING_CONTIGUOUS, .left = 9, .causal = true},
    {.layout = FA3_RING_CONTIGUOUS, .left = 2, .causal = true, .has_sink = true},
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

// Documents that cross ranks, that one rank has, of one row and of none. Rows that see no key at a
// rank, and keys between two ranges that were sent, are in the middle of calls.
TEST(Ring, DocumentsAreSequencesOfTheirOwn) {
  const std::vector<int32_t> starts[] = {
      {0, 5, 5, 22, 23, 49}, {0, 1, 2, 3}, {0, 0, 40, 49}, {0, 2}, {0, 150, 290}, {0, 0}};
  for (Case of : kCases) {
    for (int world : {1, 2, 3, 4}) {
      for (const auto& documents : starts) {
        of.starts = documents;
        SCOPED_TRACE(text_of(of) + ", " + std::to_string(world) + " ranks");
        expect_the_whole(of, world, documents.back());
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
  Tensors whole(of.batch(), kRows);
  const Comms comms(kWorld);
  const Status status = on_all_ranks(kWorld, [&](int rank) {
    const Ring ring = ring_of(comms[rank], kRows, of);
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
  Tensors whole(of.batch(), kRows);
  const Comms comms(kWorld);
  const Status status = on_all_ranks(kWorld, [&](int rank) {
    const Ring ring = ring_of(comms[rank], kRows, of);
    Tensors part = part_of(whole, rows_held(ring, kWorld, rank));
    const ForwardArgs args = forward_of(part, of);
    size_t bytes = 0;
    Workspace workspace;
    Status ended = workspace_size(args, ring, &bytes);
    if (ended.ok()) ended = workspace.reserve(bytes);
    return ended.ok() ? forward(args, ring, workspace.data(), bytes) : ended;
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fake_nccl_bytes(comms[0]), size_t(3 * 3 * of.batch() * kKvHeads * (kDim + kDimV) * 4));
}

// ---- Refusals ----

class RingRefusal : public testing::Test {
 protected:
  static constexpr int64_t kRows = 32;
  Comms comms_{2};
  Tensors part_{2, kRows / 2};
  ForwardArgs forward_ = forward_of(part_, {.causal = true});
  BackwardArgs backward_ = backward_of(part_, {.causal = true});
  Ring ring_ = ring_of(comms_[0], kRows, {});

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
  std::vector<float> padded(size_t(2 * 2 * kRows * kKvHeads * kDim));
  forward_.k.data = padded.data();
  for (int dim : {0, 1, 2}) forward_.k.stride[dim] *= 2;
  expect(forward_, StatusCode::invalid_argument, "k: expected (batch, seq, heads, dim) memory");
}

TEST_F(RingRefusal, WhatARingDoesNotTake) {
  ForwardArgs args = forward_;
  args.options.dropout_p = 0.5f;
  expect(args, StatusCode::unsupported, "dropout_p: expected 0 in a ring");
  args = forward_;
  args.options.attention_chunk = 8;
  expect(args, StatusCode::unsupported, "attention_chunk: expected 0");
  args = forward_;
  args.options.window_left = 3;
  args.options.window_shift = 1;
  expect(args, StatusCode::unsupported, "window_shift: expected 0");
  std::vector<int32_t> used(2);
  args = forward_;
  args.options.seqused_k = contiguous(used.data(), FA3_INT32, {2});
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

TEST_F(RingRefusal, DocumentsThatAreNone) {
  std::vector<int32_t> starts = {0, 20, 10, int32_t(kRows)};
  ring_.num_documents = 3;
  expect(forward_, StatusCode::invalid_argument, "ring.cu_seqlens: expected num_documents + 1");
  ring_.cu_seqlens = starts.data();
  expect(forward_, StatusCode::invalid_argument, "ring.cu_seqlens: expected numbers from 0 to");
  starts[1] = 5;
  expect(forward_, StatusCode::invalid_argument, "q: expected a batch of 1 with ring.cu_seqlens");
  ring_.num_documents = -1;
  expect(forward_, StatusCode::invalid_argument, "with num_documents = -1");
}

TEST_F(RingRefusal, RowsOfARankThatIsNotThere) {
  int64_t rows[4];
  EXPECT_EQ(rows_of_rank(ring_, 2, 2, rows).message(), "rank: expected [0, 2), got 2");
  EXPECT_EQ(rows_of_rank(ring_, 0, 0, rows).message(), "world: expected at least one rank, got 0");
  EXPECT_EQ(rows_of_rank(ring_, 2, 0, nullptr).message(),
            "rows: expected a place for four numbers, got null");
  EXPECT_EQ(rows_of_rank(ring_, 2, 0, rows, 1).message(), "document: expected [0, 1), got 1");
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

// ---- Agreement ----

class RingAgreement : public testing::Test {
 protected:
  static constexpr int kWorld = 3;
  static constexpr int64_t kRows = 48;
  Comms comms_{kWorld};

  // What each rank is told, where `change` has made the calls of some ranks others.
  template <class Change>
  std::vector<Status> agree_after(const Change& change) {
    std::vector<Status> told(kWorld);
    const Status status = on_all_ranks(kWorld, [&](int rank) -> Status {
      Ring ring = ring_of(comms_[rank], kRows, {});
      Tensors part(2, kRows / kWorld);
      ForwardArgs args = forward_of(part, {.causal = true, .has_sink = true});
      change(rank, &args, &ring);
      std::vector<std::byte> memory(kWorld * FA3_RING_AGREE_BYTES);
      told[size_t(rank)] = agree(args, ring, memory.data(), memory.size());
      return {};
    });
    EXPECT_TRUE(status.ok());
    return told;
  }

  template <class Change>
  void expect(const std::string& sentence, const Change& change,
              StatusCode code = StatusCode::invalid_argument) {
    for (const Status& status : agree_after(change)) {
      EXPECT_EQ(status.code(), code);
      EXPECT_EQ(status.message(), sentence);
    }
  }
};

TEST_F(RingAgreement, OfRanksThatPassTheSame) {
  expect(
      "", [](int, ForwardArgs*, Ring*) {}, StatusCode::ok);
}

TEST_F(RingAgreement, RanksThatDifferAreToldTheSame) {
  expect("causal: expected the same on every rank, got 0 on rank 0 and 1 on ranks 1, 2",
         [](int rank, ForwardArgs* args, Ring*) { args->options.causal = rank > 0 ? 1 : 0; });
  expect("softcap: expected the same on every rank, got 0 on ranks 0, 1 and 2.5 on rank 2",
         [](int rank, ForwardArgs* args, Ring*) { args->options.softcap = rank > 1 ? 2.5f : 0; });
  expect("sink: expected the same on every rank, got one on ranks 0, 2 and none on rank 1",
         [](int rank, ForwardArgs* args, Ring*) {
           if (rank == 1) args->sink = {};
         });
  expect("heads of q: expected the same on every rank, got 4 on ranks 0, 1 and 2 on rank 2",
         [](int rank, ForwardArgs* args, Ring*) {
           if (rank != 2) return;
           args->q.shape[2] = args->o.shape[2] = 2;
           args->sink.shape[0] = 2;
           args->lse = {};
         });
  expect(
      "dtype of q: expected the same on every rank, got float32 on ranks 0, 1 and bfloat16 on "
      "rank 2",
      [](int rank, ForwardArgs* args, Ring*) {
        if (rank != 2) return;
        for (fa3_tensor* of : {&args->q, &args->k, &args->v, &args->o}) {
          of->dtype = FA3_BFLOAT16;
        }
      });
}

TEST_F(RingAgreement, OtherDocumentsAreSeen) {
  const std::vector<int32_t> starts[] = {{0, 12, 48}, {0, 24, 48}};
  const auto told = agree_after([&](int rank, ForwardArgs* args, Ring* ring) {
    for (fa3_tensor* of : {&args->q, &args->k, &args->v, &args->o, &args->lse}) of->shape[0] = 1;
    ring->cu_seqlens = starts[rank == 1 ? 1 : 0].data();
    ring->num_documents = 2;
    ring->layout = FA3_RING_CONTIGUOUS;
  });
  for (const Status& status : told) {
    EXPECT_EQ(status.message(), told[0].message());
    EXPECT_NE(status.message().find("ring.cu_seqlens: expected the same"), std::string::npos)
        << status.message();
  }
}

TEST_F(RingAgreement, WhatOneRankHasWrongAllAreTold) {
  expect(
      "rank 1: dropout_p: expected 0 in a ring, got 0.5",
      [](int rank, ForwardArgs* args, Ring*) { args->options.dropout_p = rank == 1 ? 0.5f : 0; },
      StatusCode::unsupported);
  expect(
      "rank 2: q: expected 8 rows, those of rank 2 of 3 of ring.seqlen = 24 (fa3_ring_rows has "
      "them), got 16",
      [](int rank, ForwardArgs*, Ring* ring) { ring->seqlen = rank == 2 ? 24 : kRows; });
}

TEST_F(RingAgreement, ForwardAndBackwardDiffer) {
  std::vector<Status> told(2);
  const Comms two(2);
  const Status status = on_all_ranks(2, [&](int rank) -> Status {
    const Ring ring = ring_of(two[rank], kRows, {});
    Tensors part(2, kRows / 2);
    std::vector<std::byte> memory(2 * FA3_RING_AGREE_BYTES);
    told[size_t(rank)] = rank == 0
                             ? agree(forward_of(part, {}), ring, memory.data(), memory.size())
                             : agree(backward_of(part, {}), ring, memory.data(), memory.size());
    return {};
  });
  ASSERT_TRUE(status.ok());
  for (const Status& of : told) {
    EXPECT_EQ(of.message(),
              "the call: expected the same on every rank, got a forward on rank 0 and a backward "
              "on rank 1");
  }
}

TEST_F(RingAgreement, WantsMemory) {
  const Ring ring = ring_of(comms_[0], kRows, {});
  Tensors part(2, kRows / kWorld);
  const Status status = agree(forward_of(part, {}), ring, nullptr, 0);
  EXPECT_EQ(status.code(), StatusCode::workspace_too_small);
  EXPECT_EQ(status.message(),
            "workspace: expected at least 3072 bytes, FA3_RING_AGREE_BYTES for each rank, got 0");
}

}  // namespace
}  // namespace fa3::test
