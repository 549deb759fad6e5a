// SPDX-License-Identifier: Apache-2.0
#include "ring/backward_pass.h"

#include <algorithm>

#include "core/error.h"
#include "ring/calls.h"

namespace fa3::ring {

Backward::Backward(const fa3_backward_params& params, const Steps& of, int64_t call_bytes,
                   WorkspaceAllocator& workspace)
    : p(params), steps(of) {
  memory = workspace.take<std::byte>(call_bytes);
  arrivals = arrivals_in(workspace, steps, {p.k, p.v});
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

KeysAndValues Backward::sums_of_stage(size_t index) const {
  const int32_t source = steps.before(static_cast<int32_t>(index));
  if (index == 0 && steps.farthest[size_t(source)] == 0) return {p.dk, p.dv};
  return first_rows(sums[index % 2], num_rows(steps.whole, source));
}

bool Backward::writes_all_keys(size_t index) const {
  const auto& calls = steps.of_stage[index];
  const Range all = {0, num_rows(steps.whole, steps.rank)};
  return index == 0 && !calls.empty() && calls.front().call.keys == all;
}

fa3_backward_params Backward::call_of(size_t index, const Step& step, bool first) const {
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
  set_lengths(&call.options, p.q, step, lengths,
              {&call.q, &call.k, &call.v, &call.o, &call.lse, &call.d_o, &call.d_lse, &call.dq,
               &call.dk, &call.dv});
  return call;
}

namespace {

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

}  // namespace

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
      FA3_TRY(exchange_keys(messages, steps, {b.p.k, b.p.v}, i + 1, next));
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

}  // namespace fa3::ring
