// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/forward_call.h"

namespace fa3::hopper {

bool has_whole_copies(const Problem& p) {
  return p.head_dim % kCopyColumns == 0 && p.head_dim_v % kCopyColumns == 0;
}

bool has_other_rows(const Problem& p) {
  return p.o.dtype == DType::float32 || !has_whole_copies(p);
}

bool reads_single_rows(const KeyPlaces& places, const Lengths& keys) {
  return places.paged() && (places.page_size % 2 != 0 || keys.padded_left);
}

Variant variant_of(const Problem& p) {
  if (p.softcap != 0.0f) return Variant::kCapped;
  const MaskRuleOf<int> mask = narrow_mask(p);
  const bool right = mask.right != 0 && mask.right != mask.kUnbounded;
  const bool window = mask.left != mask.kUnbounded || right || mask.chunk != mask.kNoChunks;
  return window || p.has_sink || has_other_rows(p) || is_varlen(p) || p.num_splits > 1
             ? Variant::kGeneral
             : Variant::kDense;
}

Variant variant_of_lists(const Problem& p) {
  return is_varlen(p) ? Variant::kGeneral : Variant::kDense;
}

}  // namespace fa3::hopper
