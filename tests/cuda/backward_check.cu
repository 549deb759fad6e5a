// SPDX-License-Identifier: Apache-2.0
// Checks the backward's kernels against the oracle, row by row, and times them. Needs a GPU and
// nothing else.
//   fa3_gpu_check_backward [--list] [--only TEXT] [--rows FIRST END] [--repeats N]
//                          [--verbose] [--time]
// --list: the rows of the kernel table. --only: cases with TEXT in their names. --rows: of the
// table, half-open. --repeats: launches of each case that must give the same bits: dQ in
// deterministic calls, dK and dV unless query heads are split. --verbose: a line for every case,
// not only for those that fail. --time: speed instead.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/backward_check.cuh"
#include "cuda/backward_timing.cuh"
#include "engine/hopper/launch/launch_backward.h"
#include "engine/hopper/tables/dense_backward_table.h"
#include "engine/hopper/tables/dropout_backward_table.h"

namespace fa3::testing {
namespace {

using hopper::BackwardKernel;
using hopper::Element;
using hopper::Variant;

constexpr const char* kVariants[hopper::kNumVariants] = {"", " general", " capped"};

BackwardSubject subject_of(const BackwardKernel& kernel) {
  return {kernel.config.head_dim, kernel.config.head_dim_v, kVariants[int(kernel.config.variant)],
          [kernel](const cuda::BackwardCall& call, int sms) {
            const hopper::BackwardPlan plan = plan_launches(kernel, call, sms);
            return PlannedBackward{plan.workspace.bytes, plan.has_sums(), [plan](void* workspace) {
                                     return launch_backward(plan, workspace, nullptr);
                                   }};
          }};
}

// The rows of kBackwardTable, then those of kDropoutBackwardTable and of kDenseBackwardTable.
constexpr int kPlainRows = int(hopper::kBackwardTable.size());
constexpr int kRowsOfOne = kPlainRows + int(hopper::kDropoutBackwardTable.size());
constexpr int kRows = kRowsOfOne + int(hopper::kDenseBackwardTable.size());

// The kernels of a row that do a case: the least general, and for bf16 dense cases the general one
// too.
std::vector<BackwardKernel> kernels_of(int row, Element element, const BackwardCase& c) {
  const auto at = [&](Variant variant) {
    return hopper::backward_kernel_at(row, element, variant);
  };
  if (c.softcap > 0) return {at(Variant::kCapped)};
  if (!c.dense()) return {at(Variant::kGeneral)};
  BackwardKernel dense = at(Variant::kDense);
  if (c.sink) dense.preprocess = at(Variant::kGeneral).preprocess;
  if (element == Element::kFp16) return {dense};
  return {dense, at(Variant::kGeneral)};
}

// A row with dropout has one variant; sinks are its general kernel's.
std::vector<BackwardKernel> dropout_kernels_of(int row, Element element, const BackwardCase& c) {
  const BackwardKernel kernel = hopper::dropout_backward_kernel_at(row, element);
  const Variant needed = c.softcap > 0          ? Variant::kCapped
                         : c.dense() && !c.sink ? Variant::kDense
                                                : Variant::kGeneral;
  const bool does = needed == kernel.config.variant ||
                    (needed == Variant::kDense && kernel.config.variant == Variant::kGeneral);
  if (!does) return {};
  return {kernel};
}

// All dense cases: for speed alone plans give these kernels some.
std::vector<BackwardKernel> kernels_of_dense_row(int row, Element element, const BackwardCase& c) {
  if (!c.dense() || c.softcap > 0 || c.sink) return {};
  return {hopper::dense_backward_kernel_at(row, element)};
}

// `row` of all tables.
std::vector<BackwardKernel> kernels_of_any(int row, Element element, const BackwardCase& c) {
  if (row >= kRowsOfOne) return kernels_of_dense_row(row - kRowsOfOne, element, c);
  if (row >= kPlainRows) return dropout_kernels_of(row - kPlainRows, element, c);
  return kernels_of(row, element, c);
}

template <typename T>
void check_row(int row, Element element, const std::string& only, int repeats, bool verbose,
               Tally* tally) {
  const bool drops = row >= kPlainRows && row < kRowsOfOne;
  for (BackwardCase& c : cases()) {
    c.dropout = drops ? 0.3f : 0.0f;
    if (c.name().find(only) == std::string::npos) continue;
    for (const BackwardKernel& kernel : kernels_of_any(row, element, c)) {
      tally->failures += !check<T>(subject_of(kernel), c, repeats, verbose, &tally->worst);
      ++tally->checks;
    }
  }
}

int check_all(const std::string& only, int repeats, bool verbose, int first_row, int end_row) {
  Tally tally;
  for (int row = first_row; row < std::min(end_row, kRows); ++row) {
    check_row<__nv_bfloat16>(row, Element::kBf16, only, repeats, verbose, &tally);
#ifndef FA3_DISTURB  // which knows bf16 alone: the protocol has no element type
    check_row<__half>(row, Element::kFp16, only, repeats, verbose, &tally);
#endif
    std::printf("row %d done: %d of %d failed so far\n", row, tally.failures, tally.checks);
    std::fflush(stdout);
  }
  return finish(tally);
}

// The rows of the kernel table: number, table, head dims of Q and of V. Needs no GPU.
void list_rows() {
  int number = 0;
  const auto list = [&](const char* kind, const auto& table, const char* source) {
    int in_table = 0;
    for (const auto& [config, why] : table) {
      std::printf("%d %s %d %d %s_%d\n", number++, kind, config.head_dim, config.head_dim_v, source,
                  in_table++);
    }
  };
  list("backward", hopper::kBackwardTable, "backward_entry");
  list("dropout", hopper::kDropoutBackwardTable, "dropout_backward_entry");
  list("dense", hopper::kDenseBackwardTable, "dense_backward_entry");
}

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  std::string only;
  bool time = false, verbose = false;
  int repeats = 1, first_row = 0, end_row = 99;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      fa3::testing::list_rows();
      return 0;
    } else if (flag == "--time") {
      time = true;
    } else if (flag == "--verbose") {
      verbose = true;
    } else if (flag == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (flag == "--rows" && i + 2 < argc) {
      first_row = std::atoi(argv[++i]);
      end_row = std::atoi(argv[++i]);
    } else if (flag == "--repeats" && i + 1 < argc) {
      repeats = std::atoi(argv[++i]);
    } else {
      std::printf(
          "unknown argument %s; known: --list, --only TEXT, --rows FIRST END, --repeats N, "
          "--verbose, --time\n",
          argv[i]);
      return 2;
    }
  }
  if (time) return fa3::testing::time_all(only);
  return fa3::testing::check_all(only, repeats, verbose, first_row, end_row);
}
