// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of ring.h.
#include <fa3/ring.h>

#include "api/boundary.h"
#include "ring/describe.h"
#include "ring/messages/agree.h"
#include "ring/run.h"

namespace fa3::ring {
namespace {

// Runs body(params, ring) -> Status with both structs as this version has them.
template <class Params, class Body>
fa3_status with_ring(const Params* params, const fa3_ring* ring, Body&& body) {
  return api::with_params(params, [&](const Params& p) {
    return api::with_newest("ring", ring, [&](const fa3_ring& r) { return body(p, r); });
  });
}

template <class Params>
fa3_status size(const Params* params, const fa3_ring* ring, size_t* bytes) {
  return with_ring(params, ring, [&](const Params& p, const fa3_ring& r) -> Status {
    if (bytes == nullptr) return invalid("bytes: expected a place for the size, got null");
    int64_t needed = 0;
    FA3_TRY(workspace_size(p, r, &needed));
    *bytes = static_cast<size_t>(needed);
    return {};
  });
}

template <class Params>
fa3_status call(const Params* params, const fa3_ring* ring, api::Workspace workspace,
                void* stream) {
  return with_ring(params, ring, [&](const Params& p, const fa3_ring& r) {
    return run(p, r, workspace, stream);
  });
}

template <class Params>
fa3_status agree_on(const Params* params, const fa3_ring* ring, api::Workspace workspace,
                    void* stream) {
  return with_ring(params, ring, [&](const Params& p, const fa3_ring& r) {
    return agree(p, r, workspace, stream);
  });
}

Status write_rows(const fa3_ring& ring, int32_t world, int32_t rank, int32_t document,
                  int64_t rows[4]) {
  FA3_TRY(check_ring(ring, world));
  if (rank < 0 || rank >= world) return invalid("rank: expected [0, ", world, "), got ", rank);
  if (rows == nullptr) return invalid("rows: expected a place for four numbers, got null");
  if (document < 0 || document >= std::max(ring.num_documents, 1)) {
    return invalid("document: expected [0, ", std::max(ring.num_documents, 1), "), got ", document);
  }
  Range found[2];
  rows_of_document(whole_of(ring, world), rank, document, found);
  for (size_t i = 0; i < 2; ++i) {
    rows[2 * i] = found[i].begin;
    rows[2 * i + 1] = found[i].end;
  }
  return {};
}

}  // namespace
}  // namespace fa3::ring

using namespace fa3;

extern "C" {

void fa3_ring_init_sized(fa3_ring* ring, size_t struct_size) {
  api::init_sized(ring, struct_size);
}

fa3_status fa3_ring_rows(const fa3_ring* ring, int32_t world, int32_t rank, int32_t document,
                         int64_t rows[4]) {
  return api::at_boundary([&] {
    return api::with_newest("ring", ring, [&](const fa3_ring& r) {
      return ring::write_rows(r, world, rank, document, rows);
    });
  });
}

fa3_status fa3_ring_forward_workspace_size(const fa3_forward_params* params, const fa3_ring* ring,
                                           size_t* bytes) {
  return ring::size(params, ring, bytes);
}

fa3_status fa3_ring_backward_workspace_size(const fa3_backward_params* params, const fa3_ring* ring,
                                            size_t* bytes) {
  return ring::size(params, ring, bytes);
}

fa3_status fa3_ring_forward_agree(const fa3_forward_params* params, const fa3_ring* ring,
                                  void* workspace, size_t workspace_bytes, void* stream) {
  return ring::agree_on(params, ring, {workspace, workspace_bytes}, stream);
}

fa3_status fa3_ring_backward_agree(const fa3_backward_params* params, const fa3_ring* ring,
                                   void* workspace, size_t workspace_bytes, void* stream) {
  return ring::agree_on(params, ring, {workspace, workspace_bytes}, stream);
}

fa3_status fa3_ring_forward(const fa3_forward_params* params, const fa3_ring* ring, void* workspace,
                            size_t workspace_bytes, void* stream) {
  return ring::call(params, ring, {workspace, workspace_bytes}, stream);
}

fa3_status fa3_ring_backward(const fa3_backward_params* params, const fa3_ring* ring,
                             void* workspace, size_t workspace_bytes, void* stream) {
  return ring::call(params, ring, {workspace, workspace_bytes}, stream);
}

}  // extern "C"
