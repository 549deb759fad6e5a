// SPDX-License-Identifier: Apache-2.0
// CUDA text becomes machine code while the program runs: by libnvrtc, which is looked for when it
// is first needed. It comes with the CUDA toolkit, and with every torch. Next: kernel_cache.h.
#pragma once

#include <fa3/status.h>

#include <span>
#include <string>
#include <vector>

namespace fa3::cuda {

// The kernels' own headers as text, in the library: NVRTC includes them by these names.
// tools/embed_headers.py writes the source.
struct EmbeddedHeaders {
  std::span<const char* const> names;
  std::span<const char* const> texts;
  const char* hash;  // of all of them
};

// The headers that kernels of the Hopper engine include.
EmbeddedHeaders hopper_headers();
EmbeddedHeaders ampere_headers();  // and of the ampere engine

struct Program {
  std::string text;
  std::string architecture;  // "sm_90a"
  std::vector<std::string> options;
  EmbeddedHeaders headers;
  const char* what = "score function";  // needs it, in errors
};

// The machine code. `library`: the path of libnvrtc, or null: FA3_NVRTC of the environment, the
// loader's search path and the toolkit's usual place. A text that does not compile is the caller's
// mistake: INVALID_ARGUMENT, with what the compiler says.
Status compile(const Program& program, const char* library, std::string* code);

}  // namespace fa3::cuda
