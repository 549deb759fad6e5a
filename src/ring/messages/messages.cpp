// SPDX-License-Identifier: Apache-2.0
#include "ring/messages/messages.h"

#include <cstring>

#include "core/dtype.h"
#include "core/macros.h"

namespace fa3::ring {
namespace {

// Calls visit(address, bytes) for the neighbouring rows of each sequence.
template <class Visit>
Status for_each_block(const fa3_tensor& tensor, std::span<const Range> rows, const Visit& visit) {
  const int64_t size = size_of(static_cast<DType>(tensor.dtype));
  const int64_t row = tensor.shape[2] * tensor.shape[3] * size;
  for (int64_t b = 0; b < tensor.shape[0]; ++b) {
    auto* sequence = static_cast<std::byte*>(tensor.data) + b * tensor.stride[0] * size;
    for (const Range& range : rows) {
      FA3_TRY(visit(sequence + range.begin * row, range.count() * row));
    }
  }
  return {};
}

}  // namespace

fa3_tensor rows_of(const fa3_tensor& tensor, const Range& rows) {
  fa3_tensor view = tensor;
  const int dim = tensor.rank == 4 ? 1 : 2;
  view.shape[dim] = rows.count();
  if (view.data != nullptr) {
    view.data = static_cast<std::byte*>(view.data) +
                rows.begin * tensor.stride[dim] * size_of(static_cast<DType>(tensor.dtype));
  }
  return view;
}

Messages::Messages(const Communicator& comm, const fa3_tensor& like, void* calls, void* messages)
    : comm_(comm),
      device_(like.device_index),
      calls_(calls),
      messages_(messages == nullptr ? calls : messages) {
  for (const Engine* engine : engines()) {
    if (engine->memory == like.device_type && engine->follow != nullptr) engine_ = engine;
  }
}

Status Messages::follow(void* stream, void* leader) const {
  if (engine_ == nullptr || stream == leader) return {};
  return engine_->follow(stream, leader, device_);
}

Status Messages::together(const std::function<Status()>& add) const {
  FA3_TRY(comm_.begin());
  Status added = add();
  Status started =
      comm_.end();  // also of what was added before a failure: the group is the thread's
  return added.ok() ? started : added;
}

Status Messages::send(const fa3_tensor& tensor, std::span<const Range> rows, int32_t to) const {
  return for_each_block(tensor, rows, [&](const void* from, int64_t bytes) {
    return comm_.send(from, bytes, to, messages_);
  });
}

Status Messages::receive(const fa3_tensor& tensor, std::span<const Range> rows,
                         int32_t from) const {
  return for_each_block(tensor, rows, [&](void* to, int64_t bytes) {
    return comm_.receive(to, bytes, from, messages_);
  });
}

Status Messages::clear(const fa3_tensor& tensor) const {
  const Range all = {0, tensor.shape[1]};
  return for_each_block(tensor, {&all, 1}, [&](void* memory, int64_t bytes) -> Status {
    if (engine_ != nullptr) return engine_->clear(memory, bytes, device_, calls_);
    if (bytes > 0) std::memset(memory, 0, size_t(bytes));
    return {};
  });
}

Status Messages::write(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0 || to == from) return {};
  if (engine_ != nullptr) return engine_->write(to, from, bytes, device_, calls_);
  std::memcpy(to, from, size_t(bytes));
  return {};
}

Status Messages::read_back(void* to, const void* from, int64_t bytes) const {
  if (engine_ != nullptr) return engine_->read_back(to, from, bytes, device_, calls_);
  std::memcpy(to, from, size_t(bytes));
  return {};
}

}  // namespace fa3::ring
