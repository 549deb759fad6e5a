// SPDX-License-Identifier: Apache-2.0
//
// A multiprocessor as far as the barrier protocol can tell: warps that run in any order, barriers
// with phases, a copy engine and tensor cores that finish whenever they like. The kernels' own
// sources run on it, with machine/engine/hopper/ptx/ in place of the instructions. It breaks off with
// a sentence when
//   - memory is overwritten while something still reads it, or read before it was filled,
//   - a barrier runs past somebody who waits for it (its phases alias), or is misused,
//   - nobody can go on.
// What was multiplied and stored is logged, for the test to compare with what should have been.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace fa3::machine {

// Shared memory is watched in pieces of this many bytes: 8 rows of 128, or 16 of 64.
inline constexpr int kGranule = 1024;
inline constexpr int kSmemBytes = 232448;
inline constexpr uint32_t kSmemBase = 1024;  // its first address

// How often each kind of actor gets its turn.
struct Pace {
  const char* name = "even";
  double producer = 1;
  double consumers = 1;
  double engines = 1;         // copies arrive
  int slow_warp = -1;         // one consumer warp, a hundred times slower
  double interruption = 0.2;  // chance to be interrupted at an instruction that others can see
};

// What is broken on purpose.
enum class Fault {
  kNone,
  kReleaseBeforeRead,  // consumers let go of a K/V slot as soon as it is full
  kProducerPhase,      // the producer waits for the other phase of empty K/V slots
  kConsumerPhase,      // consumers wait for the other phase of full ones
  kOneArrivalTooFew,   // a slot counts as empty before the last warp has let go of it
  kOneArrivalTooMany,
  kLostRelease,     // one warp forgets one release
  kTooFewBytes,     // a slot of two slabs counts as full after the first
  kNoFirstTurn,     // nobody gives the first turn to issue products
  kTurnGivenTwice,  // somebody gives his turn on twice
};

// One product group of a warp, as it was issued.
struct Product {
  enum Kind { kScores, kOutput } kind;
  int q_row = 0;  // first row of the warp
  int q_head = 0;
  int key_row = 0;  // first key of the block
  int kv_head = 0;
  int batch = 0;
  int extent = 0;  // scores: columns multiplied; output: keys
};

// Which barriers the faults are about.
struct KvBarriers {
  uint32_t first_full = 0, first_empty = 0;
  int slots = 0;
  bool is_full(uint32_t barrier) const { return within(barrier, first_full); }
  bool is_empty(uint32_t barrier) const { return within(barrier, first_empty); }

 private:
  bool within(uint32_t barrier, uint32_t first) const {
    return barrier >= first && barrier < first + slots * sizeof(uint64_t);
  }
};

struct Setting {
  unsigned seed = 0;
  Pace pace;
  Fault fault = Fault::kNone;
  KvBarriers kv;
  // Scores that this call says true for are infinite: (first q row of the warp, head, batch, key row).
  std::function<bool(const Product&)> infinite = [](const Product&) { return false; };
};

struct Outcome {
  std::string error;                           // "" if all went well
  std::vector<std::vector<Product>> products;  // by warp
  std::vector<const void*> stored;             // where lanes 0 wrote output
  std::vector<int> drawn;                      // tickets that this block got
  int64_t switches = 0;
};

// How an encoded tensor map looks here.
struct TensorMap {
  const void* tensor;
  int box_rows;
  int row_bytes;
};

// Runs body() once for each warp of a block, interleaved at random.
Outcome run_block(const Setting& setting, int warps, unsigned blocks,
                  const std::function<void()>& body);

// What the instructions call (machine/engine/hopper/ptx/).
void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_arrive(uint32_t barrier, int64_t bytes);
bool barrier_passed(uint32_t barrier, uint32_t parity);
void barrier_wait(uint32_t barrier, uint32_t parity);
void named_arrive(int id, int threads);
void named_sync(int id, int threads);
void load(uint32_t smem, const CUtensorMap& map, int column, int row, int head, int batch,
          uint32_t barrier);
void store(const void* pointer);
// Returns what every score becomes.
float multiply_scores(uint64_t a, uint64_t b, int columns);
void multiply_output(uint64_t b, int columns);
void commit_products();
void wait_for_products(int pending);

}  // namespace fa3::machine
