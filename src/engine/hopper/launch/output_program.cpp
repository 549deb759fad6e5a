// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/launch/score_program.h"

#include <cuda_runtime_api.h>

#include "engine/hopper/forward_params.h"
#include "engine/hopper/launch/kernel_text.h"

namespace fa3::hopper {

cuda::Program output_program(const Kernel& c) {
  return {.text = concat(includes_of(c), "namespace fa3::hopper {\n",
                         instance_of(c, sizeof(ForwardParams)), "}\n"),
          .architecture = kArchitecture,
          .options = {"-std=c++20", "-default-device"},
          .headers = cuda::hopper_headers(),
          .what = "kernel with gate or max_logit"};
}

cuda::ProgramKey output_key(const Kernel& c) {
  cuda::ProgramKey key;
  key.add("hopper outputs");
  cuda::for_each_number(c, [&](int64_t number) { key.add(number); });
  return key;
}

}  // namespace fa3::hopper
