// SPDX-License-Identifier: Apache-2.0
// From tensors to three grids. See launch_backward.h; the main kernel begins in
// backward_kernel.cuh.
#include "engine/hopper/launch/launch_backward.h"

#include <algorithm>
#include <limits>

#include "core/workspace.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/backward/sink_gradient.h"
#include "engine/hopper/host/launch.h"
#include "engine/hopper/scheduler/varlen_metadata.h"

namespace fa3::hopper {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
constexpr int kPreprocessThreads = 256;

// Of Q, dO and the sums of dQ of the heads in work: a part of the L2 cache.
constexpr int64_t kSectionBytes = 8 << 20;

// So many of a list's tiles go longest first at the very end, whatever their head: some for each of
// an H200's SMs.
constexpr int kTailTiles = 4 * 132;

// By turns, key blocks of a head come to a query block one after the other. Taken from so many
// heads that each has one block of a row of SMs, they keep the distance without waiting: simulated
// first, then measured.
constexpr int kSms = 132;

// Of calls without a list so many, by heads: but no more heads than leave each of them four
// SMs, which read its Q and dO at one time; and none where a head fills them alone.
constexpr int kEvenTiles = 3 * 132, kEvenHeads = 132 / 4, kFillingTiles = 100;

// Where a head fills them alone, key blocks of different lengths are soon at different heads of
// their group: shares whose rows are larger come from memory again and again.
constexpr int64_t kShareBytes = 64 << 20;

// Query heads that share keys are split into shares until there are so many CTAs; longest first
// go the last of them. Sums of dK and dV cost more than that brings where some key blocks are there
// for each SM already and few rows see them.
constexpr int kShareTiles = 16 * 132, kEvenShares = 2 * 132;
constexpr int kFewKeyBlocks = 4 * 132, kShortRows = 8192;

// Blocks of rows of all sequences; where they are varlen, the most that there can be: each sequence
// ends within a block, and so do the rows that none owns.
int64_t row_blocks(const TensorSpan& t, int block_rows, const BackwardArguments& a) {
  if (!a.varlen) return capped_product(ceil_div(t.rows, block_rows), t.batches);
  return ceil_div(t.rows * t.batches, block_rows) + a.sequences + 1;
}

bool is_causal(const BackwardArguments& a) {
  return a.mask.right == 0;
}

int64_t heads_per_kv_head(const BackwardArguments& a) {
  return a.q.heads / std::max<int64_t>(a.k.heads, 1);
}

// Of a query head's Q, dO and sums of dQ.
int64_t head_bytes(const BackwardConfig& c, const BackwardArguments& a) {
  return a.q.rows * ((c.head_dim + c.head_dim_v) * bytes_of(c.element) + c.head_dim * 4);
}

KeyBlockOrder order_of(const BackwardConfig& c, const BackwardArguments& a) {
  const int64_t shares = backward_shares(c, a);
  const int64_t share_bytes = heads_per_kv_head(a) / shares * head_bytes(c, a);
  const int64_t heads = a.k.heads * a.k.batches * shares, n_blocks = ceil_div(a.k.rows, c.block_n);
  const int64_t fitting = kSectionBytes / std::max<int64_t>(share_bytes, 1);
  const int64_t apart = a.deterministic ? ceil_div(kSms, n_blocks) : 1;
  const int64_t section_heads = std::clamp<int64_t>(std::max(fitting, apart), 1, heads);
  // Key blocks of heads that share them drift apart; then many heads at work do not fit the L2
  // cache.
  const bool evens_out = is_causal(a) && !a.deterministic && n_blocks < kFillingTiles &&
                         (heads_per_kv_head(a) == 1 || shares > 1);
  const int64_t last_tiles = shares > 1 ? kEvenShares : kEvenTiles;
  const int64_t last_heads =
      evens_out ? std::min<int64_t>({heads, kEvenHeads, ceil_div(last_tiles, n_blocks)}) : 1;
  return {int(n_blocks),
          int(a.k.heads),
          int(a.k.batches),
          int(section_heads),
          int((heads - last_heads) / section_heads * section_heads),
          a.deterministic && (c.general() || is_causal(a)),
          static_cast<unsigned char>(shares)};
}

int64_t num_key_blocks(const BackwardConfig& c, const BackwardArguments& a) {
  return capped_product(row_blocks(a.k, c.block_n, a), a.k.heads);
}

// A list of tiles and how many it has.
struct ListMemory {
  SequenceTiles* entries = nullptr;
  int* num_entries = nullptr;

  BlockList list() const { return {entries, num_entries}; }
};

struct Workspace {
  QueryScratch scratch;
  KeySums key_sums;            // of shares
  int64_t key_sum_floats = 0;  // of both
  float* sink_sums = nullptr;
  ListMemory queries, keys;  // of varlen lengths
};

// Packed queries are one batch entry of the scratch too.
Workspace allocate(const BackwardConfig& c, const BackwardArguments& a,
                   WorkspaceAllocator& allocator) {
  const int64_t q_blocks =
      a.lengths_q.in_one_tensor ? row_blocks(a.q, c.block_m, a) : ceil_div(a.q.rows, c.block_m);
  const int64_t blocks = capped_product(q_blocks, a.q.heads, a.q.batches);
  Workspace w;
  w.scratch.dq_sum = allocator.take<float>(blocks, c.dq_parts().chunk_floats());
  w.scratch.lse_log2 = allocator.take<float>(blocks, c.block_m);
  w.scratch.delta = allocator.take<float>(blocks, c.block_m);
  w.scratch.dq_semaphore = a.deterministic ? allocator.take<int>(blocks) : nullptr;
  w.scratch.numbers = {int(q_blocks), int(a.q.heads)};
  if (a.has_sink) w.sink_sums = allocator.take<float>(blocks);
  if (backward_shares(c, a) > 1) {
    const int64_t chunks = num_key_blocks(c, a);
    const int64_t dk_floats = capped_product(chunks, c.dk_parts().chunk_floats());
    w.key_sum_floats = dk_floats + capped_product(chunks, c.dv_parts().chunk_floats());
    w.key_sums.dk = allocator.take<float>(w.key_sum_floats);
    if (w.key_sums.dk) w.key_sums.dv = w.key_sums.dk + dk_floats;
    w.key_sums.numbers = {int(ceil_div(a.k.rows, c.block_n)), int(a.k.heads)};
  }
  if (a.varlen) {
    const auto take_list = [&](const TensorSpan& t, int block_rows) -> ListMemory {
      return {allocator.take<SequenceTiles>(row_blocks(t, block_rows, a)), allocator.take<int>(1)};
    };
    w.queries = take_list(a.q, c.block_m);
    w.keys = take_list(a.k, c.block_n);
  }
  return w;
}

// The tiles are of `rows`: queries in front of preprocess and postprocess, keys in front of the
// main kernel, where the list's words change sides.
cudaError_t prepare_blocks(const BackwardArguments& a, const ListMemory& memory,
                           const TensorSpan& rows, const Lengths& lengths, const Lengths& others,
                           int block_rows, int tail_tiles, cudaStream_t stream) {
  return prepare_varlen_metadata({.lengths_q = lengths,
                                  .lengths_k = others,
                                  .batch = int(a.sequences),
                                  .block_m = block_rows,
                                  .pack = {},
                                  .num_packs = int(rows.heads),
                                  .tail_tiles = tail_tiles,
                                  .capacity = int(row_blocks(rows, block_rows, a)),
                                  .entries = memory.entries,
                                  .num_entries = memory.num_entries,
                                  .tile_counter = nullptr},
                                 stream);
}

bool encode_maps(BackwardParams& p, const BackwardConfig& c, const BackwardArguments& a) {
  // Without queries their maps are never read; those of the keys stand in.
  const TensorSpan& q = a.q.rows > 0 ? a.q : a.k;
  const TensorSpan& d_o = a.q.rows > 0 ? a.d_o : a.v;
  const auto encode = [&](CUtensorMap& map, CUtensorMap& outside, const TensorSpan& t,
                          tile::TileLayout layout) {
    return c.general() ? encode_clipped_map(map, outside, t, c.element, layout)
                       : encode_tensor_map(map, t, c.element, layout, layout.rows);
  };
  CUtensorMap unused;  // nothing is stored outside
  const tile::TileLayout dk{kRowsPerWarpgroup, c.head_dim}, dv{kRowsPerWarpgroup, c.head_dim_v};
  return encode(p.q_map, p.q_outside, q, c.q_layout()) &&
         encode(p.d_o_map, p.d_o_outside, d_o, c.d_o_layout()) &&
         encode(p.k_map, p.k_outside, a.k, c.k_layout()) &&
         encode(p.v_map, p.v_outside, a.v, c.v_layout()) && encode(p.dk_map, unused, a.dk, dk) &&
         encode(p.dv_map, unused, a.dv, dv);
}

RowOperands row_operands(const BackwardArguments& a) {
  return {row_tensor(a.o), row_tensor(a.d_o), a.lse, a.d_lse};
}

// All but the scratch and the list; false: the driver refused a map.
bool fill(BackwardParams& p, const BackwardConfig& c, const BackwardArguments& a) {
  if (!encode_maps(p, c, a)) return false;
  p.order = order_of(c, a);
  p.extents = {a.seqlen_q, a.seqlen_k, is_causal(a)};
  p.heads_per_kv_head = int(heads_per_kv_head(a));
  p.scale = a.gradient_scale;
  p.scale_log2 = float(a.scale * kLog2E);
  p.columns = int(a.q.columns);
  p.columns_v = int(a.v.columns);
  p.q_is_packed = a.lengths_q.in_one_tensor;
  p.mask = a.mask;
  p.scale_of_one_key = a.gradient_scale_of_one_key;
  if (a.softcap != 0) {
    p.soft_cap = SoftCap::of(a.scale, a.softcap);
    p.per_cap = 1 / p.soft_cap.cap;
  }
  return true;
}

cudaError_t launch_main(const BackwardKernel& kernel, const BackwardArguments& a,
                        const Workspace& workspace, bool pdl, cudaStream_t stream) {
  const BackwardConfig& c = kernel.config;
  BackwardParams p{};
  if (a.k.rows * a.k.batches == 0) return cudaSuccess;
  if (!fill(p, c, a)) return cudaErrorInvalidValue;
  p.scratch = workspace.scratch;
  p.list = workspace.keys.list();
  p.key_sums = workspace.key_sums;
  const void* const main = a.deterministic      ? kernel.main_deterministic
                           : p.order.shares > 1 ? kernel.main_of_shares
                                                : kernel.main;
  const int threads = (a.deterministic ? c.deterministic() : c).threads();
  return launch(main, unsigned(backward_num_tiles(c, a)), threads, kernel.smem_bytes, &p,
                {.pdl = pdl}, stream);
}

// One more for the rows that no sequence owns.
cudaError_t launch_short_sequences(const BackwardKernel& kernel, const BackwardArguments& a,
                                   cudaStream_t stream) {
  ShortSequencesParams p{};
  if (!fill(p.main, kernel.config.of_short_sequences(), a)) return cudaErrorInvalidValue;
  p.rows = row_operands(a);
  p.dq = row_tensor(a.dq);
  p.dk = row_tensor(a.dk);
  p.dv = row_tensor(a.dv);
  p.lengths_q = a.lengths_q;
  p.lengths_k = a.lengths_k;
  p.sequences = int(a.sequences);
  return launch(kernel.short_sequences, unsigned((a.sequences + 1) * a.k.heads), kWarpgroupSize,
                kernel.short_smem_bytes, &p, {}, stream);
}

// What the launches before the first kernel leave for them.
cudaError_t prepare(const BackwardConfig& c, const BackwardArguments& a, const Workspace& w,
                    cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  if (a.varlen) {
    error = prepare_blocks(a, w.keys, a.k, a.lengths_k, a.lengths_q, c.block_n, kTailTiles, stream);
  }
  if (a.varlen && error == cudaSuccess) {
    error = prepare_blocks(a, w.queries, a.q, a.lengths_q, a.lengths_k, c.block_m, 0, stream);
  }
  if (w.sink_sums && error == cudaSuccess) {  // not all have a query block
    const int64_t blocks = int64_t{w.scratch.numbers.of_head} * a.q.heads * a.q.batches;
    error = cudaMemsetAsync(w.sink_sums, 0, size_t(blocks) * sizeof(float), stream);
  }
  if (w.key_sums.dk && error == cudaSuccess) {
    error = cudaMemsetAsync(w.key_sums.dk, 0, size_t(w.key_sum_floats) * sizeof(float), stream);
  }
  return error;
}

cudaError_t launch_postprocess(const void* kernel, PostprocessParams p, int64_t parts, bool pdl,
                               cudaStream_t stream) {
  return launch(kernel, unsigned(parts), kWarpgroupSize, 0, &p, {.pdl = pdl}, stream);
}

// dK's have the scale already.
cudaError_t write_key_sums(const BackwardKernel& kernel, const BackwardArguments& a,
                           const Workspace& w, cudaStream_t stream) {
  const BackwardConfig& c = kernel.config;
  const RowTiles tiles{w.key_sums.numbers, a.seqlen_k, {}, false};
  const int64_t chunks = num_key_blocks(c, a);
  const cudaError_t error =
      launch_postprocess(kernel.write_dk, {row_tensor(a.dk), w.key_sums.dk, tiles, 1, 1},
                         chunks * c.dk_parts().parts(), true, stream);
  if (error != cudaSuccess) return error;
  return launch_postprocess(kernel.write_dv, {row_tensor(a.dv), w.key_sums.dv, tiles, 1, 1},
                            chunks * c.dv_parts().parts(), true, stream);
}

}  // namespace

int64_t backward_shares(const BackwardConfig& c, const BackwardArguments& a) {
  const int64_t heads = heads_per_kv_head(a), key_blocks = num_key_blocks(c, a);
  if (c.general() || !is_causal(a) || a.deterministic || heads <= 1) return 1;
  if (a.q.rows == 0 || key_blocks == 0) return 1;
  const bool fills = ceil_div(a.k.rows, c.block_n) >= kFillingTiles;
  if (!fills && key_blocks > kFewKeyBlocks && heads * a.q.rows <= kShortRows) return 1;
  const int64_t wanted = fills ? ceil_div(capped_product(heads, head_bytes(c, a)), kShareBytes)
                               : kShareTiles / key_blocks;
  int64_t shares = std::clamp<int64_t>(wanted, 1, heads);
  while (heads % shares != 0) ++shares;
  return shares <= std::numeric_limits<unsigned char>::max() ? shares : 1;
}

int64_t backward_num_tiles(const BackwardConfig& c, const BackwardArguments& a) {
  return capped_product(num_key_blocks(c, a), backward_shares(c, a));
}

int64_t backward_num_query_blocks(const BackwardConfig& c, const BackwardArguments& a) {
  return capped_product(row_blocks(a.q, c.block_m, a), a.q.heads);
}

// Softcaps have no such kernel, and a sink's gradient is summed by preprocess.
bool has_short_sequences(const BackwardConfig& c, const BackwardArguments& a) {
  if (a.batch_invariant) return false;  // the longest one would decide for all
  return c.general() && !c.capped() && !c.splits_sides() && a.varlen && !a.has_sink &&
         a.sequences > 0 && a.q.rows * a.k.rows > 0 &&
         std::max(a.seqlen_q, a.seqlen_k) <= kRowsPerWarpgroup;
}

int64_t backward_workspace_bytes(const BackwardConfig& c, const BackwardArguments& a) {
  if (has_short_sequences(c, a)) return 0;
  return bytes_of([&](WorkspaceAllocator& allocator) { allocate(c, a, allocator); });
}

cudaError_t launch_backward(const BackwardKernel& kernel, const BackwardArguments& a,
                            cudaStream_t stream, int launches) {
  if (has_short_sequences(kernel.config, a)) return launch_short_sequences(kernel, a, stream);
  const BackwardConfig& c = kernel.config;
  WorkspaceAllocator allocator(a.workspace);
  const Workspace w = allocate(c, a, allocator);
  const RowTiles tiles{w.scratch.numbers, a.seqlen_q, w.queries.list(), a.lengths_q.in_one_tensor};
  const int64_t blocks = backward_num_query_blocks(c, a);
  cudaError_t error = launches & kPreprocess ? prepare(c, a, w, stream) : cudaSuccess;
  if (error == cudaSuccess && launches & kPreprocess) {
    PreprocessParams p{row_operands(a), w.scratch, tiles, a.sink, w.sink_sums};
    error = launch(kernel.preprocess, unsigned(blocks), kPreprocessThreads, 0, &p, {}, stream);
  }
  if (error == cudaSuccess && launches & kMain) {
    error = launch_main(kernel, a, w, launches & kPreprocess && blocks > 0, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess) {
    const PostprocessParams p{row_tensor(a.dq), w.scratch.dq_sum, tiles, a.gradient_scale,
                              a.gradient_scale_of_one_key};
    error = launch_postprocess(kernel.postprocess, p, blocks * c.dq_parts().parts(),
                               launches != kPostprocess, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess && w.key_sums.dk) {
    error = write_key_sums(kernel, a, w, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess && a.d_sink) {
    error = sum_sink_gradients({w.sink_sums, int(a.q.batches), w.scratch.numbers.heads,
                                w.scratch.numbers.of_head, a.d_sink},
                               stream);
  }
  return error;
}

}  // namespace fa3::hopper
