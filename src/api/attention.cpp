// SPDX-License-Identifier: Apache-2.0
#include "api/attention.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "api/describe/describe.h"
#include "api/describe/describe_append.h"
#include "api/describe/describe_block_lists.h"
#include "api/describe/describe_mla.h"
#include "api/describe/describe_quantize.h"
#include "api/describe/rules/tensor_rules.h"
#include "api/monitor.h"
#include "api/record/record.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "plan/choose.h"
#include "plan/merge_apart.h"

namespace fa3::api {
namespace {

// What a call's params become, and which functions of an engine run it.
template <class Params>
struct CallOf;
template <>
struct CallOf<fa3_forward_params> {
  using Is = Problem;
  static constexpr auto kRun = &Engine::run_forward;
  static constexpr auto kMakeLists = &Engine::make_forward_lists;
};
template <>
struct CallOf<fa3_backward_params> {
  using Is = BackwardProblem;
  static constexpr auto kRun = &Engine::run_backward;
  static constexpr auto kMakeLists = &Engine::make_backward_lists;
};
template <>
struct CallOf<fa3_quantize_params> {
  using Is = QuantizeProblem;
  static constexpr auto kRun = &Engine::run_quantize;
};
template <>
struct CallOf<fa3_mla_forward_params> {
  using Is = MlaProblem;
  static constexpr auto kRun = &Engine::run_mla;
};
template <>
struct CallOf<fa3_mla_backward_params> {
  using Is = MlaBackwardProblem;
  static constexpr auto kRun = &Engine::run_mla_backward;
};

constexpr uintptr_t kCudaAlignment = 256;

bool writes_nothing(const MergeProblem& p) {
  const bool no_rows = p.batch == 0 || p.rows == 0 || p.heads == 0;
  return no_rows || (p.head_dim_v == 0 && p.lse.data == nullptr);
}

// How errors name the memory, and who knows how much is needed.
struct MemoryName {
  const char* name;
  const char* size_function;
};
constexpr MemoryName kWorkspace{"workspace", "workspace_size"};
constexpr MemoryName kListMemory{"memory", "block_lists_size"};

// The first address in memory of malloc that the CPU engines take; sizes have room for that.
void* aligned(void* data) {
  constexpr uintptr_t kAlignment = WorkspaceAllocator::kAlignment;
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(data) + kAlignment - 1) / kAlignment *
                                 kAlignment);
}

// Requests `bytes` (> 0) from the caller's memory on `device`.
template <class Params>
Status provide(const Params& params, fa3_device_type device, int64_t bytes, Workspace workspace,
               void** memory, MemoryName is = kWorkspace) {
  const auto needed = static_cast<uint64_t>(bytes);
  if (workspace.allocate != nullptr) {
    workspace.data = workspace.allocate(workspace.context, needed);
    if (workspace.data == nullptr) {
      return {StatusCode::out_of_memory,
              concat(is.name, ": expected ", needed, " bytes from the allocator, got none")};
    }
  } else if (needed > workspace.bytes) {
    return {StatusCode::workspace_too_small,
            concat(is.name, ": expected at least ", needed, " bytes, got ", workspace.bytes,
                   "; ask the ", is.size_function, " function with the same params")};
  }
  if (workspace.data == nullptr) {
    return invalid(is.name, ": expected ", needed, " bytes, got a null pointer");
  }
  if (device == FA3_CUDA && reinterpret_cast<uintptr_t>(workspace.data) % kCudaAlignment != 0) {
    return invalid(is.name, ": expected an address aligned to ", kCudaAlignment, " bytes, got ",
                   workspace.data);
  }
  *memory = device == FA3_CPU ? aligned(workspace.data) : workspace.data;
  return check_workspace(params, {workspace.data, bytes, is.name});
}

// Cut off where the place ends.
template <size_t Capacity>
void write_text(const std::string& text, char (&place)[Capacity]) {
  const size_t length = text.copy(place, Capacity - 1);
  std::fill(place + length, place + Capacity, '\0');
}

// Calls that are run as one.
struct Together {
  std::vector<QuantizeProblem> problems;
  std::vector<Choice> choices;
  bool as_one = false;  // by the engine, with `plan`; otherwise one by one in the same workspace
  Plan plan;
};

Status check_same_place(const QuantizeProblem& problem, const QuantizeProblem& first) {
  if (problem.device == first.device && problem.device_index == first.device_index) return {};
  return invalid("x: expected a tensor on the device of params[0].x, got one elsewhere");
}

Status of_call(size_t index, const Status& status) {
  return {status.code(), concat("params[", index, "].", status.message())};
}

Status plan_together(std::span<const fa3_quantize_params> params, Together* all) {
  for (const fa3_quantize_params& p : params) {
    QuantizeProblem& problem = all->problems.emplace_back();
    Choice& choice = all->choices.emplace_back();
    choice.plan.wants_words = watched() || recording().calls;
    Status status = describe(p, Purpose::call, &problem);
    if (status.ok()) status = check_same_place(problem, all->problems.front());
    if (status.ok()) status = choose(problem, &choice);
    if (!status.ok()) return of_call(all->problems.size() - 1, status);
    all->plan.workspace_bytes = std::max(all->plan.workspace_bytes, choice.plan.workspace_bytes);
  }
  FA3_TRY(check_outputs_together(params));
  const Engine& engine = *all->choices[0].engine;
  const bool one_engine = std::ranges::all_of(
      all->choices, [&](const Choice& choice) { return choice.engine == &engine; });
  all->as_one = one_engine && engine.plan_quantize_together != nullptr &&
                engine.plan_quantize_together(all->problems, &all->plan).ok();
  return {};
}

template <class P, class Params>
Status plan_lists(Params params, P* problem, Choice* choice) {
  params.options.block_lists = nullptr;
  choice->plan.wants_words = false;
  FA3_TRY(describe(params, Purpose::query, problem));
  return choose(*problem, choice);
}

// By the first engine that does it for this device. `verb`: the engine's run_*, which may be null.
template <class P, class Started>
Status run_on_first(const P& problem, Status (*Engine::*verb)(const P&, void*), void* stream,
                    const char* none, const Started& started) {
  Status refusal = unsupported(none);
  bool refused = false;
  for (const Engine* engine : engines()) {
    if (engine->memory != problem.device || engine->*verb == nullptr) continue;
    started(*engine, "");
    Status status =
        watch(problem, *engine, "", 0, stream, [&] { return (engine->*verb)(problem, stream); });
    if (status.code() != StatusCode::unsupported) return status;
    if (!refused) refusal = std::move(status);  // of the best engine
    refused = true;
  }
  return refusal;
}

// `verb`, `none`: those of run_on_first().
template <class P, class Params>
Status run_without_plan(const Params& params, Status (*Engine::*verb)(const P&, void*),
                        void* stream, const char* none) {
  return record(params, stream, [&](const auto& started) -> Status {
    P problem;
    FA3_TRY(describe(params, &problem));
    if constexpr (std::is_same_v<P, MergeProblem>) {
      if (writes_nothing(problem)) return {};
    }
    return run_on_first(problem, verb, stream, none, started);
  });
}

}  // namespace

template <class Params>
Status plan(const Params& params, Plan* plan) {
  typename CallOf<Params>::Is problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::query, &problem));
  choice.plan.wants_words = plan->wants_words;
  FA3_TRY(choose(problem, &choice));
  *plan = std::move(choice.plan);
  return {};
}

template <class Params>
Status query(const Params& params, fa3_answer* answer) {
  if (answer == nullptr) return invalid("answer: expected a struct, got a null pointer");
  *answer = {};
  typename CallOf<Params>::Is problem;
  Choice choice;
  Status status = describe(params, Purpose::query, &problem);
  if (status.ok()) status = choose(problem, &choice);
  if (status.code() == StatusCode::unsupported) {
    write_text(status.message(), answer->reason);
    return {};
  }
  FA3_TRY(std::move(status));
  answer->supported = 1;
  answer->engine = choice.engine->id;
  answer->first_engine = choice.is_first ? 1 : 0;
  write_text(choice.plan.kernel, answer->kernel);
  return {};
}

template <class Params>
Status block_lists_size(const Params& params, size_t* bytes) {
  if (bytes == nullptr) return invalid("bytes: expected a place for the size, got null");
  typename CallOf<Params>::Is problem;
  Choice choice;
  FA3_TRY(plan_lists(params, &problem, &choice));
  *bytes = static_cast<size_t>(choice.plan.block_list_bytes);
  return {};
}

template <class Params>
Status make_block_lists(const Params& params, Workspace memory, void* stream,
                        fa3_block_lists* lists) {
  if (lists == nullptr) return invalid("lists: expected a struct, got a null pointer");
  typename CallOf<Params>::Is problem;
  Choice choice;
  FA3_TRY(plan_lists(params, &problem, &choice));
  void* data = nullptr;
  if (const int64_t bytes = choice.plan.block_list_bytes; bytes > 0) {
    FA3_TRY(check_data({"block_mask", params.options.block_mask}));
    if (problem.block_mask.num_bits > 0) {
      FA3_TRY(check_data({"block_mask_bits", params.options.block_mask_bits}));
    }
    FA3_TRY(provide(params, problem.device, bytes, memory, &data, kListMemory));
    FA3_TRY((choice.engine->*CallOf<Params>::kMakeLists)(problem, choice.plan, data, stream));
  }
  *lists = lists_of(problem, listed_pass(problem), data);
  return {};
}

template <class Params>
Status run(const Params& params, Workspace workspace, void* stream) {
  return record(params, stream, [&](const auto& started) -> Status {
    typename CallOf<Params>::Is problem;
    Choice choice;
    FA3_TRY(describe(params, Purpose::call, &problem));
    choice.plan.wants_words = watched() || recording().calls;
    FA3_TRY(choose(problem, &choice));
    const Engine& engine = *choice.engine;
    started(engine, choice.plan.kernel);
    void* memory = nullptr;
    const int64_t bytes = choice.plan.workspace_bytes;
    if (bytes > 0) FA3_TRY(provide(params, problem.device, bytes, workspace, &memory));
    return watch(problem, engine, choice.plan.kernel, bytes, stream, [&] {
      if constexpr (std::is_same_v<Params, fa3_forward_params>) {
        if (choice.plan.part_offset >= 0) {
          return run_apart(engine, problem, choice.plan, memory, stream);
        }
      }
      return (engine.*CallOf<Params>::kRun)(problem, choice.plan, memory, stream);
    });
  });
}

Status run(std::span<const fa3_quantize_params> params, Workspace workspace, void* stream) {
  return record(params, stream, [&](const auto& started) -> Status {
    Together all;
    FA3_TRY(plan_together(params, &all));
    const Choice& first = all.choices[0];
    started(*first.engine, first.plan.kernel);
    void* memory = nullptr;
    const int64_t bytes = all.plan.workspace_bytes;
    if (bytes > 0) FA3_TRY(provide(params, all.problems[0].device, bytes, workspace, &memory));
    if (all.as_one) {
      const std::span<const QuantizeProblem> problems = all.problems;
      return watch(problems, *first.engine, first.plan.kernel, bytes, stream,
                   [&] { return first.engine->run_quantize_together(problems, memory, stream); });
    }
    for (size_t i = 0; i < params.size(); ++i) {
      const QuantizeProblem& problem = all.problems[i];
      const Choice& choice = all.choices[i];
      FA3_TRY(watch(problem, *choice.engine, choice.plan.kernel, bytes, stream, [&] {
        return choice.engine->run_quantize(problem, choice.plan, memory, stream);
      }));
    }
    return {};
  });
}

Status run(std::span<const DequantizeParams> params, void* stream) {
  return record(params, stream, [&](const auto& started) -> Status {
    std::vector<QuantizeProblem> problems(params.size());
    for (size_t i = 0; i < params.size(); ++i) {
      Status status = describe(params[i], &problems[i]);
      if (status.ok()) status = check_same_place(problems[i], problems[0]);
      if (!status.ok()) return of_call(i, status);
    }
    FA3_TRY(check_outputs_together(params));
    const DequantizeProblem problem{problems, problems[0].device, problems[0].device_index};
    return run_on_first(problem, &Engine::run_dequantize, stream,
                        "dequantize: no engine of this build writes wide numbers in this memory",
                        started);
  });
}

Status run(const fa3_mla_append_params& params, void* stream) {
  return run_without_plan(params, &Engine::run_mla_append, stream,
                          "mla append: no engine of this build writes latent rows in this memory");
}

Status run(const fa3_mla_gather_params& params, void* stream) {
  return run_without_plan(params, &Engine::run_mla_gather, stream,
                          "mla gather: no engine of this build reads latent rows in this memory");
}

Status run(const fa3_merge_params& params, void* stream) {
  return run_without_plan(params, &Engine::run_merge, stream,
                          "merge: no engine of this build merges partial results in this memory");
}

Status run(const fa3_append_params& params, void* stream) {
  return run_without_plan(params, &Engine::run_append, stream,
                          "append: no engine of this build writes into caches in this memory");
}

template Status plan(const fa3_forward_params&, Plan*);
template Status run(const fa3_forward_params&, Workspace, void*);
template Status plan(const fa3_backward_params&, Plan*);
template Status run(const fa3_backward_params&, Workspace, void*);
template Status plan(const fa3_quantize_params&, Plan*);
template Status run(const fa3_quantize_params&, Workspace, void*);
template Status plan(const fa3_mla_forward_params&, Plan*);
template Status run(const fa3_mla_forward_params&, Workspace, void*);
template Status plan(const fa3_mla_backward_params&, Plan*);
template Status run(const fa3_mla_backward_params&, Workspace, void*);
template Status query(const fa3_forward_params&, fa3_answer*);
template Status block_lists_size(const fa3_forward_params&, size_t*);
template Status make_block_lists(const fa3_forward_params&, Workspace, void*, fa3_block_lists*);
template Status query(const fa3_backward_params&, fa3_answer*);
template Status block_lists_size(const fa3_backward_params&, size_t*);
template Status make_block_lists(const fa3_backward_params&, Workspace, void*, fa3_block_lists*);

}  // namespace fa3::api
