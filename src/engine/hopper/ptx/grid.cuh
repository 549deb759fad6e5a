// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (PTX ISA, "griddepcontrol"): the next kernel of a stream starts
// while this one still runs, and waits where it first needs this one's results.
#pragma once

namespace fa3::hopper::ptx {

// The next kernel may start once every CTA of this one has said so or is gone.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the kernel before has finished, its stores visible.
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace fa3::hopper::ptx
