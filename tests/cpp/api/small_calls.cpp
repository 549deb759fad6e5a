// SPDX-License-Identifier: Apache-2.0
#include "api/small_calls.h"

#include <fa3/fp8.h>
#include <fa3/mla.h>
#include <fa3/ring.h>
#include <fa3/tensor.h>

#include <cstddef>
#include <memory>

#include "ring/fake_nccl.h"

namespace fa3::test {
namespace {

constexpr int64_t kBatch = 2, kRows = 70, kHeads = 4, kKvHeads = 2, kDim = 16;
constexpr int64_t kElements = kBatch * kRows * kHeads * kDim;

// Memory for a forward and the backward that follows it.
struct Memory {
  std::vector<float> q, k, v, o, lse, d_o, dq, dk, dv;
  std::vector<int32_t> starts = {0, 31, kBatch* kRows};
  alignas(256) std::byte workspace[4 << 20];

  Memory() {
    unsigned seed = 1;
    for (std::vector<float>* inputs : {&q, &k, &v, &d_o}) {
      for (int64_t i = 0; i < kElements; ++i) {
        seed = seed * 1664525u + 1013904223u;
        inputs->push_back(static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f);
      }
    }
    for (std::vector<float>* outputs : {&o, &dq, &dk, &dv}) outputs->resize(kElements);
    lse.resize(kBatch * kHeads * kRows);
  }
  std::vector<float> results() const {
    std::vector<float> all;
    for (const std::vector<float>* part : {&o, &lse, &dq, &dk, &dv}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }
};

fa3_tensor rows(std::vector<float>& data, int64_t heads, bool packed) {
  fa3_tensor view = bshd(data.data(), FA3_FLOAT32, kBatch, kRows, heads, kDim);
  if (packed)
    view = {data.data(),
            FA3_FLOAT32,
            FA3_CPU,
            0,
            3,
            {kBatch * kRows, heads, kDim},
            {heads * kDim, kDim, 1}};
  return view;
}

void set_options(fa3_options* options, fa3_engine_id engine, Memory& m, bool packed) {
  options->engine = engine;
  options->causal = 1;
  options->num_threads = 3;
  if (packed) {
    options->dropout_p = 0.2f;
    options->cu_seqlens_q =
        options->cu_seqlens_k = {m.starts.data(), FA3_INT32, FA3_CPU, 0, 1, {kBatch + 1}, {1}};
  }
}

fa3_forward_params forward_of(Memory& m, fa3_engine_id engine, bool packed) {
  fa3_forward_params p;
  fa3_forward_params_init(&p);
  set_options(&p.options, engine, m, packed);
  p.q = rows(m.q, kHeads, packed);
  p.k = rows(m.k, kKvHeads, packed);
  p.v = rows(m.v, kKvHeads, packed);
  p.o = rows(m.o, kHeads, packed);
  p.lse = packed
              ? fa3_tensor{m.lse.data(),       FA3_FLOAT32, FA3_CPU, 0, 2, {kHeads, kBatch * kRows},
                           {kBatch * kRows, 1}}
              : fa3_tensor{m.lse.data(),
                           FA3_FLOAT32,
                           FA3_CPU,
                           0,
                           3,
                           {kBatch, kHeads, kRows},
                           {kHeads * kRows, kRows, 1}};
  return p;
}

fa3_backward_params backward_of(Memory& m, fa3_engine_id engine, bool packed) {
  const fa3_forward_params from = forward_of(m, engine, packed);
  fa3_backward_params p;
  fa3_backward_params_init(&p);
  p.options = from.options;
  p.q = from.q;
  p.k = from.k;
  p.v = from.v;
  p.o = from.o;
  p.lse = from.lse;
  p.d_o = rows(m.d_o, kHeads, packed);
  p.dq = rows(m.dq, kHeads, packed);
  p.dk = rows(m.dk, kKvHeads, packed);
  p.dv = rows(m.dv, kKvHeads, packed);
  return p;
}

fa3_status merge(Memory& m) {
  fa3_merge_params p;
  fa3_merge_params_init(&p);
  constexpr int64_t kPart = kElements / 2, kDimV = kDim;
  p.o_partial = {m.q.data(),
                 FA3_FLOAT32,
                 FA3_CPU,
                 0,
                 5,
                 {2, 1, kRows, kHeads, kDimV},
                 {kPart, kPart, kHeads * kDimV, kDimV, 1}};
  p.lse_partial = {m.k.data(),
                   FA3_FLOAT32,
                   FA3_CPU,
                   0,
                   4,
                   {2, 1, kHeads, kRows},
                   {kHeads * kRows, kHeads * kRows, kRows, 1}};
  p.o = {m.o.data(),
         FA3_FLOAT32,
         FA3_CPU,
         0,
         4,
         {1, kRows, kHeads, kDimV},
         {kPart, kHeads * kDimV, kDimV, 1}};
  p.num_threads = 3;
  return fa3_merge(&p, nullptr);
}

// Writes rows of 656 bytes, attends to some of them, and reads them back.
fa3_status mla(Memory& m) {
  static constexpr int32_t kSlots[] = {2, 0, 3, -1};
  constexpr int64_t kRow = 656, kTokens = 4, kQueries = 2, kMlaHeads = 3;
  const fa3_tensor slots = contiguous(kSlots, FA3_INT32, {kTokens});
  const fa3_mla_cache cache{.rows = contiguous(m.k.data(), FA3_FLOAT8_E4M3, {2, 2, kRow})};
  fa3_mla_append_params a;
  fa3_mla_append_params_init(&a);
  a.cache = cache;
  a.c_kv = contiguous(m.q.data(), FA3_FLOAT32, {kTokens, 512});
  a.k_pe = contiguous(m.v.data(), FA3_FLOAT32, {kTokens, 64});
  a.slots = slots;
  a.num_threads = 3;
  fa3_mla_forward_params f;
  fa3_mla_forward_params_init(&f);
  f.cache = cache;
  f.q = contiguous(m.q.data(), FA3_FLOAT32, {kQueries, kMlaHeads, 576});
  f.indices = contiguous(kSlots, FA3_INT32, {kQueries, 2});
  f.o = contiguous(m.o.data(), FA3_FLOAT32, {kQueries, kMlaHeads, 512});
  f.lse = contiguous(m.lse.data(), FA3_FLOAT32, {kMlaHeads, kQueries});
  f.num_threads = 1;
  fa3_mla_gather_params g;
  fa3_mla_gather_params_init(&g);
  g.cache = cache;
  g.slots = slots;
  g.o = contiguous(m.dq.data(), FA3_FLOAT32, {kTokens, 576});
  fa3_mla_backward_params b;
  fa3_mla_backward_params_init(&b);
  b.q = f.q;
  b.cache = contiguous(m.v.data(), FA3_FLOAT32, {1, 3, 576});
  b.indices = f.indices;
  b.o = b.d_o = f.o;
  b.lse = f.lse;
  b.dq = contiguous(m.dq.data(), FA3_FLOAT32, {kQueries, kMlaHeads, 576});
  b.d_cache = contiguous(m.dk.data(), FA3_FLOAT32, {1, 3, 576});
  b.num_threads = 1;  // two need more workspace than there is
  size_t bytes = 0;
  char text[64];
  fa3_status status = fa3_mla_append(&a, nullptr);
  if (status == FA3_OK) status = fa3_mla_forward_supported(&f);
  if (status == FA3_OK) status = fa3_mla_forward_workspace_size(&f, &bytes);
  if (status == FA3_OK) status = fa3_mla_forward_plan_text(&f, text, sizeof(text), nullptr);
  if (status == FA3_OK) status = fa3_mla_forward(&f, m.workspace, sizeof(m.workspace), nullptr);
  if (status == FA3_OK) status = fa3_mla_gather(&g, nullptr);
  if (status == FA3_OK) status = fa3_mla_backward_supported(&b);
  if (status == FA3_OK) status = fa3_mla_backward_workspace_size(&b, &bytes);
  if (status == FA3_OK) status = fa3_mla_backward_plan_text(&b, text, sizeof(text), nullptr);
  if (status == FA3_OK) status = fa3_mla_backward(&b, m.workspace, sizeof(m.workspace), nullptr);
  return status;
}

// Both passes with the workspace that the memory has.
fa3_status both_passes(Memory& m, fa3_engine_id engine, bool packed) {
  const fa3_forward_params forward = forward_of(m, engine, packed);
  const fa3_status status = fa3_forward(&forward, m.workspace, sizeof(m.workspace), nullptr);
  if (status != FA3_OK) return status;
  const fa3_backward_params backward = backward_of(m, engine, packed);
  return fa3_backward(&backward, m.workspace, sizeof(m.workspace), nullptr);
}

fa3_status forward_with_allocator(Memory& m) {
  const fa3_backward_params p = backward_of(m, FA3_ENGINE_AUTO, false);
  const auto lend = [](void* memory, size_t bytes) -> void* {
    return bytes <= sizeof(Memory::workspace) ? static_cast<Memory*>(memory)->workspace : nullptr;
  };
  return fa3_backward_with_allocator(&p, lend, &m, nullptr);
}

fa3_status questions(Memory& m) {
  const fa3_forward_params p = forward_of(m, FA3_ENGINE_AUTO, false);
  const fa3_backward_params b = backward_of(m, FA3_ENGINE_AUTO, true);
  size_t bytes = 0;
  char text[64];
  fa3_engine_info info;
  fa3_answer answer;
  fa3_advice advice;
  fa3_status status = fa3_forward_supported(&p);
  if (status == FA3_OK) status = fa3_forward_advise(&p, &advice);
  if (status == FA3_OK) status = fa3_forward_query(&p, &answer);
  if (status == FA3_OK) status = fa3_backward_query(&b, &answer);
  if (status == FA3_OK) status = fa3_forward_workspace_size(&p, &bytes);
  if (status == FA3_OK) status = fa3_backward_plan_text(&b, text, sizeof(text), nullptr);
  if (status == FA3_OK) status = fa3_engine(0, &info);
  uint8_t keep[2 * 3 * 5 * 7];
  if (status == FA3_OK) status = fa3_dropout_mask(0.5f, 1, 2, 2, 3, 5, 7, keep);
  if (status == FA3_OK) status = fa3_monitor_text(text, sizeof(text), nullptr);
  const int64_t first[] = {1, 2, 3, 4}, extents[] = {2, 3, 5, 7};
  if (status == FA3_OK) status = fa3_dropout_mask_part(0.5f, 1, 2, first, extents, keep);
  return status;
}

// The caller's communicator, of one rank, made before allocations fail. Never destroyed: others
// call while the process ends.
void* communicator() {
  static void** const made = fake_nccl_world(1);
  return *made;
}

// Sequences of a batch as one stream.
template <class... Tensors>
void as_stream(Tensors*... tensors) {
  const auto join = [](fa3_tensor* tensor) {
    const int rows = tensor->rank == 4 ? 1 : 2;
    tensor->shape[0] = 1;
    tensor->shape[rows] = kBatch * kRows;
    for (int dim = 0; dim < rows; ++dim) tensor->stride[dim] *= kBatch;
  };
  (join(tensors), ...);
}

// Both passes of a ring of one rank, over a packed stream.
fa3_status ring(Memory& m) {
  fa3_ring of;
  fa3_ring_init(&of);
  of.comm = communicator();
  of.seqlen = kBatch * kRows;
  of.cu_seqlens = m.starts.data();
  of.num_documents = 2;
  of.library = FA3_FAKE_NCCL;
  fa3_forward_params f = forward_of(m, FA3_ENGINE_AUTO, false);
  fa3_backward_params b = backward_of(m, FA3_ENGINE_AUTO, false);
  as_stream(&f.q, &f.k, &f.v, &f.o, &f.lse);
  as_stream(&b.q, &b.k, &b.v, &b.o, &b.lse, &b.d_o, &b.dq, &b.dk, &b.dv);
  constexpr size_t kBytes = sizeof(m.workspace);
  size_t bytes = 0, more = 0;
  fa3_ring_piece piece = {0, 0, kRows};
  const int64_t window[2] = {-1, 0};
  fa3_ring_rectangle rectangle;
  fa3_ring_call made;
  int64_t pieces = 1, rectangles = 1, calls = 0;
  int32_t lengths[8];
  void* const memory = m.workspace;
  fa3_status status = fa3_ring_pieces(&of, 1, 0, &piece, &pieces);
  const auto then = [&](const auto& call) {
    if (status == FA3_OK) status = call();
  };
  then([&] {
    return fa3_ring_rectangles(&piece, 1, &piece, 1, window, 0, &rectangle, &rectangles);
  });
  then([&] { return fa3_ring_calls(&rectangle, 1, FA3_RING_IN_ORDER, &made, &calls, lengths); });
  then([&] { return fa3_ring_forward_workspace_size(&f, &of, &bytes); });
  then([&] { return fa3_ring_backward_workspace_size(&b, &of, &more); });
  then([&] { return fa3_ring_forward_agree(&f, &of, memory, kBytes, nullptr); });
  then([&] { return fa3_ring_backward_agree(&b, &of, memory, kBytes, nullptr); });
  then([&] { return fa3_ring_forward(&f, &of, memory, kBytes, nullptr); });
  then([&] { return fa3_ring_backward(&b, &of, memory, kBytes, nullptr); });
  return status;
}

fa3_status refused(Memory& m) {
  fa3_forward_params p = forward_of(m, FA3_ENGINE_AUTO, false);
  p.v.shape[1] += 1;
  return fa3_forward(&p, m.workspace, sizeof(m.workspace), nullptr);
}

}  // namespace

std::vector<SmallCall> small_calls() {
  std::vector<SmallCall> calls;
  const auto add = [&](const char* name, fa3_status (*run)(Memory&), fa3_status expected = FA3_OK) {
    const auto memory = std::make_shared<Memory>();
    calls.push_back(
        {name, [=] { return run(*memory); }, [=] { return memory->results(); }, expected});
  };
  add("cpu", [](Memory& m) { return both_passes(m, FA3_ENGINE_CPU, false); });
  add("cpu_packed", [](Memory& m) { return both_passes(m, FA3_ENGINE_CPU, true); });
  add("reference", [](Memory& m) { return both_passes(m, FA3_ENGINE_REFERENCE, false); });
  add("standard", [](Memory& m) { return both_passes(m, FA3_ENGINE_STANDARD, true); });
  add("allocator", forward_with_allocator);
  add("merge", merge);
  add("mla", mla);
  add("questions", questions);
  communicator();
  add("ring", ring);
  add("refused", refused, FA3_INVALID_ARGUMENT);
  return calls;
}

}  // namespace fa3::test
