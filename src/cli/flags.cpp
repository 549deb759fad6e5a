// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include "cli/call/calls.h"

namespace fa3::cli {

const std::vector<std::string> kDtypeNames = {"fp32", "fp16", "bf16"};
const std::vector<std::string> kForwardDtypeNames = {"fp32", "fp16", "bf16", "e4m3"};

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
  return name == "fp16"   ? FA3_FLOAT16
         : name == "bf16" ? FA3_BFLOAT16
         : name == "e4m3" ? FA3_FLOAT8_E4M3
         : name == "e5m2" ? FA3_FLOAT8_E5M2
                          : FA3_FLOAT32;
}

}  // namespace fa3::cli
