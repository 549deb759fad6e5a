// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of ring.h.
#include <fa3/ring.h>

#include <algorithm>
#include <vector>

#include "api/boundary.h"
#include "core/error.h"
#include "core/macros.h"
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

Status write_pieces(const fa3_ring& ring, int32_t world, int32_t rank, fa3_ring_piece* pieces,
                    int64_t* count) {
  FA3_TRY(check_ring(ring, world));
  if (rank < 0 || rank >= world) return invalid("rank: expected [0, ", world, "), got ", rank);
  if (count == nullptr) return invalid("count: expected a place for a number, got null");
  const std::vector<Piece> of = pieces_of(whole_of(ring, world), rank);
  const auto number = static_cast<int64_t>(of.size());
  for (int64_t i = 0; pieces != nullptr && number <= *count && i < number; ++i) {
    const auto& [document, positions, row] = of[size_t(i)];
    pieces[i] = {document, positions.begin, positions.end};
  }
  *count = number;
  return {};
}

Status read_pieces(const char* name, const fa3_ring_piece* given, int64_t count,
                   std::vector<Piece>* pieces) {
  if (count < 0 || (given == nullptr && count > 0)) {
    return invalid(name, ": expected ", count, " pieces, got none");
  }
  int64_t row = 0;
  for (int64_t i = 0; i < count; ++i) {
    const fa3_ring_piece& of = given[i];
    const bool is_piece = 0 <= of.begin && of.begin < of.end && of.end <= kFar - row;
    if (!is_piece || (i > 0 && of.document < given[i - 1].document)) {
      return invalid(name, ": expected rows begin < end of ascending documents, got [", of.begin,
                     ", ", of.end, ") of document ", of.document, " as piece ", i);
    }
    pieces->push_back({of.document, {of.begin, of.end}, row});
    row += of.end - of.begin;
  }
  return {};
}

Status write_rectangles(const std::vector<Rectangle>& of, fa3_ring_rectangle* found,
                        int64_t* count) {
  const auto number = static_cast<int64_t>(of.size());
  for (int64_t i = 0; found != nullptr && number <= *count && i < number; ++i) {
    const auto& [rows, keys, band, origin] = of[size_t(i)];
    found[i] = {{rows.begin, rows.end}, {keys.begin, keys.end}, band.low,  band.high,
                origin.document,        origin.query,           origin.key};
  }
  *count = number;
  return {};
}

Status read_rectangles(const fa3_ring_rectangle* given, int64_t count,
                       std::vector<Rectangle>* found) {
  for (int64_t i = 0; i < count; ++i) {
    const fa3_ring_rectangle& of = given[i];
    for (const int64_t number : {of.rows[0], of.rows[1], of.keys[0], of.keys[1], of.low, of.high}) {
      if (number < -kFar || number > kFar) {
        return invalid("of: expected rows, keys and bounds of at most 2^60, got ", number,
                       " in rectangle ", i);
      }
    }
    found->push_back({{of.rows[0], of.rows[1]},
                      {of.keys[0], of.keys[1]},
                      {of.low, of.high},
                      {of.document, of.query, of.key}});
  }
  return {};
}

void write_calls(const std::vector<Call>& of, fa3_ring_call* calls, int32_t* lengths) {
  for (const Call& call : of) {
    const auto num_lengths = static_cast<int64_t>(call.cu_rows.size());
    *calls++ = {{call.rows.begin, call.rows.end},
                {call.keys.begin, call.keys.end},
                call.window.left,
                call.window.right,
                call.shift,
                call.origin.document,
                call.origin.query,
                call.origin.key,
                num_lengths};
    lengths = std::ranges::copy(call.cu_rows, lengths).out;
    lengths = std::ranges::copy(call.cu_keys, lengths).out;
  }
}

}  // namespace
}  // namespace fa3::ring

using namespace fa3;

extern "C" {

void fa3_ring_init_sized(fa3_ring* ring, size_t struct_size) {
  api::init_sized(ring, struct_size);
}

fa3_status fa3_ring_pieces(const fa3_ring* ring, int32_t world, int32_t rank,
                           fa3_ring_piece* pieces, int64_t* count) {
  return api::at_boundary([&] {
    return api::with_newest("ring", ring, [&](const fa3_ring& r) {
      return ring::write_pieces(r, world, rank, pieces, count);
    });
  });
}

fa3_status fa3_ring_rectangles(const fa3_ring_piece* rows, int64_t num_rows,
                               const fa3_ring_piece* keys, int64_t num_keys,
                               const int64_t window[2], int64_t step, fa3_ring_rectangle* found,
                               int64_t* count) {
  return api::at_boundary([&]() -> Status {
    if (window == nullptr) return invalid("window: expected two numbers, got null");
    if (count == nullptr) return invalid("count: expected a place for a number, got null");
    if (step < 0) return invalid("step: expected 0 or a number of rows, got ", step);
    std::vector<ring::Piece> of_rows, of_keys;
    FA3_TRY(ring::read_pieces("rows", rows, num_rows, &of_rows));
    FA3_TRY(ring::read_pieces("keys", keys, num_keys, &of_keys));
    const auto side = [](int64_t seen) {
      return 0 <= seen && seen < ring::kFar ? seen : ring::kUnbounded;
    };
    const ring::Mask mask = {side(window[0]), side(window[1])};
    return ring::write_rectangles(ring::rectangles_of(of_rows, of_keys, mask, step), found, count);
  });
}

fa3_status fa3_ring_calls(const fa3_ring_rectangle* of, int64_t count, int32_t join,
                          fa3_ring_call* calls, int64_t* num_calls, int32_t* lengths) {
  return api::at_boundary([&]() -> Status {
    const bool has_room = of != nullptr && calls != nullptr && lengths != nullptr;
    if (count < 0 || (count > 0 && !has_room)) {
      return invalid("of, calls, lengths: expected room for ", count, " rectangles, got null");
    }
    if (num_calls == nullptr) return invalid("num_calls: expected a place for a number, got null");
    if (join < FA3_RING_APART || join > FA3_RING_WHOLE) {
      return invalid("join: expected an fa3_ring_join, got ", join);
    }
    *num_calls = 0;
    if (count == 0) return {};
    std::vector<ring::Rectangle> found;
    FA3_TRY(ring::read_rectangles(of, count, &found));
    const std::vector<ring::Call> made = ring::calls_of(found, static_cast<ring::Join>(join));
    ring::write_calls(made, calls, lengths);
    *num_calls = static_cast<int64_t>(made.size());
    return {};
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
