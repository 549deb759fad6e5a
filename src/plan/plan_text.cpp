// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_text.h"

#include "core/error.h"

namespace fa3 {

std::string plan_text(const Plan& plan) {
  std::string text = concat("engine ", plan.engine, "\nkernel ", plan.kernel, "\n");
  if (plan.block_q > 0) {
    text += concat("tile ", plan.block_q, " query rows x ", plan.block_k, " keys\n");
  }
  if (plan.packed_heads > 1) text += concat("PackGQA heads ", plan.packed_heads, "\n");
  if (plan.num_splits > 0) {
    text += concat("splits ", plan.num_splits, "\n");
  } else {
    text += "splits by length\n";
  }
  text += concat("tasks ", plan.num_tasks, "\nthreads ", plan.num_threads, "\nworkspace ",
                 plan.workspace_bytes, " bytes\nwhy ", plan.why, "\n");
  return text;
}

}  // namespace fa3
