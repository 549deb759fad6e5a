// SPDX-License-Identifier: Apache-2.0
// The kernels' own headers as text, in the library: NVRTC includes them by these names.
// tools/embed_headers.py writes the source.
#pragma once

#include <span>

namespace fa3::cuda {

struct EmbeddedHeaders {
  std::span<const char* const> names;
  std::span<const char* const> texts;
  const char* hash;  // of all of them
};

// The headers that kernels of the Hopper engine include.
EmbeddedHeaders hopper_headers();
EmbeddedHeaders ampere_headers();  // and of the ampere engine

}  // namespace fa3::cuda
