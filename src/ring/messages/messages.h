// SPDX-License-Identifier: Apache-2.0
//
// Rows on their way between ranks, and the order of the two streams: that of the calls and that of
// the messages. All ranks start their groups of messages in the same order, so none waits in a
// circle.
#pragma once

#include <functional>
#include <span>

#include "engine/engine.h"
#include "ring/messages/nccl.h"
#include "ring/schedule/schedule.h"

namespace fa3::ring {

// Rows of a (b, s, h, d) tensor, or of a (b, h, s) one.
fa3_tensor rows_of(const fa3_tensor& tensor, const Range& rows);

class Messages {
 public:
  Messages(const Communicator& comm, const fa3_tensor& like, void* calls, void* messages);

  // Messages from here on wait for the calls so far, and the other way round.
  Status follow_calls() const { return follow(messages_, calls_); }
  Status join() const { return follow(calls_, messages_); }

  // What `add` sends and receives starts together.
  Status together(const std::function<Status()>& add) const;
  Status send(const fa3_tensor& tensor, std::span<const Range> rows, int32_t to) const;
  Status receive(const fa3_tensor& tensor, std::span<const Range> rows, int32_t from) const;

  // In order of the calls:
  Status clear(const fa3_tensor& tensor) const;
  Status write(void* to, const void* from, int64_t bytes) const;      // from the host's memory
  Status read_back(void* to, const void* from, int64_t bytes) const;  // to it, and waits

 private:
  Status follow(void* stream, void* leader) const;

  const Communicator& comm_;
  const Engine* engine_ = nullptr;  // any of the tensors' memory that has streams; null: the host's
  int device_;
  void* calls_;
  void* messages_;
};

}  // namespace fa3::ring
