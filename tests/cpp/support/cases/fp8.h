// SPDX-License-Identifier: Apache-2.0
//
// float8 operands of a case: their scales and means, and the float32 case that they stand for.
#pragma once

#include "support/cases/case.h"
#include "support/cases/inputs.h"
#include "support/cases/tensor.h"

namespace fa3::test {

// Scales of a tensor with these heads, in the form that `scales` names; uninitialised.
Tensor make_descale(Scales scales, const Case& c, const Side& side, int64_t heads, Layout layout);
Tensor make_mean(const Case& c, int64_t heads, int64_t dim, Layout layout);

// The views that calls take.
fa3_tensor descale_view(Scales scales, const Tensor& descale);
fa3_tensor mean_view(const Tensor& mean);

// Values as FA3_TRANSPOSED_KEYS has them: (batch, heads, dim, places), with zeros behind the last
// key; the view that calls take of such memory; and the place of a key, from the words of fa3.h.
Tensor transposed_values(const Tensor& v);
fa3_tensor transposed_view(const Tensor& memory, int64_t rows);
int64_t place_of_key(int64_t key);

// The scale of a row of sequence b.
float scale_at(Scales scales, const Tensor& descale, int64_t b, int64_t row, int64_t head);

// Random scales and means for the case's float8 operands, NaN where no row uses them; the operands
// themselves are random already.
void add_quantization(const Case& c, Inputs* inputs);

// The case with float32 operands; the case itself where nothing is float8.
Case dequantized(const Case& c);
Inputs dequantized(const Case& c, const Inputs& inputs);

}  // namespace fa3::test
