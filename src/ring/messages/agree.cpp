// SPDX-License-Identifier: Apache-2.0
#include "ring/messages/agree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "api/describe/rules/tensor_rules.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/macros.h"
#include "ring/describe.h"
#include "ring/messages/messages.h"

namespace fa3::ring {
namespace {

// What must be the same on every rank, as numbers.
enum Fact {
  kPass,
  kDtype,
  kBatch,
  kHeads,
  kKvHeads,
  kDim,
  kDimV,
  kCausal,
  kLeft,
  kRight,
  kSoftcap,
  kScale,
  kDeterministic,
  kSink,
  kLayout,
  kSeqlen,
  kDocuments,
  kStarts,
  kNumFacts
};
constexpr std::array<const char*, kNumFacts> kNames = {
    "the call",           "dtype of q",     "batch of q",    "heads of q",
    "heads of k",         "head dim of q",  "head dim of v", "causal",
    "window_left",        "window_right",   "softcap",       "scale",
    "deterministic",      "sink",           "ring.layout",   "ring.seqlen",
    "ring.num_documents", "ring.cu_seqlens"};

// What a rank tells the others.
struct Letter {
  std::array<int64_t, kNumFacts> facts{};
  int64_t code = 0;  // of what the rank has found wrong itself
  char sentence[FA3_RING_AGREE_BYTES - 8 * (kNumFacts + 1)] = "";
};
static_assert(sizeof(Letter) == FA3_RING_AGREE_BYTES);

int64_t as_number(float x) {
  return std::bit_cast<int32_t>(x);
}

// FNV-1a: lengths that differ have the same one by accident alone.
int64_t hash_of(const fa3_ring& ring) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int32_t i = 0; ring.num_documents > 0 && i <= ring.num_documents; ++i) {
    hash = (hash ^ static_cast<uint32_t>(ring.cu_seqlens[i])) * 0x100000001b3;
  }
  return static_cast<int64_t>(hash);
}

// The arguments were found right before.
template <class Params>
std::array<int64_t, kNumFacts> facts_of(const Params& p, const fa3_ring& ring) {
  const fa3_options& o = p.options;
  std::array<int64_t, kNumFacts> facts{};
  facts[kPass] = std::is_same_v<Params, fa3_forward_params> ? 0 : 1;
  facts[kDtype] = p.q.dtype;
  facts[kBatch] = p.q.shape[0];
  facts[kHeads] = p.q.shape[2];
  facts[kKvHeads] = p.k.shape[2];
  facts[kDim] = p.q.shape[3];
  facts[kDimV] = p.v.shape[3];
  facts[kCausal] = o.causal;
  facts[kLeft] = o.window_left;
  facts[kRight] = o.window_right;
  facts[kSoftcap] = as_number(o.softcap);
  facts[kScale] = as_number(o.scale);
  facts[kDeterministic] = o.deterministic;
  facts[kSink] = api::present(p.sink) ? 1 : 0;
  facts[kLayout] = ring.layout;
  facts[kSeqlen] = ring.seqlen;
  facts[kDocuments] = ring.num_documents;
  facts[kStarts] = hash_of(ring);
  return facts;
}

std::string text_of(size_t fact, int64_t value) {
  switch (fact) {
    case kPass:
      return value == 0 ? "a forward" : "a backward";
    case kDtype:
      return std::string(name_of(static_cast<DType>(value)));
    case kSoftcap:
    case kScale: {
      const auto number = std::bit_cast<float>(static_cast<int32_t>(value));
      return number == FA3_SCALE_AUTO ? "FA3_SCALE_AUTO" : concat(number);
    }
    case kSink:
      return value == 0 ? "none" : "one";
    case kStarts:
      return concat("numbers with the hash ", std::hex, static_cast<uint64_t>(value));
    default:
      return concat(value);
  }
}

std::string ranks_text(const std::vector<size_t>& ranks) {
  constexpr size_t kShown = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += concat(i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() > kShown ? text + ", ..." : text;
}

// Returns the same status on every rank.
Status compare(const std::vector<Letter>& letters) {
  for (size_t rank = 0; rank < letters.size(); ++rank) {
    const Letter& of = letters[rank];
    if (of.code == 0) continue;
    return {static_cast<StatusCode>(of.code), concat("rank ", rank, ": ", of.sentence)};
  }
  for (size_t fact = 0; fact < kNumFacts; ++fact) {
    std::vector<std::pair<int64_t, std::vector<size_t>>> found;  // a value, and who has it
    for (size_t rank = 0; rank < letters.size(); ++rank) {
      const int64_t value = letters[rank].facts[fact];
      auto at = std::ranges::find(found, value, &std::pair<int64_t, std::vector<size_t>>::first);
      if (at == found.end()) at = found.insert(found.end(), {value, {}});
      at->second.push_back(rank);
    }
    if (found.size() == 1) continue;
    std::string text = concat(kNames[fact], ": expected the same on every rank, got ");
    for (size_t i = 0; i < found.size(); ++i) {
      text += concat(i == 0 ? "" : " and ", text_of(fact, found[i].first), " on ",
                     ranks_text(found[i].second));
    }
    return invalid(text);
  }
  return {};
}

template <class Params>
Letter letter_of(const Params& params, const fa3_ring& ring, const Communicator& comm) {
  Letter letter;
  Whole whole;
  const Status status = describe(params, ring, comm, false, &whole);
  if (status.ok()) {
    letter.facts = facts_of(params, ring);
  } else {
    letter.code = static_cast<int64_t>(status.code());
    std::strncpy(letter.sentence, status.message().c_str(), sizeof(letter.sentence) - 1);
  }
  return letter;
}

Status check_memory(const api::Workspace& workspace, size_t needed) {
  if (workspace.data == nullptr || workspace.bytes < needed) {
    return {StatusCode::workspace_too_small,
            concat("workspace: expected at least ", needed,
                   " bytes, FA3_RING_AGREE_BYTES for each rank, got ",
                   workspace.data == nullptr ? 0 : workspace.bytes)};
  }
  return {};
}

template <class Params>
Status agree_on(const Params& params, const fa3_ring& ring, api::Workspace workspace,
                void* stream) {
  Communicator comm;
  FA3_TRY(comm.open(ring));
  std::vector<Letter> letters(size_t(comm.world()));
  const size_t bytes = letters.size() * sizeof(Letter);
  FA3_TRY(check_memory(workspace, bytes));

  fa3_tensor all{};  // a letter is a row
  all.data = workspace.data;
  all.dtype = FA3_FLOAT8_E4M3;  // a byte
  all.device_type = comm.moves_host_memory() ? FA3_CPU : FA3_CUDA;
  all.device_index = comm.moves_host_memory() ? 0 : comm.device();
  all.rank = 4;
  const int64_t shape[] = {1, comm.world(), 1, sizeof(Letter)};
  const int64_t stride[] = {comm.world() * shape[3], shape[3], shape[3], 1};
  std::ranges::copy(shape, all.shape);
  std::ranges::copy(stride, all.stride);
  const Range own = {comm.rank(), comm.rank() + 1};
  const Letter mine = letter_of(params, ring, comm);

  const Messages messages(comm, all, stream, ring.comm_stream);
  FA3_TRY(messages.write(rows_of(all, own).data, &mine, sizeof(mine)));
  FA3_TRY(messages.follow_calls());
  FA3_TRY(messages.together([&]() -> Status {
    for (int32_t rank = 0; rank < comm.world(); ++rank) {
      const Range other = {rank, rank + 1};
      if (rank == comm.rank()) continue;
      FA3_TRY(messages.send(all, std::span(&own, 1), rank));
      FA3_TRY(messages.receive(all, std::span(&other, 1), rank));
    }
    return {};
  }));
  FA3_TRY(messages.join());
  FA3_TRY(messages.read_back(letters.data(), workspace.data, int64_t(bytes)));
  return compare(letters);
}

}  // namespace

Status agree(const fa3_forward_params& params, const fa3_ring& ring, api::Workspace workspace,
             void* stream) {
  return agree_on(params, ring, workspace, stream);
}
Status agree(const fa3_backward_params& params, const fa3_ring& ring, api::Workspace workspace,
             void* stream) {
  return agree_on(params, ring, workspace, stream);
}

}  // namespace fa3::ring
