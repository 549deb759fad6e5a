// SPDX-License-Identifier: Apache-2.0
// What follows from a kernel and a call. See backward_plan.h.
#include "engine/hopper/plan/backward/backward_plan.h"

#include <algorithm>
#include <limits>

#include "core/ceil_div.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {
namespace {

// Bytes of Q, dO and dQ's sums of the heads at work: a part of the L2 cache.
constexpr int64_t kSectionBytes = 8 << 20;

// Varlen calls: tiles for each SM, at the end, that go longest first whatever their head.
constexpr int kTailTilesPerSm = 4;

// Other causal calls: tiles for each SM in the last section, which has several heads. Each of these
// heads has at least kSmsPerEvenHead SMs, which read its Q and dO at one time. All of them stay in
// the L2 cache: heads that share no keys, up to kEvenBytes.
constexpr int kEvenTilesPerSm = 3, kEvenSplitTilesPerSm = 2, kSmsPerEvenHead = 4;
constexpr int64_t kEvenBytes = 40 << 20;

// Deterministic calls of up to kShortStepColumns columns: sections of this many tiles for each SM,
// as far as they stay in the L2 cache and have kSmsPerEvenHead SMs each. A step is shorter than the
// way of dQ's semaphore from one key block to the next, which more heads hide. With more columns
// such sections cost more than that brings.
constexpr int kShortStepColumns = 64, kOrderedTilesPerSm = 3;
constexpr int64_t kOrderedBytes = 32 << 20;

// Query heads that share keys are split until each SM has kSplitTilesPerSm tiles. Sums of dK and dV
// in global memory cost more than that brings where each SM has more than kFewKeyBlocksPerSm key
// blocks and at most kShortRows rows see them.
constexpr int kSplitTilesPerSm = 16, kFewKeyBlocksPerSm = 4, kShortRows = 8192;

// A head with this many key blocks fills the SMs alone, but for a few: 100 of 132, as measured.
constexpr int filling_blocks(int num_sms) {
  return num_sms * 25 / 33;
}

// There, key blocks of different lengths are soon at different query heads of their group. Groups
// with more bytes of rows than this come from memory again and again.
constexpr int64_t kSplitBytes = 64 << 20;

RowBlockCounts count_blocks(const BackwardCall& a, const TensorSpan& t, int block_rows,
                            bool in_one_tensor) {
  const int64_t of_entry = ceil_div(t.rows, block_rows);
  if (!a.varlen) return {capped_product(of_entry, t.batches), of_entry};
  const int64_t in_all = ceil_div(t.rows * t.batches, block_rows) + a.sequences + 1;
  return {in_all, in_one_tensor ? in_all : of_entry};
}

// Softcaps and dropout have no kernel for short sequences, and preprocess sums a sink's gradient
// and applies a gate.
bool has_short_sequences(const BackwardConfig& c, const BackwardCall& a) {
  if (a.batch_invariant) return false;  // the longest one would decide for all
  if (a.has_score_function || a.has_gate() || a.dq.element_bytes == sizeof(float)) return false;
  return c.can_take_short_sequences() && a.varlen && !a.has_sink && a.sequences > 0 &&
         a.q.rows * a.k.rows > 0 && std::max(a.seqlen_q, a.seqlen_k) <= kRowsPerWarpgroup;
}

// Query heads that share keys, as many as a tile has room for, one beside the other. Their maps
// have no dimension for batch entries.
cuda::PackGqa short_pack_of(const BackwardCall& a) {
  cuda::PackGqa pack;
  const auto fits = [&](cuda::PackGqa p) {
    return a.heads_per_kv_head() % p.heads() == 0 && p.rows(a.seqlen_q) <= kRowsPerWarpgroup;
  };
  while (a.q.batches == 1 && fits({pack.log2 + 1})) ++pack.log2;
  return pack;
}

// A query head's Q, dO and dQ's sums.
int64_t head_bytes(const BackwardConfig& c, const BackwardCall& a) {
  return a.q.rows *
         ((c.shape.head_dim + c.shape.head_dim_v) * bytes_of(c.element) + c.shape.head_dim * 4);
}

// The number of equal splits of a kv head's query heads. Few causal key blocks that each go through
// a whole group of heads leave SMs idle at the end, and drift apart: one is at its last head while
// another is at its first.
int choose_head_splits(const BackwardPlan& plan, int num_sms) {
  const BackwardConfig& c = plan.kernel.config;
  const BackwardCall& a = plan.call;
  const int64_t heads = a.heads_per_kv_head();
  const int64_t key_blocks = capped_product(plan.k_blocks.in_all, c.ctas(), a.k.heads);
  if (!c.can_split_steps() || !a.is_causal() || a.deterministic || heads <= 1) return 1;
  if (a.q.rows == 0 || key_blocks == 0) return 1;
  const bool fills = plan.k_blocks.of_entry * c.ctas() >= filling_blocks(num_sms);
  if (!fills && key_blocks > kFewKeyBlocksPerSm * num_sms && heads * a.q.rows <= kShortRows) {
    return 1;
  }
  const int64_t wanted = fills ? ceil_div(capped_product(heads, head_bytes(c, a)), kSplitBytes)
                               : kSplitTilesPerSm * num_sms / key_blocks;
  int64_t splits = std::clamp<int64_t>(wanted, 1, heads);
  while (heads % splits != 0) ++splits;
  return splits <= std::numeric_limits<unsigned char>::max() ? int(splits) : 1;
}

// The least heads of a section of a deterministic call. There the key blocks of a head come to a
// query block one after the other. Sections that fill the SMs with one wave of tiles keep them
// apart without waiting.
int64_t heads_apart(const BackwardConfig& c, int64_t n_blocks, int64_t split_bytes, int num_sms) {
  const int64_t one_wave = ceil_div(num_sms, n_blocks);
  if (c.general() || c.shape.head_dim > kShortStepColumns) return one_wave;
  const int64_t waves = ceil_div(int64_t{kOrderedTilesPerSm} * num_sms, n_blocks);
  const int64_t fitting = kOrderedBytes / std::max<int64_t>(split_bytes, 1);
  return std::max(one_wave, std::min({waves, fitting, int64_t{num_sms / kSmsPerEvenHead}}));
}

// The heads of the last section, which evens out the SMs at the end; 1: it is like the others. Key
// blocks that go through several query heads drift apart; then those of many kv heads do not fit
// the L2 cache.
int64_t even_heads(const BackwardConfig& c, const BackwardCall& a, int64_t heads, int splits,
                   int64_t n_blocks, int64_t split_bytes, int num_sms) {
  const bool fills = n_blocks >= filling_blocks(num_sms);
  if (!a.is_causal() || a.deterministic || (fills && (c.general() || splits > 1))) return 1;
  const int64_t most = std::min<int64_t>(heads, std::max(num_sms / kSmsPerEvenHead, 1));
  if (splits > 1) {
    return std::min<int64_t>(most, ceil_div(kEvenSplitTilesPerSm * num_sms, n_blocks));
  }
  if (a.heads_per_kv_head() > 1) return 1;
  const int64_t fitting = std::max<int64_t>(kEvenBytes / std::max<int64_t>(split_bytes, 1), 1);
  return std::min({most, fitting, ceil_div(int64_t{kEvenTilesPerSm} * num_sms, n_blocks)});
}

KeyBlockOrder order_of(const BackwardPlan& plan, int splits, int num_sms) {
  const BackwardConfig& c = plan.kernel.config;
  const BackwardCall& a = plan.call;
  const int64_t split_bytes = a.heads_per_kv_head() / splits * head_bytes(c, a);
  const int64_t heads = a.k.heads * a.k.batches * splits;
  const int64_t clusters = ceil_div(a.k.rows, c.keys_of_cluster());
  const int64_t n_blocks = clusters * c.ctas();
  const int64_t fitting = kSectionBytes / std::max<int64_t>(split_bytes, 1);
  const int64_t apart = a.deterministic ? heads_apart(c, n_blocks, split_bytes, num_sms) : 1;
  const int64_t section_heads = std::clamp<int64_t>(std::max(fitting, apart), 1, heads);
  const int64_t last_heads = even_heads(c, a, heads, splits, n_blocks, split_bytes, num_sms);
  return {.num_n_blocks = int(clusters),
          .num_kv_heads = int(a.k.heads),
          .num_batches = int(a.k.batches),
          .section_heads = int(section_heads),
          .last_section = int((heads - last_heads) / section_heads * section_heads),
          .last_keys_first = a.deterministic && (c.general() || a.is_causal()),
          .step_splits = static_cast<unsigned char>(splits)};
}

int64_t num_key_blocks(const BackwardPlan& plan) {
  return capped_product(plan.k_blocks.in_all, plan.call.k.heads);
}

BackwardWorkspace lay_out(const BackwardPlan& plan) {
  const BackwardConfig& c = plan.kernel.config;
  const BackwardCall& a = plan.call;
  const int64_t blocks = capped_product(plan.q_blocks.of_entry, a.q.heads, a.q.batches);
  WorkspaceAllocator allocator;
  BackwardWorkspace w;
  w.dq_accum = cuda::place<float>(allocator, blocks, c.dq_accum().block_floats());
  w.lse_log2 = cuda::place<float>(allocator, blocks, c.shape.block_m);
  w.delta = cuda::place<float>(allocator, blocks, c.shape.block_m);
  if (a.deterministic || plan.main_config.persistent()) {
    w.dq_semaphore = cuda::place<int>(allocator, blocks);
  }
  if (a.has_sink) w.sink_sums = cuda::place<float>(allocator, blocks);
  if (a.has_gate()) {
    const int64_t rows = capped_product(a.q.batches, a.q.rows);
    w.d_a = cuda::place<uint16_t>(allocator, rows, a.q.heads, a.d_o.columns);
  }
  if (plan.has_sums()) {
    const int64_t sums = capped_product(num_key_blocks(plan), sums_of_splits(plan.step_splits()));
    const int64_t dk_floats = capped_product(sums, c.dk_accum().block_floats());
    const int64_t floats = dk_floats + capped_product(sums, c.dv_accum().block_floats());
    w.dk_accum = cuda::place<float>(allocator, floats);
    w.dv_accum = w.dk_accum + capped_product(dk_floats, int64_t{sizeof(float)});
    w.dkv_accum_bytes = capped_product(floats, int64_t{sizeof(float)});
  }
  if (a.varlen) {
    w.q_tiles = cuda::place<SequenceTiles>(allocator, plan.q_blocks.in_all);
    w.num_q_tiles = cuda::place<int>(allocator, 1);
    w.k_tiles = cuda::place<SequenceTiles>(allocator, plan.k_blocks.in_all);
    w.num_k_tiles = cuda::place<int>(allocator, 1);
  }
  if (c.block_mask() && a.block_lists == nullptr) {
    w.lists = cuda::place_block_lists(plan.lists, lists_of(a), a.sequences, allocator);
  }
  w.bytes = allocator.bytes();
  return w;
}

BackwardGrids grids_of(const BackwardPlan& plan, int num_sms) {
  const BackwardConfig& c = plan.kernel.config;
  const BackwardCall& a = plan.call;
  // A CTA more clears the rows that no sequence owns.
  if (plan.short_sequences) return {.short_sequences = (a.sequences + 1) * a.k.heads};
  const int64_t ctas =
      plan.main_config.persistent() ? std::min<int64_t>(plan.num_tiles, num_sms) : plan.num_tiles;
  BackwardGrids grids{.preprocess = plan.num_query_blocks(),
                      .main = a.has_no_keys() ? 0 : ctas,
                      .postprocess = capped_product(plan.num_query_blocks(), c.dq_accum().parts())};
  if (plan.step_splits() > 1) {
    grids.postprocess_dk = capped_product(num_key_blocks(plan), c.dk_accum().parts());
    grids.postprocess_dv = capped_product(num_key_blocks(plan), c.dv_accum().parts());
  }
  return grids;
}

}  // namespace

int64_t BackwardPlan::num_query_blocks() const {
  return capped_product(q_blocks.in_all, call.q.heads);
}

cuda::ListsOf lists_of(const BackwardCall& call) {
  return call.deterministic ? cuda::ListsOf::kDeterministicBackward : cuda::ListsOf::kBackward;
}

BackwardPlan plan_launches(const BackwardKernel& kernel, const BackwardCall& given, int num_sms) {
  BackwardPlan plan{.kernel = kernel, .call = given};
  const BackwardConfig& c = plan.kernel.config;
  // Lists have the rule in them: the kernel knows of none.
  if (c.block_mask()) plan.call.mask = {};
  const BackwardCall& call = plan.call;
  plan.q_blocks = count_blocks(call, call.q, c.shape.block_m, call.lengths_q.in_one_tensor);
  plan.k_blocks = count_blocks(call, call.k, c.keys_of_cluster(), false);
  const int splits = std::max(choose_head_splits(plan, num_sms), splits_of_few(plan, num_sms));
  if (splits > 1) {
    plan.kernel.config = kernel.splits.config;
    plan.kernel.smem_bytes = kernel.splits.smem_bytes;
    plan.k_blocks = count_blocks(call, call.k, c.keys_of_cluster(), false);
  }
  plan.num_tiles = capped_product(plan.k_blocks.in_all, c.ctas(), call.k.heads, splits);
  if (call.has_nothing_to_do()) return plan;
  plan.short_sequences = has_short_sequences(c, call);
  if (plan.short_sequences) plan.short_pack = short_pack_of(call);
  plan.order.step_splits = static_cast<unsigned char>(splits);
  if (call.k.heads > 0 && !call.has_no_keys()) {
    plan.order = order_of(plan, splits, num_sms);
  }
  plan.main = call.deterministic ? kernel.main_deterministic
              : splits > 1       ? kernel.splits.main
                                 : kernel.main;
  plan.main_config = call.deterministic ? c.deterministic() : c;
  plan.tail_tiles = kTailTilesPerSm * num_sms / c.ctas();
  if (c.block_mask()) {
    const cuda::TileCapacity capacity{plan.q_blocks.in_all, plan.k_blocks.in_all};
    plan.lists = cuda::block_list_params(call.block_mask, given.mask, call.seqlen_q, call.seqlen_k,
                                         call.varlen ? &capacity : nullptr);
    if (call.block_lists != nullptr) set_own_memory(plan.lists, lists_of(call), call.block_lists);
  }
  plan.grids = grids_of(plan, num_sms);
  if (!plan.short_sequences) plan.workspace = lay_out(plan);
  return plan;
}

}  // namespace fa3::hopper
