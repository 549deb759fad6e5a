// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tile_ops.h"

#include <cstdlib>
#include <string_view>

namespace fa3::cpu {

extern const TileOps kTileOps_portable;
#if defined(__x86_64__)
extern const TileOps kTileOps_avx2;
extern const TileOps kTileOps_avx512;
#endif

namespace {

const TileOps& choose_tile_ops() {
#if defined(__x86_64__)
  const char* asked = std::getenv("FA3_CPU_ISA");
  const std::string_view limit = asked != nullptr ? asked : "";
  if (limit == "portable") return kTileOps_portable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
  if (avx512 && limit != "avx2") return kTileOps_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kTileOps_avx2;
#endif
  return kTileOps_portable;
}

}  // namespace

const TileOps& tile_ops() {
  static const TileOps& chosen = choose_tile_ops();
  return chosen;
}

}  // namespace fa3::cpu
