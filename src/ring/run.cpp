// SPDX-License-Identifier: Apache-2.0
#include "ring/run.h"

#include <algorithm>

#include "api/describe/describe.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "ring/describe.h"
#include "ring/messages.h"
#include "ring/steps.h"

namespace fa3::ring {
namespace {

constexpr uintptr_t kAlignment = 256;  // of workspaces, and so of what kernels find in them

// A (b, rows, h, d) tensor of the workspace.
fa3_tensor tensor_in(WorkspaceAllocator& memory, const fa3_tensor& like, fa3_dtype dtype,
                     int64_t rows, int64_t dim) {
  fa3_tensor made = like;
  made.dtype = dtype;
  made.shape[1] = rows;
  made.shape[3] = dim;
  made.stride[3] = 1;
  made.stride[2] = dim;
  made.stride[1] = like.shape[2] * dim;
  made.stride[0] = rows * made.stride[1];
  const int64_t size = size_of(static_cast<DType>(dtype));
  made.data = memory.take<std::byte>(like.shape[0], rows, like.shape[2], dim * size);
  return made;
}

fa3_tensor lse_in(WorkspaceAllocator& memory, const fa3_tensor& q) {
  fa3_tensor made = q;
  made.dtype = FA3_FLOAT32;
  made.rank = 3;
  made.shape[1] = q.shape[2];
  made.shape[2] = q.shape[1];
  made.stride[2] = 1;
  made.stride[1] = q.shape[1];
  made.stride[0] = q.shape[1] * q.shape[2];
  made.data = memory.take<float>(q.shape[0], q.shape[1], q.shape[2]);
  return made;
}

struct KeysAndValues {
  fa3_tensor k{}, v{};
};

// Where keys arrive: two stages' take turns.
struct Arrivals {
  KeysAndValues slot[2];

  KeysAndValues of_stage(const Steps& steps, size_t index, const KeysAndValues& own) const {
    if (index == 0) return own;
    KeysAndValues found = slot[index % 2];
    const Range here = {0, steps.stages[index].hull().count()};
    // A slot has room for the largest stage, a stage's sequences lie one behind the other.
    for (fa3_tensor* tensor : {&found.k, &found.v}) {
      *tensor = rows_of(*tensor, here);
      tensor->stride[0] = tensor->shape[1] * tensor->stride[1];
    }
    return found;
  }
};

template <class Params>
Arrivals arrivals_in(WorkspaceAllocator& memory, const Steps& steps, const Params& p) {
  Arrivals found;
  int64_t most = 0;
  for (size_t i = 1; i < steps.stages.size(); ++i) {
    most = std::max(most, steps.stages[i].hull().count());
  }
  for (size_t i = 0; i < std::min<size_t>(2, steps.stages.size() - 1); ++i) {
    KeysAndValues& slot = found.slot[(i + 1) % 2];
    const auto dtype = static_cast<fa3_dtype>(p.k.dtype);
    slot.k = tensor_in(memory, p.k, dtype, most, p.k.shape[3]);
    slot.v = tensor_in(memory, p.v, dtype, most, p.v.shape[3]);
  }
  return found;
}

// Keys of this rank to whom wants them in stage `index`, and the keys of that stage to here.
template <class Params>
Status exchange_keys(const Messages& messages, const Steps& steps, const Params& p, size_t index,
                     const KeysAndValues& here) {
  const auto by = static_cast<int32_t>(index);
  const Stage there = stage_of(steps.whole, steps.behind(by), steps.rank);
  std::vector<Range> places;
  const int64_t first = steps.stages[index].hull().begin;
  for (const Range& keys : steps.stages[index].keys) {
    places.push_back({keys.begin - first, keys.end - first});
  }
  return messages.together([&]() -> Status {
    FA3_TRY(messages.send(p.k, there.keys, steps.behind(by)));
    FA3_TRY(messages.send(p.v, there.keys, steps.behind(by)));
    FA3_TRY(messages.receive(here.k, places, steps.before(by)));
    return messages.receive(here.v, places, steps.before(by));
  });
}

void set_mask(fa3_options* options, const Call& call) {
  const bool causal = call.window.left == kUnbounded && call.window.right == 0 && call.shift == 0;
  options->causal = causal ? 1 : 0;
  options->window_left = call.window.left;
  options->window_right = causal ? FA3_WINDOW_UNBOUNDED : call.window.right;
  options->window_shift = static_cast<int32_t>(call.shift);
}

// The keys of a call, where those of its stage are.
KeysAndValues keys_of_call(const KeysAndValues& of_stage, const Stage& stage, const Call& call) {
  const int64_t first = stage.hull().begin;
  const Range here = {call.keys.begin - first, call.keys.end - first};
  return {rows_of(of_stage.k, here), rows_of(of_stage.v, here)};
}

// ---- Calls over several sequences ----

// Where the lengths of all calls are: in the memory of the tensors, which nobody writes to if it is
// the host's.
int32_t* lengths_in(WorkspaceAllocator& memory, const Steps& steps, const fa3_tensor& q) {
  if (q.device_type == FA3_CPU) return const_cast<int32_t*>(steps.lengths.data());
  return memory.take<int32_t>(int64_t(steps.lengths.size()));
}

// A (1, ...) tensor as packed ones are.
void drop_batch(fa3_tensor* tensor) {
  if (tensor->rank == 0) return;
  --tensor->rank;
  for (int dim = 0; dim < tensor->rank; ++dim) {
    tensor->shape[dim] = tensor->shape[dim + 1];
    tensor->stride[dim] = tensor->stride[dim + 1];
  }
}

template <class Params>
void set_lengths(Params* call, const Step& step, int32_t* lengths,
                 std::initializer_list<fa3_tensor*> tensors) {
  if (step.call.cu_rows.empty()) return;
  const auto view = [&](const std::vector<int32_t>& of, size_t at, int64_t* longest) {
    for (size_t i = 1; i < of.size(); ++i) {
      *longest = std::max<int64_t>(*longest, of[i] - of[i - 1]);
    }
    fa3_tensor made{};
    made.data = lengths == nullptr ? nullptr : lengths + at;
    made.dtype = FA3_INT32;
    made.device_type = call->q.device_type;
    made.device_index = call->q.device_index;
    made.rank = 1;
    made.shape[0] = static_cast<int64_t>(of.size());
    made.stride[0] = 1;
    return made;
  };
  fa3_options& o = call->options;
  const size_t of_rows = step.lengths_at, of_keys = of_rows + step.call.cu_rows.size();
  o.cu_seqlens_q = view(step.call.cu_rows, of_rows, &o.max_seqlen_q);
  o.cu_seqlens_k = view(step.call.cu_keys, of_keys, &o.max_seqlen_k);
  for (fa3_tensor* tensor : tensors) drop_batch(tensor);
}

// ---- Forward ----

struct Forward {
  const fa3_forward_params& p;
  const Steps& steps;
  Arrivals arrivals;
  fa3_tensor wide{};  // the output in float32
  fa3_tensor lse{};
  void* memory = nullptr;  // of calls, first in the workspace
  int32_t* lengths = nullptr;

  Forward(const fa3_forward_params& params, const Steps& of, int64_t call_bytes,
          WorkspaceAllocator& workspace)
      : p(params), steps(of) {
    memory = workspace.take<std::byte>(call_bytes);
    arrivals = arrivals_in(workspace, steps, p);
    const bool is_wide = p.o.dtype == FA3_FLOAT32;
    wide = is_wide ? p.o : tensor_in(workspace, p.q, FA3_FLOAT32, p.q.shape[1], p.v.shape[3]);
    lse = p.lse.rank != 0 ? p.lse : lse_in(workspace, p.q);
    lengths = lengths_in(workspace, steps, p.q);
  }

  fa3_forward_params call_of(size_t stage, const Step& step) const {
    fa3_forward_params call = p;
    const KeysAndValues keys =
        keys_of_call(arrivals.of_stage(steps, stage, {p.k, p.v}), steps.stages[stage], step.call);
    const Range& rows = step.call.rows;
    set_mask(&call.options, step.call);
    call.q = rows_of(p.q, rows);
    call.k = keys.k;
    call.v = keys.v;
    call.o = rows_of(step.ends ? p.o : wide, rows);
    call.lse = rows_of(lse, rows);
    if (step.continues) {
      call.o_partial = rows_of(wide, rows);
      call.lse_partial = rows_of(lse, rows);
      call.sink = {};  // a row has it once: the first call has all rows
    }
    set_lengths(
        &call, step, lengths,
        {&call.q, &call.k, &call.v, &call.o, &call.lse, &call.o_partial, &call.lse_partial});
    return call;
  }

  // The merge of one partial result rounds it.
  fa3_merge_params rounding_of(const Range& rows) const {
    fa3_merge_params merge;
    fa3_merge_params_init(&merge);
    const auto as_partials = [](const fa3_tensor& tensor) {
      fa3_tensor one = tensor;
      one.rank = tensor.rank + 1;
      for (int dim = tensor.rank; dim > 0; --dim) {
        one.shape[dim] = tensor.shape[dim - 1];
        one.stride[dim] = tensor.stride[dim - 1];
      }
      one.shape[0] = 1;
      return one;
    };
    merge.o_partial = as_partials(rows_of(wide, rows));
    merge.lse_partial = as_partials(rows_of(lse, rows));
    merge.o = rows_of(p.o, rows);
    merge.num_threads = p.options.num_threads;
    return merge;
  }
};

// The lengths of all calls get to where those read them.
Status write_lengths(const Messages& messages, const Steps& steps, int32_t* to) {
  return messages.write(to, steps.lengths.data(), int64_t(steps.lengths.size() * sizeof(*to)));
}

Status run_steps(const Forward& f, const Messages& messages, api::Workspace calls, void* stream) {
  const Steps& steps = f.steps;
  FA3_TRY(write_lengths(messages, steps, f.lengths));
  for (size_t i = 0; i < steps.stages.size(); ++i) {
    if (i > 0) FA3_TRY(messages.join());
    if (i + 1 < steps.stages.size()) {
      FA3_TRY(messages.follow_calls());
      const KeysAndValues next = f.arrivals.of_stage(steps, i + 1, {});
      FA3_TRY(exchange_keys(messages, steps, f.p, i + 1, next));
    }
    for (const Step& step : steps.of_stage[i]) {
      FA3_TRY(api::run(f.call_of(i, step), calls, stream));
    }
  }
  if (f.p.o.dtype == FA3_FLOAT32) return {};
  for (const Range& rows : steps.rows_without_end()) {
    FA3_TRY(api::run(f.rounding_of(rows), stream));
  }
  return {};
}

// ---- Backward ----

struct Backward {
  const fa3_backward_params& p;
  const Steps& steps;
  Arrivals arrivals;
  KeysAndValues sums[2];  // gradients of a rank's keys, which go round
  fa3_tensor d_lse{};
  bool has_zeros = false;  // d_lse is the workspace's
  void* memory = nullptr;
  int32_t* lengths = nullptr;

  Backward(const fa3_backward_params& params, const Steps& of, int64_t call_bytes,
           WorkspaceAllocator& workspace)
      : p(params), steps(of) {
    memory = workspace.take<std::byte>(call_bytes);
    arrivals = arrivals_in(workspace, steps, p);
    if (steps.world() > 1) {
      int64_t most = 0;
      for (int32_t rank = 0; rank < steps.world(); ++rank) {
        most = std::max(most, num_rows(steps.whole, rank));
      }
      for (KeysAndValues& sum : sums) {
        sum.k = tensor_in(workspace, p.k, FA3_FLOAT32, most, p.k.shape[3]);
        sum.v = tensor_in(workspace, p.v, FA3_FLOAT32, most, p.v.shape[3]);
      }
    }
    // A call of one key takes its weights for 1, so no gradient, unless the LSE has one: here the
    // key is one of several.
    bool has_one_key = false;
    for (const auto& stage : steps.of_stage) {
      for (const Step& step : stage) has_one_key |= step.call.has_one_key();
    }
    d_lse = p.d_lse;
    if (d_lse.rank == 0 && has_one_key) {
      has_zeros = true;
      d_lse = lse_in(workspace, p.q);
    }
    lengths = lengths_in(workspace, steps, p.q);
  }

  // The gradients of the keys of stage `index`: in the caller's memory where nobody else adds to
  // them.
  KeysAndValues sums_of_stage(size_t index) const {
    const int32_t source = steps.before(static_cast<int32_t>(index));
    if (index == 0 && steps.farthest[size_t(source)] == 0) return {p.dk, p.dv};
    KeysAndValues found = sums[index % 2];
    const Range all = {0, num_rows(steps.whole, source)};
    for (fa3_tensor* tensor : {&found.k, &found.v}) {
      *tensor = rows_of(*tensor, all);
      tensor->stride[0] = tensor->shape[1] * tensor->stride[1];
    }
    return found;
  }

  bool writes_all_keys(size_t index) const {
    const auto& calls = steps.of_stage[index];
    const Range all = {0, num_rows(steps.whole, steps.rank)};
    return index == 0 && !calls.empty() && calls.front().call.keys == all;
  }

  fa3_backward_params call_of(size_t index, const Step& step, bool first) const {
    fa3_backward_params call = p;
    const KeysAndValues keys =
        keys_of_call(arrivals.of_stage(steps, index, {p.k, p.v}), steps.stages[index], step.call);
    const KeysAndValues sum = sums_of_stage(index);
    const Range& rows = step.call.rows;
    set_mask(&call.options, step.call);
    call.q = rows_of(p.q, rows);
    call.o = rows_of(p.o, rows);
    call.d_o = rows_of(p.d_o, rows);
    call.lse = rows_of(p.lse, rows);
    if (d_lse.rank != 0) call.d_lse = rows_of(d_lse, rows);
    call.dq = rows_of(p.dq, rows);
    call.k = keys.k;
    call.v = keys.v;
    call.dk = rows_of(sum.k, step.call.keys);
    call.dv = rows_of(sum.v, step.call.keys);
    call.accumulate_dq = step.continues ? 1 : 0;
    call.accumulate_dkv = first && writes_all_keys(index) ? 0 : 1;
    if (step.continues) call.sink = call.dsink = {};
    set_lengths(&call, step, lengths,
                {&call.q, &call.k, &call.v, &call.o, &call.lse, &call.d_o, &call.d_lse, &call.dq,
                 &call.dk, &call.dv});
    return call;
  }
};

// The sums of stage `index` go on to the next rank, or home from the last one that adds to them;
// those that this rank adds to next come.
Status pass_on_sums(const Messages& messages, const Backward& b, size_t index) {
  const Steps& steps = b.steps;
  const auto by = static_cast<int32_t>(index);
  const auto all_of = [&](int32_t rank) { return Range{0, num_rows(steps.whole, rank)}; };
  const auto both = [&](auto verb, const KeysAndValues& of, const Range& rows, int32_t rank) {
    const Status status = (messages.*verb)(of.k, std::span(&rows, 1), rank);
    return status.ok() ? (messages.*verb)(of.v, std::span(&rows, 1), rank) : status;
  };
  const int32_t source = steps.before(by), farthest = steps.farthest[size_t(source)];
  return messages.together([&]() -> Status {
    if (by < farthest || (by == farthest && by > 0)) {
      const int32_t to = by < farthest ? steps.behind(1) : source;
      FA3_TRY(both(&Messages::send, b.sums_of_stage(index), all_of(source), to));
    }
    if (index + 1 < steps.stages.size()) {
      const int32_t next = steps.before(by + 1);
      if (by + 1 <= steps.farthest[size_t(next)]) {
        FA3_TRY(
            both(&Messages::receive, b.sums_of_stage(index + 1), all_of(next), steps.before(1)));
      }
    }
    if (by > 0 && steps.farthest[size_t(steps.rank)] == by) {
      return both(&Messages::receive, {b.p.dk, b.p.dv}, all_of(steps.rank), steps.behind(by));
    }
    return Status{};
  });
}

Status run_steps(const Backward& b, const Messages& messages, api::Workspace calls, void* stream) {
  const Steps& steps = b.steps;
  FA3_TRY(write_lengths(messages, steps, b.lengths));
  if (b.has_zeros) {
    fa3_tensor zeros = b.d_lse;  // as a tensor of rows
    zeros.rank = 4;
    zeros.shape[3] = 1;
    FA3_TRY(messages.clear(zeros));
  }
  for (size_t i = 0; i < steps.stages.size(); ++i) {
    if (i > 0) FA3_TRY(messages.join());
    if (i + 1 < steps.stages.size()) {
      FA3_TRY(messages.follow_calls());
      const KeysAndValues next = b.arrivals.of_stage(steps, i + 1, {});
      FA3_TRY(exchange_keys(messages, steps, b.p, i + 1, next));
    }
    const KeysAndValues sum = b.sums_of_stage(i);
    if (i == 0 && !b.writes_all_keys(i)) {
      for (const fa3_tensor& tensor : {sum.k, sum.v}) FA3_TRY(messages.clear(tensor));
    }
    bool first = true;
    for (const Step& step : steps.of_stage[i]) {
      FA3_TRY(api::run(b.call_of(i, step, first), calls, stream));
      first = false;
    }
    if (steps.world() > 1) {
      FA3_TRY(messages.follow_calls());
      FA3_TRY(pass_on_sums(messages, b, i));
    }
  }
  return messages.join();
}

// ---- Both ----

template <class Params>
struct PassOf;
template <>
struct PassOf<fa3_forward_params> {
  using Type = Forward;
};
template <>
struct PassOf<fa3_backward_params> {
  using Type = Backward;
};

// The largest workspace of the rank's calls.
template <class Pass>
Status plan_calls(const Pass& pass, int64_t* bytes) {
  *bytes = 0;
  for (size_t i = 0; i < pass.steps.stages.size(); ++i) {
    for (const Step& step : pass.steps.of_stage[i]) {
      Plan plan{.wants_words = false};
      if constexpr (std::is_same_v<Pass, Forward>) {
        FA3_TRY(api::plan(pass.call_of(i, step), &plan));
      } else {
        FA3_TRY(api::plan(pass.call_of(i, step, true), &plan));
        const int64_t of_first = plan.workspace_bytes;
        FA3_TRY(api::plan(pass.call_of(i, step, false), &plan));
        plan.workspace_bytes = std::max(plan.workspace_bytes, of_first);
      }
      *bytes = std::max(*bytes, plan.workspace_bytes);
    }
  }
  *bytes = (*bytes + kAlignment - 1) / kAlignment * kAlignment;
  return {};
}

struct Prepared {
  Communicator comm;
  Steps steps;
  int64_t call_bytes = 0;
  int64_t bytes = 0;
};

template <class Params>
Status prepare(const Params& params, const fa3_ring& ring, bool is_call, Prepared* prepared) {
  using Pass = typename PassOf<Params>::Type;
  FA3_TRY(prepared->comm.open(ring));
  Whole whole;
  FA3_TRY(describe(params, ring, prepared->comm, is_call, &whole));
  prepared->steps = steps_of(whole, prepared->comm.rank());
  WorkspaceAllocator nothing;
  FA3_TRY(plan_calls(Pass(params, prepared->steps, 0, nothing), &prepared->call_bytes));
  WorkspaceAllocator count;
  Pass(params, prepared->steps, prepared->call_bytes, count);
  prepared->bytes = count.bytes();
  return {};
}

template <class Params>
Status run_ring(const Params& params, const fa3_ring& ring, api::Workspace workspace,
                void* stream) {
  using Pass = typename PassOf<Params>::Type;
  Prepared prepared;
  FA3_TRY(prepare(params, ring, true, &prepared));
  const auto needed = static_cast<uint64_t>(prepared.bytes);
  if (needed > workspace.bytes) {
    return {StatusCode::workspace_too_small,
            concat("workspace: expected at least ", needed, " bytes, got ", workspace.bytes,
                   "; ask the ring's workspace_size function with the same params")};
  }
  if (needed > 0) {
    if (workspace.data == nullptr) {
      return invalid("workspace: expected ", needed, " bytes, got a null pointer");
    }
    if (reinterpret_cast<uintptr_t>(workspace.data) % kAlignment != 0) {
      return invalid("workspace: expected an address aligned to ", kAlignment, " bytes, got ",
                     workspace.data);
    }
    FA3_TRY(api::check_workspace(params, {workspace.data, prepared.bytes}));
  }
  WorkspaceAllocator memory(workspace.data);
  const Pass pass(params, prepared.steps, prepared.call_bytes, memory);
  const Messages messages(prepared.comm, params.q, stream, ring.comm_stream);
  return run_steps(pass, messages, {pass.memory, size_t(prepared.call_bytes)}, stream);
}

template <class Params>
Status size_of_workspace(const Params& params, const fa3_ring& ring, int64_t* bytes) {
  Prepared prepared;
  FA3_TRY(prepare(params, ring, false, &prepared));
  *bytes = prepared.bytes;
  return {};
}

}  // namespace

Status workspace_size(const fa3_forward_params& params, const fa3_ring& ring, int64_t* bytes) {
  return size_of_workspace(params, ring, bytes);
}
Status workspace_size(const fa3_backward_params& params, const fa3_ring& ring, int64_t* bytes) {
  return size_of_workspace(params, ring, bytes);
}

Status run(const fa3_forward_params& params, const fa3_ring& ring, api::Workspace workspace,
           void* stream) {
  return run_ring(params, ring, workspace, stream);
}
Status run(const fa3_backward_params& params, const fa3_ring& ring, api::Workspace workspace,
           void* stream) {
  return run_ring(params, ring, workspace, stream);
}

}  // namespace fa3::ring
