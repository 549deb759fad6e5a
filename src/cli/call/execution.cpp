// SPDX-License-Identifier: Apache-2.0
#include "cli/call/execution.h"

#include <vector>

#include "cli/call/calls.h"
#include "cli/call/gpu.h"
#include "cli/exit_code.h"

namespace fa3::cli {
namespace {

template <class Args, class Change>
void for_each_tensor(Args* args, const Change& change) {
  for (fa3_tensor* tensor : {&args->q, &args->k, &args->v, &args->o, &args->lse, &args->sink}) {
    change(tensor);
  }
  if constexpr (std::is_same_v<Args, BackwardArgs>) {
    for (fa3_tensor* tensor : {&args->d_o, &args->dq, &args->dk, &args->dv, &args->dsink}) {
      change(tensor);
    }
  }
}

template <class Args>
Args question(Args args) {
  const Device device = device_of(args.options.engine);
  for_each_tensor(&args, [&](fa3_tensor* tensor) {
    tensor->data = nullptr;
    tensor->device_type = device.type;
    tensor->device_index = device.index;
  });
  return args;
}

}  // namespace

struct Execution::OnDevice {
  // A host tensor and its memory on the device.
  struct Copy {
    HostTensor* host;
    gpu::Buffer memory;
    bool is_output;
  };

  Device device;
  std::vector<Copy> copies;
  gpu::Buffer workspace;

  // The call with its tensors replaced by the copies.
  template <class Args>
  Args moved(Args args) const {
    for_each_tensor(&args, [&](fa3_tensor* tensor) {
      for (const Copy& copy : copies) {
        if (tensor->rank > 0 && tensor->data == copy.host->data()) {
          tensor->data = copy.memory.data();
          break;
        }
      }
      tensor->device_type = device.type;
      tensor->device_index = device.index;
    });
    return args;
  }

  template <class Args, class Run>
  double seconds_of(const Args& host_args, const Run& run) {
    const Args args = moved(host_args);
    const auto bytes = static_cast<int64_t>(workspace_bytes(args));
    if (workspace.bytes() < bytes) workspace = gpu::Buffer(bytes);
    return gpu::seconds_of(
        [&] { require(run(args, workspace.data(), static_cast<size_t>(workspace.bytes()))); });
  }
};

Device device_of(int32_t engine) {
  if (engine != FA3_ENGINE_HOPPER && engine != FA3_ENGINE_AMPERE) return {FA3_CPU, 0};
  return {FA3_CUDA, gpu::device_index()};
}

ForwardArgs forward_question(const Operands& operands, const fa3_options& options) {
  return question(forward_args(operands, options));
}

BackwardArgs backward_question(const Operands& operands, const fa3_options& options) {
  return question(backward_args(operands, options));
}

Execution::Execution(Operands* operands, const fa3_options& options)
    : operands_(operands), options_(options) {
  const Device device = device_of(options.engine);
  if (device.type == FA3_CPU) return;
  on_device_ = std::make_unique<OnDevice>();
  on_device_->device = device;
  const auto copy = [&](HostTensor* host, bool is_output) {
    if (!host->present()) return;
    on_device_->copies.push_back({host, gpu::Buffer(host->bytes()), is_output});
    on_device_->copies.back().memory.read_from(host->data());  // outputs too: they are poisoned
  };
  for (HostTensor* input :
       {&operands->q, &operands->k, &operands->v, &operands->sink, &operands->d_o}) {
    copy(input, false);
  }
  for (HostTensor* output : {&operands->o, &operands->lse, &operands->dq, &operands->dk,
                             &operands->dv, &operands->dsink}) {
    copy(output, true);
  }
}

Execution::~Execution() = default;

double Execution::forward() {
  const ForwardArgs args = forward_args(*operands_, options_);
  if (!on_device_) return run_seconds(args, &workspace_);
  return on_device_->seconds_of(args, [](const ForwardArgs& call, void* workspace, size_t bytes) {
    return fa3::forward(call, workspace, bytes);
  });
}

double Execution::backward() {
  const BackwardArgs args = backward_args(*operands_, options_);
  if (!on_device_) return run_seconds(args, &workspace_);
  return on_device_->seconds_of(args, [](const BackwardArgs& call, void* workspace, size_t bytes) {
    return fa3::backward(call, workspace, bytes);
  });
}

void Execution::fetch() {
  if (!on_device_) return;
  for (const auto& copy : on_device_->copies) {
    if (copy.is_output) copy.memory.write_to(copy.host->data());
  }
}

}  // namespace fa3::cli
