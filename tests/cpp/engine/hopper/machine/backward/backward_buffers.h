// SPDX-License-Identifier: Apache-2.0
//
// The parts of the backward's shared memory whose uses the machine follows, beside the tiles that
// TMA fills.
#pragma once

#include <vector>

#include "engine/hopper/backward/backward_kernel.cuh"
#include "machine.h"

namespace fa3::hopper {

// Where dK and dV lie at the end. Each warpgroup of 64 keys has dV in its rows of V, slab by slab.
template <BackwardConfig C>
void add_gradients(std::vector<machine::Buffer>& all, BackwardAddresses<C> at) {
  constexpr int kDkBytes = kRowsPerWarpgroup * C.shape.head_dim * bytes_of(C.element),
                kDvBytes = kRowsPerWarpgroup * C.shape.head_dim_v * bytes_of(C.element);
  for (int w = 0; w < C.key_warpgroups() && C.splits_dkv(); ++w) {
    all.push_back({"dK", at.q(uint32_t(w)), kDkBytes});
    all.push_back({"dV", at.d_o(uint32_t(w)), kDvBytes});
  }
  if (C.splits_dkv()) return;
  for (int w = 0; w < C.key_warpgroups() && C.has_long_sums(); ++w) {
    all.push_back({"dK", at.q(0) + uint32_t(w * kDkBytes), kDkBytes});
  }
  for (int stage = 0; stage < C.shape.stages && !C.has_long_sums(); ++stage) {
    all.push_back({"dK", at.q(uint32_t(stage)), kDkBytes});
  }
  for (int stage = 0; stage < C.d_o_stages() && !C.has_long_sums(); ++stage) {
    all.push_back({"dK", at.d_o(uint32_t(stage)), kDkBytes});
  }
  const int rows = kRowsPerWarpgroup * C.v_tile().row_bytes();
  for (int w = 0; w < C.key_warpgroups(); ++w) {
    for (int slab = 0; slab < C.v_tile().slabs(); ++slab) {
      all.push_back({"dV", at.v() + slab * C.v_tile().slab_bytes() + w * rows, rows});
    }
  }
}

template <BackwardConfig C>
std::vector<machine::Buffer> backward_buffers() {
  const BackwardAddresses<C> at{machine::kSmemBase};
  std::vector<machine::Buffer> all;
  for (int i = 0; i < C.shape.stages; ++i) {
    all.push_back({"LSE", at.lse(uint32_t(i)), int(C.shape.block_m * sizeof(float))});
    all.push_back({"Delta", at.delta(uint32_t(i)), int(C.shape.block_m * sizeof(float))});
  }
  for (int i = 0; i < C.shape.ds_stages; ++i) {
    // In a persistent CTA a warpgroup's dV and dK take the halves of its slab, by queries. Beside
    // long sums a warpgroup reads its slab while the other may still store its own.
    const int parts = C.persistent()      ? 2 * C.key_warpgroups()
                      : C.has_long_sums() ? C.key_warpgroups()
                                          : 1;
    const int bytes = C.ds_tile().bytes() / parts;
    for (int part = 0; part < parts; ++part) {
      machine::Buffer ds{"dS", at.ds(uint32_t(i)) + uint32_t(part * bytes), bytes};
      if (C.p_lies_in_ds()) ds.strips = kWarpsPerWarpgroup;
      all.push_back(ds);
    }
  }
  for (int i = 0; i < C.shape.ds_stages && C.splits_dkv() && !C.p_lies_in_ds(); ++i) {
    all.push_back({"P", at.p(uint32_t(i)), C.p_bytes()});
  }
  constexpr int kWarpBytes = kWarpSize * 16;  // each thread keeps 16 bytes of a row for itself
  for (int w = 0; w < C.key_warpgroups() && C.keeps_p(); ++w) {
    for (int row = 0; row < C.p_bytes(); row += kWarpBytes) {
      all.push_back({"P times the derivative", at.p(uint32_t(w)) + row, kWarpBytes});
    }
  }
  if constexpr (C.dropout()) {
    constexpr int kDraws = sizeof(DropoutBits<C>::bits[0][0]);
    for (int w = 0; w < (C.splits_dkv() ? 1 : C.key_warpgroups()); ++w) {
      for (uint32_t turn : {0, 1})
        all.push_back({"draws", at.dropout_bits(w) + turn * kDraws, kDraws});
    }
  }
  if constexpr (C.persistent() && !C.block_mask()) {
    for (uint32_t lap = 0; lap < kLaps; ++lap) {
      all.push_back({"a drawn tile", at.drawn_tile(lap), int(sizeof(DrawnTiles::Tile))});
    }
  }
  if constexpr (!C.persistent()) add_gradients(all, at);
  return all;
}

}  // namespace fa3::hopper
