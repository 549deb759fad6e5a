// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan_forward.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/macros.h"
#include "engine/cuda/device.h"
#include "engine/hopper/choose_tiles.h"
#include "engine/hopper/compiled_cache.h"
#include "engine/hopper/compiled_decode.h"
#include "engine/hopper/engine.h"
#include "engine/hopper/launch.h"
#include "engine/hopper/plan_e4m3.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kE4m3Step = 16;               // of head dims: 16 bytes of a copy
constexpr int64_t kMaxRows = int64_t{1} << 30;  // row and key numbers are 32-bit in the kernels
constexpr int64_t kMaxTiles = int64_t{1} << 30;
constexpr int64_t kManyKeys = 512;
constexpr int64_t kAnyStride = 16;     // of tensors without elements: one that maps take
constexpr int64_t kMaxColumnsV = 256;  // of a launch: wider values take one for each part of them

// What a plan keeps as its variant.
struct Choice {
  int row;  // of table_of()
  Variant variant;
  int rows_log2;  // of a cut into runs

  static constexpr int kVariants = int(Variant::kDecode) + 1;
  static constexpr int kKernels = int(kForwardTable.size()) * kVariants;

  int number() const { return rows_log2 * kKernels + row * kVariants + int(variant); }
  static Choice of(int number) {
    const int kernel = number % kKernels;
    return {kernel / kVariants, Variant(kernel % kVariants), number / kKernels};
  }
  ForwardKernel kernel(const Problem& p) const {
    const Element element = element_of(p.dtype);
    if (variant == Variant::kDecode) return decode_kernel_at(row, element);
    return (p.has_e4m3() ? cache_kernel_at : forward_kernel_at)(row, element, variant);
  }
};

std::span<const CompiledForward> table_of(const Problem& p) {
  if (p.has_e4m3()) return kCacheTable;
  return kForwardTable;
}

// In 32 bits. A window that reaches over the longest sequence hides nothing.
MaskRuleOf<int> narrow(const Problem& p) {
  MaskRuleOf<int> mask;
  if (p.mask.left < p.lengths_k.max) mask.left = int(p.mask.left);
  if (p.mask.right == 0 || p.mask.right < p.lengths_q.max) mask.right = int(p.mask.right);
  // Nor does a chunk of all keys, unless there are queries before the first key that would see some.
  if (p.mask.chunk < p.lengths_k.max || p.mask.right != 0) {
    mask.chunk = int(std::min(p.mask.chunk, kMaxRows));
  }
  return mask;
}

// Of lengths, or of the keys' places: what a list of sequences tells.
bool is_ragged(const Problem& p) {
  return p.lengths_q.ragged || p.lengths_k.ragged || p.key_places.elsewhere;
}

// Packed sequences are one long batch entry.
struct Extents {
  int64_t batches;
  int64_t rows;
};
Extents extents_of(const Lengths& lengths, int64_t batch) {
  return lengths.in_one_tensor ? Extents{1, lengths.total} : Extents{batch, lengths.max};
}
Extents key_extents_of(const Problem& p) {
  if (p.key_places.paged()) return {p.key_places.pages, p.key_places.page_size};
  if (p.key_places.elsewhere) return {p.key_places.entries, p.lengths_k.max};
  return extents_of(p.lengths_k, p.batch);
}

// What not every general kernel stores.
bool has_other_rows(const Problem& p) {
  return p.o.dtype == DType::float32 || !has_whole_copies(p);
}

// A window between two bounds, or a chunk, is what one query sees.
ForwardShape shape_of(const Problem& p) {
  const MaskRuleOf<int> mask = narrow(p);
  const bool bounded = mask.left >= 0 && mask.right >= 0;
  const int64_t window = bounded ? int64_t{mask.left} + mask.right + 1 : p.lengths_k.max;
  const int64_t chunk = mask.chunk != mask.kNoChunks ? mask.chunk : p.lengths_k.max;
  const int64_t keys = std::min({window, chunk, p.lengths_k.max});
  // Sequences of one length and few keys are spread over multiprocessors by their tiles.
  const bool may_be_many = is_ragged(p) || keys >= kManyKeys;
  return {.head_dim = p.head_dim,
          .head_dim_v = std::min(p.head_dim_v, kMaxColumnsV),
          .keys = keys,
          .rows = may_be_many ? most_packed(p.group()).rows(p.lengths_q.max) : INT64_MAX,
          .single_rows = reads_single_rows(p.key_places, p.lengths_k),
          .any_rows = has_other_rows(p)};
}

Status check_layouts(const ForwardLaunch& a) {
  const auto check = [](const char* name, const TensorSpan& tensor) -> Status {
    const char* obstacle = tensor_map_obstacle(tensor);
    return obstacle ? unsupported(name, ": ", obstacle) : Status{};
  };
  FA3_TRY(check("q", a.q));
  FA3_TRY(check("k", a.k));
  FA3_TRY(check("v", a.v));
  return check("o", a.o);
}

ForwardConfig general(const ForwardConfig& c) {
  return c.with(c.element, Variant::kGeneral);
}
bool can_cut(const ForwardConfig& c) {
  return general(c).cuts();
}

// Where a page's boxes would be small, a kernel whose threads can copy keys; of some page sizes it has
// larger boxes.
int choose_row_for_pages(ForwardShape shape, std::span<const CompiledForward> table,
                         const ForwardLaunch& launch) {
  const int row = choose_row(shape, table);
  if (!has_small_boxes(table[row].config, launch)) return row;
  shape.cut = true;
  const int other = choose_row(shape, table);
  return other != kNoRow ? other : row;
}

// The same for every batch: the head dims, the group, num_splits and the pages' size decide. Parts of
// keys take the kernel of few queries, whole tiles that of long sequences.
int choose_for_any_batch(const Problem& problem, ForwardLaunch* launch) {
  ForwardShape shape = shape_of(problem);
  shape.cut = problem.num_splits > 1;
  shape.keys = INT64_MAX;
  shape.rows = shape.cut ? 1 : INT64_MAX;
  launch->pack = most_packed(problem.group(), shape.cut);
  if (shape.cut) launch->cut.parts = problem.num_splits;
  return choose_row_for_pages(shape, table_of(problem), *launch);
}

// Of 16-bit queries' keys and values.
Status check_cache_scales(const Problem& p) {
  if (!p.has_e4m3()) return {};
  for (const auto& [name, of] : {std::pair{"k", &p.k_quantization}, {"v", &p.v_quantization}}) {
    if (of->descale.scaling == Scaling::per_block) {
      return unsupported(name, "_descale of ", int(FA3_DESCALE_ROWS),
                         " rows each beside 16-bit queries; give one for each sequence and head");
    }
    if (of->mean.data != nullptr) return unsupported(name, "_mean beside 16-bit queries");
  }
  return {};
}

bool nothing_to_do(const ForwardLaunch& a) {
  return a.q.batches == 0 || a.q.heads == 0 || a.q.rows == 0;
}

// No keys at all: one block of something readable stands in for them, and every score is masked.
void stand_in_for_missing_keys(ForwardLaunch* a) {
  for (TensorSpan* missing : {&a->k, &a->v}) {
    const int64_t columns = missing->columns;
    *missing = a->q;
    missing->columns = columns;
  }
}

}  // namespace

bool has_whole_copies(const Problem& p) {
  return p.head_dim % kCopyColumns == 0 && p.head_dim_v % kCopyColumns == 0;
}

bool reads_single_rows(const KeyPlaces& places, const Lengths& keys) {
  return places.paged() && (places.page_size % 2 != 0 || keys.padded_left);
}

Variant variant_of(const Problem& p) {
  if (p.softcap != 0.0f) return Variant::kCapped;
  const MaskRuleOf<int> mask = narrow(p);
  const bool window =
      mask.left != mask.kUnbounded || mask.right > 0 || mask.chunk != mask.kNoChunks;
  return window || p.has_sink || has_other_rows(p) || is_ragged(p) || p.num_splits > 1
             ? Variant::kGeneral
             : Variant::kDense;
}

const char* mask_name(const MaskRuleOf<int>& mask) {
  if (mask.hides_nothing()) return "";
  if (mask.chunk != mask.kNoChunks) return mask.right == 0 ? " causal chunks" : " chunks";
  return mask.left == mask.kUnbounded && mask.right == 0 ? " causal" : " window";
}

Element element_of(DType dtype) {
  return dtype == DType::float16 ? Element::kFp16 : Element::kBf16;
}

TensorSpan span_of(const Operand& operand, int64_t batches, int64_t rows, int64_t heads,
                   int64_t columns) {
  TensorSpan span{.data = operand.data,
                  .batches = batches,
                  .rows = rows,
                  .heads = heads,
                  .columns = columns,
                  .batch_stride = operand.batch_stride,
                  .row_stride = operand.row_stride,
                  .head_stride = operand.head_stride,
                  .element_bytes = int(size_of(operand.dtype))};
  if (batches == 0 || rows == 0 || heads == 0) {
    span.batch_stride = span.row_stride = span.head_stride = kAnyStride;
  }
  return span;
}

bool copies_single_rows(const ForwardConfig& c) {
  const auto is_wide = [&](int columns) {
    return tile::TileLayout{1, columns, bytes_of(c.stored())}.row_bytes() % 128 == 0;
  };
  return is_wide(c.head_dim) && is_wide(c.head_dim_v);
}

int choose_row(const ForwardShape& shape, std::span<const CompiledForward> table) {
  int best = kNoRow;
  for (int row = 0; row < int(table.size()); ++row) {
    const auto& [config, max_keys, max_rows, why] = table[row];
    if (config.head_dim < shape.head_dim || config.head_dim_v < shape.head_dim_v) continue;
    if (shape.single_rows && !copies_single_rows(config)) continue;
    if (shape.any_rows && !general(config).stores_any_rows()) continue;
    if (best != kNoRow) {
      const ForwardConfig& group = table[best].config;
      if (config.head_dim != group.head_dim || config.head_dim_v != group.head_dim_v) break;
    }
    const bool fits = shape.cut ? can_cut(config) : shape.keys <= max_keys;
    const bool last_resort = shape.any_rows && best == kNoRow;
    if (fits && (shape.rows <= max_rows || last_resort)) best = row;
  }
  return best;
}

Status check_forward(const Problem& p) {
  if (p.dtype != DType::float16 && p.dtype != DType::bfloat16) {
    return unsupported(name_of(p.dtype), " is not among its element types (float16, bfloat16)");
  }
  FA3_TRY(check_cache_scales(p));
  if (p.has_e4m3() && p.o.dtype == DType::float32) {
    return unsupported("an output of float32 over keys and values of float8_e4m3");
  }
  if (p.has_e4m3() && (p.head_dim % kE4m3Step != 0 || p.head_dim_v % kE4m3Step != 0)) {
    return unsupported("head dims over float8_e4m3 must be multiples of ", kE4m3Step, ", got ",
                       p.head_dim, " and ", p.head_dim_v);
  }
  if (choose_row(shape_of(p), table_of(p)) == kNoRow) {
    return unsupported("no kernel for head dim ", p.head_dim, "; the largest have 256");
  }
  if (extents_of(p.lengths_q, p.batch).rows > kMaxRows ||
      extents_of(p.lengths_k, p.batch).rows > kMaxRows || p.batch > kMaxRows ||
      p.key_places.entries > kMaxRows || p.key_places.pages > kMaxRows) {
    return unsupported("more than 2^30 rows of a sequence or of packed ones, sequences or pages");
  }
  return {};
}

ForwardLaunch launch_of(const Problem& p, int64_t first_column) {
  const int64_t columns_v = std::min(p.head_dim_v - first_column, kMaxColumnsV);
  const auto from_column = [&](Operand operand) {
    operand.data = static_cast<std::byte*>(operand.data) + first_column * size_of(operand.dtype);
    return operand;
  };
  ForwardLaunch launch;
  const auto [q_batches, q_rows] = extents_of(p.lengths_q, p.batch);
  const auto [k_batches, k_rows] = key_extents_of(p);
  launch.q = span_of(p.q, q_batches, q_rows, p.heads_q, p.head_dim);
  launch.k = span_of(p.k, k_batches, k_rows, p.heads_k, p.head_dim);
  launch.v = span_of(from_column(p.v), k_batches, k_rows, p.heads_k, columns_v);
  launch.o = span_of(from_column(p.o), q_batches, q_rows, p.heads_q, columns_v);
  launch.lse = {p.lse.data, {p.lse.batch_stride, p.lse.head_stride, p.lse.row_stride}};
  launch.scale = p.scale;
  launch.softcap = p.softcap;
  launch.sink = p.sink;
  launch.mask = narrow(p);
  launch.seqlen_q = int(p.lengths_q.max);
  launch.seqlen_k = int(p.lengths_k.max);
  launch.ragged = is_ragged(p);
  launch.sequences = p.batch;
  launch.lengths_q = p.lengths_q;
  launch.lengths_k = p.lengths_k;
  launch.places = p.key_places;
  launch.heads_per_kv_head = int(p.group());
  if (p.has_e4m3()) {
    launch.cache_scales = {p.k_quantization.descale, p.v_quantization.descale};
  }
  if (launch.k.rows == 0 || launch.k.batches == 0) {
    stand_in_for_missing_keys(&launch);
    launch.lengths_k.max = 0;
  }
  return launch;
}

// Of whole tiles of dense queries, the rows that the busiest multiprocessor goes through.
int64_t most_rows(const ForwardConfig& c, ForwardLaunch launch, int multiprocessors) {
  launch.ragged = false;  // whose tiles are counted as if queries were
  launch.pack = choose_pack(c, launch);
  const int64_t at_once = int64_t{multiprocessors} * c.blocks;
  return ceil_div(forward_num_tiles(c, launch), at_once) * c.blocks * c.block_m;
}

// Whether another row's smaller tiles of the same columns occupy the multiprocessors so much better that
// they are done first, though each takes longer for its size.
bool fills_better(const ForwardConfig& other, const ForwardConfig& c, const ForwardLaunch& launch,
                  int multiprocessors) {
  constexpr double kLongerForItsSize =
      1.1;  // of tiles of 128 rows; those of 64 are for few queries
  const bool same_columns = other.head_dim == c.head_dim && other.head_dim_v == c.head_dim_v;
  const bool alike = launch.mask.hides_nothing() || launch.seqlen_k >= 2 * launch.seqlen_q;
  return same_columns && alike && !launch.lengths_q.ragged && other.consumers() > 1 &&
         double(most_rows(other, launch, multiprocessors)) * kLongerForItsSize <
             double(most_rows(c, launch, multiprocessors));
}

int choose_row_and_cut(const Problem& problem, int multiprocessors, ForwardLaunch* launch) {
  if (problem.batch_invariant) return choose_for_any_batch(problem, launch);
  const std::span<const CompiledForward> table = table_of(problem);
  const auto choose = [&](int row) {
    launch->pack = choose_pack(table[row].config, *launch);
    choose_cut(table[row].config, problem.num_splits, multiprocessors, launch);
  };
  ForwardShape shape = shape_of(problem);
  const int row = choose_row_for_pages(shape, table, *launch);
  choose(row);
  if (can_cut(table[row].config)) return row;
  const bool cut_would_pay = launch->cut.active();
  launch->cut = {};
  shape.cut = true;
  const int other = choose_row(shape, table);
  if (cut_would_pay && other != kNoRow) {
    choose(other);
    if (launch->cut.active()) return other;
  }
  const bool takes_other = other != kNoRow && fills_better(table[other].config, table[row].config,
                                                           *launch, multiprocessors);
  const int whole = takes_other ? other : row;
  launch->pack = choose_pack(table[whole].config, *launch);
  return whole;
}

bool decodes(const ForwardConfig& config, const Problem& p, const ForwardLaunch& launch) {
  return p.softcap == 0.0f && !has_other_rows(p) && can_decode(config, launch);
}

// The row of kDecodeTable for a call that row `row` would cut into runs, or kNoRow.
int choose_decode_row(const Problem& problem, int row, const ForwardLaunch& launch) {
  const ForwardConfig& c = table_of(problem)[size_t(row)].config;
  for (int i = 0; i < int(kDecodeTable.size()); ++i) {
    const ForwardConfig& d = kDecodeTable[size_t(i)].config;
    const bool same_tile = d.head_dim == c.head_dim && d.head_dim_v == c.head_dim_v &&
                           d.block_m == c.block_m && d.block_n == c.block_n &&
                           d.widens() == c.widens();
    if (same_tile && decodes(d, problem, launch)) return i;
  }
  return kNoRow;
}

std::string reasons(const Problem& problem, const ForwardConfig& c, const char* of_the_row,
                    const ForwardLaunch& launch) {
  const KeyCut& cut = launch.cut;
  std::string why =
      concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ", of_the_row);
  if (c.widens()) {
    why += concat("; float8_e4m3 becomes ", name_of(problem.dtype), " in shared memory");
  }
  if (gathers_keys(c, launch)) why += "; threads copy keys, row by row";
  if (launch.pack.heads() > 1) {
    why += concat("; ", launch.pack.heads(), " query heads share a tile");
  }
  if (cut.parts == KeyCut::kRuns) {
    why += concat("; keys are cut into runs for ", cut.blocks, " thread blocks");
  } else if (cut.active()) {
    why += concat("; keys of a tile are cut into up to ", cut.parts, " parts");
  }
  if (problem.batch_invariant) why += "; the same for every batch";
  if (problem.head_dim_v > kMaxColumnsV) {
    why += concat("; a launch for every ", kMaxColumnsV, " columns of the values");
  }
  return why;
}

Status plan_forward(const Problem& problem, Plan* plan) {
  if (problem.dtype == DType::float8_e4m3) return plan_e4m3(problem, plan);
  FA3_TRY(check_forward(problem));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  ForwardLaunch launch = launch_of(problem);
  FA3_TRY(check_layouts(launch));
  int multiprocessors = 0;
  FA3_TRY(cuda::count_multiprocessors(problem.device_index, &multiprocessors));
  int row = choose_row_and_cut(problem, multiprocessors, &launch);
  const int decode_row = choose_decode_row(problem, row, launch);
  const bool decodes = decode_row != kNoRow;
  if (decodes) row = decode_row;
  const auto& [c, max_keys, max_rows, why] =
      decodes ? kDecodeTable[size_t(row)] : table_of(problem)[size_t(row)];
  const KeyCut& cut = launch.cut;
  const bool needs_general = cut.active() || c.widens();
  const Variant variant =
      decodes ? Variant::kDecode
              : std::max(variant_of(problem), needs_general ? Variant::kGeneral : Variant::kDense);
  const int64_t num_tiles = forward_num_tiles(c, launch);
  if (num_tiles > kMaxTiles / std::max(cut.parts, 1)) {
    return unsupported("more than 2^30 tiles of queries, or parts of them");
  }
  if (launch.pack.rows(launch.q.rows) > kMaxRows) {
    return unsupported("more than 2^30 rows of queries, counted for each of the ",
                       launch.pack.heads(), " heads that share a tile");
  }

  plan->engine = "hopper";
  plan->variant = Choice{row, variant, cut.rows_log2}.number();
  plan->block_q = c.block_m;
  plan->block_k = c.block_n;
  plan->packed_heads = launch.pack.heads();
  plan->num_splits = cut.parts;
  plan->num_tasks = cut.blocks > 0 ? cut.blocks : num_tiles * cut.parts;
  plan->workspace_bytes = nothing_to_do(launch) ? 0 : forward_workspace_bytes(c, launch);
  if (plan->wants_words) {
    plan->kernel = concat("forward ", name_of(problem.dtype), " d", c.head_dim, "/", c.head_dim_v,
                          " ", c.block_m, "x", c.block_n, mask_name(launch.mask));
    plan->why = reasons(problem, c.with(c.element, variant), why, launch);
  }
  return {};
}

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  if (problem.dtype == DType::float8_e4m3) return run_e4m3(problem, plan, workspace, stream);
  if (nothing_to_do(launch_of(problem))) return {};
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const Choice choice = Choice::of(plan.variant);
  const ForwardKernel kernel = choice.kernel(problem);
  for (int64_t column = 0; error == cudaSuccess && column < problem.head_dim_v;
       column += kMaxColumnsV) {
    ForwardLaunch launch = launch_of(problem, column);
    launch.pack = {std::countr_zero(uint64_t(plan.packed_heads))};
    launch.cut.parts = int(plan.num_splits);
    launch.cut.rows_log2 = choice.rows_log2;
    if (launch.cut.parts == KeyCut::kRuns) launch.cut.blocks = int(plan.num_tasks);
    launch.workspace = workspace;
    error = launch_forward(kernel, launch, static_cast<cudaStream_t>(stream));
  }
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  return {StatusCode::device_error, concat("hopper forward: ", cudaGetErrorString(error))};
}

}  // namespace fa3::hopper
