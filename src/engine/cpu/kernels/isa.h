// SPDX-License-Identifier: Apache-2.0
//
// Which instruction set runs. The best that the CPU and the operating system offer, unless the
// environment variable FA3_CPU_ISA names a lower one (a higher one is ignored): portable, and on
// x86-64 avx2, avx512, avx512_bf16 or amx, on Arm neon or neon_bf16. It is read once, at the first
// use.
#pragma once

#include <string_view>

#include "core/dtype.h"
#include "engine/cpu/kernels/kernels.h"

namespace fa3::cpu {

// The kernels in use.
const Kernels& kernels();
// Their name, e.g. "avx512".
const char* isa_name();

// The kernels of that name, or null if they cannot run here.
const Kernels* find_kernels(std::string_view name);

// The table's index for attention data of this type.
constexpr int kernel_index(DType dtype) {
  return dtype == DType::float8_e5m2 ? 3 : static_cast<int>(dtype);
}
static_assert(kernel_index(DType::float32) == 0 && kernel_index(DType::float16) == 1 &&
              kernel_index(DType::bfloat16) == 2 && kernel_index(DType::float8_e4m3) == 3);

}  // namespace fa3::cpu
