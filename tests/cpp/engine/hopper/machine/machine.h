// SPDX-License-Identifier: Apache-2.0
//
// An SM as far as the barrier protocol can tell: warps that run in any order, barriers
// with phases, a TMA and tensor cores that finish whenever they like. The kernels' own
// sources run on it, with machine/engine/hopper/ptx/ in place of the instructions. It breaks off
// with a sentence when
//   - memory is overwritten while something still reads it, or read before it was filled,
//   - a store, or a copy by threads, is read by wgmma or TMA without a fence between,
//   - a barrier runs past somebody who waits for it (its phases alias), or is misused,
//   - accumulators are touched while a product works on them,
//   - global memory is copied from before the kernel before has ended, or read before the CTA that
//     stores there has told of it by a flag,
//   - lanes of a warp meet in different instructions, CTAs of a cluster do not wait for each other,
//   - nobody can go on, also for want of registers.
// What was multiplied and what left the block is logged, for the test to compare with what should
// have been. What it cannot see: docs/protocol-model.md. Next: clock.h, sm/scheduler.h,
// sm/memory.h.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/cuda/tile/tile_layout.h"
#include "fault.h"

namespace fa3::machine {

inline constexpr int kSmemBytes = 232448;
inline constexpr uint32_t kSmemBase = 1024;  // its first address

// How often each kind of actor gets its turn.
struct Pace {
  const char* name = "even";
  double engines = 1;                                                // copies arrive
  std::function<double(int warp)> weight = [](int) { return 1.0; };  // counted through all CTAs
  double interruption = 0.2;  // chance to be interrupted at an instruction that others can see
};

// A part of shared memory that threads store to or load from, or that is smaller than a split of
// sm/memory.h. Of a warp only lane 0 is seen, so its stores and loads count for the whole buffer.
struct Buffer {
  const char* name;
  uint32_t address;
  int bytes;
  bool in_place = false;  // stores change numbers, and not whose they are
  int strips = 1;         // of each 128 bytes, for a warp each, which meets no other there
};

// What lies somewhere in shared memory.
struct Content {
  const void* tensor = nullptr;  // null: threads stored it
  int row = 0, column = 0, head = 0, batch = 0;
  int filling = 0;  // of what threads stored: how often they have filled it anew, from 1
  int sender = 0;   // of what another CTA has sent: its rank, from 1
};

// One product of a warp, as it was issued: A (16 rows of this warp) times B.
struct Product {
  bool a_in_registers = false;
  bool adds = false;  // to what the accumulator has
  Content a, b;       // where the operands begin; of A if it is in shared memory
  int columns = 0;    // of B
  int depth = 0;      // summed over
  bool scores() const { return !a_in_registers; }
};

// Something that TMA took from shared memory, or a warp from its registers.
struct Departure {
  int warp = 0;              // counted through all CTAs
  const void* to = nullptr;  // address or tensor
  int row = 0, column = 0, head = 0, batch = 0;
  int rows = 0;  // of a tile, that lie in the tensor as far as its map tells
  int bytes = 0;
  int filling = 0;    // of the buffer it left from
  bool adds = false;  // to what is there
  // How many semaphore uses came before its thread knew it to be in global memory.
  size_t arrived = SIZE_MAX;
};

// A load of a counter that orders CTAs, or an addition to it.
struct SemaphoreUse {
  const int* counter = nullptr;
  bool adds = false;
  int value = 0;          // loaded, or added
  size_t departures = 0;  // the number of departures before
  int cta = 0;            // among those that run
};

// A (batch, row, head, column) tensor in global memory that threads copy from: here, addresses
// alone.
struct GlobalTensor {
  const void* tensor = nullptr;  // its name
  uintptr_t address = 0;
  int64_t rows = 0;  // of all batch entries
  int heads = 0, columns = 0, element_bytes = 0;
  int64_t rows_of_entry = 0;
};

struct Setting {
  unsigned seed = 0;
  unsigned block = 0;  // blockIdx.x
  int neighbours = 1;  // blocks that share the registers, itself among them
  Pace pace;
  Fault fault = Fault::kNone;
  KvBarriers kv;    // that the fault is about
  int barrier = 0;  // likewise, by its number
  bool pdl =
      false;  // the kernel before may still run: each warp waits for its end before it copies
  // Or only for what it copies: the counter that tells when the kernel before has made that, and
  // shows `made` then; null: it was there before. Without a function all copies wait for the end.
  std::function<const int*(const Content&)> counter_of;
  int made = 0;
  std::vector<Buffer> buffers;
  std::vector<uint32_t> expect_ahead;  // barriers left waiting for bytes that nobody sends
  std::vector<GlobalTensor> tensors;
  std::function<void()> after_step;     // looks at global memory after each warp's turn
  std::set<const void*> stored_before;  // in global memory, by CTAs that are done
  // Products whose results are infinite; those of which most are very small; all others are zero.
  std::function<bool(const Product&)> infinite = [](const Product&) { return false; };
  std::function<bool(const Product&)> peaked = [](const Product&) { return false; };
};

struct Outcome {
  std::string error;                           // "" if all went well
  std::vector<std::vector<Product>> products;  // by warp, counted through all CTAs
  std::vector<Departure> departures;
  std::vector<SemaphoreUse> semaphore_uses;
  std::vector<const void*> stored;          // where lanes 0 wrote output
  std::vector<std::vector<Content>> loads;  // by lane 0 of each warp, where all lanes are modelled
  std::vector<int> drawn;                   // tickets that this block got
  int64_t switches = 0;
};

// How an encoded tensor map looks here.
struct TensorMap {
  const void* tensor;
  int box_rows;
  int row_bytes;
  int rows_before = 0;      // as coordinates count them, before the tensor's first row
  int page_rows = 0;        // of a batch entry, where these follow each other as one tensor's rows
  bool of_queries = false;  // whose coordinates are {column, row of the tile, row, head}
  int columns = 0;          // of the tensor
  int rows = 0;
  bool origin_is_memory = true;
  int slabs = 1;                  // of a box, that lie behind each other
  bool transposed_later = false;  // by threads, where it lies: what it is then is what it holds
};
CUtensorMap encoded(const TensorMap& map);
TensorMap decoded(const CUtensorMap& map);

// CTAs of a grid that run beside each other, in clusters along x.
struct Ctas {
  dim3 grid{1, 1, 1};
  int first = 0, count = 1;
  int cluster = 1;
};

// Runs body() once for each modelled thread of the CTAs, interleaved at random.
Outcome run_ctas(const Setting& setting, int warps, const Ctas& ctas,
                 const std::function<void()>& body);
// Runs one CTA, number setting.block.
Outcome run_block(const Setting& setting, int warps, unsigned blocks,
                  const std::function<void()>& body);

}  // namespace fa3::machine
