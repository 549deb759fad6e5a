// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of fa3.h, over the library's verbs. boundary.h turns Status and exceptions into codes
// and the thread's last error; src/ring/abi.cpp has ring.h.
#include <fa3/fa3.h>
#include <fa3/mla.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "api/attention.h"
#include "api/boundary.h"
#include "api/dropout_mask.h"
#include "api/monitor.h"
#include "core/error.h"
#include "core/macros.h"
#include "engine/engine.h"
#include "plan/choose.h"
#include "plan/plan_text.h"

namespace fa3::api {
namespace {

template <class Params>
fa3_status supported(const Params* params) {
  return with_params(params, [](const Params& p) {
    Plan unused{.wants_words = false};
    return plan(p, &unused);
  });
}

template <class Params>
fa3_status workspace_size(const Params* params, size_t* bytes) {
  return with_params(params, [&](const Params& p) -> Status {
    if (bytes == nullptr) return invalid("bytes: expected a place for the size, got null");
    Plan planned{.wants_words = false};
    FA3_TRY(plan(p, &planned));
    *bytes = static_cast<size_t>(planned.workspace_bytes);
    return {};
  });
}

// Cut off where the place ends. make() -> the words.
template <class Make>
Status write_words(char* text, size_t capacity, size_t* needed, Make&& make) {
  if (text == nullptr && capacity > 0) {
    return invalid("text: expected ", capacity, " bytes of memory, got a null pointer");
  }
  std::string words;
  FA3_TRY(make(&words));
  if (needed != nullptr) *needed = words.size() + 1;
  if (capacity > 0) {
    const size_t length = std::min(words.size(), capacity - 1);
    std::memcpy(text, words.data(), length);
    text[length] = '\0';
  }
  return {};
}

template <class Params>
fa3_status text_of_plan(const Params* params, char* text, size_t capacity, size_t* needed) {
  return with_params(params, [&](const Params& p) {
    return write_words(text, capacity, needed, [&](std::string* words) -> Status {
      Plan planned;
      FA3_TRY(plan(p, &planned));
      *words = plan_text(planned);
      return {};
    });
  });
}

template <class Params>
fa3_status run_with_workspace(const Params* params, Workspace workspace, void* stream) {
  return with_params(params, [&](const Params& p) { return run(p, workspace, stream); });
}

template <class Params>
fa3_status run_with_allocator(const Params* params, fa3_workspace_allocator allocate, void* context,
                              void* stream) {
  return with_params(params, [&](const Params& p) -> Status {
    if (allocate == nullptr) return invalid("allocate: expected a function, got a null pointer");
    return run(p, {.allocate = allocate, .context = context}, stream);
  });
}

// Engines have few things to say of themselves, so each sentence is kept once, for ever. Without a
// lock, which a forked child could find taken by a thread that it has not got.
const char* kept_for_ever(const std::string& sentence) {
  struct Kept {
    std::string sentence;
    Kept* next;
  };
  static std::atomic<Kept*> first = nullptr;
  Kept* const head = first.load();
  for (Kept* kept = head; kept != nullptr; kept = kept->next) {
    if (kept->sentence == sentence) return kept->sentence.c_str();
  }
  auto* const kept = new Kept{sentence, head};
  while (!first.compare_exchange_weak(kept->next, kept)) {
  }
  return kept->sentence.c_str();
}

}  // namespace
}  // namespace fa3::api

using namespace fa3::api;

extern "C" {

// The functions that every kind of call has: fa3.h and mla.h declare each by its name. So
// fa3_forward_supported() is made by FA3_PLANNED_CALL(fa3_forward): search for call##_supported.
//
// A call that is planned and may need workspace:
#define FA3_PLANNED_CALL(call)                                                                    \
  void call##_params_init_sized(call##_params* params, size_t struct_size) {                      \
    init_sized(params, struct_size);                                                              \
  }                                                                                               \
  fa3_status call##_supported(const call##_params* params) {                                      \
    return supported(params);                                                                     \
  }                                                                                               \
  fa3_status call##_workspace_size(const call##_params* params, size_t* bytes) {                  \
    return workspace_size(params, bytes);                                                         \
  }                                                                                               \
  fa3_status call(const call##_params* params, void* workspace, size_t workspace_bytes,           \
                  void* stream) {                                                                 \
    return run_with_workspace(params, {workspace, workspace_bytes}, stream);                      \
  }                                                                                               \
  fa3_status call##_with_allocator(const call##_params* params, fa3_workspace_allocator allocate, \
                                   void* context, void* stream) {                                 \
    return run_with_allocator(params, allocate, context, stream);                                 \
  }
#define FA3_PLAN_TEXT(call)                                                             \
  fa3_status call##_plan_text(const call##_params* params, char* text, size_t capacity, \
                              size_t* needed) {                                         \
    return text_of_plan(params, text, capacity, needed);                                \
  }
// A pass that answers questions, and whose block mask may come as lists:
#define FA3_LISTED_CALL(call)                                                                     \
  fa3_status call##_query(const call##_params* params, fa3_answer* answer) {                      \
    return with_params(params, [&](const auto& p) { return query(p, answer); });                  \
  }                                                                                               \
  fa3_status call##_block_lists_size(const call##_params* params, size_t* bytes) {                \
    return with_params(params, [&](const auto& p) { return block_lists_size(p, bytes); });        \
  }                                                                                               \
  fa3_status call##_make_block_lists(const call##_params* params, void* memory,                   \
                                     size_t memory_bytes, void* stream, fa3_block_lists* lists) { \
    return with_params(params, [&](const auto& p) {                                               \
      return make_block_lists(p, {memory, memory_bytes}, stream, lists);                          \
    });                                                                                           \
  }
#define FA3_CALL_WITHOUT_WORKSPACE(call)                                       \
  void call##_params_init_sized(call##_params* params, size_t struct_size) {   \
    init_sized(params, struct_size);                                           \
  }                                                                            \
  fa3_status call(const call##_params* params, void* stream) {                 \
    return with_params(params, [&](const auto& p) { return run(p, stream); }); \
  }

FA3_PLANNED_CALL(fa3_forward)
FA3_PLANNED_CALL(fa3_backward)
FA3_PLANNED_CALL(fa3_quantize)
FA3_PLANNED_CALL(fa3_mla_forward)
FA3_PLANNED_CALL(fa3_mla_backward)
FA3_PLAN_TEXT(fa3_forward)
FA3_PLAN_TEXT(fa3_backward)
FA3_PLAN_TEXT(fa3_mla_forward)
FA3_PLAN_TEXT(fa3_mla_backward)
FA3_LISTED_CALL(fa3_forward)
FA3_LISTED_CALL(fa3_backward)
FA3_CALL_WITHOUT_WORKSPACE(fa3_merge)
FA3_CALL_WITHOUT_WORKSPACE(fa3_append)
FA3_CALL_WITHOUT_WORKSPACE(fa3_mla_append)
FA3_CALL_WITHOUT_WORKSPACE(fa3_mla_gather)
#undef FA3_PLANNED_CALL
#undef FA3_PLAN_TEXT
#undef FA3_LISTED_CALL
#undef FA3_CALL_WITHOUT_WORKSPACE

fa3_status fa3_forward_validate(const fa3_forward_params* params, void* stream) {
  return with_params(params, [&](const fa3_forward_params& p) { return validate(p, stream); });
}

fa3_status fa3_dropout_mask(float dropout_p, uint64_t seed, uint64_t offset, int64_t batch,
                            int64_t heads, int64_t seqlen_q, int64_t seqlen_k, uint8_t* keep) {
  return at_boundary([&] {
    return write_dropout_mask(dropout_p, seed, offset, {{}, {batch, heads, seqlen_q, seqlen_k}},
                              keep);
  });
}

fa3_status fa3_dropout_mask_part(float dropout_p, uint64_t seed, uint64_t offset,
                                 const int64_t first[4], const int64_t extents[4], uint8_t* keep) {
  return at_boundary([&]() -> fa3::Status {
    if (first == nullptr || extents == nullptr) {
      return fa3::invalid("first, extents: expected four numbers each, got a null pointer");
    }
    return write_dropout_mask(dropout_p, seed, offset,
                              {{first[0], first[1], first[2], first[3]},
                               {extents[0], extents[1], extents[2], extents[3]}},
                              keep);
  });
}

fa3_status fa3_engine(int32_t index, fa3_engine_info* info) {
  return at_boundary([&]() -> fa3::Status {
    const auto engines = fa3::engines();
    if (info == nullptr) return fa3::invalid("info: expected a struct, got a null pointer");
    if (index < 0 || index >= static_cast<int32_t>(engines.size())) {
      return fa3::invalid("index: expected [0, ", engines.size(), "), got ", index);
    }
    const fa3::Availability found = fa3::probe(*engines[static_cast<size_t>(index)]);
    *info = {engines[static_cast<size_t>(index)]->name, found.available ? 1 : 0,
             kept_for_ever(found.detail)};
    return {};
  });
}

fa3_status fa3_monitor(int32_t counts) {
  return at_boundary([&]() -> fa3::Status {
    if (counts != 0 && counts != 1) {
      return fa3::invalid("counts: expected 0 or 1, got ", counts);
    }
    count_calls(counts == 1);
    return {};
  });
}

fa3_status fa3_monitor_text(char* text, size_t capacity, size_t* needed) {
  return at_boundary([&] {
    return write_words(text, capacity, needed, [](std::string* words) -> fa3::Status {
      *words = text_of_sums();
      return {};
    });
  });
}

int32_t fa3_version(void) {
  return FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH;
}

const char* fa3_last_error(void) {
  return last_error();
}

const char* fa3_status_name(fa3_status status) {
  switch (status) {
    case FA3_OK:
      return "ok";
    case FA3_INVALID_ARGUMENT:
      return "invalid argument";
    case FA3_UNSUPPORTED:
      return "unsupported";
    case FA3_WORKSPACE_TOO_SMALL:
      return "workspace too small";
    case FA3_OUT_OF_MEMORY:
      return "out of memory";
    case FA3_DEVICE_ERROR:
      return "device error";
    case FA3_INTERNAL_ERROR:
      return "internal error";
  }
  return "unknown status";
}

}  // extern "C"
