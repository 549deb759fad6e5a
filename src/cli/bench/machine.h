// SPDX-License-Identifier: Apache-2.0
//
// Facts that travel with every number: which machine, which day, which sources, and what the cores
// can do at most.
#pragma once

#include <fa3/fa3.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fa3::cli {

std::string cpu_model();                    // "AMD EPYC ...", or the architecture's name
std::vector<std::string> cpu_extensions();  // those that matter here, of those the CPU has
std::string cpu_code_complaint();           // of FA3_CPU_ISA where it is not heeded; else ""
int64_t total_memory_bytes();               // 0 if the system does not say
int64_t available_memory_bytes();           // 0 if the system does not say
int64_t peak_resident_bytes();              // of this process so far; 0 if the system does not say

std::string machine_text();  // one line: model, cores, extensions
std::string today();         // UTC, "2026-01-31"
std::string commit();        // of the sources this was built from; ends in "+" if they were changed

// FLOP/s of independent fused multiply-adds (fp32, fp16) or bf16 dot products from registers: what
// no kernel can exceed. One sample of 10 ms.
double peak_flops(fa3_dtype dtype, int num_threads);

}  // namespace fa3::cli
