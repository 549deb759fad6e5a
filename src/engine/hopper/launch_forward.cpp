// SPDX-License-Identifier: Apache-2.0
// From tensors to a grid. See launch_forward.h; the kernel begins in forward_kernel.cuh.
#include "engine/hopper/launch_forward.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>
#include <random>

#include "core/workspace.h"
#include "engine/hopper/choose_tiles.h"
#include "engine/hopper/count_tiles.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/launch.h"
#include "engine/hopper/list_sequences.h"
#include "engine/hopper/merge_pieces.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.4426950408889634;

constexpr int kLeastSlotBoxRows = 16;            // fewer are copied by threads
constexpr int64_t kFewSequences = 32;            // a warp's lanes
constexpr int64_t kFewestMultiprocessors = 114;  // of the Hopper GPUs: the H100 for PCIe

struct Workspace {
  int* ticket_counter = nullptr;       // null: tiles are dealt in turn
  SequenceTiles* sequences = nullptr;  // of ragged lengths: row_tiles()
  int* num_entries = nullptr;          // of them
  PieceOutput pieces;                  // of cut tiles
  CutTile* cuts = nullptr;
  uint64_t* counts = nullptr;  // of kernels that merge themselves
};

// Of kernels that merge themselves: of each slot one for each row, or for each thread block of a cluster.
int64_t num_counts(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!c.decodes()) return 0;
  const int64_t of_slot = c.has_tiles() ? c.block_m : int64_t{1} << launch.cut.cluster_log2;
  return launch.cut.blocks * of_slot;
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
          .counts = carver.take<uint64_t>(num_counts(c, launch))};
}

// Tiles that differ in length are drawn from a counter when a multiprocessor is free; others, and those
// that all have a multiprocessor at once, are dealt in turn, which needs no counter to be cleared.
Workspace carve(const ForwardConfig& c, const ForwardLaunch& launch, Carver& carver) {
  if (launch.cut.active()) return carve_pieces(c, launch, carver);
  if (launch.cut.numbered) return {};
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

// Rows of a slot of a warp that streams, of which all lie in one page.
int slot_box_rows(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!launch.places.paged()) return c.slot_keys();
  return int(std::gcd(launch.places.page_size, int64_t{c.slot_keys()}));
}

// Whether the copy engine fills slots, with few boxes each. It fills slabs of whole columns at once, if they
// lie behind each other as in a slot.
bool has_boxes_of_slots(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!c.may_box()) return false;
  const int rows = slot_box_rows(c, launch);
  const bool is_wide = launch.k.columns == c.head_dim && launch.v.columns == c.head_dim_v;
  return is_wide &&
         (rows == c.slot_keys() || (rows >= kLeastSlotBoxRows && c.loaded_k_tile().slabs() == 1));
}

bool encode_maps(ForwardParams& params, const ForwardConfig& c, const ForwardLaunch& launch) {
  if (c.streams()) {
    if (params.gathered.active) return true;
    const int rows = slot_box_rows(c, launch);
    return encode_slab_map(params.k_map, launch.k, c.stored(), c.loaded_k_tile(), rows) &&
           encode_slab_map(params.v_map, launch.v, c.stored(), c.loaded_v_tile(), rows);
  }
  const tile::TileLayout q = c.q_tile();
  tile::TileLayout k = c.loaded_k_tile(), v = c.loaded_v_tile();
  k.rows = page_box_rows(c, launch);
  if (!c.e4m3) v.rows = k.rows;
  const int heads = launch.pack.heads();
  params.q_is_clipped = c.general() && launch.lengths_q.packed();
  const bool q_done =
      params.q_is_clipped
          ? encode_clipped_queries(params.q_map, params.q_outside, launch.q, c.query(), q,
                                   kRowsPerWarpgroup, heads)
          : encode_tensor_map(params.q_map, launch.q, c.query(), q, kRowsPerWarpgroup, heads);
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

// Tiles of 64 rows wait for memory alone: threads keep more on its way than the copy engine does. Under
// larger ones their instructions take time from the softmax, which small boxes alone are worth.
GatheredKeys gathered_keys(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t page_size = launch.places.paged() ? launch.places.page_size : INT32_MAX;
  GatheredKeys keys{.page_size = unsigned(page_size),
                    .by_page_size = Divisor::of(unsigned(page_size)),
                    .num_pages = int(launch.k.batches)};
  const bool asked_for = c.streams() ? !has_boxes_of_slots(c, launch)
                                     : c.consumers() == 1 || has_small_boxes(c, launch);
  keys.active = c.may_gather() && asked_for && describe_rows(launch.k, &keys.k) &&
                describe_rows(launch.v, &keys.v);
  return keys;
}

// Thread blocks: no more than there is room or work for.
int num_blocks(const ForwardConfig& c, const ForwardLaunch& launch, const ForwardParams& params,
               int multiprocessors) {
  if (launch.cut.parts == KeyCut::kRuns) return launch.cut.blocks;
  const int tasks = launch.cut.finds_pieces() ? params.split.num_tiles() * launch.cut.parts
                                              : params.order.num_tiles();
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

bool gathers_keys(const ForwardConfig& c, const ForwardLaunch& launch) {
  return gathered_keys(c, launch).active;
}

bool can_decode(const ForwardConfig& c, const ForwardLaunch& launch) {
  const bool copies_by_engine = c.streams() ? has_boxes_of_slots(c, launch) : c.widens();
  return merges_soon(c, launch) && launch.cut.parts == KeyCut::kRuns &&
         key_split(c, launch).is_for_decoding() &&
         (c.streams() || launch.sequences <= kFewSequences) &&
         (copies_by_engine || gathered_keys(c, launch).active);
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
  params.gathered = gathered_keys(c, launch);
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
                  .box_rows = c.streams() ? slot_box_rows(c, launch) : page_box_rows(c, launch),
                  .num_pages = int(launch.places.pages)};
  if (launch.cut.finds_pieces()) params.split = key_split(c, launch);
  params.pieces = workspace.pieces;
  params.cuts = workspace.cuts;
  if (c.decodes()) params.counts = {workspace.counts, launch_number()};
  params.e4m3 = launch.e4m3;
  params.cache_scales = launch.cache_scales;

  if (params.sequences) {
    SequenceList list = sequence_list(c, launch, multiprocessors);
    list.entries = workspace.sequences;
    list.num_entries = workspace.num_entries;
    list.ticket_counter = workspace.ticket_counter;
    error = list_sequences(list, stream);
    if (error != cudaSuccess) return error;
  } else if (params.ticket_counter) {
    error = cudaMemsetAsync(params.ticket_counter, 0, sizeof(int), stream);
    if (error != cudaSuccess) return error;
  }
  params.clusters.size_log2 = launch.cut.cluster_log2;
  const unsigned cluster = 1u << launch.cut.cluster_log2;
  dim3 blocks(unsigned(num_blocks(c, launch, params, multiprocessors)) * cluster);
  if (c.has_tiles()) {
    const unsigned tiles = unsigned(num_cut_tiles(c, launch));
    const unsigned packs = unsigned(params.packs_per_kv_head);
    blocks = {blocks.x / tiles, tiles / packs, packs};
    params.clusters.parts_log2 = std::countr_zero(blocks.x / cluster);
  }
  error = hopper::launch(kernel.function, blocks, c.threads(), kernel.smem_bytes, &params,
                         {.chained = c.is_chained(), .cluster = int(cluster)}, stream);
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
