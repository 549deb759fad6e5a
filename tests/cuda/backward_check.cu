// SPDX-License-Identifier: Apache-2.0
// Checks the backward's kernels against the oracle, row by row, and times them. Needs a GPU and
// nothing else.
//   fa3_gpu_check_backward [--list] [--only TEXT] [--rows FIRST END] [--repeats N]
//                          [--verbose] [--time]
// --list: the kernels. --only: cases with TEXT in their names. --rows: of the kernels, half-open.
// --repeats: launches of each case that must give the same bits: dQ in deterministic calls, dK and
// dV unless query heads are split. --verbose: a line for every case, not only for those that fail.
// --time: speed instead.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/backward_check.cuh"
#include "cuda/backward_timing.cuh"
#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/launch/launch_backward.h"

namespace fa3::testing {
namespace {

using hopper::BackwardKernel;
using hopper::Element;
using hopper::Variant;

constexpr const char* kVariants[] = {"", " general", " capped"};

Variant variant_of(const hopper::BackwardConfig& c) {
  return c.capped() ? Variant::kCapped : c.general() ? Variant::kGeneral : Variant::kDense;
}

BackwardSubject subject_of(const BackwardKernel& kernel) {
  const hopper::BackwardConfig& c = kernel.config;
  return {c.shape.head_dim, c.shape.head_dim_v, kVariants[int(variant_of(c))],
          [kernel](const cuda::BackwardCall& call, int sms) {
            const hopper::BackwardPlan plan = plan_launches(kernel, call, sms);
            return PlannedBackward{plan.workspace.bytes, plan.has_sums(), [plan](void* workspace) {
                                     return launch_backward(plan, workspace, nullptr);
                                   }};
          }};
}

// The rows that are checked: those of block masks and of float32 gradients have tests of their own.
std::vector<const hopper::BackwardRow*> checked_rows() {
  std::vector<const hopper::BackwardRow*> rows;
  for (const hopper::BackwardRow& row : hopper::kBackward) {
    if (row.built && !row.kernel.block_mask() && !row.kernel.wide()) rows.push_back(&row);
  }
  return rows;
}

// The least variant that does a case. Sinks are preprocess's alone.
Variant variant_of(const BackwardCase& c, bool with_sink) {
  if (c.softcap > 0) return Variant::kCapped;
  return c.dense() && !(with_sink && c.sink) ? Variant::kDense : Variant::kGeneral;
}

// The row's kernel, if it does a case. General kernels do the dense ones, of ordinary calls in bf16
// alone; rows for some dense calls are checked with all of them.
std::vector<BackwardKernel> kernels_of(const hopper::BackwardRow& row, Element element,
                                       const BackwardCase& c) {
  const hopper::BackwardConfig& kernel = row.kernel;
  if (hopper::is_for_some_dense_calls(kernel) && c.sink) return {};
  const Variant needed = variant_of(c, kernel.dropout()), known = variant_of(kernel);
  const bool also = needed == Variant::kDense && known == Variant::kGeneral &&
                    (kernel.dropout() || element == Element::kBf16);
  if (needed != known && !also) return {};
  BackwardKernel found = hopper::backward_kernel_at(row, element);
  if (c.sink && known == Variant::kDense) {
    const auto is_general = [&](const hopper::BackwardRow& other) {
      const hopper::BackwardConfig& o = other.kernel;
      return !o.dropout() && !o.wide() && o.tiles == hopper::Tiles::kVarlen && !o.capped() &&
             o.shape.head_dim == kernel.shape.head_dim &&
             o.shape.head_dim_v == kernel.shape.head_dim_v;
    };
    const auto general = std::ranges::find_if(hopper::kBackward, is_general);
    found.preprocess = hopper::backward_kernel_at(*general, element).preprocess;
  }
  return {found};
}

template <typename T>
void check_row(const hopper::BackwardRow& row, Element element, const std::string& only,
               int repeats, bool verbose, Tally* tally) {
  for (BackwardCase& c : cases()) {
    c.dropout = row.kernel.dropout() ? 0.3f : 0.0f;
    if (c.name().find(only) == std::string::npos) continue;
    for (const BackwardKernel& kernel : kernels_of(row, element, c)) {
      tally->failures += !check<T>(subject_of(kernel), c, repeats, verbose, &tally->worst);
      ++tally->checks;
    }
  }
}

int check_all(const std::string& only, int repeats, bool verbose, int first_row, int end_row) {
  Tally tally;
  const std::vector<const hopper::BackwardRow*> rows = checked_rows();
  for (int row = first_row; row < std::min(end_row, int(rows.size())); ++row) {
    check_row<__nv_bfloat16>(*rows[size_t(row)], Element::kBf16, only, repeats, verbose, &tally);
#ifndef FA3_DISTURB  // which knows bf16 alone: the protocol has no element type
    check_row<__half>(*rows[size_t(row)], Element::kFp16, only, repeats, verbose, &tally);
#endif
    std::printf("row %d done: %d of %d failed so far\n", row, tally.failures, tally.checks);
    std::fflush(stdout);
  }
  return finish(tally);
}

// Number, kind, head dims of Q and of V, and source of each row. Needs no GPU.
void list_rows() {
  int number = 0;
  for (const hopper::BackwardRow* row : checked_rows()) {
    const hopper::BackwardConfig& c = row->kernel;
    const char* const kind = c.dropout()                          ? "dropout"
                             : hopper::is_for_some_dense_calls(c) ? "dense"
                                                                  : "backward";
    std::printf("%d %s %d %d backward_%d\n", number++, kind, c.shape.head_dim, c.shape.head_dim_v,
                int(row - hopper::kBackward.data()));
  }
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
