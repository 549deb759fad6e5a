// SPDX-License-Identifier: Apache-2.0
//
// What an engine is to the rest of the library. Engines know core/ and nothing of each other.
#pragma once

#include <fa3/status.h>

#include <span>
#include <string>

#include "core/append.h"
#include "core/dequantize.h"
#include "core/latent.h"
#include "core/plan.h"
#include "core/problem.h"

namespace fa3 {

struct Availability {
  bool available = false;
  std::string detail;  // what was found, or why the engine cannot run here
};

// A clock on an engine's streams, for those who watch a program (api/monitor.h).
struct EngineClock {
  enum class Reading { done, not_yet, lost };

  // A point in the stream's work; null where it takes none (while it is captured into a graph).
  void* (*mark)(int device, void* stream);
  // Seconds from one point to another, which are gone after `done` and `lost`.
  Reading (*between)(void* begin, void* end, bool wait, double* seconds);
};

// What a device can do at best, a second; 0: not known.
struct EngineLimits {
  double flops = 0;  // of matrix products
  double bytes = 0;  // of memory
};

// plan_*: OK and a plan, or UNSUPPORTED with the reason. It changes nothing, and costs the same for
// any extents: of the tensors' data, whose pointers may be null, it reads at most length arrays. A
// plan is only made where it can run: of an engine that is not available there is none. run_*:
// queues (GPU) or does (CPU) what the plan says; writes every output element.
struct Engine {
  const char* name;
  fa3_engine_id id;
  fa3_device_type memory;  // the only memory it takes
  bool automatic;          // a candidate for FA3_ENGINE_AUTO
  Availability (*probe)();
  Status (*plan_forward)(const Problem&, Plan*);
  Status (*run_forward)(const Problem&, const Plan&, void* workspace, void* stream);
  Status (*plan_backward)(const BackwardProblem&, Plan*);
  Status (*run_backward)(const BackwardProblem&, const Plan&, void* workspace, void* stream);
  Status (*run_merge)(const MergeProblem&, void* stream);  // null: this engine does not merge
  Status (*run_append)(const AppendProblem&, void* stream) = nullptr;  // likewise
  // Copies bytes of its memory to the host's and waits for that. Null: its memory is the host's.
  Status (*read_back)(void* to, const void* from, int64_t bytes, int device,
                      void* stream) = nullptr;
  // What the stream gets from now on waits for what the leader has. Null: calls are over when they
  // return.
  Status (*follow)(void* stream, void* leader, int device) = nullptr;
  // Zeros, in order of the stream. Null: its memory is the host's.
  Status (*clear)(void* memory, int64_t bytes, int device, void* stream) = nullptr;
  // Copies bytes of the host's memory, which may change afterwards, in order of the stream; not
  // while that is captured into a graph. Null: its memory is the host's.
  Status (*write)(void* to, const void* from, int64_t bytes, int device, void* stream) = nullptr;
  Status (*plan_quantize)(const QuantizeProblem&, Plan*) = nullptr;  // null: it does not quantize
  Status (*run_quantize)(const QuantizeProblem&, const Plan&, void* workspace,
                         void* stream) = nullptr;
  // Several tensors at once, or UNSUPPORTED where they are quantized one by one. Null: always.
  Status (*plan_quantize_together)(std::span<const QuantizeProblem>, Plan*) = nullptr;
  Status (*run_quantize_together)(std::span<const QuantizeProblem>, void* workspace,
                                  void* stream) = nullptr;
  // Wide numbers of e4m3 ones, of several tensors at once. Null: this engine has no inverse.
  Status (*run_dequantize)(const DequantizeProblem&, void* stream) = nullptr;
  // Whether the forward itself goes on from a partial result. Null: never. Then the call's own
  // result is merged afterwards (plan/merge_apart.h).
  bool (*continues)(const Problem&) = nullptr;
  bool has_score_functions = false;
  // Makes, in the memory that Plan::block_list_bytes asks for, the lists of a block mask that calls
  // which have them (Problem::block_lists) need not make. Null: it makes none.
  Status (*make_forward_lists)(const Problem&, const Plan&, void* memory, void* stream) = nullptr;
  Status (*make_backward_lists)(const BackwardProblem&, const Plan&, void* memory,
                                void* stream) = nullptr;
  // Latent caches of MLA. Null: this engine has none.
  Status (*plan_mla)(const MlaProblem&, Plan*) = nullptr;
  Status (*run_mla)(const MlaProblem&, const Plan&, void* workspace, void* stream) = nullptr;
  Status (*plan_mla_backward)(const MlaBackwardProblem&, Plan*) = nullptr;
  Status (*run_mla_backward)(const MlaBackwardProblem&, const Plan&, void* workspace,
                             void* stream) = nullptr;
  Status (*run_mla_append)(const MlaAppendProblem&, void* stream) = nullptr;
  Status (*run_mla_gather)(const MlaGatherProblem&, void* stream) = nullptr;
  const EngineClock* clock = nullptr;                   // null: calls are over when they return
  EngineLimits (*limits)(DType, int device) = nullptr;  // null: not known
};

// Every engine that this build contains, best first for each kind of memory.
std::span<const Engine* const> engines();

}  // namespace fa3
