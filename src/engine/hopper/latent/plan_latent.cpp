// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent/plan_latent.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/latent/check_alignment.h"

namespace fa3::hopper {
namespace {

// Rows of 656 bytes (latent_shape.h).
bool is_group128(const LatentCache& cache) {
  const RowScales& scales = cache.latent.scales;
  return cache.latent.dtype == DType::float8_e4m3 && scales.written && !scales.e8m0 &&
         scales.channels == 128;
}

Status check_rows(const MlaProblem& p) {
  const LatentCache& cache = p.keys.cache;
  if (p.has_extra) return unsupported("extra_cache: expected none, got one");
  if (p.dtype == DType::float32) return unsupported("q: expected float16 or bfloat16, got float32");
  const bool bytes = is_group128(cache);
  if (bytes && p.dtype != DType::bfloat16) {
    return unsupported("q: expected bfloat16 for group128 rows, got ", name_of(p.dtype));
  }
  for (const RowPart* part : {&cache.latent, &cache.rope}) {
    if (part->channels == 0) continue;
    if (!bytes && part->dtype != p.dtype) {
      return unsupported("cache: expected group128 rows or rows of q's type, ", name_of(p.dtype),
                         ", got other rows of ", name_of(part->dtype));
    }
    if (bytes && part == &cache.rope) continue;  // in the same rows
    FA3_TRY(check_alignment(part == &cache.latent ? "cache" : "rope", part->data,
                            {part->page_stride, part->row_stride}));
  }
  FA3_TRY(check_row_alignment("q", p.q));
  return p.q_rope_dim > 0 ? check_row_alignment("q_rope", p.q_rope) : Status{};
}

// Kernels count rows, tiles and keys in 32 bits.
Status check_numbers(const MlaProblem& p) {
  for (const int64_t count :
       {p.lengths_q.total * p.heads, p.lengths_q.max * p.heads,
        p.batch * std::max<int64_t>(p.lengths_q.max, 1) * std::max(p.num_splits, 1) * p.heads,
        p.lengths_k.max, p.keys.cache.page_size}) {
    if (count > INT32_MAX) return unsupported("more rows, keys or splits than 32 bits count");
  }
  return {};
}

// Fixed parts of each tile that are as good as equal ranges of all keys, which start 1 us later: a
// team has one, and none has many more blocks than others. Or 0.
int short_parts(const MlaProblem& p, int tiles, int most_teams) {
  constexpr int64_t kFewBlocks = 4;
  const int64_t blocks = ceil_div(p.lengths_k.max, kLatentBlockKeys);
  const int64_t of_part = ceil_div(blocks, std::max(most_teams / tiles, 1));
  // Indices are most often as many for each query.
  const bool are_alike = p.sparse || tiles == 1;
  const int64_t most = are_alike ? ceil_div(tiles * blocks, most_teams) + 1 : kFewBlocks;
  return of_part <= most && of_part < blocks ? int(ceil_div(blocks, of_part)) : 0;
}

// Parts of each tile; 0: all teams take equal ranges of all keys.
int choose_splits(const MlaProblem& p, int tiles, int most_teams, int most_stream_tiles) {
  if (p.batch_invariant) return std::max(p.num_splits, 1);
  if (p.num_splits > 0) return p.num_splits;
  const bool one_block = p.lengths_k.max <= kLatentBlockKeys;
  if (tiles > most_stream_tiles || one_block) return 1;
  // Whole tiles, if they keep 95% of the teams busy: then nothing is combined.
  const int64_t places = ceil_div(tiles, most_teams) * most_teams;
  if (int64_t{tiles} * 20 >= places * 19) return 1;
  return short_parts(p, tiles, most_teams);
}

// Blocks of keys and of 64 query rows, for each SM, from which CTAs of 64 rows are faster, measured
// on an H200 (docs/lab/mla.md): of 16-bit rows at 10, of bytes between 16 and 31. Fewer are spread
// over more CTAs of 32. Tests compile this file with 0.
#ifdef FA3_LATENT_WIDE_BLOCKS
constexpr int kWideBlocks = FA3_LATENT_WIDE_BLOCKS, kWideByteBlocks = kWideBlocks;
#else
constexpr int kWideBlocks = 10, kWideByteBlocks = 24;
#endif

// Query rows of a CTA, where each of `sequences` has `rows`.
int rows_of_cta(const MlaProblem& p, int64_t rows, int64_t sequences, int sms) {
  constexpr int kWide = 64;
  if (rows <= 32) return rows <= 16 ? 16 : 32;
  const int64_t blocks =
      sequences * ceil_div(rows, kWide) * ceil_div(p.lengths_k.max, kLatentBlockKeys);
  // The loader of rows of bytes counts their places in 32 bits.
  constexpr int64_t kMostBytes = int64_t{1} << 36;
  const LatentCache& cache = p.keys.cache;
  const bool bytes = is_group128(cache);
  const bool fits = !bytes || cache.pages * cache.latent.page_stride <= kMostBytes;
  const bool is_wide = fits && blocks >= int64_t{bytes ? kWideByteBlocks : kWideBlocks} * sms;
  return is_wide && !p.batch_invariant ? kWide : 32;
}

}  // namespace

Status plan_latent(const MlaProblem& p, int sms, LatentPlan* plan) {
  FA3_TRY(check_rows(p));
  FA3_TRY(check_numbers(p));
  LatentParams& params = plan->params;
  params.scale_log2 = cuda::log2_scale(p.scale);
  params.heads = int(p.heads);
  params.page_size = int(p.keys.cache.page_size);
  params.tokens = int(p.lengths_q.max);
  const int64_t rows = p.sparse ? p.heads : p.lengths_q.max * p.heads;
  const int64_t sequences = p.lengths_q.total == 0 ? 0 : p.sparse ? p.lengths_q.total : p.batch;
  params.rows_of_cta = rows_of_cta(p, rows, sequences, sms);
  params.team_ctas = int(std::clamp<int64_t>(ceil_div(rows, params.rows_of_cta), 1, kMostTeamCtas));
  params.tiles_of_sequence = int(std::max<int64_t>(ceil_div(rows, params.rows_of_team()), 1));
  params.tiles = int(sequences) * params.tiles_of_sequence;
  const int most_teams = std::max(sms / params.team_ctas, 1);
  params.splits = choose_splits(p, params.tiles, most_teams, most_stream_tiles(params.rows_of_cta));
  const int splits = params.splits;
  const int64_t parts = int64_t{params.tiles} * splits;
  params.teams = splits == 0 ? most_teams : int(std::min<int64_t>(parts, most_teams));
  plan->kernel =
      latent_kernel_of(params.rows_of_cta, p.head_dim, p.dtype, is_group128(p.keys.cache));
  plan->ctas = params.tiles == 0 ? 0 : params.teams * params.team_ctas;
  plan->combines = p.lengths_q.total > 0 && (splits != 1 || p.lengths_q.packed());
  return {};
}

int64_t place_in_workspace(LatentParams& params, void* workspace) {
  WorkspaceAllocator allocator(workspace);
  const int splits = params.splits;
  const int64_t slots = splits == 0   ? 2 * params.teams
                        : splits == 1 ? 0
                                      : int64_t{params.tiles} * splits;
  params.tile_parts = allocator.take<LatentParts>(params.tiles);
  params.partial_sums = allocator.take<LatentSum>(slots, params.rows_of_team());
  params.partial_o = allocator.take<float>(slots, params.rows_of_team(), kLatentValueDim);
  return allocator.bytes();
}

Status plan_mla(const MlaProblem& problem, Plan* plan) {
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  int sms = 0;
  FA3_TRY(cuda::count_sms(problem.device_index, &sms));
  LatentPlan decided;
  FA3_TRY(plan_latent(problem, sms, &decided));
  const LatentParams& params = decided.params;
  plan->engine = "hopper";
  plan->block_q = params.rows_of_cta;
  plan->block_k = kLatentBlockKeys;
  plan->num_splits = params.splits;
  plan->num_tasks = params.tiles;
  plan->workspace_bytes = place_in_workspace(decided.params, nullptr);
  plan->decided.store(decided);
  if (!plan->wants_words) return {};
  plan->kernel = concat("latent, ", params.rows_of_cta, " rows x ", kLatentBlockKeys, " keys");
  plan->why = concat("teams of ", params.team_ctas, " CTAs have neighbouring rows; ",
                     params.splits == 0   ? "each takes an equal range of all keys"
                     : params.splits == 1 ? "each takes whole tiles"
                                          : "each takes fixed parts of tiles");
  return {};
}

Status run_mla(const MlaProblem& problem, const Plan& plan, void* workspace, void* stream) {
  auto decided = plan.decided.load<LatentPlan>();
  LatentParams& params = decided.params;
  params.problem = problem;
  place_in_workspace(params, workspace);
  const cuda::DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const auto on = static_cast<cudaStream_t>(stream);
  if (error == cudaSuccess) {
    const LatentKernel& kernel = decided.kernel;
    error = cuda::launch(kernel.function, dim3(unsigned(decided.ctas)), kernel.threads,
                         kernel.smem_bytes, &params, {.pdl = true}, on);
  }
  if (error == cudaSuccess && decided.combines) error = combine_latent(params, on);
  return cuda::finish(error, "hopper mla");
}

}  // namespace fa3::hopper
