// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fa3::cpu {

// Whether the CPU has AMX tiles with bfloat16 products and the system lets this process use them.
// It has to be asked, because every thread that does needs 8 KiB more to be saved in.
bool may_use_tiles();

}  // namespace fa3::cpu
