// SPDX-License-Identifier: Apache-2.0
// Checks the ampere engine's backward kernels against the oracle, row by row. Needs a GPU and
// nothing else.
//   fa3_gpu_check_ampere_backward [--list] [--only TEXT] [--rows FIRST END] [--repeats N]
//   [--verbose]
// As fa3_gpu_check_backward's (backward_check.cu).
#include <algorithm>
#include <cstdlib>
#include <string>

#include "cuda/backward_check.cuh"
#include "engine/ampere/launch/launch.h"

namespace fa3::testing {
namespace {

using cuda::Element;

BackwardSubject subject_of(int row, Element element, bool scored) {
  // A row of kPlainRows, or the same of kScoredRows behind them.
  const size_t place = size_t(row) + (scored ? ampere::kPlainRows.size() : 0);
  const auto kernel = ampere::backward_kernel_at(ampere::kBackward[place], element);
  return {kernel.config.head_dim, kernel.config.head_dim_v, scored ? " scored" : "",
          [kernel](const cuda::BackwardCall& call, int) {
            const ampere::BackwardPlan plan = plan_launches(kernel, call);
            return PlannedBackward{plan.workspace.bytes, false, [plan](void* workspace) {
                                     return launch_backward(plan, workspace, nullptr);
                                   }};
          }};
}

struct Options {
  std::string only;
  bool verbose = false;
  int repeats = 1, first_row = 0, end_row = int(ampere::kPlainRows.size());
};

// Every case, and with dropout those of which some are masked: its kernels know softcap too.
template <typename T>
void check_row(int row, Element element, const Options& options, Tally* tally) {
  for (const bool drops : {false, true}) {
    for (BackwardCase& c : drops ? masked_cases() : cases()) {
      c.dropout = drops ? 0.3f : 0.0f;
      if (c.name().find(options.only) == std::string::npos) continue;
      const BackwardSubject subject = subject_of(row, element, drops || c.softcap > 0);
      tally->failures += !check<T>(subject, c, options.repeats, options.verbose, &tally->worst);
      ++tally->checks;
    }
  }
}

int check_all(const Options& options) {
  Tally tally;
  for (int row = options.first_row; row < options.end_row; ++row) {
    check_row<__nv_bfloat16>(row, Element::kBf16, options, &tally);
    check_row<__half>(row, Element::kFp16, options, &tally);
    std::printf("row %d done: %d of %d failed so far\n", row, tally.failures, tally.checks);
    std::fflush(stdout);
  }
  return finish(tally);
}

void list_rows() {
  int number = 0;
  for (const auto& row : ampere::kPlainRows) {
    std::printf("%d backward %d %d %d KB\n", number++, row.kernel.head_dim, row.kernel.head_dim_v,
                row.kernel.smem_class >> 10);
  }
}

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  fa3::testing::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      fa3::testing::list_rows();
      return 0;
    } else if (flag == "--verbose") {
      options.verbose = true;
    } else if (flag == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else if (flag == "--rows" && i + 2 < argc) {
      options.first_row = std::atoi(argv[++i]);
      options.end_row = std::min(std::atoi(argv[++i]), options.end_row);
    } else if (flag == "--repeats" && i + 1 < argc) {
      options.repeats = std::atoi(argv[++i]);
    } else {
      std::printf(
          "unknown argument %s; known: --list, --only TEXT, --rows FIRST END, --repeats N, "
          "--verbose\n",
          argv[i]);
      return 2;
    }
  }
  return fa3::testing::check_all(options);
}
