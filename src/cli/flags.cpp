// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <CLI/CLI.hpp>

#include "cli/calls.h"

namespace fa3::cli {

const std::vector<std::string> kDtypeNames = {"fp32", "fp16", "bf16"};

CLI::Option* add_path(CLI::App& command, const char* name, std::string* path, const char* help) {
  const auto named = [](const std::string& given) -> std::string {
    return given.empty() ? "expected the name of a file, got an empty one" : "";
  };
  return command.add_option(name, *path, help)->check(CLI::Validator(named, "FILE"));
}

void add_engine_flags(CLI::App& command, EngineFlags* flags) {
  command.add_option("--engine", flags->engine, "who computes")
      ->check(CLI::IsMember(engine_names()))
      ->capture_default_str();
  command.add_option("--threads", flags->threads, "CPU threads; 0 = one per available core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_mask_flags(CLI::App& command, MaskFlags* flags) {
  command.add_flag("--causal", flags->causal, "query i sees keys up to i + seqlen_k - seqlen_q");
  command.add_option("--window", flags->window, "L,R: keys to either side; -1 = unbounded")
      ->delimiter(',')
      ->expected(2)
      ->type_name("L,R");
  command.add_option("--softcap", flags->softcap, "cap * tanh(score / cap); 0 = off");
  command.add_option("--scale", flags->scale, "softmax scale; head_dim^-0.5 unless given");
}

fa3_options options_of(const EngineFlags& engine, const MaskFlags& mask) {
  fa3_options options = default_options();
  options.engine = engine_id(engine.engine);
  options.num_threads = engine.threads;
  options.causal = mask.causal ? 1 : 0;
  if (!mask.window.empty()) {
    options.window_left = mask.window[0];
    options.window_right = mask.window[1];
  }
  options.softcap = mask.softcap;
  if (mask.scale) options.scale = *mask.scale;
  return options;
}

fa3_dtype dtype_of(const std::string& name) {
  return name == "fp16" ? FA3_FLOAT16 : name == "bf16" ? FA3_BFLOAT16 : FA3_FLOAT32;
}

}  // namespace fa3::cli
