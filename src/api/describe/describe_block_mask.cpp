// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_block_mask.h"

#include "api/describe/describe_lengths.h"
#include "api/describe/rules/operand_rules.h"
#include "api/describe/rules/tensor_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

static_assert(kMaskBlock == FA3_MASK_BLOCK);

constexpr uintptr_t kBitsAlignment = 16;  // what bulk copies of a GPU take

// The caller's extent may be 1 for all.
Status check_shared_extent(Named named, int dim, int64_t all, const char* meaning) {
  if (named.tensor.shape[dim] == 1) return {};
  return check_extent(named, dim, all, meaning);
}

Status check_blocks_of(Named named, int dim, int64_t rows, const char* meaning) {
  const int64_t blocks = (rows + kMaskBlock - 1) / kMaskBlock;
  if (named.tensor.shape[dim] >= blocks) return {};
  return invalid(named.name, ": expected at least ", blocks, " blocks of ", kMaskBlock,
                 " in dimension ", dim, ", for ", rows, " ", meaning, ", got ",
                 named.tensor.shape[dim], " in shape ", shape_text(named.tensor));
}

Status check_map(Named map, const fa3_tensor& q, const Problem& problem, MaskedExtents extents,
                 Purpose purpose) {
  FA3_TRY(check_form(map, 4, "(batch | 1, query heads | 1, query blocks, key blocks)"));
  FA3_TRY(check_dtype(map, {DType::int32}));
  FA3_TRY(check_last_stride(map));
  FA3_TRY(check_shared_extent(map, 0, problem.batch, "1 or batch"));
  FA3_TRY(check_shared_extent(map, 1, problem.heads_q, "1 or query heads"));
  FA3_TRY(check_blocks_of(map, 2, extents.queries, "queries"));
  FA3_TRY(check_blocks_of(map, 3, extents.keys, "keys"));
  FA3_TRY(check_same_device(map, {"q", q}));
  return purpose == Purpose::call ? check_data(map) : Status{};
}

Status check_bits(Named bits, const fa3_tensor& q, Purpose purpose) {
  const fa3_tensor& t = bits.tensor;
  FA3_TRY(check_form(bits, 3, "(n, 128, 4)"));
  FA3_TRY(check_dtype(bits, {DType::int32}));
  FA3_TRY(check_extent(bits, 1, kMaskBlock, "queries of a block"));
  FA3_TRY(check_extent(bits, 2, kMaskRowWords, "words of a row"));
  FA3_TRY(check_last_stride(bits));
  const bool contiguous =
      t.stride[1] == kMaskRowWords && (t.shape[0] <= 1 || t.stride[0] == kMaskBlockWords);
  if (t.shape[0] > 0 && !contiguous) {
    return invalid(bits.name, ": expected contiguous rows and blocks, strides (", kMaskBlockWords,
                   ", ", kMaskRowWords, ", 1), got (", t.stride[0], ", ", t.stride[1], ", ",
                   t.stride[2], "); make it contiguous");
  }
  if (reinterpret_cast<uintptr_t>(t.data) % kBitsAlignment != 0) {
    return invalid(bits.name, ": expected data aligned to ", kBitsAlignment, " bytes, got address ",
                   t.data);
  }
  FA3_TRY(check_same_device(bits, {"q", q}));
  return purpose == Purpose::call ? check_data(bits) : Status{};
}

Status check_entries(const BlockMask& mask) {
  for (int64_t b = 0; b < mask.batches; ++b) {
    for (int64_t head = 0; head < mask.heads; ++head) {
      for (int64_t query = 0; query < mask.query_blocks; ++query) {
        const int32_t* row = mask.row_of(b, head, query);
        for (int64_t key = 0; key < mask.key_blocks; ++key) {
          if (row[key] >= kFullBlock && row[key] <= mask.num_bits) continue;
          const std::string bits = mask.num_bits == 0
                                       ? " or -1 (full), since there are no block_mask_bits"
                                       : concat(", -1 (full) or a number of bits in [1, ",
                                                mask.num_bits, "], the blocks of block_mask_bits");
          return invalid("block_mask: expected 0 (hidden)", bits, ", got ", row[key], " at (", b,
                         ", ", head, ", ", query, ", ", key, ")");
        }
      }
    }
  }
  return {};
}

}  // namespace

Status describe_block_mask(const fa3_options& options, const fa3_tensor& q, MaskedExtents extents,
                           Purpose purpose, Problem* problem) {
  const Named map{"block_mask", options.block_mask},
      bits{"block_mask_bits", options.block_mask_bits};
  if (!present(map.tensor)) {
    if (!present(bits.tensor)) return {};
    return invalid("block_mask_bits: expected it only together with block_mask, got it alone");
  }
  FA3_TRY(check_map(map, q, *problem, extents, purpose));
  if (present(bits.tensor)) FA3_TRY(check_bits(bits, q, purpose));
  const fa3_tensor& t = map.tensor;
  BlockMask& mask = problem->block_mask;
  mask = {.on = true,
          .blocks = static_cast<const int32_t*>(t.data),
          .batch_stride = stride_of(t, 0),
          .head_stride = stride_of(t, 1),
          .row_stride = stride_of(t, 2),
          .query_blocks = t.shape[2],
          .key_blocks = t.shape[3],
          .batches = t.shape[0],
          .heads = t.shape[1],
          .bits = static_cast<const uint32_t*>(bits.tensor.data),
          .num_bits = present(bits.tensor) ? bits.tensor.shape[0] : 0};
  return purpose == Purpose::call && readable(t) ? check_entries(mask) : Status{};
}

}  // namespace fa3::api
