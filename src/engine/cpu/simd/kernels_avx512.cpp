// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 (F, BW, DQ, VL).
#define FA3_ISA avx512
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace avx512;
constexpr Kernels kTable = {
    .name = "avx512",
    .has_bf16_products = false,
    .attend_block = {attend_block<Floats<float>>, attend_block<Floats<Float16>>,
                     attend_block<Floats<BFloat16>>, attend_block<Dequantized>},
    .attend_rows = {attend_rows<float>, attend_rows<Float16>, attend_rows<BFloat16>,
                    attend_dequantized_rows},
    .write_rows = {write_rows<float>, write_rows<Float16>, write_rows<BFloat16>},
    .add_gradients = add_gradients,
    .load_rows = {load_rows<float>, load_rows<Float16>, load_rows<BFloat16>, load_rows<Float8>},
    .load_panels = {load_panels<float>, load_panels<Float16>, load_panels<BFloat16>},
    .store_gradient = {store_gradient<float>, store_gradient<Float16>, store_gradient<BFloat16>},
    .dot_rows = {dot_rows<float>, dot_rows<Float16>, dot_rows<BFloat16>},
    .exp2 = exp2_in_place,
    .multiply_add = {multiply_add<Floats<float>>, multiply_add<Floats<float>>,
                     multiply_add<Floats<float>>},
};
}  // namespace

const Kernels* const kAvx512Kernels = &kTable;

}  // namespace fa3::cpu
