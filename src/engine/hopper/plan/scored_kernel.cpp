// SPDX-License-Identifier: Apache-2.0
// What a score function changes in a kernel: stages of shared memory that it takes for itself, and
// what the kernel loads ahead of the scores. See forward_plan.h.
#include "engine/cuda/jit/score_program.h"
#include "engine/cuda/softmax/added_lines.h"
#include "engine/hopper/config/key_term.h"
#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {
namespace {

// Tiles of a captured tensor, lines of a tile's rows, or terms of keys take shared memory from Q
// and from K and V, of which two of each stay.
constexpr int kFewestStages = 4, kOtherSmemBytes = 2048;

int smem_bytes_beside(const Kernel& c, int more) {
  const int bits = c.block_mask() ? kMaskBlock * kMaskBlock / 8 : 0;
  return c.shape.q_stages * c.tiles_in_smem().q_bytes() +
         c.shape.kv_stages * (c.tiles_in_smem().stage_bytes() + bits) + more + kOtherSmemBytes;
}

int captured_bytes(const Kernel& c) {
  return c.captured_stages() * c.captured_tile().bytes();
}

bool fits_captured_tiles(const Kernel& c) {
  return smem_bytes_beside(c, captured_bytes(c)) <= kMaxSmemBytes;
}

// Gives up a stage of Q and stages of keys and values for what else lies in shared memory.
Kernel with_room_for(int bytes, Kernel c) {
  const auto fits = [&] { return smem_bytes_beside(c, bytes) <= kMaxSmemBytes; };
  if (!fits()) c.shape.q_stages = 1;
  while (!fits() && c.shape.kv_stages > kFewestStages) --c.shape.kv_stages;
  return c;
}

Kernel with_captured_tiles(const Kernel& c) {
  return with_room_for(captured_bytes(c), c);
}

int bytes_of_lines(const Kernel& c, bool has_two) {
  const size_t line = has_two ? sizeof(AddedLines) : sizeof(AddedLine);
  return c.shape.block_m * int(line + kAddedReferences * sizeof(float));
}

bool loads_pairs(const fa3_score_function& score) {
  return cuda::has_element(score, FA3_ELEMENT_OF_SCORE) ||
         cuda::has_element(score, FA3_ELEMENT_OF_KEY);
}

}  // namespace

bool takes_captured_tile(const Kernel& c) {
  if (c.is_decode()) return false;
  return c.captured_tile().row_bytes() == 128 && fits_captured_tiles(with_captured_tiles(c));
}

Kernel with_score(Kernel c, const fa3_score_function& score, int captured) {
  if (c.is_decode()) return c;  // loads element by element
  c.captured.may_hide = score.may_hide != 0;
  if (captured != kNoTile && takes_captured_tile(c)) {
    const bool once = captured < score.num_tensors && is_read_once(score.tensors[captured]);
    c.captured.ahead = once ? Ahead::kTileReadOnce : Ahead::kTile;
    return with_captured_tiles(c);
  }
  if (loads_pairs(score)) c.captured.ahead = Ahead::kPairs;
  switch (score.kind) {
    case FA3_SCORE_ROW_LINE:
      return with_room_for(bytes_of_lines(c, false), c);
    case FA3_SCORE_ROW_LINES:
      return with_room_for(bytes_of_lines(c, true), c);
    case FA3_SCORE_KEY_TERM:
      return with_room_for(key_term_bytes(c.shape.block_n), c);
    default:
      return c;
  }
}

}  // namespace fa3::hopper
