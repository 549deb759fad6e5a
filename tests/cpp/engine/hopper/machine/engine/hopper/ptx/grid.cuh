// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test, which knows one kernel alone.
#pragma once

namespace fa3::hopper::ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

}  // namespace fa3::hopper::ptx
