// SPDX-License-Identifier: Apache-2.0
#include "api/describe/describe_block_lists.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "core/error.h"

namespace fa3::api {
namespace {

constexpr uintptr_t kAlignment = 256;  // a workspace's

struct Fact {
  const char* name;
  int64_t value;
  bool is_address = false;
};

int64_t number_of(const void* address) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address));
}

// In the order of fa3_block_lists::made_for.
auto facts_of(const Problem& p, ListedPass pass) {
  const BlockMask& mask = p.block_mask;
  const bool varlen = p.lengths_q.varlen || p.lengths_k.varlen || p.key_places.elsewhere;
  return std::to_array<Fact>({
      {"pass (1: forward, 2: backward, 3: deterministic backward)", static_cast<int64_t>(pass)},
      {"number of queries", p.lengths_q.max},
      {"number of keys", p.lengths_k.max},
      {"way of lengths (1: sequences have their own)", varlen},
      {"kind of memory", p.device},
      {"device", p.device_index},
      {"left end of the window", p.mask.left},
      {"right end of the window", p.mask.right},
      {"attention_chunk", p.mask.chunk},
      {"number of block_mask's query blocks", mask.query_blocks},
      {"number of block_mask's key blocks", mask.key_blocks},
      {"number of sequences with maps of their own", mask.batches},
      {"number of heads with maps of their own", mask.heads},
      {"stride of block_mask's sequences", mask.batch_stride},
      {"stride of block_mask's heads", mask.head_stride},
      {"stride of block_mask's rows", mask.row_stride},
      {"number of block_mask_bits", mask.num_bits},
      {"address of block_mask", number_of(mask.blocks), true},
      {"address of block_mask_bits", number_of(mask.bits), true},
  });
}

static_assert(std::tuple_size_v<decltype(facts_of({}, {}))> <=
              std::size(decltype(fa3_block_lists::made_for){}));

}  // namespace

fa3_block_lists lists_of(const Problem& problem, ListedPass pass, void* data) {
  fa3_block_lists lists{.data = data, .made_for = {}};
  const auto facts = facts_of(problem, pass);
  std::transform(facts.begin(), facts.end(), lists.made_for, [](const Fact& f) { return f.value; });
  return lists;
}

Status describe_block_lists(const fa3_options& options, ListedPass pass, Purpose purpose,
                            Problem* problem) {
  if (options.block_lists == nullptr) return {};
  const fa3_block_lists& lists = *options.block_lists;
  if (!problem->block_mask.on) {
    return invalid("block_lists: expected them only together with block_mask, got them alone");
  }
  if (lists.made_for[0] == 0) {
    return invalid(
        "block_lists: expected what fa3_forward_make_block_lists() or "
        "fa3_backward_make_block_lists() wrote, got a struct that nothing was written to");
  }
  const int64_t* then = lists.made_for;
  for (const Fact& now : facts_of(*problem, pass)) {
    const int64_t value = *then++;
    if (value == now.value || (now.is_address && purpose == Purpose::query)) continue;
    return invalid("block_lists: expected those of a call like this one, got those of another ",
                   now.name, ": ", value, ", here ", now.value, "; make them for this call");
  }
  if (reinterpret_cast<uintptr_t>(lists.data) % kAlignment != 0) {
    return invalid("block_lists: expected data aligned to ", kAlignment, " bytes, got address ",
                   lists.data);
  }
  problem->block_lists = lists.data;
  return {};
}

}  // namespace fa3::api
