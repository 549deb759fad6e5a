// SPDX-License-Identifier: Apache-2.0
//
// Inputs of a call as a file: safetensors, with the options, strides and the reason as its
// metadata.
#pragma once

#include <string>

#include "api/record/recorded_call.h"
#include "engine/engine.h"

namespace fa3::api {

struct EndedCall {
  const RecordedCall& call;
  const fa3_options* options;  // null: the call has none
  const Engine& engine;
  void* stream;
};

// Writes the file if the call failed (`failure` is not empty) or one of its results holds numbers
// that are not finite while its inputs are. Waits for the call. Returns what is to be said: where
// the file is, or why there is none; "" if all is well.
//
// A process writes kMostFiles of them, into a folder that has fewer than kMostInFolder, each of at
// most kMostBytes.
std::string keep_inputs(const EndedCall& ended, const std::string& folder,
                        const std::string& failure);

constexpr int kMostFiles = 8;
constexpr int kMostInFolder = 64;
constexpr int64_t kMostBytes = int64_t{1} << 30;

}  // namespace fa3::api
