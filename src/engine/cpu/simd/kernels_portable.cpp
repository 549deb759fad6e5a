// SPDX-License-Identifier: Apache-2.0
//
// The kernels for any CPU: 128-bit vectors, which every compiler target has or emulates (SSE2,
// NEON).
#define FA3_ISA portable
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace portable;

constexpr Kernels kTable = table_of<Floats<BFloat16>>("portable");
}  // namespace

const Kernels* const kPortableKernels = &kTable;

}  // namespace fa3::cpu
