// SPDX-License-Identifier: Apache-2.0
//
// The ring through the C ABI gives what one call over the whole gives.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ring/ranks.h"

namespace fa3::test {
namespace {

std::string text_of(const Case& of) {
  return "layout " + std::to_string(of.layout) + ", window " + std::to_string(of.left) + ", " +
         std::to_string(of.right) + (of.causal ? ", causal" : "") + (of.has_sink ? ", sink" : "") +
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
    {.layout = FA3_RING_BY_DOCUMENT, .left = 9, .causal = true},
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

}  // namespace
}  // namespace fa3::test
