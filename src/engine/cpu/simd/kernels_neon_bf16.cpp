// SPDX-License-Identifier: Apache-2.0
//
// The kernels for Arm with bfloat16 dot products (bfdot).
#define FA3_ISA neon_bf16
#define FA3_NEON
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace neon_bf16;
constexpr Kernels kTable = {
    .name = "neon_bf16",
    .bf16_products = "bfdot",
    .group_shape = {kVectorGroup, kVectorGroup, kVectorGroup, kVectorGroup},
    .attend_block = {attend_block<Floats<float>>, attend_block<Floats<Float16>>,
                     attend_block<Bf16Pairs>, attend_block<Dequantized>},
    .pack_tile = {pack_tile<Floats<float>>, pack_tile<Floats<Float16>>, pack_tile<Bf16Pairs>,
                  pack_tile<Dequantized>},
    .attend_rows = {attend_rows<float>, attend_rows<Float16>, attend_rows<BFloat16>,
                    attend_dequantized_rows},
    .load_row = {load_row<float>, load_row<Float16>, load_row<BFloat16>, load_row<Float8>},
    .write_rows = {write_rows<float>, write_rows<Float16>, write_rows<BFloat16>},
    .gradients = kFloatGradients,
    .bf16_gradients = &kPairGradients,
    .store_gradient = {store_gradient<float>, store_gradient<Float16>, store_gradient<BFloat16>},
    .dot_rows = {dot_rows<float>, dot_rows<Float16>, dot_rows<BFloat16>},
    .exp2 = exp2_in_place,
    .multiply_add = {multiply_add<Floats<float>>, multiply_add<Floats<float>>,
                     multiply_add<Bf16Pairs>},
};
}  // namespace

const Kernels* const kNeonBf16Kernels = &kTable;

}  // namespace fa3::cpu
