// SPDX-License-Identifier: Apache-2.0
// From tensors to a grid. See launch_forward.h; the kernel begins in forward_kernel.cuh.
#include "engine/hopper/launch_forward.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>
#include <random>

#include "core/workspace.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/launch.h"
#include "engine/hopper/list_sequences.h"
#include "engine/hopper/merge_pieces.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.4426950408889634;

// A tail of this many waves of tiles evens out the multiprocessors: more for longer sequences, whose
// longest tiles are longer and whose keys need less memory bandwidth for their use.
constexpr int64_t kTailWavesPerMBlock = 16;
constexpr int64_t kMinTailWaves = 2;
constexpr int64_t kMaxTailWaves = 8;

// Q comes 64 rows a copy, which must be whole queries of one pack. Tiles that are not cut take up to a
// warp's rows.
constexpr int kMaxPackLog2 = 4;
constexpr int kMaxPackLog2OfCutTiles = 6;

// Microseconds on an H200, measured (docs/performance-hopper.md): of a key of a tile and of each of its
// columns, of a merge until it ends, of a byte of its pieces, written and read. What a cut saves must be
// worth the trouble.
constexpr double kKeyTime = 0.0035, kColumnTime = 36e-6;
constexpr double kMergeTime = 8.5;
constexpr double kPieceByteTime = 0.25e-6;
constexpr double kWorthCutting = 0.9;
constexpr int64_t kFewTilesEach = 4;
// Of a tile in pieces, that a thread block merges alone: whatever the pieces, or times them.
constexpr int64_t kFewRowsToMerge = 16, kMostRowsToMerge = 200;
// Fewer keys are never cut.
constexpr int kLeastKeysToCut = 512;
// Of the thread blocks that there is room for, so many get a run.
constexpr double kBusyRuns = 0.96;
// Up to so many key blocks in each, a run for each multiprocessor is enough.
constexpr int64_t kShortRun = 32;
// Boxes of fewer rows of a page are slower than copies by threads (docs/performance-hopper.md).
constexpr int kLeastBoxRows = 64;
constexpr int64_t kFewestMultiprocessors = 114;       // of the Hopper GPUs: the H100 for PCIe
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

int64_t num_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  return ceil_div(pack.rows(int64_t{launch.seqlen_q}), c.block_m);
}

// For the queries of all sequences; where they are ragged, the most that there can be: each sequence
// ends within a tile, and so do the rows that none owns.
int64_t row_tiles(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  if (!launch.ragged) return num_m_blocks(c, launch, pack) * launch.q.batches;
  return ceil_div(pack.rows(launch.q.rows * launch.q.batches), c.block_m) + launch.sequences + 1;
}

int64_t num_tiles(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  return row_tiles(c, launch, pack) * (launch.q.heads / pack.heads());
}

struct Workspace {
  int* ticket_counter = nullptr;       // null: tiles are dealt in turn
  SequenceTiles* sequences = nullptr;  // of ragged lengths: row_tiles()
  int* num_entries = nullptr;          // of them
  PieceOutput pieces;                  // of cut tiles
  CutTile* cuts = nullptr;
  uint64_t* counts = nullptr;  // of kernels that merge themselves
};

int64_t num_packs(const ForwardLaunch& launch) {
  return launch.q.heads / launch.pack.heads();
}

int64_t most_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch) {
  return std::max<int64_t>(1, num_m_blocks(c, launch, launch.pack));
}

// Tiles that may be cut, of fixed parts: those of sequences.
int64_t num_cut_tiles(const ForwardConfig& c, const ForwardLaunch& launch) {
  return launch.sequences * most_m_blocks(c, launch) * num_packs(launch);
}

// Whether the merge looks at tiles one by one, or at runs, which cut a tile each at most.
bool told_by_tile(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (launch.cut.parts != KeyCut::kRuns) return true;
  return !launch.lengths_q.ragged && num_cut_tiles(c, launch) <= launch.cut.blocks;
}
int64_t num_cuts(const ForwardConfig& c, const ForwardLaunch& launch) {
  return told_by_tile(c, launch) ? num_cut_tiles(c, launch) : launch.cut.blocks;
}

// A run has at most two pieces of cut tiles.
int64_t num_slots(const ForwardConfig& c, const ForwardLaunch& launch) {
  const KeyCut& cut = launch.cut;
  return cut.parts == KeyCut::kRuns ? int64_t{2} * cut.blocks
                                    : num_cut_tiles(c, launch) * cut.parts;
}

Workspace carve_pieces(const ForwardConfig& c, const ForwardLaunch& launch, Carver& carver) {
  const int64_t slots = num_slots(c, launch);
  const int64_t rows =
      std::min<int64_t>(c.block_m, launch.pack.rows(std::max<int64_t>(1, launch.seqlen_q)));
  const int64_t columns = ceil_div(launch.o.columns, kCopyColumns) * kCopyColumns;
  return {.pieces = {.o = carver.take<float>(slots, rows, columns),
                     .lse = carver.take<float>(slots, rows),
                     .rows = int(rows),
                     .columns = int(columns)},
          .cuts = carver.take<CutTile>(c.decodes() ? 0 : num_cuts(c, launch)),
          .counts = carver.take<uint64_t>(c.decodes() ? launch.cut.blocks : 0)};
}

// Tiles that differ in length are drawn from a counter when a multiprocessor is free; others, and those
// that all have a multiprocessor at once, are dealt in turn, which needs no counter to be cleared.
Workspace carve(const ForwardConfig& c, const ForwardLaunch& launch, Carver& carver) {
  if (launch.cut.active()) return carve_pieces(c, launch, carver);
  if (launch.ragged) {
    return {.ticket_counter = carver.take<int>(1),
            .sequences = carver.take<SequenceTiles>(row_tiles(c, launch, launch.pack)),
            .num_entries = carver.take<int>(1)};
  }
  const bool tiles_differ =
      !launch.mask.hides_nothing() || launch.pack.rows(launch.q.rows) % c.block_m != 0;
  const bool one_wave = num_tiles(c, launch, launch.pack) <= kFewestMultiprocessors * c.blocks;
  return {.ticket_counter = tiles_differ && !one_wave ? carver.take<int>(1) : nullptr};
}

// How many tiles at the end go longest first, whatever their head.
int64_t tail_tiles(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  if (launch.mask.hides_nothing()) return 0;
  const int64_t waves = num_m_blocks(c, launch, launch.pack) / kTailWavesPerMBlock;
  return std::clamp(waves, kMinTailWaves, kMaxTailWaves) * multiprocessors;
}

TileOrder tile_order(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  const int64_t packs = num_packs(launch);
  if (launch.ragged) return {int(row_tiles(c, launch, launch.pack)), int(packs), 1, 0};
  const int64_t m_blocks = num_m_blocks(c, launch, launch.pack);
  const int64_t tail = ceil_div(tail_tiles(c, launch, multiprocessors), m_blocks);
  return {int(m_blocks), int(packs), int(launch.q.batches),
          int(std::min(packs * launch.q.batches, tail))};
}

SequenceList sequence_list(const ForwardConfig& c, const ForwardLaunch& launch,
                           const Workspace& workspace, int multiprocessors) {
  return {.lengths_q = launch.lengths_q,
          .lengths_k = launch.lengths_k,
          .batch = int(launch.sequences),
          .block_m = c.block_m,
          .pack = launch.pack,
          .num_packs = int(num_packs(launch)),
          .tail_tiles = int(tail_tiles(c, launch, multiprocessors)),
          .capacity = int(row_tiles(c, launch, launch.pack)),
          .entries = workspace.sequences,
          .num_entries = workspace.num_entries,
          .ticket_counter = workspace.ticket_counter,
          .places = launch.places};
}

KeySplit key_split(const ForwardConfig& c, const ForwardLaunch& launch) {
  KeySplit split{.sequences = sequence_list(c, launch, {}, 0),
                 .mask = launch.mask,
                 .block_n = c.block_n,
                 .parts = launch.cut.parts,
                 .most_m_blocks = int(most_m_blocks(c, launch)),
                 .rows_log2 = launch.cut.rows_log2,
                 .told_by_tile = told_by_tile(c, launch)};
  split.simple = split.is_simple();
  return split;
}

bool encode_maps(ForwardParams& params, const ForwardConfig& c, const ForwardLaunch& launch) {
  const tile::TileLayout q = c.q_tile();
  tile::TileLayout k = c.loaded_k_tile(), v = c.loaded_v_tile();
  k.rows = page_box_rows(c, launch);
  if (!c.e4m3) v.rows = k.rows;
  const int heads = launch.pack.heads();
  params.q_is_clipped = c.general() && launch.lengths_q.packed();
  const bool q_done =
      params.q_is_clipped
          ? encode_clipped_queries(params.q_map, params.q_outside, launch.q, c.input(), q,
                                   kRowsPerWarpgroup, heads)
          : encode_tensor_map(params.q_map, launch.q, c.input(), q, kRowsPerWarpgroup, heads);
  if (!q_done || (c.decodes() && c.may_gather())) return q_done;  // whose threads copy keys
  const bool k_done =
      c.clips_keys() ? encode_clipped_map(params.k_map, params.k_outside, launch.k, c.stored(), k)
                     : encode_tensor_map(params.k_map, launch.k, c.input(), k, k.rows);
  if (!k_done) return false;
  return c.clips_keys() && !c.e4m3
             ? encode_clipped_map(params.v_map, params.v_outside, launch.v, c.stored(), v)
             : encode_tensor_map(params.v_map, launch.v, c.input(), v, v.rows);
}

// For threads that copy whole chunks of 16 bytes. A unit that divides both strides lets few bits hold a
// row's place. False: they do not, or there are other chunks.
bool describe_rows(const TensorSpan& t, GatheredRows* rows) {
  const int64_t page = t.batches > 1 ? t.batch_stride : 0, row = t.rows > 1 ? t.row_stride : 0;
  const int64_t unit = std::max<int64_t>(1, std::gcd(page, row));
  const int64_t last = (t.batches - 1) * (page / unit) + (t.rows - 1) * (row / unit);
  *rows = {.data = static_cast<const unsigned char*>(t.data),
           .head_bytes = t.head_stride * t.element_bytes,
           .unit_bytes = uint32_t(unit * t.element_bytes),
           .page_units = uint32_t(page / unit),
           .row_units = uint32_t(row / unit),
           .columns = int(t.columns)};
  return last <= INT32_MAX && unit * t.element_bytes <= UINT32_MAX && t.columns % kCopyColumns == 0;
}

// Keys that one tile alone reads come as fast as memory gives them: threads keep more on its way than the
// copy engine does. Where several read them, it takes small boxes to be slower than they are.
GatheredKeys gathered_keys(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t page_size = launch.places.paged() ? launch.places.page_size : INT32_MAX;
  GatheredKeys keys{.page_size = unsigned(page_size), .num_pages = int(launch.k.batches)};
  const bool by_one_tile = launch.cut.active() && most_m_blocks(c, launch) == 1 &&
                           launch.pack.heads() == launch.heads_per_kv_head;
  keys.active = c.may_gather() &&
                (c.consumers() == 1 || by_one_tile || has_small_boxes(c, launch)) &&
                describe_rows(launch.k, &keys.k) && describe_rows(launch.v, &keys.v);
  return keys;
}

// Of a tile, if lengths are even.
int64_t most_pieces(const ForwardConfig& c, const ForwardLaunch& launch) {
  const KeyCut& cut = launch.cut;
  if (cut.parts != KeyCut::kRuns) return cut.parts;
  return ceil_div(cut.blocks, std::max<int64_t>(1, num_cut_tiles(c, launch))) + 1;
}

// Thread blocks: no more than there is room or work for.
int num_blocks(const ForwardConfig& c, const ForwardLaunch& launch, const ForwardParams& params,
               int multiprocessors) {
  if (launch.cut.parts == KeyCut::kRuns) return launch.cut.blocks;
  const int tasks =
      launch.cut.active() ? params.split.num_tiles() * launch.cut.parts : params.order.num_tiles();
  return std::min(multiprocessors * c.blocks, tasks);
}

// Unlike any other's, and unlike what a workspace happens to hold.
uint64_t launch_number() {
  static std::atomic<uint64_t> next{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  return next.fetch_add(0x9e3779b97f4a7c15) >> PieceCounts::kBits;
}

cudaError_t current_multiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace

HeadPack most_packed(int64_t heads_per_kv_head, bool cut) {
  const int most = cut ? kMaxPackLog2OfCutTiles : kMaxPackLog2;
  return {std::min(std::countr_zero(uint64_t(heads_per_kv_head)), most)};
}

// As many heads as save tiles, or warpgroups' parts of them. The others are packs of their own, whose runs
// lie side by side: they read the same keys at the same time, as tiles in a row would not.
HeadPack pack_of_cut_tiles(const ForwardConfig& c, const ForwardLaunch& launch) {
  HeadPack pack = most_packed(launch.heads_per_kv_head, true);
  const auto parts = [&](HeadPack of, int rows_of_part) {
    return ceil_div(of.rows(launch.seqlen_q), rows_of_part) * (launch.q.heads / of.heads());
  };
  const auto saves = [&](HeadPack of, int rows_of_part) {
    return parts(of, rows_of_part) < parts({of.log2 - 1}, rows_of_part);
  };
  while (pack.log2 > 0 && (pack.rows(launch.q.rows) > kMaxPackedRows ||
                           !(saves(pack, c.block_m) || saves(pack, kRowsPerWarpgroup)))) {
    --pack.log2;
  }
  return pack;
}

// Packing pays where tiles would be partly empty, and where a causal mask cuts through them: fewer
// queries a tile leave less beside the diagonal.
HeadPack choose_pack(const ForwardConfig& c, const ForwardLaunch& launch) {
  HeadPack most = most_packed(launch.heads_per_kv_head);
  while (most.rows(launch.q.rows) > kMaxPackedRows) --most.log2;
  const bool cut_by_mask = !launch.mask.hides_nothing() && launch.seqlen_q >= c.block_m;
  const bool saves_tiles = num_tiles(c, launch, most) < num_tiles(c, launch, HeadPack{});
  return cut_by_mask || saves_tiles ? most : HeadPack{};
}

// Boxes begin with a multiple of their rows in a page and in a tile; left padding begins anywhere.
int page_box_rows(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!launch.places.paged()) return c.block_n;
  if (launch.lengths_k.padded_left) return 1;
  return int(std::gcd(launch.places.page_size, int64_t{c.block_n}));
}

bool has_small_boxes(const ForwardConfig& c, const ForwardLaunch& launch) {
  return page_box_rows(c, launch) < std::min(kLeastBoxRows, c.block_n);
}

bool gathers_keys(const ForwardConfig& c, const ForwardLaunch& launch) {
  return gathered_keys(c, launch).active;
}

// As many rows of units side by side as leave few thread blocks without a run.
int rows_log2(int64_t packs, int64_t blocks) {
  int log2 = std::countr_zero(uint64_t(packs));
  while (log2 > 0 && double(blocks >> log2 << log2) < kBusyRuns * double(blocks)) --log2;
  return log2;
}

// Of the keys of the longest sequence, as many as a tile visits at most: few under a window.
int visible_keys(const ForwardConfig& c, const ForwardLaunch& cut) {
  const SequenceTiles longest{.keys = {.count = cut.seqlen_k}};
  return std::min(cut.seqlen_k, key_split(c, cut).most_blocks(longest) * c.block_n);
}

// Of queries that are ragged, the most that there can be.
int64_t expected_tiles(const ForwardConfig& c, const ForwardLaunch& cut) {
  return std::min(num_tiles(c, cut, cut.pack), num_cut_tiles(c, cut));
}

// Of the longest sequence's.
double tile_time(const ForwardConfig& c, const ForwardLaunch& cut) {
  return visible_keys(c, cut) * (kKeyTime + kColumnTime * (c.head_dim + c.head_dim_v));
}

double merge_time(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  const int64_t rows = std::min<int64_t>(c.block_m, cut.pack.rows(cut.seqlen_q));
  const double piece_bytes = double(most_blocks * rows * cut.o.columns) * 2 * sizeof(float);
  return kMergeTime + piece_bytes * kPieceByteTime;
}

// Whether cut tiles are done sooner than whole ones. Of these some multiprocessors may have none, or one
// more than others; cut ones occupy all, but are merged.
bool cut_pays(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  const int64_t tiles = expected_tiles(c, cut);
  const double tile = tile_time(c, cut);
  const double whole = double(ceil_div(tiles, most_blocks)) * tile;
  const double pieces = double(tiles) * tile / double(most_blocks);
  return pieces + merge_time(c, cut, most_blocks) < kWorthCutting * whole;
}

// Lengths that only the device knows: runs are alike, tiles need not be, and a multiprocessor may still be
// at the longest when all others are done. Few queries are always cut for that. Others, whose merges are
// longer, where each multiprocessor has few tiles, whose keys no other tile in the row reads, and take
// longer than a merge.
bool cut_evens_out(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  if (!cut.ragged || cut.seqlen_k < kLeastKeysToCut) return false;
  if (c.consumers() == 1) return true;
  const bool fits = 2 * (c.head_dim + c.head_dim_v) <= 3 * (cut.q.columns + cut.o.columns);
  return fits && most_m_blocks(c, cut) == 1 &&
         expected_tiles(c, cut) <= kFewTilesEach * most_blocks &&
         merge_time(c, cut, most_blocks) < tile_time(c, cut);
}

// A run for each thread block; where runs are short, for each multiprocessor, which leaves fewer pieces
// to merge. Rather a few less than runs that end within tiles, where tiles are alike.
int64_t runs_in_a_row(int64_t tiles, int64_t units, int64_t blocks, int64_t multiprocessors) {
  const bool are_short = units <= kShortRun * multiprocessors;
  const int64_t most = std::min(are_short ? multiprocessors : blocks, units);
  if (most < tiles) return most;
  const int64_t whole = most / tiles * tiles;
  return double(whole) >= kBusyRuns * double(most) ? whole : most;
}

void choose_cut(const ForwardConfig& c, int num_splits, int multiprocessors,
                ForwardLaunch* launch) {
  ForwardLaunch cut = *launch;
  cut.pack = pack_of_cut_tiles(c, *launch);
  const int keys = num_splits > 1 ? launch->seqlen_k : visible_keys(c, cut);
  const int64_t blocks = ceil_div(keys, c.block_n);
  const int64_t tiles = num_tiles(c, cut, cut.pack);
  const int64_t most_blocks = int64_t{multiprocessors} * c.blocks;
  if (capped_product(tiles, blocks) > INT32_MAX / 2) return;
  if (num_splits > 1) {
    cut.cut.parts = int(std::min<int64_t>(num_splits, blocks));
    const bool countable = capped_product(tiles, cut.cut.parts) <= INT32_MAX / 2;
    if (cut.cut.parts > 1 && countable) *launch = cut;
    return;
  }
  // Queries that see half of the keys or less would make runs unequal.
  const bool alike = launch->mask.hides_nothing() || launch->seqlen_k >= 2 * launch->seqlen_q;
  if (num_splits == 1 || !alike) return;
  if (!cut_pays(c, cut, most_blocks) && !cut_evens_out(c, cut, most_blocks)) return;
  const int log2 = rows_log2(num_packs(cut), most_blocks);
  const int64_t in_a_row = expected_tiles(c, cut) >> log2;
  const int64_t runs =
      runs_in_a_row(in_a_row, in_a_row * blocks, most_blocks >> log2, multiprocessors >> log2);
  cut.cut = {.parts = KeyCut::kRuns, .blocks = int(runs << log2), .rows_log2 = log2};
  *launch = cut;
}

// Many rows of many pieces are merged sooner by a kernel of their own than by one thread block a tile.
bool merges_soon(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t rows = launch.pack.rows(launch.seqlen_q);
  return rows <= kFewRowsToMerge || rows * most_pieces(c, launch) <= kMostRowsToMerge;
}

bool can_decode(const ForwardConfig& c, const ForwardLaunch& launch) {
  return merges_soon(c, launch) && launch.cut.parts == KeyCut::kRuns &&
         key_split(c, launch).is_for_decoding() && (c.widens() || gathered_keys(c, launch).active);
}

int64_t forward_num_tiles(const ForwardConfig& config, const ForwardLaunch& launch) {
  return num_tiles(config, launch, launch.pack);
}

int64_t forward_workspace_bytes(const ForwardConfig& config, const ForwardLaunch& launch) {
  return bytes_of([&](Carver& carver) { carve(config, launch, carver); });
}

cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardLaunch& launch,
                           cudaStream_t stream) {
  const ForwardConfig& c = kernel.config;
  int multiprocessors = 0;
  cudaError_t error = current_multiprocessors(&multiprocessors);
  if (error != cudaSuccess) return error;

  Carver carver(launch.workspace);
  const Workspace workspace = carve(c, launch, carver);
  ForwardParams params{};
  if (!encode_maps(params, c, launch)) return cudaErrorInvalidValue;
  params.q = row_tensor(launch.q);
  params.k = row_tensor(launch.k);
  params.output = {
      .o = row_tensor(launch.o),
      .lse = launch.lse,
      .pack = launch.pack,
      .some_rows_see_no_key =
          launch.ragged || launch.mask.keys_of(0, launch.seqlen_q, launch.seqlen_k).empty(),
      .o_is_float32 = launch.o.element_bytes == sizeof(float),
      .sink = launch.sink};
  params.ticket_counter = workspace.ticket_counter;
  params.order = tile_order(c, launch, multiprocessors);
  params.packs_per_kv_head = launch.heads_per_kv_head / launch.pack.heads();
  params.seqlen_q = launch.seqlen_q;
  params.seqlen_k = launch.seqlen_k;
  params.mask = launch.mask;
  params.scale_log2 = float(launch.scale * kLog2E);
  // Scores of e4m3 are in log2 units by then.
  const double cap_scale = c.e4m3 ? 1 / kLog2E : launch.scale;
  if (launch.softcap != 0) params.soft_cap = SoftCap::of(cap_scale, launch.softcap);
  params.sequences = workspace.sequences;
  params.num_entries = workspace.num_entries;
  params.paged = {.table = launch.places.page_table,
                  .table_stride = launch.places.table_stride,
                  .page_size = int(launch.places.page_size),
                  .box_rows = page_box_rows(c, launch),
                  .num_pages = int(launch.places.pages)};
  if (launch.cut.active()) params.split = key_split(c, launch);
  params.pieces = workspace.pieces;
  params.cuts = workspace.cuts;
  if (c.decodes()) params.counts = {workspace.counts, launch_number()};
  params.e4m3 = launch.e4m3;
  params.cache_scales = launch.cache_scales;
  params.gathered = gathered_keys(c, launch);

  if (params.sequences) {
    error = list_sequences(sequence_list(c, launch, workspace, multiprocessors), stream);
    if (error != cudaSuccess) return error;
  } else if (params.ticket_counter) {
    error = cudaMemsetAsync(params.ticket_counter, 0, sizeof(int), stream);
    if (error != cudaSuccess) return error;
  }
  const dim3 blocks(unsigned(num_blocks(c, launch, params, multiprocessors)));
  error = hopper::launch(kernel.function, blocks, c.threads(), kernel.smem_bytes, &params,
                         c.decodes(), stream);
  if (error != cudaSuccess || !launch.cut.active() || c.decodes()) return error;
  return merge_pieces({.pieces = params.pieces,
                       .cuts = params.cuts,
                       .num_cuts = int(num_cuts(c, launch)),
                       .most_pieces = most_pieces(c, launch),
                       .output = params.output,
                       .element = c.output()},
                      stream);
}

}  // namespace fa3::hopper
