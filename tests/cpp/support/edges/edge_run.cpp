// SPDX-License-Identifier: Apache-2.0
#include "support/edges/edge_run.h"

#include <deque>
#include <initializer_list>
#include <type_traits>

#include "support/deadline.h"
#include "support/edges/edge_number.h"
#include "support/edges/placed_params.h"
#include "support/failure.h"
#include "support/memory/guarded_memory.h"

namespace fa3::test {
namespace {

constexpr size_t kWorkspaceAlignment = 256;

// The functions of a kind of call. An append has no questions.
struct Functions {
  fa3_status (*supported)(const void*);
  fa3_status (*workspace_size)(const void*, size_t*);
  fa3_status (*plan_text)(const void*, char*, size_t, size_t*);
  fa3_status (*run)(const void*, void*, size_t);
};

template <class P>
const P* as(const void* params) {
  return static_cast<const P*>(params);
}

constexpr Functions kForward = {
    [](const void* p) { return fa3_forward_supported(as<fa3_forward_params>(p)); },
    [](const void* p, size_t* n) {
      return fa3_forward_workspace_size(as<fa3_forward_params>(p), n);
    },
    [](const void* p, char* text, size_t size, size_t* n) {
      return fa3_forward_plan_text(as<fa3_forward_params>(p), text, size, n);
    },
    [](const void* p, void* w, size_t n) {
      return fa3_forward(as<fa3_forward_params>(p), w, n, nullptr);
    }};
constexpr Functions kBackward = {
    [](const void* p) { return fa3_backward_supported(as<fa3_backward_params>(p)); },
    [](const void* p, size_t* n) {
      return fa3_backward_workspace_size(as<fa3_backward_params>(p), n);
    },
    [](const void* p, char* text, size_t size, size_t* n) {
      return fa3_backward_plan_text(as<fa3_backward_params>(p), text, size, n);
    },
    [](const void* p, void* w, size_t n) {
      return fa3_backward(as<fa3_backward_params>(p), w, n, nullptr);
    }};

// Every tensor of some params: they lie one after the other, between other fields.
template <class P>
P without_data(P params) {
  fa3_options& o = params.options;
  for (fa3_tensor* t : {&o.cu_seqlens_q, &o.cu_seqlens_k, &o.seqused_q, &o.seqused_k, &o.block_mask,
                        &o.block_mask_bits, &params.q, &params.k, &params.v, &params.o, &params.lse,
                        &params.sink}) {
    t->data = nullptr;
  }
  if constexpr (std::is_same_v<P, fa3_forward_params>) {
    for (fa3_tensor* t : {&params.page_table, &params.batch_index, &params.left_padding}) {
      t->data = nullptr;
    }
  } else {
    for (fa3_tensor* t :
         {&params.d_o, &params.d_lse, &params.dq, &params.dk, &params.dv, &params.dsink}) {
      t->data = nullptr;
    }
  }
  return params;
}

// Asks without data and with them; then calls with the workspace that the first question named.
std::string ask_and_run(const Functions& f, const void* params, const void* question,
                        bool may_be_refused, const TakeMemory& take, bool* has_run) {
  const fa3_status supported = f.supported(question);
  if (supported == FA3_UNSUPPORTED) return "";
  if (supported != FA3_OK) return failure("supported, without data", supported);
  size_t asked = 0, needed = 0;
  char text[4096];
  if (const fa3_status status = f.workspace_size(question, &asked); status != FA3_OK) {
    return failure("workspace_size, without data", status);
  }
  if (const fa3_status status = f.plan_text(question, text, sizeof text, nullptr);
      status != FA3_OK) {
    return failure("plan_text, without data", status);
  }
  const fa3_status with_data = f.workspace_size(params, &needed);
  if (may_be_refused && with_data == FA3_INVALID_ARGUMENT) return "";
  if (with_data != FA3_OK) return failure("workspace_size", with_data);
  if (needed > asked) {
    return "the call needs " + std::to_string(needed) + " bytes of workspace, the question said " +
           std::to_string(asked);
  }
  void* workspace = asked > 0 ? take(asked, kWorkspaceAlignment, nullptr) : nullptr;
  const fa3_status status = f.run(params, workspace, asked);
  *has_run = status == FA3_OK;
  if (may_be_refused && status == FA3_INVALID_ARGUMENT) return "";
  return status == FA3_OK ? "" : failure("run", status);
}

}  // namespace

std::string PlacedCall::run(bool arrays_are_checked) {
  const bool may_be_refused = arrays_are_checked && (call_.garbage || call_.names_nothing());
  if (call_.kind == EdgeKind::append) {
    const fa3_status status = fa3_append(&params_->append, nullptr);
    has_run_ = status == FA3_OK;
    if (may_be_refused && status == FA3_INVALID_ARGUMENT) return "";
    return status == FA3_OK ? "" : failure("append", status);
  }
  if (call_.kind == EdgeKind::backward) {
    const fa3_backward_params question = without_data(params_->backward);
    return ask_and_run(kBackward, &params_->backward, &question, may_be_refused, take_, &has_run_);
  }
  const fa3_forward_params question = without_data(params_->forward);
  return ask_and_run(kForward, &params_->forward, &question, may_be_refused, take_, &has_run_);
}

std::string output_problem(const EdgeCall& call, const PlacedCall::Output& output,
                           const std::vector<std::byte>& host) {
  if (call.garbage) return "";
  const bool nothing_to_see = call.has_no_keys() || call.has_no_queries();
  const bool is_zero_there = call.kind == EdgeKind::backward ||
                             (call.kind == EdgeKind::forward && std::string(output.name) == "o");
  // A sink has a gradient wherever there are queries, of the o and d_lse that the call was given.
  const bool is_of_sink = std::string(output.name) == "dsink" && !call.has_no_queries();
  for (size_t at = 0; at < host.size(); at += size_of(output.dtype)) {
    if (is_nan(&host[at], output.dtype)) {
      return std::string(output.name) + ": NaN, or not written, at byte " + std::to_string(at);
    }
    if (nothing_to_see && is_zero_there && !is_of_sink && !is_zero(&host[at], output.dtype)) {
      return std::string(output.name) + ": not zero, where there is nothing to see";
    }
  }
  return "";
}

std::string run_edge_call(const EngineUnderTest& engine, const EdgeCall& call) {
  constexpr int kSeconds = 60;  // some take one where a sanitizer watches
  const Deadline deadline(std::string(engine.name) + ": " + describe(call), kSeconds);
  std::deque<GuardedMemory> memory;
  PlacedCall placed(call, engine, [&](size_t bytes, size_t alignment, const std::byte* contents) {
    GuardedMemory& taken = memory.emplace_back(engine.memory, bytes, alignment);
    if (contents != nullptr) taken.write(contents, bytes);
    return taken.data();
  });
  std::string problem = placed.run(engine.memory == FA3_CPU);
  for (const PlacedCall::Output& output : placed.outputs()) {
    for (const GuardedMemory& taken : memory) {
      if (output.bytes == 0 || taken.data() != output.data) continue;
      std::vector<std::byte> host(output.bytes);
      taken.read(host.data());
      if (placed.has_run() && problem.empty()) problem = output_problem(call, output, host);
    }
  }
  return problem;
}

}  // namespace fa3::test
