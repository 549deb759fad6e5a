// SPDX-License-Identifier: Apache-2.0
//
// The table of one instruction set's kernels, and the probe of its multiply-add rate. A source that
// defines FA3_ISA and includes this file has the kernels: CMake writes those of all but AMX.
#pragma once

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/simd/backward/gradient_products.h"
#include "engine/cpu/simd/forward/attend_block.h"
#include "engine/cpu/simd/forward/attend_rows.h"
#include "engine/cpu/simd/forward/write_rows.h"

namespace fa3::cpu::FA3_ISA {

// As many independent accumulators as the micro-kernel has; factors that keep them finite.
template <class Format>
static double multiply_add(int64_t repeats) {
  constexpr int kAccumulators = kRowsPerGroup * kPanelVectors;
  V acc[kAccumulators];
  FA3_UNROLL
  for (int i = 0; i < kAccumulators; ++i) acc[i] = V{} + static_cast<float>(i);
  V a = broadcast(1.0e-3f);
  V b = broadcast(1.0e-3f);
  for (int64_t n = 0; n < repeats; ++n) {
    // The compiler must not see that a and b stay the same.
    asm volatile("" : "+m"(a), "+m"(b));
    for (int inner = 0; inner < 64; ++inner) {
      FA3_UNROLL
      for (int i = 0; i < kAccumulators; ++i) acc[i] = Format::multiply_add(acc[i], a, b);
    }
  }
  V sum = {};
  FA3_UNROLL
  for (int i = 0; i < kAccumulators; ++i) sum += acc[i];
  asm volatile("" : : "m"(sum));
  return 2.0 * Format::kStep * kWidth * kAccumulators * 64.0 * static_cast<double>(repeats);
}

// Bf16: what multiplies bfloat16 in the forward (vector/multiply.h). An instruction set that has
// more changes the rest.
template <class Bf16>
static constexpr Kernels table_of(const char* name) {
  return {
      .name = name,
      .bf16_products = nullptr,
      .group_shape = {kVectorGroup, kVectorGroup, kVectorGroup, kVectorGroup},
      .attend_block = {attend_block<Floats<float>>, attend_block<Floats<Float16>>,
                       attend_block<Bf16>, attend_block<Dequantized>},
      .pack_tile = {pack_tile<Floats<float>>, pack_tile<Floats<Float16>>, pack_tile<Bf16>,
                    pack_tile<Dequantized>},
      .attend_rows = {attend_rows<float>, attend_rows<Float16>, attend_rows<BFloat16>,
                      attend_dequantized_rows},
      .load_row = {load_row<float>, load_row<Float16>, load_row<BFloat16>, load_row<Float8>},
      .write_rows = {write_rows<float>, write_rows<Float16>, write_rows<BFloat16>},
      .gradients = kFloatGradients,
      .bf16_gradients = nullptr,
      .store_gradient = {store_gradient<float>, store_gradient<Float16>, store_gradient<BFloat16>},
      .dot_rows = {dot_rows<float>, dot_rows<Float16>, dot_rows<BFloat16>},
      .exp2 = exp2_in_place,
      .multiply_add = {multiply_add<Floats<float>>, multiply_add<Floats<float>>,
                       multiply_add<Bf16>},
  };
}

#define FA3_WORD(x) #x
#define FA3_NAME(isa) FA3_WORD(isa)

#if !defined(FA3_TILES)  // whose table stands in kernels_amx.cpp
constexpr Kernels kKernels = [] {
#if defined(FA3_PAIRS)
  Kernels table = table_of<Bf16Pairs>(FA3_NAME(FA3_ISA));
#if defined(FA3_NEON)
  table.bf16_products = "bfdot";
#else
  table.bf16_products = "vdpbf16ps";
#endif
  table.bf16_gradients = &kPairGradients;
  return table;
#else
  return table_of<Floats<BFloat16>>(FA3_NAME(FA3_ISA));
#endif
}();
#endif

}  // namespace fa3::cpu::FA3_ISA
