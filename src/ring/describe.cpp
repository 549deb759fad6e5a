// SPDX-License-Identifier: Apache-2.0
#include "ring/describe.h"

#include <algorithm>

#include "api/describe/describe.h"
#include "api/describe/rules/tensor_rules.h"
#include "core/error.h"
#include "core/macros.h"

namespace fa3::ring {
namespace {

using api::Named;
using api::present;

Status check_options(const fa3_options& o) {
  for (const Named& lengths :
       {Named{"cu_seqlens_q", o.cu_seqlens_q}, Named{"cu_seqlens_k", o.cu_seqlens_k},
        Named{"seqused_q", o.seqused_q}, Named{"seqused_k", o.seqused_k},
        Named{"block_mask", o.block_mask}}) {
    if (present(lengths.tensor)) {
      return unsupported(lengths.name,
                         ": expected none in a ring, which has a causal mask or a window, and "
                         "documents by ring.cu_seqlens");
    }
  }
  if (o.dropout_p != 0) {
    return unsupported("dropout_p: expected 0 in a ring, got ", o.dropout_p);
  }
  if (o.attention_chunk != 0) {
    return unsupported("attention_chunk: expected 0 in a ring, got ", o.attention_chunk);
  }
  if (o.window_shift != 0) {
    return unsupported("window_shift: expected 0 in a ring, which moves windows itself, got ",
                       o.window_shift);
  }
  if (o.score != nullptr) return unsupported("score: expected none in a ring");
  return {};
}

// Rows of a sequence follow one another without gaps, so that they travel as they are.
Status check_rows_are_neighbours(Named named) {
  const fa3_tensor& t = named.tensor;
  const int64_t dim = t.shape[3], row = t.shape[2] * dim;
  const bool apart =
      (t.shape[2] > 1 && t.stride[2] != dim) || (t.shape[1] > 1 && t.stride[1] != row);
  if (!apart) return {};
  return invalid(named.name,
                 ": expected (batch, seq, heads, dim) memory, whose rows are sent as "
                 "they are, strides (any, ",
                 row, ", ", dim, ", 1), got (", t.stride[0], ", ", t.stride[1], ", ", t.stride[2],
                 ", ", t.stride[3], "); make it contiguous");
}

template <class Params>
Status describe_common(const Params& p, const fa3_ring& ring, const Communicator& comm,
                       Whole* whole) {
  FA3_TRY(check_ring(ring, comm.world()));
  FA3_TRY(check_options(p.options));
  if (is_float8(static_cast<DType>(p.k.dtype))) {
    return unsupported("k: expected 16 or 32 bits in a ring, got ",
                       name_of(static_cast<DType>(p.k.dtype)));
  }
  *whole = whole_of(ring, comm.world());
  whole->mask = {p.options.window_left, p.options.window_right};
  if (p.options.causal != 0) whole->mask.right = 0;
  if (whole->is_packed && p.q.shape[0] != 1) {
    return invalid("q: expected a batch of 1 with ring.cu_seqlens, got ", p.q.shape[0]);
  }
  const int64_t rows = num_rows(*whole, comm.rank());
  for (const Named& of : {Named{"q", p.q}, Named{"k", p.k}}) {
    if (of.tensor.shape[1] != rows) {
      return invalid(of.name, ": expected ", rows, " rows, those of rank ", comm.rank(), " of ",
                     comm.world(), " of ring.seqlen = ", ring.seqlen,
                     " (fa3_ring_pieces has them), got ", of.tensor.shape[1]);
    }
  }
  for (const Named& of : {Named{"k", p.k}, Named{"v", p.v}}) FA3_TRY(check_rows_are_neighbours(of));
  if (p.q.device_type == FA3_CPU && !comm.moves_host_memory()) {
    return invalid("q: expected a tensor of a GPU, whose memory NCCL moves, got one of the CPU");
  }
  if (p.q.device_type != FA3_CPU && p.q.device_index != comm.device()) {
    return invalid("ring.comm: expected a communicator of cuda:", p.q.device_index,
                   ", where the tensors are, got one of cuda:", comm.device());
  }
  return {};
}

api::Purpose purpose_of(bool is_call) {
  return is_call ? api::Purpose::call : api::Purpose::query;
}

}  // namespace

Status check_ring(const fa3_ring& ring, int32_t world) {
  if (ring.layout < FA3_RING_ZIGZAG || ring.layout > FA3_RING_BY_DOCUMENT) {
    return invalid("ring.layout: expected an fa3_ring_layout, got ", ring.layout);
  }
  constexpr int64_t kMost = int64_t{1} << 30;  // that a window_shift reaches
  if (ring.seqlen < 0 || ring.seqlen > kMost) {
    return invalid("ring.seqlen: expected the rows of the whole sequence, 0 to 2^30, got ",
                   ring.seqlen);
  }
  if (world < 1) return invalid("world: expected at least one rank, got ", world);
  if (ring.num_documents == 0) return {};
  if (ring.num_documents < 0 || ring.cu_seqlens == nullptr) {
    return invalid("ring.cu_seqlens: expected num_documents + 1 numbers in host memory, got ",
                   ring.cu_seqlens == nullptr ? "null" : "an address",
                   " with num_documents = ", ring.num_documents);
  }
  const int32_t* const cu = ring.cu_seqlens;
  const int32_t* const last = cu + ring.num_documents;
  if (*cu != 0 || *last != ring.seqlen || !std::is_sorted(cu, last + 1)) {
    return invalid(
        "ring.cu_seqlens: expected numbers from 0 to ring.seqlen that do not decrease, got ", *cu,
        " to ", *last, " with ring.seqlen = ", ring.seqlen);
  }
  return {};
}

Whole whole_of(const fa3_ring& ring, int32_t world) {
  Whole whole = {.layout = ring.layout, .world = world, .is_packed = ring.num_documents > 0};
  if (!whole.is_packed) whole.lengths = {ring.seqlen};
  for (int32_t i = 0; i < ring.num_documents; ++i) {
    whole.lengths.push_back(ring.cu_seqlens[i + 1] - ring.cu_seqlens[i]);
  }
  return whole;
}

Status describe(const fa3_forward_params& p, const fa3_ring& ring, const Communicator& comm,
                bool is_call, Whole* whole) {
  Problem problem;
  FA3_TRY(api::describe(p, purpose_of(is_call), &problem));
  for (const Named& of : {Named{"page_table", p.page_table}, Named{"batch_index", p.batch_index},
                          Named{"left_padding", p.left_padding}, Named{"o_partial", p.o_partial},
                          Named{"gate", p.gate}, Named{"max_logit", p.max_logit}}) {
    if (present(of.tensor)) return unsupported(of.name, ": expected none in a ring");
  }
  return describe_common(p, ring, comm, whole);
}

Status describe(const fa3_backward_params& p, const fa3_ring& ring, const Communicator& comm,
                bool is_call, Whole* whole) {
  BackwardProblem problem;
  FA3_TRY(api::describe(p, purpose_of(is_call), &problem));
  for (const Named& of : {Named{"dq", p.dq}, Named{"dk", p.dk}, Named{"dv", p.dv}}) {
    if (of.tensor.dtype != FA3_FLOAT32) {
      return invalid(of.name,
                     ": expected float32 in a ring, where parts are added, got another "
                     "type; round the sum");
    }
  }
  for (const Named& of : {Named{"dk", p.dk}, Named{"dv", p.dv}}) {
    FA3_TRY(check_rows_are_neighbours(of));
  }
  if (present(p.gate)) return unsupported("gate: expected none in a ring");
  if (p.accumulate_dq != 0 || p.accumulate_dkv != 0) {
    return unsupported("accumulate_dq, accumulate_dkv: expected 0 in a ring, which adds itself");
  }
  return describe_common(p, ring, comm, whole);
}

}  // namespace fa3::ring
