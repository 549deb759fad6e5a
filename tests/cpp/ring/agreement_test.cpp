// SPDX-License-Identifier: Apache-2.0
//
// agree: ranks that pass different calls are told so, all of them the same.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ring/ranks.h"

namespace fa3::test {
namespace {

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
      "rank 2: q: expected 8 rows, those of rank 2 of 3 of ring.seqlen = 24 (fa3_ring_pieces has "
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
