// SPDX-License-Identifier: Apache-2.0
//
// What every call at the edges (edge_call.h) must keep, whatever it holds: it ends, nothing outside
// its tensors is touched, the questions before it were answered for it, and a valid one writes
// every element of its outputs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/edges/edge_call.h"

namespace fa3::test {

// Takes memory for a tensor: `contents` are null for outputs and the workspace, which hold 0xff.
using TakeMemory =
    std::function<std::byte*(size_t bytes, size_t alignment, const std::byte* contents)>;

// The params of a call, and where its outputs are.
class PlacedCall {
 public:
  struct Output {
    const char* name;
    std::byte* data;
    size_t bytes;
    fa3_dtype dtype;
  };

  PlacedCall(const EdgeCall& call, const EngineUnderTest& engine, TakeMemory take);
  ~PlacedCall();

  const std::vector<Output>& outputs() const { return outputs_; }

  // Questions and call; "" or what is wrong with the answers. Arrays in host memory are checked:
  // those that hold garbage are refused there.
  std::string run(bool arrays_are_checked);
  // False: the call was refused, as it had to be, or no engine does it.
  bool has_run() const { return has_run_; }

 private:
  struct Params;
  class Builder;
  const EdgeCall call_;
  const TakeMemory take_;
  std::unique_ptr<Params> params_;
  std::vector<Output> outputs_;
  bool has_run_ = false;
};

// What is wrong with the outputs of a call that ran, read back to the host.
std::string output_problem(const EdgeCall& call, const PlacedCall::Output& output,
                           const std::vector<std::byte>& host);

// All of it on an engine: in memory that ends with the tensors. "" or what went wrong.
std::string run_edge_call(const EngineUnderTest& engine, const EdgeCall& call);

}  // namespace fa3::test
