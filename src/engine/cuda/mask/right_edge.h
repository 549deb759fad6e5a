// SPDX-License-Identifier: Apache-2.0
// The mask policy of a kernel without left windows: which keys of a masked block a row sees.
// Another policy is another struct with these questions: key_window.h. Next: mask.cuh.
#pragma once

#include "core/mask/mask_rule.h"

namespace fa3::cuda {

struct KeyWindow;

// Keys end on the right: at the diagonal, which moves by a key a query, and where the sequence
// ends.
struct RightEdge {
  static constexpr bool kHidesLeft = false;
  static constexpr bool kHidesRight = true;
  int first_end;  // the first query sees the keys below this; the i-th those below first_end + i
  int keys;       // none from here up

  // For queries from q_begin on.
  static FA3_HD constexpr RightEdge of(const MaskRuleOf<int>& mask, int q_begin, int /*q_end*/,
                                       int seqlen_q, int seqlen_k) {
    const bool bounded = mask.right != mask.kUnbounded;
    return {bounded ? q_begin + seqlen_k - seqlen_q + mask.right + 1 : seqlen_k, seqlen_k};
  }

  // For queries that see nothing.
  static FA3_HD constexpr RightEdge of_nothing() { return {0, 0}; }

  // This edge with keys counted from `first_key`.
  FA3_HD constexpr RightEdge from(int first_key) const {
    return {first_end - first_key, keys - first_key};
  }

  FA3_HD constexpr int end_of(int query) const {
    return first_end + query < keys ? first_end + query : keys;
  }
  // Whether some row must not see a key on the left of a block that begins there.
  FA3_HD constexpr bool hides_left(int /*block_begin*/) const { return false; }
};

}  // namespace fa3::cuda
