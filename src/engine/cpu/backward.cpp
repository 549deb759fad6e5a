// SPDX-License-Identifier: Apache-2.0
//
// Two passes over score tiles. One side of the tile stays (its gradients are summed in this task),
// the other side streams by:
//
//   pass 1  keys stay:     dV += P^T dO,  dK += dS^T Q    over the query blocks that see them
//   pass 2  queries stay:  dQ += dS K                     over the key blocks that they see
//
// Both passes recompute S and P: 7 products instead of 5, for which no gradient has two writers, no
// sum depends on timing, and no O(N) accumulators are needed. The staying side is packed transposed
// once, so that no tile is ever transposed: tiles are (streaming, staying) in both passes.
#include "engine/cpu/backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/block_range.h"
#include "core/error.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/thread_memory.h"
#include "engine/cpu/tile_shape.h"

namespace fa3::cpu {
namespace {

// Two score tiles of 64 x 64 floats are 32 KiB: they stay in the L1 cache.
constexpr int64_t kBlock = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f;

int64_t padded(int64_t columns) {
  return round_up(columns, kMaxLanes);
}

int64_t num_blocks(int64_t rows) {
  return (rows + kBlock - 1) / kBlock;
}

// Rows of one side of a tile: [begin, begin + count) of a sequence.
struct Block {
  int64_t begin;
  int64_t count;
};

Block block_at(int64_t begin, int64_t end) {
  return {begin, std::min(kBlock, end - begin)};
}

struct Buffers {
  float* streaming_a;  // (block, head_dim): Q or K rows
  float* streaming_b;  // (block, head_dim_v): dO or V rows
  float* staying_at;   // (head_dim, block): K^T or Q^T
  float* staying_bt;   // (head_dim_v, block): V^T or dO^T
  float* p;            // (block, block): S, then P
  float* ds;           // (block, block): dP, then dS
  float* sum_a;        // (block, head_dim): dK or dQ
  float* sum_b;        // (block, head_dim_v): dV
  float* lse;          // (block)
  float* delta;        // (block)
};

Buffers carve_buffers(const Problem& problem, Carver& carver) {
  const int64_t dim = padded(problem.head_dim);
  const int64_t dim_v = padded(problem.head_dim_v);
  Buffers buffers;
  buffers.streaming_a = carver.take<float>(kBlock, dim);
  buffers.streaming_b = carver.take<float>(kBlock, dim_v);
  buffers.staying_at = carver.take<float>(dim, kBlock);
  buffers.staying_bt = carver.take<float>(dim_v, kBlock);
  buffers.p = carver.take<float>(kBlock, kBlock);
  buffers.ds = carver.take<float>(kBlock, kBlock);
  buffers.sum_a = carver.take<float>(kBlock, dim);
  buffers.sum_b = carver.take<float>(kBlock, dim_v);
  buffers.lse = carver.take<float>(kBlock);
  buffers.delta = carver.take<float>(kBlock);
  return buffers;
}

// D = rowsum(dO * O) - dLSE for every (batch, head, query): paper, Algorithm 3, line 1, and what the
// LSE's own gradient adds, since dLSE / dS = P.
struct Delta {
  float* data;
  int64_t heads, rows;

  float* at(int64_t b, int64_t head, int64_t q_row) const {
    return data + (b * heads + head) * rows + q_row;
  }
};

struct BackwardWorkspace {
  Delta delta;
  ThreadMemory threads;  // Buffers of each
};

BackwardWorkspace carve(const Problem& problem, int num_threads, Carver& carver) {
  const int64_t rows = problem.lengths_q.max;
  return {
      .delta = {carver.take<float>(problem.batch, problem.heads_q, rows), problem.heads_q, rows},
      .threads = take_thread_memory(carver, num_threads,
                                    [&](Carver& one) { carve_buffers(problem, one); })};
}

template <class T>
void load_rows(const Operand& operand, int64_t b, int64_t head, int64_t first_row, int64_t count,
               int64_t dim, float* tile) {
  for (int64_t r = 0; r < count; ++r) {
    float* row = tile + r * padded(dim);
    load_row(operand.at<T>(b, first_row + r, head), dim, row);
    std::fill(row + dim, row + padded(dim), 0.0f);
  }
}

// The transpose, (dim, kBlock), columns past `count` zero.
template <class T>
void load_transposed(const Operand& operand, int64_t b, int64_t head, int64_t first_row,
                     int64_t count, int64_t dim, float* tile) {
  if (count < kBlock) std::fill_n(tile, dim * kBlock, 0.0f);
  for (int64_t r = 0; r < count; ++r) {
    const T* row = operand.at<T>(b, first_row + r, head);
    for (int64_t c = 0; c < dim; ++c) tile[c * kBlock + r] = to_float(row[c]);
  }
}

template <class T>
void store_rows(const float* tile, float factor, const Operand& operand, int64_t b, int64_t head,
                int64_t first_row, int64_t count, int64_t dim) {
  for (int64_t r = 0; r < count; ++r) {
    T* row = operand.at<T>(b, first_row + r, head);
    for (int64_t c = 0; c < dim; ++c) row[c] = from_float<T>(factor * tile[r * padded(dim) + c]);
  }
}

// One (batch, query head) of the problem with its lengths; T stores inputs, Out stores O and dO.
template <class T, class Out>
class HeadPass {
 public:
  HeadPass(const BackwardProblem& problem, Delta delta, int64_t b, int64_t head,
           const Buffers& buffers)
      : problem_(problem),
        delta_(delta),
        b_(b),
        head_(head),
        q_rows_(problem.lengths_q.rows_of(b)),
        k_rows_(problem.lengths_k.rows_of(b)),
        buffers_(buffers) {}

  // Pass 1 for one query head: adds to the staying keys' dK and dV. K^T and V^T are packed.
  void add_key_gradients(Block keys) const {
    const KeyRange queries =
        query_range(problem_.mask, keys.begin, keys.begin + keys.count, q_rows_.used, k_rows_.used);
    for (int64_t begin = queries.begin; begin < queries.end; begin += kBlock) {
      const Block block = block_at(begin, queries.end);
      load_rows<T>(problem_.q, b_, head_, q_rows_.begin + begin, block.count, problem_.head_dim,
                   buffers_.streaming_a);
      load_rows<Out>(problem_.d_o, b_, head_, q_rows_.begin + begin, block.count,
                     problem_.head_dim_v, buffers_.streaming_b);
      load_row_scalars(block);
      recompute_tile<true>(block, keys);
      multiply(keys.count, problem_.head_dim_v, block.count, buffers_.p, buffers_.streaming_b,
               buffers_.sum_b);
      multiply(keys.count, problem_.head_dim, block.count, buffers_.ds, buffers_.streaming_a,
               buffers_.sum_a);
    }
  }

  // Pass 2: the staying queries' dQ.
  void query_gradients(Block queries) const {
    load_transposed<T>(problem_.q, b_, head_, q_rows_.begin + queries.begin, queries.count,
                       problem_.head_dim, buffers_.staying_at);
    load_transposed<Out>(problem_.d_o, b_, head_, q_rows_.begin + queries.begin, queries.count,
                         problem_.head_dim_v, buffers_.staying_bt);
    load_row_scalars(queries);
    std::fill_n(buffers_.sum_a, kBlock * padded(problem_.head_dim), 0.0f);
    const KeyRange keys = block_range(problem_.mask, queries.begin, queries.begin + queries.count,
                                      q_rows_.used, k_rows_.used)
                              .visible;
    const int64_t kv_head = head_ / problem_.group();
    for (int64_t begin = keys.begin; begin < keys.end; begin += kBlock) {
      const Block block = block_at(begin, keys.end);
      load_rows<T>(problem_.k, b_, kv_head, k_rows_.begin + begin, block.count, problem_.head_dim,
                   buffers_.streaming_a);
      load_rows<T>(problem_.v, b_, kv_head, k_rows_.begin + begin, block.count, problem_.head_dim_v,
                   buffers_.streaming_b);
      recompute_tile<false>(block, queries);
      multiply(queries.count, problem_.head_dim, block.count, buffers_.ds, buffers_.streaming_a,
               buffers_.sum_a);
    }
    store_rows<T>(buffers_.sum_a, problem_.scale, problem_.dq, b_, head_,
                  q_rows_.begin + queries.begin, queries.count, problem_.head_dim);
  }

 private:
  void load_row_scalars(Block queries) const {
    for (int64_t i = 0; i < queries.count; ++i) {
      buffers_.lse[i] = *problem_.lse.at(b_, head_, q_rows_.begin + queries.begin + i);
      buffers_.delta[i] = *delta_.at(b_, head_, queries.begin + i);
    }
  }

  // sum (staying, dim) += tile^T (staying, streaming) * rows (streaming, dim)
  void multiply(int64_t staying, int64_t dim, int64_t streaming, const float* tile,
                const float* rows, float* sum) const {
    kernels().add_product(staying, padded(dim), streaming, {tile, 1, kBlock}, rows, padded(dim),
                          sum, padded(dim));
  }

  // P and dS of the tile (streaming, staying), from S = A_streaming A_staying^T and
  // dP = B_streaming B_staying^T.
  template <bool kQueriesStream>
  void recompute_tile(Block streaming, Block staying) const {
    const int64_t rows = streaming.count;
    const int64_t dim = problem_.head_dim;
    const int64_t dim_v = problem_.head_dim_v;
    std::fill_n(buffers_.p, rows * kBlock, 0.0f);
    std::fill_n(buffers_.ds, rows * kBlock, 0.0f);
    kernels().add_product(rows, kBlock, dim, {buffers_.streaming_a, padded(dim), 1},
                          buffers_.staying_at, kBlock, buffers_.p, kBlock);
    kernels().add_product(rows, kBlock, dim_v, {buffers_.streaming_b, padded(dim_v), 1},
                          buffers_.staying_bt, kBlock, buffers_.ds, kBlock);
    for (int64_t i = 0; i < rows; ++i) {
      finish_tile_row<kQueriesStream>(streaming.begin + i, i, staying);
    }
  }

  // P = exp(softcap(scale S) - LSE), dS = P (dP - D) softcap'(scale S); hidden scores get zeros.
  template <bool kQueriesStream>
  void finish_tile_row(int64_t streaming_row, int64_t i, Block staying) const {
    float* p = buffers_.p + i * kBlock;
    float* ds = buffers_.ds + i * kBlock;
    float slope[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) {
      slope[j] = 1.0f;
      float score = problem_.scale * p[j];
      if (problem_.softcap > 0) {
        const float t = std::tanh(score / problem_.softcap);
        score = problem_.softcap * t;
        slope[j] = 1 - t * t;
      }
      p[j] = kLog2E * (score - buffers_.lse[kQueriesStream ? i : j]);
    }
    kernels().exp2(p, kBlock);
    const Block seen = visible_columns<kQueriesStream>(streaming_row, staying);
    for (int64_t j = 0; j < kBlock; ++j) {
      const int64_t query = kQueriesStream ? i : j;
      const bool live =
          j >= seen.begin && j < seen.begin + seen.count && buffers_.lse[query] != -kInfinity;
      p[j] = live ? p[j] : 0.0f;
      ds[j] = live ? p[j] * (ds[j] - buffers_.delta[query]) * slope[j] : 0.0f;
    }
  }

  // Which columns of a tile row take part, as a range of column indices.
  template <bool kQueriesStream>
  Block visible_columns(int64_t streaming_row, Block staying) const {
    const KeyRange range = kQueriesStream
                               ? problem_.mask.keys_of(streaming_row, q_rows_.used, k_rows_.used)
                               : query_range(problem_.mask, streaming_row, streaming_row + 1,
                                             q_rows_.used, k_rows_.used);
    const int64_t begin = std::max<int64_t>(range.begin - staying.begin, 0);
    const int64_t end = std::min(range.end - staying.begin, staying.count);
    return {begin, std::max<int64_t>(end - begin, 0)};
  }

  const BackwardProblem& problem_;
  const Delta delta_;
  const int64_t b_, head_;
  const Rows q_rows_, k_rows_;
  const Buffers& buffers_;
};

template <class Out>
void compute_delta(const BackwardProblem& problem, Delta delta, int64_t b, int64_t head) {
  const Rows rows = problem.lengths_q.rows_of(b);
  for (int64_t q_row = 0; q_row < rows.used; ++q_row) {
    const Out* o = problem.o.at<Out>(b, rows.begin + q_row, head);
    const Out* d_o = problem.d_o.at<Out>(b, rows.begin + q_row, head);
    float sum = 0;
    for (int64_t c = 0; c < problem.head_dim_v; ++c) sum += to_float(o[c]) * to_float(d_o[c]);
    if (problem.d_lse.data != nullptr) sum -= *problem.d_lse.at(b, head, rows.begin + q_row);
    *delta.at(b, head, q_row) = sum;
  }
}

// The sink is a logit without a value row: its dP is 0, so its dS is -P_sink D.
void compute_dsink(const BackwardProblem& problem, Delta delta, int64_t head) {
  double sum = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Rows rows = problem.lengths_q.rows_of(b);
    for (int64_t q_row = 0; q_row < rows.used; ++q_row) {
      const double lse = *problem.lse.at(b, head, rows.begin + q_row);
      if (lse == -kInfinity) continue;
      sum -= std::exp(double{problem.sink[head]} - lse) * double{*delta.at(b, head, q_row)};
    }
  }
  problem.dsink[head] = static_cast<float>(sum);
}

// Pass 1 for one block of keys of one key/value head.
template <class T, class Out>
void key_block_task(const BackwardProblem& problem, Delta delta, int64_t b, int64_t kv_head,
                    int64_t index, const Buffers& buffers) {
  const Rows rows = problem.lengths_k.rows_of(b);
  if (index * kBlock >= rows.used) return;
  const Block keys = block_at(index * kBlock, rows.used);
  const int64_t row = rows.begin + keys.begin;
  load_transposed<T>(problem.k, b, kv_head, row, keys.count, problem.head_dim, buffers.staying_at);
  load_transposed<T>(problem.v, b, kv_head, row, keys.count, problem.head_dim_v,
                     buffers.staying_bt);
  std::fill_n(buffers.sum_a, kBlock * padded(problem.head_dim), 0.0f);
  std::fill_n(buffers.sum_b, kBlock * padded(problem.head_dim_v), 0.0f);
  for (int64_t g = 0; g < problem.group(); ++g) {
    const int64_t head = kv_head * problem.group() + g;
    HeadPass<T, Out>(problem, delta, b, head, buffers).add_key_gradients(keys);
  }
  store_rows<T>(buffers.sum_a, problem.scale, problem.dk, b, kv_head, row, keys.count,
                problem.head_dim);
  store_rows<T>(buffers.sum_b, 1.0f, problem.dv, b, kv_head, row, keys.count, problem.head_dim_v);
}

// Pass 2 for one block of queries of one query head.
template <class T, class Out>
void query_block_task(const BackwardProblem& problem, Delta delta, int64_t b, int64_t head,
                      int64_t index, const Buffers& buffers) {
  const Rows rows = problem.lengths_q.rows_of(b);
  if (index * kBlock >= rows.used) return;
  HeadPass<T, Out>(problem, delta, b, head, buffers)
      .query_gradients(block_at(index * kBlock, rows.used));
}

template <class T, class Out>
void run_passes(const BackwardProblem& problem, const Plan& plan, void* workspace) {
  Carver carver(workspace);
  const BackwardWorkspace memory = carve(problem, plan.num_threads, carver);
  const Delta& delta = memory.delta;
  const auto buffers_of = [&](int worker) {
    Carver mine = memory.threads[worker];
    return carve_buffers(problem, mine);
  };

  const int64_t heads_q = problem.heads_q;
  parallel_for(problem.batch * heads_q, plan.num_threads, [&](int64_t task, int) {
    compute_delta<Out>(problem, delta, task / heads_q, task % heads_q);
  });
  if (problem.dsink != nullptr) {
    parallel_for(heads_q, plan.num_threads,
                 [&](int64_t head, int) { compute_dsink(problem, delta, head); });
  }
  // Longest first: causally, the first key block is seen by all queries, the last query sees all.
  const int64_t kv_pairs = problem.batch * problem.heads_k;
  const int64_t key_blocks = num_blocks(problem.lengths_k.max);
  parallel_for(kv_pairs * key_blocks, plan.num_threads, [&](int64_t task, int worker) {
    const int64_t pair = task % kv_pairs;
    key_block_task<T, Out>(problem, delta, pair / problem.heads_k, pair % problem.heads_k,
                           task / kv_pairs, buffers_of(worker));
  });
  const int64_t q_pairs = problem.batch * heads_q;
  const int64_t query_blocks = num_blocks(problem.lengths_q.max);
  parallel_for(q_pairs * query_blocks, plan.num_threads, [&](int64_t task, int worker) {
    const int64_t pair = task % q_pairs;
    query_block_task<T, Out>(problem, delta, pair / heads_q, pair % heads_q,
                             query_blocks - 1 - task / q_pairs, buffers_of(worker));
  });
}

}  // namespace

Status plan_backward(const BackwardProblem& problem, Plan* plan) {
  if (problem.dtype == DType::float8_e4m3) return unsupported("float8_e4m3 is not supported yet");
  const int64_t tasks = problem.batch * (problem.heads_k * num_blocks(problem.lengths_k.max) +
                                         problem.heads_q * num_blocks(problem.lengths_q.max));
  const int threads =
      static_cast<int>(std::clamp<int64_t>(tasks, 1, static_cast<int64_t>(problem.num_threads)));
  *plan = {.engine = "cpu",
           .kernel = concat("tiled backward ", isa_name()),
           .block_q = kBlock,
           .block_k = kBlock,
           .num_tasks = tasks,
           .num_threads = threads,
           .workspace_bytes = bytes_of([&](Carver& carver) { carve(problem, threads, carver); }),
           .why =
               "Two passes with one writer per gradient tile: repeatable, without O(N) "
               "accumulators. The workspace is one float per query and head, and tiles per "
               "thread."};
  return {};
}

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace, void*) {
  if (problem.lengths_q.total == 0) return zero_gradients(problem);
  visit_dtype(problem.dtype, [&]<class T>(T) {
    visit_dtype(problem.d_o.dtype,
                [&]<class Out>(Out) { run_passes<T, Out>(problem, plan, workspace); });
  });
  zero_unused_rows(problem.dq, problem.lengths_q, problem.batch, problem.heads_q, problem.head_dim);
  zero_unused_rows(problem.dk, problem.lengths_k, problem.batch, problem.heads_k, problem.head_dim);
  zero_unused_rows(problem.dv, problem.lengths_k, problem.batch, problem.heads_k,
                   problem.head_dim_v);
  return {};
}

}  // namespace fa3::cpu
