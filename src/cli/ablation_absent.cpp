// SPDX-License-Identifier: Apache-2.0
#include "cli/ablation.h"
#include "cli/exit_code.h"

namespace fa3::cli {

void run_ablation(AblationFlags) {
  throw CommandError(kExitUnsupported,
                     "--ablation: this build has no hopper kernels to compare; they come with "
                     "`make build` from the sources, where CUDA is");
}

}  // namespace fa3::cli
