// SPDX-License-Identifier: Apache-2.0
// Lists of a block mask that were made before a call: what they were made for, as numbers that are
// compared. All that they follow from is known on the host, but for what the mask's arrays hold.
#pragma once

#include "api/describe/describe.h"

namespace fa3::api {

// Who walks lists. The numbers are those of fa3_block_lists; 0 is what nobody wrote.
enum class ListedPass : int64_t { forward = 1, backward = 2, deterministic_backward = 3 };

inline ListedPass listed_pass(const Problem&) {
  return ListedPass::forward;
}
inline ListedPass listed_pass(const BackwardProblem& problem) {
  return problem.deterministic ? ListedPass::deterministic_backward : ListedPass::backward;
}

// Lists of this problem, wherever they are.
fa3_block_lists lists_of(const Problem& problem, ListedPass pass, void* data);

// Into problem->block_lists; refuses those of another problem. Questions bring no addresses.
Status describe_block_lists(const fa3_options& options, ListedPass pass, Purpose purpose,
                            Problem* problem);

}  // namespace fa3::api
