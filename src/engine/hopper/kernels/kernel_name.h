// SPDX-License-Identifier: Apache-2.0
// Names of kernels. Of the forward: operands, columns and blocks, tiles, then what differs from
// most kernels ("e4m3 d128/128 128x128 rows of V"). Numbers of stages stay out of a name, so that
// it lasts when they are tuned. Host only.
#pragma once

#include <string_view>

#include "engine/cuda/catalogue/lines.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

using cuda::KernelName;

constexpr KernelName name_of(const Kernel& c) {
  KernelName name;
  name.add(c.e4m3() ? "e4m3 " : c.dequantizes() ? "cache " : "");
  const Shape& shape = c.shape;
  name.add("d").add(shape.head_dim).add("/").add(shape.head_dim_v).add(" ");
  name.add(shape.block_m).add("x").add(shape.block_n);
  if (c.dropout()) name.add(" dropped");
  if (c.continued()) name.add(" continued");
  constexpr std::string_view kTiles[] = {"",        " varlen",        " split",  " stream-K",
                                         " decode", " decode single", " listed", " listed varlen"};
  name.add(kTiles[int(c.tiles)]);
  if (c.capped()) name.add(" capped");
  if (c.transposes_v()) name.add(" rows of V");
  return name;
}

constexpr KernelName name_of(const BackwardConfig& c) {
  KernelName name;
  name.add("d").add(c.shape.head_dim).add("/").add(c.shape.head_dim_v).add(" ");
  name.add(c.shape.block_m).add("x").add(c.shape.block_n);
  if (c.dropout()) name.add(" dropped");
  if (c.wide()) name.add(" float32");
  if (c.block_mask()) name.add(" listed");
  if (c.general() && !c.capped()) name.add(" varlen");
  if (c.capped()) name.add(" capped");
  if (c.in_pairs()) name.add(" in pairs");
  if (c.persistent()) name.add(" persistent");
  return name;
}

}  // namespace fa3::hopper
