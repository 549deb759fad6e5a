// SPDX-License-Identifier: Apache-2.0
//
// The kernels for NEON, which every 64-bit Arm CPU has.
#define FA3_ISA neon
#define FA3_NEON
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace neon;
constexpr Kernels kTable = {
    .name = "neon",
    .bf16_products = nullptr,
    .group_shape = {kVectorGroup, kVectorGroup, kVectorGroup, kVectorGroup},
    .attend_block = {attend_block<Floats<float>>, attend_block<Floats<Float16>>,
                     attend_block<Floats<BFloat16>>, attend_block<Dequantized>},
    .pack_tile = {pack_tile<Floats<float>>, pack_tile<Floats<Float16>>, pack_tile<Floats<BFloat16>>,
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
                     multiply_add<Floats<float>>},
};
}  // namespace

const Kernels* const kNeonKernels = &kTable;

}  // namespace fa3::cpu
