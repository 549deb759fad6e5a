// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime as launchers need it: a launch runs its CTAs at once, one after the other, on
// the fibres of the protocol model (hopper/machine), a lane each, with instructions that compute
// (numeric/engine/). So one run shows both: what the kernels' own sources compute, and who touches
// shared memory when.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "machine.h"

namespace fa3::machine {

// Makes a kernel known to launches; returns what they are to launch. Buffers: parts of its shared
// memory that are smaller than 1 KB.
const void* add_kernel(const void* function, std::function<void(void*)> call,
                       std::vector<Buffer> buffers);
template <class Params>
const void* add_kernel(void (*kernel)(Params), std::vector<Buffer> buffers = {}) {
  return add_kernel(
      reinterpret_cast<const void*>(kernel),
      [kernel](void* params) { kernel(*static_cast<Params*>(params)); }, std::move(buffers));
}

// How CTAs are run: pace and fault; each has the seed after that of the one before.
extern Setting launch_setting;
// The order of CTAs: the last one first.
extern bool launch_backwards;
// What the model said of the launches since the last call, "" if all went well. The first error
// ends a launch and all after it.
std::string take_launch_error();

}  // namespace fa3::machine
