// SPDX-License-Identifier: Apache-2.0
// The addresses and selectors of tile/byte_square.h, with the instructions that take them done as
// the PTX ISA has them: ldmatrix.trans, prmt and stmatrix on a square of bytes.
#include "engine/hopper/tile/byte_square.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::hopper::tile {
namespace {

constexpr int kWarp = 32, kMatrixRows = 8;
constexpr int kSizes[] = {kSquare, 2 * kSquare};

TileLayout layout_of(int size) {
  return {size, size, 1};
}

using Square = std::vector<uint8_t>;
using Registers = std::array<std::array<uint32_t, 4>, kWarp>;
using Addresses = std::array<uint32_t, kWarp>;

// Lane l gets, of each matrix, column l / 4 of the rows 2 (l % 4) and 2 (l % 4) + 1.
Registers ldmatrix_trans(const Square& square, const Addresses& rows) {
  Registers registers{};
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int i = 0; i < 2; ++i) {
        const uint32_t row = rows[size_t(matrix * kMatrixRows + lane % 4 * 2 + i)];
        uint16_t element;
        std::memcpy(&element, &square[row + uint32_t(lane / 4 * 2)], 2);
        registers[size_t(lane)][size_t(matrix)] |= uint32_t{element} << 16 * i;
      }
    }
  }
  return registers;
}

// Lane l gives, of each matrix, four bytes of row l / 4.
void stmatrix(Square& square, const Addresses& rows, const Registers& registers) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const uint32_t row = rows[size_t(matrix * kMatrixRows + lane / 4)];
      std::memcpy(&square[row + uint32_t(lane % 4 * 4)], &registers[size_t(lane)][size_t(matrix)],
                  4);
    }
  }
}

uint32_t prmt(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    chosen |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return chosen;
}

// All steps of a square: those on the diagonal, then by distance.
int square_steps(int square) {
  return blocks_of_square(square) * blocks_of_square(square);
}
PartPair part_pair(int step, int i, int square) {
  const int blocks = blocks_of_square(square), distance = step / blocks, at = step % blocks;
  if (distance == 0) return diagonal_pair(at, i);
  const PartPair above = pair_above(distance, row_at(distance, at / 2), at % 2);
  return i == 0 ? above : above.transposed();
}

Addresses load_addresses(int step, int i, int size) {
  Addresses all{};
  const PartPair pair = part_pair(step, i, size);
  for (int lane = 0; lane < kWarp; ++lane) {
    all[size_t(lane)] = load_offset(lane, pair.below, size) ^ pair.bits(size);
  }
  return all;
}
Addresses store_addresses(int step, int i, int size) {
  Addresses all{};
  const PartPair pair = part_pair(step, i, size).transposed();
  for (int lane = 0; lane < kWarp; ++lane) {
    all[size_t(lane)] = store_offset(lane, pair.below, size) ^ pair.bits(size);
  }
  return all;
}

Registers joined(const Registers& loaded) {
  Registers stored{};
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& from = loaded[size_t(lane)];
    const uint32_t selector = join_selector(lane);
    for (size_t i = 0; i < 4; ++i) {
      stored[size_t(lane)][i] = prmt(from[i / 2 * 2], from[i / 2 * 2 + 1],
                                     i % 2 == 0 ? selector : selector ^ kOtherMatrix);
    }
  }
  return stored;
}

void transpose(Square& square, int size) {
  for (int step = 0; step < square_steps(size); ++step) {
    const Registers first = ldmatrix_trans(square, load_addresses(step, 0, size));
    const Registers second = ldmatrix_trans(square, load_addresses(step, 1, size));
    stmatrix(square, store_addresses(step, 0, size), joined(first));
    stmatrix(square, store_addresses(step, 1, size), joined(second));
  }
}

TEST(ByteSquare, it_lies_transposed_with_keys_in_the_order_of_the_products) {
  for (const int size : kSizes) {
    const TileLayout layout = layout_of(size);
    for (int byte = 0; byte < 2; ++byte) {  // of a number for each place
      Square square(size_t(layout.bytes()));
      for (int key = 0; key < size; ++key) {
        for (int channel = 0; channel < size; ++channel) {
          square[size_t(layout.element_offset(key, channel))] =
              uint8_t((key * size + channel) >> 8 * byte);
        }
      }
      transpose(square, size);
      for (int channel = 0; channel < size; ++channel) {
        for (int column = 0; column < size; ++column) {
          ASSERT_EQ(square[size_t(layout.element_offset(channel, column))],
                    uint8_t((cuda::e4m3_key(column) * size + channel) >> 8 * byte))
              << size << ": channel " << channel << ", column " << column;
        }
      }
    }
  }
}

// So steps need not be in order, and warps may share a square.
TEST(ByteSquare, a_step_stores_where_it_alone_loads) {
  for (const int size : kSizes) {
    std::set<uint32_t> all;
    for (int step = 0; step < square_steps(size); ++step) {
      std::set<uint32_t> loaded, stored;
      for (int i = 0; i < 2; ++i) {
        for (const uint32_t at : load_addresses(step, i, size)) {
          loaded.insert(at);
          EXPECT_TRUE(all.insert(at).second) << size << ": step " << step;
        }
        for (const uint32_t at : store_addresses(step, i, size)) stored.insert(at);
      }
      EXPECT_EQ(loaded, stored) << size << ": step " << step;
    }
    EXPECT_EQ(all.size(), size_t(size * size / kChunkBytes));
  }
}

TEST(ByteSquare, the_rows_of_a_matrix_share_no_bank) {
  for (const int size : kSizes) {
    for (int step = 0; step < square_steps(size); ++step) {
      for (int i = 0; i < 2; ++i) {
        for (const Addresses& rows :
             {load_addresses(step, i, size), store_addresses(step, i, size)}) {
          for (int matrix = 0; matrix < 4; ++matrix) {
            std::set<uint32_t> banks;
            for (int row = 0; row < kMatrixRows; ++row) {
              banks.insert(rows[size_t(matrix * kMatrixRows + row)] % 128 / kChunkBytes);
            }
            EXPECT_EQ(banks.size(), 8u) << size << ": step " << step;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fa3::hopper::tile
