// SPDX-License-Identifier: Apache-2.0
//
// What the calls of both passes are given alike: the mask, the keys, the lengths of sequences.
#pragma once

#include <initializer_list>

#include "ring/buffers.h"

namespace fa3::ring {

void set_mask(fa3_options* options, const Call& call);

// The keys of a call, where those of its stage are.
KeysAndValues keys_of_call(const KeysAndValues& of_stage, const Stage& stage, const Call& call);

// The lengths of a call over several sequences, and its tensors as packed ones are: without batch.
void set_lengths(fa3_options* options, const fa3_tensor& q, const Step& step, int32_t* lengths,
                 std::initializer_list<fa3_tensor*> tensors);

}  // namespace fa3::ring
