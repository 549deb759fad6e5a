// SPDX-License-Identifier: Apache-2.0
// The segments of all teams together are all blocks of all tiles, once; parts of a tile have slots
// of their own.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "engine/hopper/latent/plan_latent.h"

namespace fa3::hopper {
namespace {

// What the device does (latent_segments.cuh), for one team after the other.
std::vector<LatentSegment> stream_segments(const std::vector<int>& ends, int most_teams) {
  std::vector<LatentSegment> all;
  const StreamRanges ranges(ends.back(), most_teams);
  for (int team = 0; team < ranges.teams; ++team) {
    int tile = 0;
    for (int at = ranges.begin(team); at < ranges.begin(team + 1);) {
      while (ends[size_t(tile)] <= at) ++tile;
      all.push_back(stream_segment(ranges, ends.data(), tile, at, team));
      at += all.back().end - all.back().first;
    }
  }
  return all;
}

void expect_whole(const std::vector<LatentSegment>& segments, const std::vector<int>& blocks,
                  int slots) {
  std::map<int, std::vector<LatentSegment>> of_tile;
  std::set<int> taken;
  for (const LatentSegment& s : segments) {
    of_tile[s.tile].push_back(s);
    if (s.parts.count == 1) continue;
    const int slot = s.parts.slot_of(s.part);
    EXPECT_TRUE(slot >= 0 && slot < slots) << slot;
    EXPECT_TRUE(taken.insert(slot).second) << "slot " << slot << " twice";
  }
  for (int tile = 0; tile < int(blocks.size()); ++tile) {
    const auto& parts = of_tile[tile];
    if (blocks[size_t(tile)] == 0 && parts.empty()) continue;
    int at = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].part, int(i));
      EXPECT_EQ(parts[i].parts.count, int(parts.size()));
      // Whoever combines them has the first part's words alone.
      EXPECT_EQ(parts[i].parts.slot_of(int(i)), parts[0].parts.slot_of(int(i)));
      EXPECT_EQ(parts[i].first, at);
      at = parts[i].end;
    }
    EXPECT_EQ(at, blocks[size_t(tile)]);
  }
}

TEST(LatentSegments, of_a_stream_are_all_blocks_once) {
  for (const std::vector<int>& blocks :
       {std::vector<int>{1}, {7}, {1, 1, 1}, {0, 5, 0, 0, 9, 1, 0}, {64, 1, 64, 1, 300}}) {
    std::vector<int> ends;
    for (int n : blocks) ends.push_back((ends.empty() ? 0 : ends.back()) + n);
    for (int teams : {1, 2, 3, 7, 33, 132}) {
      expect_whole(stream_segments(ends, teams), blocks, 2 * teams);
    }
  }
}

TEST(LatentSegments, of_fixed_parts_are_all_blocks_once_and_know_no_other_sequence) {
  const int32_t used[] = {1000, 0, 64, 65};
  LatentParams params;
  MlaProblem& p = params.problem;
  p.batch = 4, p.heads = 3;
  p.lengths_q = {.max = 2, .total = 8};
  p.lengths_k = {.seqused = used, .max = 1000, .total = 4000};
  params.heads = 3, params.rows_of_cta = 16, params.tiles = 4;
  for (int splits : {1, 2, 7, 64}) {
    params.splits = splits;
    std::vector<LatentSegment> all;
    LatentTile tile;
    for (int i = 0; i < 4 * splits; ++i) all.push_back(fixed_segment(params, i, tile));
    expect_whole(all, {16, 1, 1, 2}, 4 * splits);
  }
}

TEST(LatentTile, sees_the_keys_of_its_last_row) {
  const int32_t used[] = {100};
  LatentParams params;
  MlaProblem& p = params.problem;
  p.batch = 1, p.heads = 16, p.causal = true;
  p.lengths_q = {.max = 5, .total = 5};
  p.lengths_k = {.seqused = used, .max = 100, .total = 100};
  params.heads = 16, params.rows_of_cta = 16, params.team_ctas = 2, params.tiles_of_sequence = 3;
  EXPECT_EQ(latent_tile(params, 0).end, 97);
  EXPECT_EQ(latent_tile(params, 1).end, 99);
  EXPECT_EQ(latent_tile(params, 2).end, 100);
}

MlaProblem dense(int64_t batch, int64_t heads, int64_t keys) {
  MlaProblem p;
  p.batch = batch, p.heads = heads, p.head_dim = 576, p.dtype = DType::bfloat16;
  p.lengths_q = {.max = 1, .total = batch};
  p.lengths_k = {.max = keys, .total = batch * keys};
  p.keys.cache = {.pages = 1,
                  .page_size = 64,
                  .latent = {.page_stride = 64 * 1152, .row_stride = 1152, .channels = 512},
                  .rope = {.page_stride = 64 * 1152, .row_stride = 1152, .channels = 64}};
  p.q = {.dtype = DType::bfloat16, .batch_stride = heads * 576, .head_stride = 576};
  return p;
}

LatentPlan planned(const MlaProblem& p) {
  LatentPlan plan;
  const Status status = plan_latent(p, 132, &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

TEST(LatentPlan, splits_keys_where_whole_tiles_leave_teams_idle) {
  EXPECT_EQ(planned(dense(40, 16, 4096)).params.splits, 0);
  EXPECT_EQ(planned(dense(128, 16, 4096)).params.splits, 1);
  EXPECT_EQ(planned(dense(1, 16, 64)).params.splits, 1);
  MlaProblem invariant = dense(1, 16, 4096);
  invariant.batch_invariant = true;
  EXPECT_EQ(planned(invariant).params.splits, 1);
}

// Parts, and teams that each have one.
TEST(LatentPlan, cuts_short_calls_into_fixed_parts) {
  const auto sparse = [](int64_t batch, int64_t top) {
    MlaProblem p = dense(batch, 16, top);
    p.sparse = true, p.keys.num_indices = top;
    return p;
  };
  struct Case {
    MlaProblem problem;
    int splits, teams;
  };
  const Case cases[] = {{dense(1, 16, 1024), 16, 16},  {dense(8, 16, 1024), 16, 128},
                        {dense(32, 16, 1024), 4, 128}, {dense(1, 16, 4096), 64, 64},
                        {dense(1, 128, 4096), 32, 32}, {sparse(1, 2048), 32, 32},
                        {sparse(8, 2048), 16, 128},    {sparse(32, 2048), 4, 128},
                        {sparse(50, 2048), 0, 132}};  // 2 parts would leave 32 SMs idle
  for (const Case& c : cases) {
    const LatentParams params = planned(c.problem).params;
    EXPECT_EQ(params.splits, c.splits) << c.problem.batch << " x " << c.problem.lengths_k.max;
    EXPECT_EQ(params.teams, c.teams) << c.problem.batch << " x " << c.problem.lengths_k.max;
  }
}

TEST(LatentPlan, takes_64_rows_where_there_is_much_to_do_but_for_invariant_calls) {
  EXPECT_EQ(planned(dense(1, 128, 4096)).params.rows_of_cta, 32);
  EXPECT_EQ(planned(dense(1, 128, 1 << 17)).params.rows_of_cta, 64);
  EXPECT_EQ(planned(dense(8, 128, 4096)).params.rows_of_cta, 32);
  EXPECT_EQ(planned(dense(8, 128, 6144)).params.rows_of_cta, 64);
  EXPECT_EQ(planned(dense(128, 128, 4096)).params.rows_of_cta, 64);
  EXPECT_EQ(planned(dense(128, 32, 1 << 17)).params.rows_of_cta, 32);
  for (const int64_t batch : {1, 128}) {
    MlaProblem p = dense(batch, 128, 4096);
    p.batch_invariant = true;
    EXPECT_EQ(planned(p).params.rows_of_cta, 32);
  }
}

// Their loader counts places in 32 bits, of 16 bytes each.
TEST(LatentPlan, takes_64_rows_of_bytes_of_caches_of_up_to_64_gib) {
  MlaProblem p = dense(128, 128, 4096);
  RowPart& rows = p.keys.cache.latent;
  rows.dtype = DType::float8_e4m3;
  rows.page_stride = 64 * 656, rows.row_stride = 656;
  rows.scales = {.channels = 128, .written = true};
  EXPECT_EQ(planned(p).params.rows_of_cta, 64);
  p.keys.cache.pages = (int64_t{1} << 36) / rows.page_stride + 1;
  EXPECT_EQ(planned(p).params.rows_of_cta, 32);
}

TEST(LatentPlan, refuses_by_a_sentence_what_no_kernel_reads) {
  const auto refusal = [](auto&& change) {
    MlaProblem p = dense(1, 16, 64);
    change(p);
    LatentPlan plan;
    return std::string(plan_latent(p, 132, &plan).message());
  };
  EXPECT_NE(refusal([](MlaProblem& p) { p.dtype = DType::float32; }).find("q: expected float16"),
            std::string::npos);
  EXPECT_NE(refusal([](MlaProblem& p) {
              p.keys.cache.latent.dtype = DType::float8_e4m3;
            }).find("got other rows of float8_e4m3"),
            std::string::npos);
  EXPECT_NE(refusal([](MlaProblem& p) { p.has_extra = true; }).find("extra_cache: expected none"),
            std::string::npos);
  EXPECT_NE(refusal([](MlaProblem& p) { p.keys.cache.latent.row_stride = 1160; }).find("got 1160"),
            std::string::npos);
}

}  // namespace
}  // namespace fa3::hopper
