// SPDX-License-Identifier: Apache-2.0
#include "support/cases/block_mask.h"

#include <random>

#include "support/cases/case.h"

namespace fa3::test {
namespace {

constexpr int64_t kBlock = FA3_MASK_BLOCK, kWords = kBlock / 32;

int64_t blocks_of(int64_t rows) {
  return (rows + kBlock - 1) / kBlock;
}

// Dense or sparse bits; some queries see nothing of the block.
void add_bits(std::mt19937_64& random, std::vector<int32_t>* bits) {
  const bool sparse = random() % 2 == 0;
  for (int64_t row = 0; row < kBlock; ++row) {
    const bool empty = random() % 8 == 0;
    for (int64_t word = 0; word < kWords; ++word) {
      const uint64_t drawn = sparse ? random() & random() & random() : random();
      bits->push_back(empty ? 0 : static_cast<int32_t>(static_cast<uint32_t>(drawn)));
    }
  }
}

}  // namespace

bool MaskData::shows(int64_t b, int64_t head, int64_t query, int64_t key) const {
  const int64_t map = (sequences > 1 ? b : 0) * heads + (heads > 1 ? head : 0);
  const int64_t at = (map * query_blocks + query / kBlock) * key_blocks + key / kBlock;
  const int32_t entry = blocks[static_cast<size_t>(at)];
  if (entry <= 0) return entry < 0;
  const int64_t word = ((entry - 1) * kBlock + query % kBlock) * kWords + key % kBlock / 32;
  return static_cast<uint32_t>(bits[static_cast<size_t>(word)]) >> (key % 32) & 1;
}

MaskData make_mask(const Case& c) {
  if (!c.mask.on) return {};
  MaskData mask{.sequences = c.mask.by_sequence ? c.batch : 1,
                .heads = c.mask.by_head ? c.heads_q : 1,
                .query_blocks = blocks_of(c.q.tensor_rows()),
                .key_blocks = blocks_of(c.k.tensor_rows()),
                .blocks = {},
                .bits = {}};
  std::mt19937_64 random(c.seed + 77);
  std::uniform_real_distribution<double> part(0, 1);
  const int64_t count = mask.sequences * mask.heads * mask.query_blocks * mask.key_blocks;
  int32_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double drawn = part(random);
    const bool hidden = drawn < c.mask.hidden, partial = drawn < c.mask.hidden + c.mask.partial;
    if (!hidden && partial && (last == 0 || random() % 4 != 0)) {  // else shared with another block
      add_bits(random, &mask.bits);
      ++last;
    }
    const int32_t bits = last > 0 ? 1 + static_cast<int32_t>(random() % uint64_t(last)) : 0;
    mask.blocks.push_back(hidden ? 0 : partial ? bits : -1);
  }
  return mask;
}

}  // namespace fa3::test
