// SPDX-License-Identifier: Apache-2.0
#include "ring/forward_pass.h"

#include "core/error.h"
#include "ring/calls.h"

namespace fa3::ring {

Forward::Forward(const fa3_forward_params& params, const Steps& of, int64_t call_bytes,
                 WorkspaceAllocator& workspace)
    : p(params), steps(of) {
  memory = workspace.take<std::byte>(call_bytes);
  arrivals = arrivals_in(workspace, steps, {p.k, p.v});
  const bool is_wide = p.o.dtype == FA3_FLOAT32;
  wide = is_wide ? p.o : tensor_in(workspace, p.q, FA3_FLOAT32, p.q.shape[1], p.v.shape[3]);
  lse = p.lse.rank != 0 ? p.lse : lse_in(workspace, p.q);
  lengths = lengths_in(workspace, steps, p.q);
}

fa3_forward_params Forward::call_of(size_t stage, const Step& step) const {
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
  set_lengths(&call.options, p.q, step, lengths,
              {&call.q, &call.k, &call.v, &call.o, &call.lse, &call.o_partial, &call.lse_partial});
  return call;
}

fa3_merge_params Forward::rounding_of(const Range& rows) const {
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

Status run_steps(const Forward& f, const Messages& messages, api::Workspace calls, void* stream) {
  const Steps& steps = f.steps;
  FA3_TRY(write_lengths(messages, steps, f.lengths));
  for (size_t i = 0; i < steps.stages.size(); ++i) {
    if (i > 0) FA3_TRY(messages.join());
    if (i + 1 < steps.stages.size()) {
      FA3_TRY(messages.follow_calls());
      const KeysAndValues next = f.arrivals.of_stage(steps, i + 1, {});
      FA3_TRY(exchange_keys(messages, steps, {f.p.k, f.p.v}, i + 1, next));
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

}  // namespace fa3::ring
