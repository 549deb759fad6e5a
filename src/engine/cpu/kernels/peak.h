// SPDX-License-Identifier: Apache-2.0
//
// The rate that the forward could reach at best on this machine at this moment: multiply-adds from
// registers, as its kernel for `dtype` uses them (float FMA, or vdpbf16ps where the engine uses
// it).
#pragma once

#include "core/dtype.h"
#include "engine/cpu/kernels/kernels.h"

namespace fa3::cpu {

// Floating-point operations per second of all threads together; one sample of 10 ms.
double measure_peak_flops(DType dtype, int num_threads);
// Like the function above, for given kernels.
double measure_peak_flops(const Kernels& kernels, DType dtype, int num_threads);

}  // namespace fa3::cpu
