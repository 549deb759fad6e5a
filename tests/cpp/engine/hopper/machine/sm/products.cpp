// SPDX-License-Identifier: Apache-2.0
#include "sm/products.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "failure.h"
#include "sm/block.h"

namespace fa3::machine {
namespace {

using cuda::Major;

constexpr int kWarpsPerWarpgroup = 4;
constexpr int kRowsPerWarp = 16;
constexpr int kRowsPerWarpgroup = 64;
constexpr int kDepthBytes = 32;

// What accumulators hold while a product works on them: a NaN that arithmetic hands on.
constexpr uint32_t kUnsettled = 0x7fc0dead;
bool is_unsettled(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7fffffff) == kUnsettled;
}

// Fields of a matrix descriptor (tile/layout.h).
uint32_t start_of(uint64_t descriptor) {
  return uint32_t(descriptor & 0x3fff) << 4;
}
uint32_t slab_distance(uint64_t descriptor) {
  return uint32_t(descriptor >> 16 & 0x3fff) << 4;
}
int row_bytes_of(uint64_t descriptor) {
  return descriptor >> 62 == 1 ? 128 : 64;
}

// Begins to read `rows` rows of one slab; they must follow each other in one tensor, or be stored
// by threads at the same time. Returns the first.
Content read_rows(uint32_t address, int rows, int row_bytes, HeldPieces* held) {
  Block& block = here();
  const int bytes = rows * row_bytes;
  Content first;
  for (int offset = 0; offset < bytes; offset += int(kPieceBytes)) {
    const Content& next =
        block.memory.begin_read(block.accessor_of_warp(), address + uint32_t(offset),
                                std::min(bytes - offset, int(kPieceBytes)), held);
    if (offset == 0) first = next;
    const int row = first.tensor == nullptr ? first.row : first.row + offset / row_bytes;
    if (next.tensor != first.tensor || next.head != first.head || next.batch != first.batch ||
        next.column != first.column || next.row != row || next.filling != first.filling ||
        next.sender != first.sender) {
      fail("a tile of mixed origin at address ", address);
    }
  }
  return first;
}

// Where a descriptor's first row begins, and the column that it points at.
struct Start {
  uint32_t slab;
  int column;
};
Start start(const Operand& operand) {
  const uint32_t address = start_of(operand.descriptor), slab = address & ~(kPieceBytes - 1);
  return {slab, int(address - slab) / operand.element_bytes};
}

// Its sum runs along columns: `rows` rows of M or N from `first_row` on, 32 bytes of each.
Content read_k_major(const Operand& operand, int first_row, int rows, HeldPieces* held) {
  const int row_bytes = row_bytes_of(operand.descriptor);
  const auto [slab, column] = start(operand);
  Content c = read_rows(slab + uint32_t(first_row * row_bytes), rows, row_bytes, held);
  if (c.tensor != nullptr) c.column += column;
  return c;
}

// Reads all of the warpgroup's rows; returns this warp's.
Content read_rows_of_warpgroup(const Operand& operand, HeldPieces* held) {
  Content own;
  for (int warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
    const Content rows = read_k_major(operand, warp * kRowsPerWarp, kRowsPerWarp, held);
    if (warp == here().warp() % kWarpsPerWarpgroup) own = rows;
  }
  return own;
}

// Its sum runs along rows: 16 rows, of each slab that `columns` columns of M or N lie in.
Content read_mn_major(const Operand& operand, int columns, HeldPieces* held) {
  const int row_bytes = row_bytes_of(operand.descriptor);
  const int slab_columns = row_bytes / operand.element_bytes;
  const int depth = kDepthBytes / operand.element_bytes;
  const auto [first_slab, column] = start(operand);
  Content first = read_rows(first_slab, depth, row_bytes, held);
  for (int slab = 1; slab * slab_columns < column + columns; ++slab) {
    const uint32_t address = first_slab + uint32_t(slab) * slab_distance(operand.descriptor);
    const Content next = read_rows(address, depth, row_bytes, held);
    const int expected = first.tensor == nullptr ? 0 : first.column + slab * slab_columns;
    if (next.tensor != first.tensor || next.row != first.row || next.column != expected) {
      fail("columns that do not belong, at address ", address);
    }
  }
  if (first.tensor != nullptr) first.column += column;
  return first;
}

int summed_from(const Content& c, Major major) {
  return major == Major::kK ? c.column : c.row;
}
int kept_from(const Content& c, Major major) {
  return major == Major::kK ? c.row : c.column;
}

// A step of a product goes on where the one before ended.
void require_next_step(const Content& first, const Content& step, Major major, int depth) {
  if (first.tensor != step.tensor || first.head != step.head || first.batch != step.batch ||
      kept_from(first, major) != kept_from(step, major)) {
    fail("one product of two tiles, by warp ", here().warp());
  }
  const bool known = first.tensor != nullptr;
  if (first.filling != step.filling ||
      (known && summed_from(step, major) != summed_from(first, major) + depth)) {
    fail("steps of a product that do not track_max each other, by warp ", here().warp());
  }
}

}  // namespace

bool Products::works_on(const float* d) const {
  const auto works = [d](const Group& group) {
    return std::any_of(group.accumulators.begin(), group.accumulators.end(),
                       [d](const Accumulator& a) { return a.values == d; });
  };
  return works(open_) || std::any_of(flying_.begin(), flying_.end(), works);
}

// The one that this group's last product adds to, or a new one: also where a sum goes on with what
// another CTA has sent.
Products::Accumulator& Products::accumulator(float* d, int count, const Content& a) {
  const bool goes_on = !open_.accumulators.empty() && open_.accumulators.back().values == d &&
                       open_.accumulators.back().product.a.sender == a.sender;
  if (!goes_on) {
    if (!works_on(d)) std::fill(d, d + count, std::bit_cast<float>(kUnsettled));
    open_.accumulators.push_back({d, count, {}});
  }
  return open_.accumulators.back();
}

void Products::multiply(float* d, int count, const Operand& a, const Operand& b, bool adds) {
  Block& block = here();
  const int columns = 2 * count;
  Content a_step, b_step;
  if (!a.in_registers) {
    a_step = a.major == Major::kK ? read_rows_of_warpgroup(a, &open_.reads)
                                  : read_mn_major(a, kRowsPerWarpgroup, &open_.reads);
  }
  b_step = b.major == Major::kK ? read_k_major(b, 0, columns, &open_.reads)
                                : read_mn_major(b, columns, &open_.reads);
  Product& p = accumulator(d, count, a_step).product;
  if (p.depth == 0) {
    p = {.a_in_registers = a.in_registers,
         .adds = adds,
         .a = a_step,
         .b = b_step,
         .columns = columns};
  } else if (!adds) {
    fail("a step of a product that does not add to those before, by warp ", block.warp());
  }
  require_next_step(p.a, a_step, a.major, p.depth);
  require_next_step(p.b, b_step, b.major, p.depth);
  if (a_step.tensor != nullptr && b_step.tensor != nullptr) {
    if (a_step.batch != b_step.batch) fail("operands of two sequences, by warp ", block.warp());
    if (summed_from(a_step, a.major) != summed_from(b_step, b.major)) {
      fail("operands summed over different ranges, by warp ", block.warp());
    }
  }
  p.depth += kDepthBytes / b.element_bytes;
}

void Products::commit() {
  for (const Accumulator& a : open_.accumulators) {
    here().outcome.products[size_t(here().warp_of_all())].push_back(a.product);
  }
  flying_.push_back(std::move(open_));
  open_ = {};
}

void Products::settle(const Accumulator& a) const {
  if (works_on(a.values)) return;
  if (!std::all_of(a.values, a.values + a.count, is_unsettled)) {
    fail("an accumulator was written while a product worked on it, by warp ", here().warp());
  }
  const bool infinite = here().setting.infinite(a.product);
  std::fill(a.values, a.values + a.count, infinite ? std::numeric_limits<float>::infinity() : 0.0f);
  if (infinite || !here().setting.peaked(a.product)) return;
  for (int i = 0; i < a.count; ++i) {
    const bool first_of_row = i == 0 || i == 2;  // the thread's two rows have two neighbours each
    if (!first_of_row) a.values[i] = -std::numeric_limits<float>::infinity();
  }
}

void Products::wait(int pending) {
  while (int(flying_.size()) > pending) {
    Group done = std::move(flying_.front());
    flying_.pop_front();
    here().memory.end_reads(here().accessor_of_warp(), &done.reads);
    for (auto a = done.accumulators.begin(); a != done.accumulators.end(); ++a) {
      const bool goes_on =
          std::any_of(a + 1, done.accumulators.end(),
                      [a](const Accumulator& next) { return next.values == a->values; });
      if (!goes_on) settle(*a);
    }
  }
}

float settled(float x) {
  if (is_unsettled(x)) {
    fail("an accumulator was read while a product worked on it, by warp ", here().warp());
  }
  return x;
}

}  // namespace fa3::machine
