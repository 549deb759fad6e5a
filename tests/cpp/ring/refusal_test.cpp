// SPDX-License-Identifier: Apache-2.0
//
// What a ring of the C ABI refuses, in which words.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <string>

#include "ring/ranks.h"

namespace fa3::test {
namespace {

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
  expect(forward_, StatusCode::invalid_argument, "ring.layout: expected an fa3_ring_layout, got 7");
}

TEST(RingCoverRefusal, NamesTheArgument) {
  const fa3_ring_piece pieces[] = {{1, 0, 4}, {0, 0, 4}}, empty[] = {{0, 4, 4}};
  const int64_t window[2] = {-1, -1};
  fa3_ring_rectangle found[4] = {};
  fa3_ring_call calls[4];
  int32_t lengths[32];
  int64_t count = 4;
  const auto refused = [](fa3_status status, const std::string& words) {
    EXPECT_EQ(status, FA3_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fa3_last_error()).find(words), std::string::npos) << fa3_last_error();
  };
  refused(fa3_ring_rectangles(pieces, 2, pieces, 1, window, 0, found, &count),
          "rows: expected rows begin < end of ascending documents, got [0, 4) of document 0");
  refused(fa3_ring_rectangles(pieces, 1, empty, 1, window, 0, found, &count),
          "keys: expected rows begin < end of ascending documents, got [4, 4)");
  refused(fa3_ring_rectangles(nullptr, 1, pieces, 1, window, 0, found, &count),
          "rows: expected 1 pieces, got none");
  refused(fa3_ring_rectangles(pieces, 1, pieces, 1, nullptr, 0, found, &count), "window: expected");
  refused(fa3_ring_rectangles(pieces, 1, pieces, 1, window, -1, found, &count), "step: expected");
  refused(fa3_ring_rectangles(pieces, 1, pieces, 1, window, 0, found, nullptr), "count: expected");
  refused(fa3_ring_calls(found, 1, 4, calls, &count, lengths), "join: expected");
  refused(fa3_ring_calls(nullptr, 1, 0, calls, &count, lengths), "of, calls, lengths: expected");
  refused(fa3_ring_calls(found, 1, 0, calls, nullptr, lengths), "num_calls: expected");
  found[1].low = int64_t{1} << 61;
  refused(fa3_ring_calls(found, 2, 0, calls, &count, lengths),
          "of: expected rows, keys and bounds");
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
  std::vector<fa3_ring_piece> pieces;
  EXPECT_EQ(pieces_of_rank(ring_, 2, 2, &pieces).message(), "rank: expected [0, 2), got 2");
  EXPECT_EQ(pieces_of_rank(ring_, 0, 0, &pieces).message(),
            "world: expected at least one rank, got 0");
  EXPECT_EQ(fa3_ring_pieces(&ring_, 2, 0, nullptr, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()), "count: expected a place for a number, got null");
  ring_.num_documents = INT32_MAX;  // without cu_seqlens: nothing is allocated for them
  EXPECT_EQ(pieces_of_rank(ring_, 2, 0, &pieces).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(pieces.empty());
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
