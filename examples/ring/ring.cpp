// SPDX-License-Identifier: Apache-2.0
//
// Ring attention over all GPUs of this machine, no Python: a thread a GPU, and NCCL between them.
// Both passes of a causal sequence, or of packed documents with a sink, compared with one GPU that
// has the whole.
//
//     ring [TOKENS_A_GPU [HEADS [KV_HEADS [TOKENS_A_DOCUMENT]]]]
#include <cuda_runtime_api.h>
#include <fa3/attention.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kDim = 128;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void check(ncclResult_t result) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "NCCL: %s\n", ncclGetErrorString(result));
  std::exit(1);
}
void check(const fa3::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "fa3: %s\n", status.message().c_str());
  std::exit(1);
}

// Rows of (1, rows, heads, kDim) on the host, in bfloat16 or float32.
template <class T>
using Rows = std::vector<T>;

Rows<uint16_t> random_rows(int64_t rows, int64_t heads, unsigned seed) {
  std::mt19937 made(seed);
  std::normal_distribution<float> normal;
  Rows<uint16_t> found(size_t(rows * heads * kDim));
  for (uint16_t& x : found) {
    const float value = normal(made);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    x = uint16_t(bits >> 16);
  }
  return found;
}

// A tensor of the current device.
fa3_tensor tensor(int device, fa3_dtype dtype, int64_t rows, int64_t heads) {
  void* data = nullptr;
  const size_t size = dtype == FA3_FLOAT32 ? 4 : 2;
  check(cudaMalloc(&data, std::max<size_t>(size_t(rows * heads * kDim) * size, 1)));
  return fa3::bshd(data, dtype, 1, rows, heads, kDim, {FA3_CUDA, device});
}

struct Sizes {
  int64_t tokens;  // of a GPU
  int64_t heads, kv_heads;
  int64_t document;  // tokens of each; 0: one sequence
};

// Where documents begin, and the end of the last one; empty: one sequence.
std::vector<int32_t> starts_of(const Sizes& sizes, int64_t total) {
  std::vector<int32_t> starts;
  if (sizes.document == 0) return starts;
  for (int64_t row = 0; row < total; row += sizes.document) starts.push_back(int32_t(row));
  starts.push_back(int32_t(total));
  return starts;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // of rows of the whole, half-open

Ranges rows_held(const fa3::Ring& ring, int world, int rank) {
  std::vector<fa3_ring_piece> pieces;
  check(fa3::pieces_of_rank(ring, world, rank, &pieces));
  Ranges found;
  for (const fa3_ring_piece& of : pieces) {
    const int64_t start = ring.num_documents > 0 ? ring.cu_seqlens[of.document] : 0;
    found.emplace_back(start + of.begin, start + of.end);
  }
  return found;
}

// The inputs of the whole on the host, and the results of a call.
struct Whole {
  Rows<uint16_t> q, k, v, d_o;
};
struct Results {
  Rows<uint16_t> o;
  Rows<float> dq, dk, dv, dsink;
  double forward_ms = 0, both_ms = 0;
};

// These rows of the host's tensor, on the device.
fa3_tensor part_of(const Rows<uint16_t>& whole, const Ranges& rows, int64_t heads, int device) {
  int64_t count = 0;
  for (const auto& [begin, end] : rows) count += end - begin;
  const int64_t row = heads * kDim;
  fa3_tensor part = tensor(device, FA3_BFLOAT16, count, heads);
  auto* to = static_cast<uint16_t*>(part.data);
  for (const auto& [begin, end] : rows) {
    const auto numbers = size_t((end - begin) * row);
    check(cudaMemcpy(to, whole.data() + begin * row, numbers * 2, cudaMemcpyHostToDevice));
    to += numbers;
  }
  return part;
}

// A row of numbers on the device.
template <class T>
fa3_tensor line_of(const std::vector<T>& numbers, fa3_dtype dtype, int device) {
  void* data = nullptr;
  check(cudaMalloc(&data, numbers.size() * sizeof(T)));
  check(cudaMemcpy(data, numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice));
  return fa3::contiguous(data, dtype, {int64_t(numbers.size())}, {FA3_CUDA, device});
}

// As packed tensors are without a ring: no batch, and lengths on the device.
template <class Args>
void pack(Args* args, const fa3_tensor& starts, int64_t longest,
          std::initializer_list<fa3_tensor*> tensors) {
  args->options.cu_seqlens_q = args->options.cu_seqlens_k = starts;
  args->options.max_seqlen_q = args->options.max_seqlen_k = longest;
  for (fa3_tensor* tensor : tensors) {
    tensor->rank -= 1;
    std::copy(tensor->shape + 1, tensor->shape + 1 + tensor->rank, tensor->shape);
    std::copy(tensor->stride + 1, tensor->stride + 1 + tensor->rank, tensor->stride);
  }
}

template <class T>
Rows<T> to_host(const fa3_tensor& from) {
  Rows<T> found(size_t(from.stride[0] * from.shape[0]));
  check(cudaMemcpy(found.data(), from.data, found.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return found;
}

// Both passes over these rows; with a ring over those of all ranks, else over them alone.
Results attend(const Whole& whole, const Sizes& sizes, const Ranges& rows, int device,
               const fa3::Ring* ring) {
  check(cudaSetDevice(device));
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  fa3::ForwardArgs forward;
  forward.options.causal = 1;
  forward.options.sm_margin = ring != nullptr && ring->comm_stream != nullptr ? 8 : 0;
  forward.q = part_of(whole.q, rows, sizes.heads, device);
  forward.k = part_of(whole.k, rows, sizes.kv_heads, device);
  forward.v = part_of(whole.v, rows, sizes.kv_heads, device);
  const int64_t count = forward.q.shape[1];
  forward.o = tensor(device, FA3_BFLOAT16, count, sizes.heads);
  void* lse = nullptr;
  check(cudaMalloc(&lse, size_t(count * sizes.heads) * 4));
  forward.lse = fa3::contiguous(lse, FA3_FLOAT32, {1, sizes.heads, count}, {FA3_CUDA, device});

  fa3::BackwardArgs backward;
  backward.options = forward.options;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.o = forward.o;
  backward.lse = forward.lse;
  backward.d_o = part_of(whole.d_o, rows, sizes.heads, device);
  backward.dq = tensor(device, FA3_FLOAT32, count, sizes.heads);
  backward.dk = tensor(device, FA3_FLOAT32, count, sizes.kv_heads);
  backward.dv = tensor(device, FA3_FLOAT32, count, sizes.kv_heads);

  if (sizes.document != 0) {
    forward.sink = backward.sink =
        line_of(std::vector<float>(size_t(sizes.heads), 0.5f), FA3_FLOAT32, device);
    backward.dsink = line_of(std::vector<float>(size_t(sizes.heads)), FA3_FLOAT32, device);
    if (ring == nullptr) {
      const fa3_tensor starts = line_of(starts_of(sizes, count), FA3_INT32, device);
      pack(&forward, starts, sizes.document,
           {&forward.q, &forward.k, &forward.v, &forward.o, &forward.lse});
      pack(&backward, starts, sizes.document,
           {&backward.q, &backward.k, &backward.v, &backward.o, &backward.lse, &backward.d_o,
            &backward.dq, &backward.dk, &backward.dv});
    }
  }

  const auto workspace_of = [&](const auto& args) {
    size_t bytes = 0;
    check(ring != nullptr ? fa3::workspace_size(args, *ring, &bytes)
                          : fa3::workspace_size(args, &bytes));
    void* memory = nullptr;
    check(cudaMalloc(&memory, std::max<size_t>(bytes, 1)));
    return std::pair(memory, bytes);
  };
  const auto [forward_memory, forward_bytes] = workspace_of(forward);
  const auto [backward_memory, backward_bytes] = workspace_of(backward);
  if (ring != nullptr) {  // once for calls of a kind: ranks that differ are told so
    int ranks = 0;
    check(ncclCommCount(static_cast<ncclComm_t>(ring->comm), &ranks));
    const size_t bytes = size_t(ranks) * FA3_RING_AGREE_BYTES;
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes));
    check(fa3::agree(forward, *ring, memory, bytes, stream));
    check(fa3::agree(backward, *ring, memory, bytes, stream));
    check(cudaFree(memory));
  }
  const auto pass = [&](const auto& args, void* memory, size_t bytes) {
    if (ring != nullptr) {
      if constexpr (std::is_same_v<std::decay_t<decltype(args)>, fa3::ForwardArgs>)
        check(fa3::forward(args, *ring, memory, bytes, stream));
      else
        check(fa3::backward(args, *ring, memory, bytes, stream));
    } else {
      if constexpr (std::is_same_v<std::decay_t<decltype(args)>, fa3::ForwardArgs>)
        check(fa3::forward(args, memory, bytes, stream));
      else
        check(fa3::backward(args, memory, bytes, stream));
    }
  };

  Results results;
  cudaEvent_t begin, middle, end;
  for (cudaEvent_t* event : {&begin, &middle, &end}) check(cudaEventCreate(event));
  for (int round = 0; round < 6; ++round) {  // the first ones warm up; the fastest counts
    check(cudaEventRecord(begin, stream));
    pass(forward, forward_memory, forward_bytes);
    check(cudaEventRecord(middle, stream));
    pass(backward, backward_memory, backward_bytes);
    check(cudaEventRecord(end, stream));
    check(cudaStreamSynchronize(stream));
    float one = 0, both = 0;
    check(cudaEventElapsedTime(&one, begin, middle));
    check(cudaEventElapsedTime(&both, begin, end));
    if (round < 2) continue;
    if (results.both_ms == 0 || one < results.forward_ms) results.forward_ms = one;
    if (results.both_ms == 0 || both < results.both_ms) results.both_ms = both;
  }
  results.o = to_host<uint16_t>(forward.o);
  results.dq = to_host<float>(backward.dq);
  results.dk = to_host<float>(backward.dk);
  results.dv = to_host<float>(backward.dv);
  if (sizes.document != 0) results.dsink = to_host<float>(backward.dsink);
  for (void* memory :
       {forward.q.data, forward.k.data, forward.v.data, forward.o.data, lse, backward.d_o.data,
        backward.dq.data, backward.dk.data, backward.dv.data, forward_memory, backward_memory,
        forward.sink.data, backward.dsink.data, forward.options.cu_seqlens_q.data}) {
    check(cudaFree(memory));
  }
  return results;
}

float value(float x) {
  return x;
}
float value(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float found;
  std::memcpy(&found, &bits, 4);
  return found;
}

// How far the rank's rows are from those of the whole, relative to their norm.
template <class T>
double apart(const Rows<T>& part, const Rows<T>& whole, const Ranges& rows, int64_t width) {
  double off = 0, norm = 0;
  size_t at = 0;
  for (const auto& [begin, end] : rows) {
    for (int64_t j = begin * width; j < end * width; ++j, ++at) {
      const double expected = value(whole[size_t(j)]), difference = value(part[at]) - expected;
      off += difference * difference;
      norm += expected * expected;
    }
  }
  return norm == 0 ? std::sqrt(off) : std::sqrt(off / norm);
}

}  // namespace

int main(int count, char** words) {
  const auto number = [&](int i, int64_t other) {
    return count > i ? std::strtoll(words[i], nullptr, 10) : other;
  };
  const Sizes sizes = {number(1, 8192), number(2, 16), number(3, 16), number(4, 0)};
  int world = 0;
  check(cudaGetDeviceCount(&world));
  const int64_t total = sizes.tokens * world;
  const Whole whole = {random_rows(total, sizes.heads, 1), random_rows(total, sizes.kv_heads, 2),
                       random_rows(total, sizes.kv_heads, 3), random_rows(total, sizes.heads, 4)};
  const Results expected = attend(whole, sizes, {{0, total}}, 0, nullptr);
  const std::vector<int32_t> starts = starts_of(sizes, total);

  std::vector<ncclComm_t> comms(static_cast<size_t>(world));
  check(ncclCommInitAll(comms.data(), world, nullptr));
  int failures = 0;
  for (const bool beside : {false, true}) {  // messages on the stream of the calls, or on their own
    std::vector<std::thread> threads;
    std::vector<Results> results(static_cast<size_t>(world));
    std::vector<fa3::Ring> rings(static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      fa3::Ring& ring = rings[size_t(rank)];
      ring.comm = comms[size_t(rank)];
      ring.seqlen = total;
      if (!starts.empty()) {
        ring.cu_seqlens = starts.data();
        ring.num_documents = int32_t(starts.size()) - 1;
      }
      threads.emplace_back([&, rank] {
        check(cudaSetDevice(rank));
        cudaStream_t messages = nullptr;
        if (beside) {
          int least = 0, greatest = 0;
          check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
          check(cudaStreamCreateWithPriority(&messages, cudaStreamNonBlocking, greatest));
        }
        rings[size_t(rank)].comm_stream = messages;
        const fa3::Ring& of = rings[size_t(rank)];
        results[size_t(rank)] = attend(whole, sizes, rows_held(of, world, rank), rank, &of);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Rows<float> dsink(expected.dsink.size());
    for (int rank = 0; rank < world; ++rank) {
      const Results& of = results[size_t(rank)];
      const Ranges rows = rows_held(rings[size_t(rank)], world, rank);
      const int64_t width = sizes.heads * kDim, kv_width = sizes.kv_heads * kDim;
      const double errors[] = {
          apart(of.o, expected.o, rows, width), apart(of.dq, expected.dq, rows, width),
          apart(of.dk, expected.dk, rows, kv_width), apart(of.dv, expected.dv, rows, kv_width)};
      std::printf("rank %d of %d, messages %s: forward %.3f ms, both %.3f ms; apart from one GPU:",
                  rank, world, beside ? "beside" : "between", of.forward_ms, of.both_ms);
      for (double error : errors) {
        std::printf(" %.1e", error);
        failures += error <= 8e-3 ? 0 : 1;
      }
      std::printf("\n");
      for (size_t head = 0; head < dsink.size(); ++head) dsink[head] += of.dsink[head];
    }
    if (!dsink.empty()) {
      const double error = apart(dsink, expected.dsink, {{0, sizes.heads}}, 1);
      std::printf("gradient of the sink, added up: %.1e apart\n", error);
      failures += error <= 8e-3 ? 0 : 1;
    }
  }
  std::printf("one GPU, the whole: forward %.3f ms, both %.3f ms\n", expected.forward_ms,
              expected.both_ms);
  for (ncclComm_t comm : comms) ncclCommDestroy(comm);
  return failures == 0 ? 0 : 1;
}
