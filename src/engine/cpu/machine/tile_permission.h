// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fa3::cpu {

// Whether the CPU has AMX tiles with bfloat16 products and the system lets this process use them.
// The system has to be asked: each thread with tiles needs 8 KiB more of saved state.
bool may_use_tiles();

}  // namespace fa3::cpu
