// SPDX-License-Identifier: Apache-2.0
//
// The macros of the project: what the language lacks, and nothing else.
#pragma once

#ifdef __CUDACC__
#define FA3_HD __host__ __device__
#else
#define FA3_HD
#endif

// Returns from the caller when `expression` gives a Status that is not ok.
#define FA3_TRY(expression)                                            \
  do {                                                                 \
    if (::fa3::Status fa3_status_ = (expression); !fa3_status_.ok()) { \
      return fa3_status_;                                              \
    }                                                                  \
  } while (0)
