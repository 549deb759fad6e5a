// SPDX-License-Identifier: Apache-2.0
//
// exp(logit - lse). Equal logits weigh 1, infinite ones too: what is +inf takes the whole row.
#pragma once

#include <cmath>

namespace fa3::cpu {

template <class Float>
inline Float exp_difference(Float logit, Float lse) {
  return logit == lse ? Float{1} : std::exp(logit - lse);
}

}  // namespace fa3::cpu
