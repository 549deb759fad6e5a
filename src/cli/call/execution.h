// SPDX-License-Identifier: Apache-2.0
//
// A call where its engine computes: CPU engines on the operands themselves, hopper on copies in
// device memory. Commands hold host tensors and need not know. Next: gpu.h.
#pragma once

#include <fa3/attention.h>

#include <memory>

#include "cli/call/operands.h"

namespace fa3::cli {

// The memory that an engine takes. Automatic choice is among engines for host memory: what a
// command reads or fills lies there, and only an engine asked for by name moves it.
Device device_of(int32_t engine);

// The call as a question: its shapes in the memory that the engine takes, without addresses.
ForwardArgs forward_question(const Operands& operands, const fa3_options& options);
BackwardArgs backward_question(const Operands& operands, const fa3_options& options);

class Execution {
 public:
  // `operands` must outlive this. Throws CommandError where the engine's memory cannot be had.
  Execution(Operands* operands, const fa3_options& options);
  ~Execution();

  // Seconds of one call: wall time on the CPU, the device's clock and a cold cache on the GPU. The
  // workspace grows before. Backward reads what forward wrote.
  double forward();
  double backward();
  // Brings the outputs into `operands`; until then device results are not there.
  void fetch();

 private:
  struct OnDevice;

  Operands* operands_;
  fa3_options options_;
  Workspace workspace_;                  // of CPU engines
  std::unique_ptr<OnDevice> on_device_;  // null for CPU engines
};

}  // namespace fa3::cli
