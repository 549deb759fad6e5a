// SPDX-License-Identifier: Apache-2.0
//
// What will be done and why: an engine's plan_* decides, its run_* obeys and decides nothing again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace fa3 {

// A plan that asks for this much or more is refused: no machine has it, and sums stay in 64 bits.
constexpr int64_t kTooManyBytes = int64_t{1} << 60;

// What an engine's plan_* has decided, in a type of the engine's own: stored whole, read back
// whole.
class EnginePlan {
 public:
  static constexpr size_t kBytes = 2304;

  template <class T>
  void store(const T& decided) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes);
    std::memcpy(bytes_.data(), &decided, sizeof(T));
  }
  template <class T>
  T load() const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kBytes);
    T decided;
    std::memcpy(&decided, bytes_.data(), sizeof(T));
    return decided;
  }

 private:
  alignas(std::max_align_t) std::array<std::byte, kBytes> bytes_;  // nothing until store()
};

struct Plan {
  // Asked of plan_*, before it decides: whether anybody reads `kernel` and `why`. A call that is
  // only run goes without them: words take longer than the rest of a plan.
  bool wants_words = true;

  std::string engine;        // "cpu", "hopper", ...
  std::string kernel;        // what runs, in words, e.g. "tiled avx512"
  EnginePlan decided;        // the engine's own description of it
  int64_t block_q = 0;       // query rows per tile (0: the engine has no tiles)
  int64_t block_k = 0;       // keys per tile
  int64_t packed_heads = 1;  // query heads that share a tile (PackGQA)
  int64_t num_splits = 1;  // of a tile's keys, combined at the end; 0: by their lengths (stream-K)
  int64_t num_tasks = 0;   // tiles or splits, independent of each other
  int num_threads = 1;
  int64_t workspace_bytes = 0;   // what the caller must provide
  int64_t block_list_bytes = 0;  // of a mask's lists that could be made before the call
  int64_t part_offset = -1;      // there: a result that is merged afterwards; -1: none
  std::string why;               // the reasons, as sentences
};

}  // namespace fa3
