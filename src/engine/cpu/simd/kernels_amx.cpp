// SPDX-License-Identifier: Apache-2.0
//
// The kernels for CPUs with AMX: those of AVX-512, but bfloat16 is multiplied by tiles.
#define FA3_ISA amx
#define FA3_TILES
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace amx;

void attend_block_on_tiles(const BlockJob& job) {
  configure_tiles();
  attend_block<Bf16Tiles>(job);
  release_tiles();
}

constexpr Kernels kTable = {
    .name = "amx",
    .bf16_products = "AMX tiles",
    .group_shape = {kVectorGroup, kVectorGroup, kTileGroup, kVectorGroup},
    .attend_block = {attend_block<Floats<float>>, attend_block<Floats<Float16>>,
                     attend_block_on_tiles, attend_block<Dequantized>},
    .pack_tile = {pack_tile<Floats<float>>, pack_tile<Floats<Float16>>, pack_tile<Bf16Tiles>,
                  pack_tile<Dequantized>},
    .attend_rows = {attend_rows<float>, attend_rows<Float16>, attend_rows_on_tiles,
                    attend_dequantized_rows},
    .load_row = {load_row<float>, load_row<Float16>, load_row<BFloat16>, load_row<Float8>},
    .write_rows = {write_rows<float>, write_rows<Float16>, write_rows<BFloat16>},
    .gradients = kFloatGradients,
    .bf16_gradients = &kTileGradients,
    .store_gradient = {store_gradient<float>, store_gradient<Float16>, store_gradient<BFloat16>},
    .dot_rows = {dot_rows<float>, dot_rows<Float16>, dot_rows<BFloat16>},
    .exp2 = exp2_in_place,
    .multiply_add = {multiply_add<Floats<float>>, multiply_add<Floats<float>>, multiply_add_tiles},
};
}  // namespace

const Kernels* const kAmxKernels = &kTable;

}  // namespace fa3::cpu
