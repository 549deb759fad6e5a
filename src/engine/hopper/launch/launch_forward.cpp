// SPDX-License-Identifier: Apache-2.0
// From tensors to a grid. See launch_forward.h; the kernel begins in forward_kernel.cuh.
#include "engine/hopper/launch/launch_forward.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>
#include <random>

#include "core/workspace.h"
#include "engine/hopper/combine/combine_kernel.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/host/launch.h"
#include "engine/hopper/plan/choose_split.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/scheduler/varlen_metadata.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.4426950408889634;

constexpr int kLeastStageBoxRows = 16;  // fewer are copied by threads
constexpr int64_t kFewSequences = 32;   // a warp's lanes
constexpr int64_t kFewestSms = 114;     // of the Hopper GPUs: the H100 for PCIe

struct Workspace {
  int* tile_counter = nullptr;         // null: tiles are dealt in turn
  SequenceTiles* sequences = nullptr;  // of varlen lengths: row_tiles()
  int* num_entries = nullptr;          // of them
  PartialOutput partials;              // of split tiles
  CombineTile* combines = nullptr;
  uint64_t* counts = nullptr;  // of kernels that combine themselves
};

// Of kernels that combine themselves: of each stage one for each row, or for each CTA of a cluster.
int64_t num_counts(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!c.always_splits()) return 0;
  const int64_t of_partial =
      c.is_single_sequence() ? c.block_m : int64_t{1} << launch.split.cluster_log2;
  return launch.split.ctas * of_partial;
}

Workspace allocate_partials(const ForwardConfig& c, const ForwardLaunch& launch,
                            WorkspaceAllocator& allocator) {
  const int64_t stages = num_partials(c, launch);
  const int64_t rows =
      std::min<int64_t>(c.block_m, launch.pack.rows(std::max<int64_t>(1, launch.seqlen_q)));
  const int64_t columns = ceil_div(launch.o.columns, kCopyColumns) * kCopyColumns;
  return {.partials = {.o = allocator.take<float>(stages, rows, columns),
                       .lse = allocator.take<float>(stages, rows),
                       .rows = int(rows),
                       .columns = int(columns)},
          .combines = allocator.take<CombineTile>(c.always_splits() ? 0 : num_combines(c, launch)),
          .counts = allocator.take<uint64_t>(num_counts(c, launch))};
}

// Tiles that differ in length are drawn from a counter when an SM is free; others, and those
// that all have an SM at once, are dealt in turn, which needs no counter to be cleared.
Workspace allocate(const ForwardConfig& c, const ForwardLaunch& launch,
                   WorkspaceAllocator& allocator) {
  if (launch.split.active()) return allocate_partials(c, launch, allocator);
  if (launch.split.direct) return {};
  if (launch.varlen) {
    return {.tile_counter = allocator.take<int>(1),
            .sequences = allocator.take<SequenceTiles>(row_tiles(c, launch, launch.pack)),
            .num_entries = allocator.take<int>(1)};
  }
  const bool tiles_differ =
      !launch.mask.hides_nothing() || launch.pack.rows(launch.q.rows) % c.block_m != 0;
  const bool one_wave = num_tiles(c, launch, launch.pack) <= kFewestSms * c.ctas_per_sm;
  return {.tile_counter = tiles_differ && !one_wave ? allocator.take<int>(1) : nullptr};
}

// Rows of a stage of a warp that streams, of which all lie in one page.
int stage_box_rows(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!launch.places.paged()) return c.stage_keys();
  return int(std::gcd(launch.places.page_size, int64_t{c.stage_keys()}));
}

// Whether TMA fills stages, with few boxes each. It fills slabs of whole columns at once, if they
// lie behind each other as in a stage.
bool fills_stages_by_tma(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!c.may_use_tma()) return false;
  const int rows = stage_box_rows(c, launch);
  const bool is_wide = launch.k.columns == c.head_dim && launch.v.columns == c.head_dim_v;
  return is_wide &&
         (rows == c.stage_keys() || (rows >= kLeastStageBoxRows && c.loaded_k_tile().slabs() == 1));
}

bool encode_maps(ForwardParams& params, const ForwardConfig& c, const ForwardLaunch& launch) {
  if (c.is_decode()) {
    if (params.cp_async.active) return true;
    const int rows = stage_box_rows(c, launch);
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
  if (!q_done || (c.always_splits() && c.may_use_cp_async()))
    return q_done;  // whose threads copy keys
  const bool k_done =
      c.clips_keys() ? encode_clipped_map(params.k_map, params.k_outside, launch.k, c.stored(), k)
                     : encode_tensor_map(params.k_map, launch.k, c.input(), k, k.rows);
  if (!k_done) return false;
  return c.clips_keys() && !c.e4m3
             ? encode_clipped_map(params.v_map, params.v_outside, launch.v, c.stored(), v)
             : encode_tensor_map(params.v_map, launch.v, c.input(), v, v.rows);
}

// For threads that copy whole chunks of 16 bytes. A unit that divides both strides lets few bits
// hold a row's place. False: they do not, or there are other chunks.
bool describe_cp_async_rows(const TensorSpan& t, CpAsyncRows* rows) {
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

// Tiles of 64 rows wait for memory alone: threads keep more on its way than TMA does. Under
// larger ones their instructions take time from the softmax, which small boxes alone are worth.
CpAsyncKeys cp_async_keys(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t page_size = launch.places.paged() ? launch.places.page_size : INT32_MAX;
  CpAsyncKeys keys{.page_size = unsigned(page_size),
                   .by_page_size = Divisor::of(unsigned(page_size)),
                   .num_pages = int(launch.k.batches)};
  const bool asked_for = c.is_decode() ? !fills_stages_by_tma(c, launch)
                                       : c.consumers() == 1 || has_small_boxes(c, launch);
  keys.active = c.may_use_cp_async() && asked_for && describe_cp_async_rows(launch.k, &keys.k) &&
                describe_cp_async_rows(launch.v, &keys.v);
  return keys;
}

// CTAs: no more than there is room or work for.
int num_blocks(const ForwardConfig& c, const ForwardLaunch& launch, const ForwardParams& params,
               int num_sms) {
  if (launch.split.num_splits == SplitKv::kStreamK) return launch.split.ctas;
  const int tasks = launch.split.finds_own_tiles()
                        ? params.schedule.num_tiles() * launch.split.num_splits
                        : params.order.num_tiles();
  return std::min(num_sms * c.ctas_per_sm, tasks);
}

// Unlike any other's, and unlike what a workspace happens to hold.
uint64_t launch_number() {
  static std::atomic<uint64_t> next{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  return next.fetch_add(0x9e3779b97f4a7c15) >> SplitCounters::kBits;
}

cudaError_t current_num_sms(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace

bool uses_cp_async(const ForwardConfig& c, const ForwardLaunch& launch) {
  return cp_async_keys(c, launch).active;
}

bool can_always_split(const ForwardConfig& c, const ForwardLaunch& launch) {
  const bool copies_by_engine = c.is_decode() ? fills_stages_by_tma(c, launch) : c.dequantizes();
  return combines_in_kernel(c, launch) && launch.split.num_splits == SplitKv::kStreamK &&
         split_kv_schedule(c, launch).is_for_decoding() &&
         (c.is_decode() || launch.sequences <= kFewSequences) &&
         (copies_by_engine || cp_async_keys(c, launch).active);
}

int64_t forward_num_tiles(const ForwardConfig& config, const ForwardLaunch& launch) {
  return num_tiles(config, launch, launch.pack);
}

int64_t forward_workspace_bytes(const ForwardConfig& config, const ForwardLaunch& launch) {
  return bytes_of([&](WorkspaceAllocator& allocator) { allocate(config, launch, allocator); });
}

cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardLaunch& launch,
                           cudaStream_t stream) {
  const ForwardConfig& c = kernel.config;
  int num_sms = 0;
  cudaError_t error = current_num_sms(&num_sms);
  if (error != cudaSuccess) return error;

  WorkspaceAllocator allocator(launch.workspace);
  const Workspace workspace = allocate(c, launch, allocator);
  ForwardParams params{};
  params.cp_async = cp_async_keys(c, launch);
  if (!encode_maps(params, c, launch)) return cudaErrorInvalidValue;
  params.q = row_tensor(launch.q);
  params.k = row_tensor(launch.k);
  params.output = {
      .o = row_tensor(launch.o),
      .lse = launch.lse,
      .pack = launch.pack,
      .some_rows_see_no_key =
          launch.varlen || launch.mask.keys_of(0, launch.seqlen_q, launch.seqlen_k).empty(),
      .o_is_float32 = launch.o.element_bytes == sizeof(float),
      .sink = launch.sink};
  params.tile_counter = workspace.tile_counter;
  params.order = tile_order(c, launch, num_sms);
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
                  .box_rows = c.is_decode() ? stage_box_rows(c, launch) : page_box_rows(c, launch),
                  .num_pages = int(launch.places.pages)};
  if (launch.split.finds_own_tiles()) params.schedule = split_kv_schedule(c, launch);
  params.partials = workspace.partials;
  params.combines = workspace.combines;
  if (c.always_splits()) params.counts = {workspace.counts, launch_number()};
  params.e4m3 = launch.e4m3;
  params.cache_scales = launch.cache_scales;

  if (params.sequences) {
    VarlenMetadata list = varlen_metadata(c, launch, num_sms);
    list.entries = workspace.sequences;
    list.num_entries = workspace.num_entries;
    list.tile_counter = workspace.tile_counter;
    error = prepare_varlen_metadata(list, stream);
    if (error != cudaSuccess) return error;
  } else if (params.tile_counter) {
    error = cudaMemsetAsync(params.tile_counter, 0, sizeof(int), stream);
    if (error != cudaSuccess) return error;
  }
  params.clusters.size_log2 = launch.split.cluster_log2;
  const unsigned cluster = 1u << launch.split.cluster_log2;
  dim3 blocks(unsigned(num_blocks(c, launch, params, num_sms)) * cluster);
  if (c.is_single_sequence()) {
    const unsigned tiles = unsigned(num_split_tiles(c, launch));
    const unsigned packs = unsigned(params.packs_per_kv_head);
    blocks = {blocks.x / tiles, tiles / packs, packs};
    params.clusters.parts_log2 = std::countr_zero(blocks.x / cluster);
  }
  error = hopper::launch(kernel.function, blocks, c.threads(), kernel.smem_bytes, &params,
                         {.pdl = c.uses_pdl(), .cluster = int(cluster)}, stream);
  if (error != cudaSuccess || !launch.split.active() || c.always_splits()) return error;
  return combine_splits({.partials = params.partials,
                         .combines = params.combines,
                         .num_combines = int(num_combines(c, launch)),
                         .most_splits = most_splits(c, launch),
                         .output = params.output,
                         .element = c.output()},
                        stream);
}

}  // namespace fa3::hopper
