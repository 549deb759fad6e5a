// SPDX-License-Identifier: Apache-2.0
// Wave quantization of the backward: where all key blocks take equally long, a last wave of few
// takes as long as one that fills the SMs; where there are few in all, the longest one's time is
// the call's. Their steps are split over all SMs instead, as stream-K does with the last tiles of a
// product (Osama et al., arXiv 2301.03598, section 4).
#pragma once

#include "engine/hopper/plan/backward/backward_plan.h"

namespace fa3::hopper {

// The number of splits of all key blocks' steps, where these are a wave or two at most; 1: they
// stay whole. Of a plan whose kernel, call and blocks are known. Causal groups: backward_plan.cpp.
int splits_of_few(const BackwardPlan& plan, int num_sms);

// How many clusters' key blocks a last wave has whose steps are better split; 0: none. Of a plan
// whose kernel, call and blocks are known.
int64_t clusters_in_last_wave(const BackwardPlan& plan, int num_sms);

// Those, as the last keys of the last heads; none where the order's last section, which they come
// from, is not of one batch entry. Of a plan that has an order too.
LastWave last_wave_of(const BackwardPlan& plan, int64_t clusters, int num_sms);

// The launch for the key blocks of plan.last_wave: a plan of their keys, with all queries of the
// heads that share them. Its arrays lie in the workspace of `plan`.
BackwardPlan plan_of_last_wave(const BackwardPlan& plan);

}  // namespace fa3::hopper
