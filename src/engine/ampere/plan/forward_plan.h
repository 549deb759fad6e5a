// SPDX-License-Identifier: Apache-2.0
// What a forward call does on the GPU, decided in full: launch/ encodes it and queues it. A plan
// does not change once it is made. Next: plan_forward.cpp, launch_forward.cpp.
#pragma once

#include "engine/ampere/instances/forward_entry.h"
#include "engine/ampere/tile_schedule.h"
#include "engine/cuda/host/forward_call.h"

namespace fa3::ampere {

using cuda::ForwardCall;

struct ForwardPlan {
  ForwardKernel kernel;
  ForwardCall call;
  TileSchedule schedule;
  int64_t num_tiles = 0;     // numbers of tiles, those of CTAs that have none too
  int64_t num_launches = 1;  // each of kMaxColumnsV columns of V and O
  int q_width = 0, k_width = 0, v_width = 0, o_width = 0;  // bytes of a copy, or store

  bool has_work() const { return num_tiles > 0; }
};

ForwardPlan plan_launch(const ForwardKernel& kernel, const ForwardCall& call, PackGqa pack,
                        int num_sms);

}  // namespace fa3::ampere
