// SPDX-License-Identifier: Apache-2.0
// The score hook of functions that add a line to a row's scores, or two that meet
// (cuda/softmax/added_lines.h). Lines are found once a tile, and wait in shared memory for want of
// registers. Next: forward/policies/scores_function.cuh.
#pragma once

#include "engine/cuda/softmax/added_lines.h"
#include "engine/hopper/forward/consumer/score/added_score.cuh"

namespace fa3::hopper {

struct ScoreWithLines : AddedScore {
  using AddedScore::AddedScore;

  // Finds the lines of the warp's rows. A row has two lanes, one of its first key and one of its
  // last. newest_key: the first one of the block that the tile visits first.
  template <Kernel C, class Lines, class Work>
  __device__ __forceinline__ void find(Lines* lines, KeySpan& meet, float* references,
                                       const ForwardParams& params, const Work& work, int first_row,
                                       int newest_key) const {
    const int lane = int(thread_in_block() % kWarpSize);
    const bool is_last = lane % 2 != 0;
    const int row = lane / kQuadLanes + lane % kQuadLanes / 2 * kRowDistance;
    const int query = params.output.pack.query(first_row + row);
    const auto added_at = [&](int key) -> AddedPoint {
      const ScoreLine line =
          function.line(work.place.sequence_or(work.keys.batch),
                        params.output.pack.head(work.queries.pack, first_row + row), query,
                        first_key_of(work) + key);
      AddedPoint point{};
      point.number = line.number;
      point.step = line.step;
      point.key = key;
      return point;
    };
    const KeySpan keys = ends_of_row<C>(params, work, query, newest_key);

    __syncwarp();  // lines of the tile before have been read
    const AddedPoint end = added_at(is_last ? keys.last : keys.first);
    const auto [first, last] = both(end, is_last);
    if constexpr (kAddsTwoLines) {
      const int middle = middle_of(first, last, score::reciprocal(first.step - last.step));
      const AddedPoint beside =
          added_at(is_last ? min(middle + 1, keys.last) : max(middle - 1, keys.first));
      const auto [a, b] = both(higher(end, beside), is_last);
      const AddedPoint reference = higher(a, b);
      lines[row].line[is_last] = line_through(beside, end.step, reference, inverse_scale);
      lines[row].key = reference.key;
      lines[row].middle = middle;
      references[row] = reference_of(reference);
      meet = {__reduce_min_sync(0xffffffff, middle), __reduce_max_sync(0xffffffff, middle)};
    } else {
      const AddedPoint reference = higher(first, last);
      const AddedNumber line = line_through(reference, reference.step, reference, inverse_scale);
      lines[row] = {line, reference.key};
      references[row] = reference_of(reference);
    }
    __syncwarp();
  }

  // Products begin with lines.
  template <int Count, class Work>
  __device__ __forceinline__ static void start(float (&products)[Count], const AddedLine* lines,
                                               const KeySpan&, const Work& work, int first_key) {
    const int key = key_of_thread(work, first_key);
    const AddedLine* const mine = lines + row_of_thread();
    const Line line[kRowsPerThread] = {line_at(mine[0], key), line_at(mine[kRowDistance], key)};
    // Always so. Behind a branch the compiler keeps these instructions from those that pack P
    // before them, for both of which registers do not last.
    if (first_key >= 0) {
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = line[fragment_row_index(i)].at_column(i);
    }
  }
  // Likewise, with the second ones in a block where they meet.
  template <int Count, class Work>
  __device__ __forceinline__ static void start(float (&products)[Count], const AddedLines* lines,
                                               const KeySpan& meet, const Work& work,
                                               int first_key) {
    const int key = key_of_thread(work, first_key);
    const AddedLines* const mine = lines + row_of_thread();
    const int first = key_in_tile(work, first_key),
              last = first + Count * kQuadLanes / kRowsPerThread - 1;
    const KeySpan where = meet;
    const bool is_second = first > where.last;
    const Line line[kRowsPerThread] = {line_at(mine[0], is_second, key),
                                       line_at(mine[kRowDistance], is_second, key)};
    if (first_key >= 0) {
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = line[fragment_row_index(i)].at_column(i);
    }
    if (!is_second && last >= where.first) {
      const Pair pair[kRowsPerThread] = {line_at(mine[0], key), line_at(mine[kRowDistance], key)};
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = pair[fragment_row_index(i)].at_column(i);
    }
  }
  // To products that began with nothing.
  template <int Count, class Lines, class Work>
  __device__ __forceinline__ static void add(float (&products)[Count], const Lines* lines,
                                             const Work& work, int first_key) {
    const int key = key_of_thread(work, first_key);
    const Lines* const mine = lines + row_of_thread();
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      products[i] += line_at(mine[fragment_row_index(i) * kRowDistance], key).at_column(i);
    }
  }

 private:
  // This lane's and its neighbour's: of the first key, of the last key.
  struct Both {
    AddedPoint first, last;
  };
  __device__ __forceinline__ static Both both(const AddedPoint& mine, bool is_last) {
    AddedPoint other;
    other.number = __shfl_xor_sync(0xffffffff, mine.number, 1);
    other.step = __shfl_xor_sync(0xffffffff, mine.step, 1);
    other.key = __shfl_xor_sync(0xffffffff, mine.key, 1);
    return is_last ? Both{other, mine} : Both{mine, other};
  }

  // The first and the last key that a row sees, or about that; lists are in no order.
  template <Kernel C, class Work>
  __device__ __forceinline__ static KeySpan ends_of_row(const ForwardParams& params,
                                                        const Work& work, int query,
                                                        int newest_key) {
    if constexpr (!requires { work.place.blocks; }) {
      const MaskRuleOf<int> without_chunks{params.mask.left, params.mask.right};
      const auto seen = without_chunks.keys_of(query, work.queries.count, work.keys.count);
      return {seen.begin - work.first_key, max(seen.begin, seen.end - 1) - work.first_key};
    } else if constexpr (kAddsTwoLines) {
      return {0, work.keys.count - 1};
    } else {
      return {key_in_tile(work, 0), key_in_tile(work, newest_key) + C.shape.block_n - 1};
    }
  }

  template <class Work>
  __device__ __forceinline__ static int key_of_thread(const Work& work, int first_key) {
    return key_in_tile(work, first_key) + fragment_lane_column(int(thread_in_block() % kWarpSize));
  }
  __device__ __forceinline__ static int row_of_thread() {
    return int(thread_in_block() % kWarpSize) / kQuadLanes;
  }

  // At a thread's first key of a block, and more from key to key.
  struct Line {
    float at, step;

    __device__ __forceinline__ float at_column(int i) const {
      return __fmaf_rn(float(fragment_column(i)), step, at);
    }
  };
  struct Pair {
    Line first, second;

    __device__ __forceinline__ float at_column(int i) const {
      const float a = first.at_column(i), b = second.at_column(i);
      return first.step >= second.step ? fminf(a, b) : fmaxf(a, b);
    }
  };

  __device__ __forceinline__ static Line line_at(const AddedLine& line, int key) {
    return {__fmaf_rn(float(key - line.key), line.step, line.number), line.step};
  }
  __device__ __forceinline__ static Line line_at(const AddedLines& lines, bool is_second, int key) {
    const AddedNumber& line = lines.line[is_second];
    return {__fmaf_rn(float(key - lines.key), line.step, line.number), line.step};
  }
  __device__ __forceinline__ static Pair line_at(const AddedLines& lines, int key) {
    return {line_at(lines, false, key), line_at(lines, true, key)};
  }
};

}  // namespace fa3::hopper
