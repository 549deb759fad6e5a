// SPDX-License-Identifier: Apache-2.0
// From tensors to what plain_kernel.cuh is given, as launch_forward.cpp has it for the library's
// kernels.
#pragma once

#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/plan/forward_call.h"
#include "engine/hopper/tutorial/plain_kernel.cuh"

namespace fa3::hopper {

// What a launch of Forward, a PlainForward, is given. False: the driver refuses the tensors.
template <class Forward>
bool plain_params(const ForwardCall& a, Element element, PlainParams* p) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr auto kQ = Forward::kQ, kKv = Forward::kKv;
  p->output = {.o = row_tensor(a.o), .lse = a.lse};
  p->order = {int(ceil_div(a.q.rows, kQ.rows)), int(a.q.heads), int(a.q.batches), 0};
  p->heads_per_kv_head = a.heads_per_kv_head;
  p->seqlen_q = int(a.q.rows);
  p->seqlen_k = a.seqlen_k;
  p->mask = a.mask;
  p->scale_log2 = float(a.scale * kLog2E);
  p->output.some_rows_see_no_key = a.mask.keys_of(0, p->seqlen_q, p->seqlen_k).empty();
  return encode_tensor_map(p->q_map, a.q, element, kQ, kQ.rows) &&
         encode_tensor_map(p->k_map, a.k, element, kKv, kKv.rows) &&
         encode_tensor_map(p->v_map, a.v, element, kKv, kKv.rows);
}

}  // namespace fa3::hopper
