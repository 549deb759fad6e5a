// SPDX-License-Identifier: Apache-2.0
//
// What the calls of a ring read and write beside the caller's tensors: parts of the workspace, and
// where the keys of other ranks arrive in it. Next: forward_pass.h.
#pragma once

#include "core/workspace.h"
#include "ring/messages/messages.h"
#include "ring/schedule/steps.h"

namespace fa3::ring {

// A (b, rows, h, d) tensor of the workspace.
fa3_tensor tensor_in(WorkspaceAllocator& memory, const fa3_tensor& like, fa3_dtype dtype,
                     int64_t rows, int64_t dim);
// The (b, h, rows) LSE of a q, in float32.
fa3_tensor lse_in(WorkspaceAllocator& memory, const fa3_tensor& q);

struct KeysAndValues {
  fa3_tensor k{}, v{};
};

KeysAndValues first_rows(const KeysAndValues& slot, int64_t count);

// Where keys arrive: two stages' take turns.
struct Arrivals {
  KeysAndValues slot[2];

  KeysAndValues of_stage(const Steps& steps, size_t index, const KeysAndValues& own) const;
};

Arrivals arrivals_in(WorkspaceAllocator& memory, const Steps& steps, const KeysAndValues& own);

// Keys of this rank to whom wants them in stage `index`, and the keys of that stage to here.
Status exchange_keys(const Messages& messages, const Steps& steps, const KeysAndValues& own,
                     size_t index, const KeysAndValues& here);

// Where the lengths of all calls are: in the memory of the tensors, which nobody writes to if it is
// the host's.
int32_t* lengths_in(WorkspaceAllocator& memory, const Steps& steps, const fa3_tensor& q);
// The lengths of all calls get to where those read them.
Status write_lengths(const Messages& messages, const Steps& steps, int32_t* to);

}  // namespace fa3::ring
