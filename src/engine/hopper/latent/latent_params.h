// SPDX-License-Identifier: Apache-2.0
//
// One launch of the latent kernel, and how its work is cut: which CTA attends to which keys for
// which query rows. Plain numbers, tested on the host. Next: latent_kernel.cuh.
//
// Rows of queries are packed: row = token * heads + head. A CTA has up to rows_of_cta of them. CTAs
// of a team have neighbouring rows and read the same keys at the same time, so that the L2 cache
// serves all but one of them. A tile is what a team does at once: some rows of one sequence, or of
// one token where each token has keys of its own (indices).
//
// Keys come in blocks of 64. Two ways to share them out:
// Stream: the blocks of all tiles are concatenated, and each team takes an equal range. A team thus
//   finishes at most one tile that its predecessor began and begins at most one that its successor
//   finishes. All lengths are read on the device, by every CTA.
// Fixed: each tile has `splits` parts, whatever the other tiles are, so the bits of a sequence do
//   not depend on its batch. Teams take the parts in turn. A team reads no length but that of its
//   own tile, so short calls are cut like this too: they start 1 us sooner.
#pragma once

#include "core/latent.h"
#include "core/macros.h"
#include "engine/cuda/tile/divisor.h"

namespace fa3::hopper {

inline constexpr int kLatentBlockKeys = 64;  // rows of one wgmma
// Tiles whose lengths the stream adds up. Shared memory is full where a CTA has 64 rows.
inline constexpr int kMostStreamTiles = 1024;
FA3_HD constexpr int most_stream_tiles(int rows_of_cta) {
  return rows_of_cta == 64 ? 448 : kMostStreamTiles;
}
// 128 heads of one token.
inline constexpr int kMostTeamCtas = 4;

// The partial results of a tile's parts.
struct alignas(16) LatentParts {
  int count = 1;
  int first_slot = 0;  // of part 0
  int other_slot = 0;  // of part i > 0: other_slot + i * slot_step
  int slot_step = 1;

  FA3_HD constexpr int slot_of(int part) const {
    return part == 0 ? first_slot : other_slot + part * slot_step;
  }
};

// What the keys of a part give a query row, relative to the reference (base 2).
struct alignas(8) LatentSum {
  float ref;
  float sum;
};

// Blocks [first, end) of a tile's keys.
struct LatentSegment {
  int tile = 0;
  int first = 0, end = 0;
  int part = 0;
  LatentParts parts;
};

// Stream: the units of team t of `teams` are [begin(t), begin(t + 1)); the first teams have one
// more. In 32 bits: a division in 64 takes a hundred instructions, which a short call feels.
struct StreamRanges {
  int total = 0, teams = 1;
  int each = 0, longer = 0;  // units of a team, and how many have one more

  // Never more teams than units, so no team between two others is empty.
  FA3_HD constexpr StreamRanges(int units, int most_teams)
      : total(units), teams(most_teams < units ? most_teams : units) {
    if (teams == 0) return;
    each = total / teams;
    longer = total - teams * each;
  }
  FA3_HD constexpr int begin(int team) const {
    return team * each + (team < longer ? team : longer);
  }
  FA3_HD constexpr int team_of(int unit) const {
    const int of_longer = longer * (each + 1);
    return unit < of_longer ? unit / (each + 1) : longer + (unit - of_longer) / each;
  }
};

// The segment of `team` that begins at `unit`. ends: the sum of blocks of tiles 0 to i.
FA3_HD constexpr LatentSegment stream_segment(const StreamRanges& ranges, const int* ends, int tile,
                                              int unit, int team) {
  const int tile_begin = tile == 0 ? 0 : ends[tile - 1], tile_end = ends[tile];
  const int team_end = ranges.begin(team + 1);
  const int opener = ranges.team_of(tile_begin), last = ranges.team_of(tile_end - 1);
  LatentSegment s;
  s.tile = tile;
  s.first = unit - tile_begin;
  s.end = (team_end < tile_end ? team_end : tile_end) - tile_begin;
  s.part = team - opener;
  // Slot 2 t is that of a team's first segment, 2 t + 1 that of a last one.
  s.parts = {.count = last - opener + 1,
             .first_slot = 2 * opener + (ranges.begin(opener) < tile_begin ? 1 : 0),
             .other_slot = 2 * opener,
             .slot_step = 2};
  return s;
}

struct LatentParams {
  MlaProblem problem;
  float scale_log2 = 1;
  cuda::Divisor heads, page_size;
  cuda::Divisor tokens;  // of a sequence, at most
  int team_ctas = 1;
  int teams = 1;
  cuda::Divisor tiles_of_sequence;  // or of a token, if that has keys of its own
  int tiles = 0;
  cuda::Divisor splits;  // fixed parts of a tile; 0: stream
  int rows_of_cta = 0;

  // Results of parts: (slot, row of the team) x 512, and reference and sum of each.
  float* partial_o = nullptr;
  LatentSum* partial_sums = nullptr;
  LatentParts* tile_parts = nullptr;  // stream: of each tile

  FA3_HD int rows_of_team() const { return team_ctas * rows_of_cta; }
};

// A tile's rows of queries and its keys.
struct LatentTile {
  int b = 0;
  int first_token = 0;  // in the sequence's tensor: of row 0
  int tokens = 0;       // of the sequence; 1 with indices
  int first_row = 0;    // packed, of the tile
  int rows = 0;         // packed, of all tokens
  int keys = 0;         // of the sequence, or indices that count
  int end = 0;          // keys that the last row of the tile sees

  FA3_HD int blocks() const {
    if (first_row >= rows) return 0;
    return end > 0 ? (end + kLatentBlockKeys - 1) / kLatentBlockKeys : 1;  // one writes the zeros
  }
};

FA3_HD inline LatentTile latent_tile(const LatentParams& params, int number) {
  const MlaProblem& p = params.problem;
  const int of = number / params.tiles_of_sequence;
  LatentTile t;
  t.first_row = (number - of * params.tiles_of_sequence) * params.rows_of_team();
  if (p.sparse) {
    t.b = of / params.tokens;
    t.first_token = of - t.b * params.tokens;
    t.tokens = 1;
    t.rows = int(p.heads);
    t.keys = t.end = int(p.keys.count_of(t.b, t.first_token));
    return t;
  }
  const Rows q = p.lengths_q.clamped_rows_of(of);
  t.b = of;
  t.first_token = int(q.begin);
  t.tokens = int(q.used);
  t.rows = t.tokens * int(p.heads);
  t.keys = t.end = int(p.lengths_k.clamped_rows_of(of).used);
  const int after = t.first_row + params.rows_of_team();
  if (p.causal && after < t.rows) {
    t.end -= t.tokens - 1 - (after - 1) / params.heads;
  }
  return t;
}

// Where fixed parts of a tile have their results.
FA3_HD inline LatentParts fixed_parts(const LatentParams& params, int tile) {
  const int first_slot = tile * params.splits;
  return {.count = params.splits, .first_slot = first_slot, .other_slot = first_slot};
}

// Part number `at` of all tiles' fixed parts. A part may have no keys.
FA3_HD inline LatentSegment fixed_segment(const LatentParams& params, int at, LatentTile& tile) {
  LatentSegment s;
  s.tile = at / params.splits;
  s.part = at - s.tile * params.splits;
  tile = latent_tile(params, s.tile);
  const int blocks = tile.blocks(), each = blocks / params.splits;
  const int longer = blocks - each * params.splits;  // the first parts have one more
  s.first = s.part * each + (s.part < longer ? s.part : longer);
  s.end = s.first + each + (s.part < longer ? 1 : 0);
  s.parts = fixed_parts(params, s.tile);
  return s;
}

}  // namespace fa3::hopper
