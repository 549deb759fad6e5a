// SPDX-License-Identifier: Apache-2.0
#include "ring/buffers.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/error.h"

namespace fa3::ring {

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

KeysAndValues first_rows(const KeysAndValues& slot, int64_t count) {
  return {rows_of(slot.k, {0, count}), rows_of(slot.v, {0, count})};
}

KeysAndValues Arrivals::of_stage(const Steps& steps, size_t index, const KeysAndValues& own) const {
  if (index == 0) return own;
  // A slot has room for the largest stage.
  return first_rows(slot[index % 2], steps.stages[index].hull().count());
}

Arrivals arrivals_in(WorkspaceAllocator& memory, const Steps& steps, const KeysAndValues& own) {
  Arrivals found;
  int64_t most = 0;
  for (size_t i = 1; i < steps.stages.size(); ++i) {
    most = std::max(most, steps.stages[i].hull().count());
  }
  for (size_t i = 0; i < std::min<size_t>(2, steps.stages.size() - 1); ++i) {
    KeysAndValues& slot = found.slot[(i + 1) % 2];
    const auto dtype = static_cast<fa3_dtype>(own.k.dtype);
    slot.k = tensor_in(memory, own.k, dtype, most, own.k.shape[3]);
    slot.v = tensor_in(memory, own.v, dtype, most, own.v.shape[3]);
  }
  return found;
}

Status exchange_keys(const Messages& messages, const Steps& steps, const KeysAndValues& own,
                     size_t index, const KeysAndValues& here) {
  const auto by = static_cast<int32_t>(index);
  const Stage there = stage_of(steps.whole, steps.behind(by), steps.rank);
  std::vector<Range> places;
  const int64_t first = steps.stages[index].hull().begin;
  for (const Range& keys : steps.stages[index].keys) {
    places.push_back({keys.begin - first, keys.end - first});
  }
  return messages.together([&]() -> Status {
    FA3_TRY(messages.send(own.k, there.keys, steps.behind(by)));
    FA3_TRY(messages.send(own.v, there.keys, steps.behind(by)));
    FA3_TRY(messages.receive(here.k, places, steps.before(by)));
    return messages.receive(here.v, places, steps.before(by));
  });
}

int32_t* lengths_in(WorkspaceAllocator& memory, const Steps& steps, const fa3_tensor& q) {
  if (q.device_type == FA3_CPU) return const_cast<int32_t*>(steps.lengths.data());
  return memory.take<int32_t>(int64_t(steps.lengths.size()));
}

Status write_lengths(const Messages& messages, const Steps& steps, int32_t* to) {
  return messages.write(to, steps.lengths.data(), int64_t(steps.lengths.size() * sizeof(*to)));
}

}  // namespace fa3::ring
