// SPDX-License-Identifier: Apache-2.0
// Parts of the programs of kernels that are compiled at run time (cuda/jit/nvrtc.h).
#pragma once

#include <string>

#include "core/error.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/kernels/headers_of.h"

namespace fa3::hopper {

inline constexpr const char* kArchitecture = "sm_90a";

inline std::string includes_of(const Kernel& c) {
  std::string includes;
  for (const std::string_view header : headers_of(c)) {
    if (!header.empty()) includes += concat("#include \"", header, "\"\n");
  }
  return includes;
}

// A kernel with ForwardParams of that many bytes, in the engine's namespace.
inline std::string instance_of(const Kernel& c, size_t params_bytes) {
  const char* const fits =
      c.is_decode()
          ? "sizeof(DecodeSmem<kConfig>) <= smem_bytes_of_each(decode_shape(kConfig).ctas_per_sm)"
          : "smem_bytes<kConfig>() <= smem_bytes_of_each(kConfig.shape.ctas_per_sm)";
  return concat("constexpr Kernel kConfig = ", cuda::text_of(c),
                ";\nstatic_assert(sizeof(ForwardParams) == ", params_bytes, " && ", fits,
                ");\ntemplate __global__ void ", c.is_decode() ? "decode" : "forward",
                "_kernel<kConfig>(const __grid_constant__ ForwardParams);\n");
}

}  // namespace fa3::hopper
