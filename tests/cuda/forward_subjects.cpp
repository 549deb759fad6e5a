// SPDX-License-Identifier: Apache-2.0
#include "cuda/forward_subjects.h"
#include "engine/hopper/config/decode_shape.h"

#include <algorithm>
#include <bit>
#include <span>

#include "cuda/plain_launch.h"
#include "engine/cuda/host/device.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/kernels/kernel_name.h"
#include "engine/hopper/kernels/offers.h"
#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/plan_forward.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/plan/select/select.h"
#include "support/runs/run.h"

namespace fa3::test {
namespace {

using hopper::Element;
using hopper::ForwardKernel;
using hopper::Kernel;
using hopper::Variant;

fa3_dtype dtype_of(Element element) {
  return element == Element::kFp16 ? FA3_FLOAT16 : FA3_BFLOAT16;
}

// How the same kernel is launched besides: tiles split along the keys, keys in caches.
struct Form {
  const char* name = "";
  hopper::Scheduler scheduler = hopper::Scheduler::kStaticPersistent;  // or another of whole tiles
  hopper::SplitKv split{};
  std::optional<CacheForm> cache{};

  bool finds_own_tiles() const { return hopper::Tiling{.scheduler = scheduler}.finds_own_tiles(); }
};

int num_sms() {
  int count = 0;
  return cuda::count_sms(0, &count).ok() ? count : 0;
}

// The variant whose calls a kernel takes all of, as variant_of(Problem) has it.
Variant variant_of(const Kernel& c) {
  return c.capped() ? Variant::kCapped : c.general() ? Variant::kGeneral : Variant::kDense;
}

std::string title_of(const ForwardKernel& kernel, const Form& form) {
  return std::string(name_of(kernel.config.element)) + " " +
         std::string(hopper::name_of(kernel.config).view()) + form.name;
}

Subject subject_of(const ForwardKernel& kernel, const Form& form = {}) {
  const Kernel& g = kernel.config;
  const auto launch = [kernel, form](const Problem& problem, Placement& placement) {
    const hopper::ForwardCall call = hopper::call_of(problem);
    const hopper::PackGqa pack = hopper::choose_pack(kernel.config, call);
    const hopper::Tiling tiling = form.finds_own_tiles()
                                      ? hopper::Tiling{pack, form.scheduler, form.split}
                                      : hopper::whole_tiles(kernel.config, call, pack, num_sms());
    const hopper::ForwardPlan plan = hopper::plan_launch(kernel, call, tiling, num_sms());
    return hopper::launch_forward(
        plan, nullptr, placement.workspace(static_cast<size_t>(plan.workspace.bytes)), nullptr);
  };
  const bool other_form = form.finds_own_tiles() || form.cache;
  return {title_of(kernel, form), g.shape.head_dim, g.shape.head_dim_v, dtype_of(g.element),
          variant_of(g),          launch,           form.cache,         other_form,
          g.dequantizes()};
}

// Each for a CTA, or a cluster of them.
struct StreamKRanges {
  int count;  // kernels for one sequence: of each tile
  int cluster_log2 = 0;
  int most_groups_log2 = 0;  // no more than there are head packs
  bool opener_combines = false;
};

// Stream-K, as always where such a kernel is chosen.
hopper::Tiling tiling_of(const Kernel& config, const hopper::ForwardCall& call,
                         const StreamKRanges& ranges) {
  const hopper::PackGqa pack = hopper::most_packed(call.heads_per_kv_head, true);
  const int tiles =
      config.is_single_sequence() ? int(hopper::num_split_tiles(config, call, pack)) : 1;
  const int packs_log2 = std::countr_zero(uint64_t(hopper::num_packs(call, pack)));
  return {pack,
          hopper::Scheduler::kStreamK,
          {.ctas = ranges.count * tiles,
           .groups_log2 = std::min(packs_log2, ranges.most_groups_log2),
           .cluster_log2 = ranges.cluster_log2,
           .opener_combines = ranges.opener_combines}};
}

Subject decode_subject(const ForwardKernel& kernel, StreamKRanges ranges, const Form& form) {
  Subject subject = subject_of(kernel, form);
  if (!kernel.config.is_decode()) ranges.cluster_log2 = 0;
  subject.name += ", " + std::to_string(ranges.count) +
                  (kernel.config.is_single_sequence() ? " splits" : " ranges") + " of " +
                  std::to_string(1 << ranges.cluster_log2);
  if (ranges.most_groups_log2 > 0) subject.name += " side by side";
  subject.variant = Variant::kGeneral;
  subject.only_ordinary_scores = false;
  subject.stream_k = kernel.config;
  subject.launch = [kernel, ranges](const Problem& problem, Placement& placement) {
    const hopper::ForwardCall call = hopper::call_of(problem);
    const hopper::ForwardPlan plan =
        hopper::plan_launch(kernel, call, tiling_of(kernel.config, call, ranges), num_sms());
    return hopper::launch_forward(
        plan, nullptr, placement.workspace(static_cast<size_t>(plan.workspace.bytes)), nullptr);
  };
  return subject;
}

// On as many SMs; a few: then V is transposed ahead of the tiles of small calls too.
Subject e4m3_subject(const ForwardKernel& kernel, const Form& form = {}, int sms = num_sms()) {
  const Kernel& g = kernel.config;
  const auto launch = [kernel, sms](const Problem& problem, Placement& placement) {
    const hopper::ForwardCall call = hopper::call_of(problem);
    const hopper::Request request = hopper::request_of(problem, sms);
    const hopper::PackGqa pack = hopper::pack_of_whole_tiles(kernel.config, request);
    const hopper::E4m3Plan plan = hopper::plan_e4m3_launch(
        kernel, request, hopper::whole_tiles(kernel.config, call, pack, sms));
    return hopper::launch_e4m3(plan, placement.workspace(static_cast<size_t>(plan.workspace_bytes)),
                               nullptr);
  };
  Subject subject{
      title_of(kernel, form), g.shape.head_dim, g.shape.head_dim_v, FA3_FLOAT8_E4M3,
      variant_of(g),          launch,           form.cache,         form.cache.has_value()};
  subject.transposes_v = g.transposes_v();
  return subject;
}

Subject dropout_subject(const ForwardKernel& kernel) {
  Subject subject = subject_of(kernel);
  subject.dropout = true;
  subject.launch = [kernel](const Problem& problem, Placement& placement) {
    const hopper::ForwardCall call = hopper::call_of(problem);
    const hopper::Tiling tiling = hopper::whole_tiles(kernel.config, call, {}, num_sms());
    const hopper::ForwardPlan plan = hopper::plan_launch(kernel, call, tiling, num_sms());
    return hopper::launch_forward(
        plan, nullptr, placement.workspace(static_cast<size_t>(plan.workspace.bytes)), nullptr);
  };
  return subject;
}

Subject plain_subject(int head_dim, Element element) {
  const std::string name = std::string(name_of(element)) + " d" + std::to_string(head_dim);
  const auto launch = [=](const Problem& problem, Placement&) {
    return hopper::launch_plain(head_dim, element, hopper::call_of(problem), nullptr);
  };
  return {name + " plain", head_dim, head_dim, dtype_of(element), Variant::kDense, launch};
}

constexpr auto kStreamK = hopper::Scheduler::kStreamK;
constexpr auto kFixedSplit = hopper::Scheduler::kFixedSplit;
const Form kForms[] = {
    {.name = ", 7 ranges", .scheduler = kStreamK, .split = {.ctas = 7}},
    // Pairs are for sequences of one length; others run as by the form before.
    {.name = ", 7 ranges of pairs", .scheduler = kStreamK, .split = {.ctas = 7, .in_pairs = true}},
    {.name = ", 3 splits", .scheduler = kFixedSplit, .split = {.num_splits = 3}},
    // As many as two, four and eight warps combine, of a row each.
    {.name = ", 10 splits", .scheduler = kFixedSplit, .split = {.num_splits = 10}},
    {.name = ", 16 splits", .scheduler = kFixedSplit, .split = {.num_splits = 16}},
    {.name = ", 40 splits", .scheduler = kFixedSplit, .split = {.num_splits = 40}},
    {.name = ", direct", .scheduler = hopper::Scheduler::kDirect},
    {.name = ", pages of 16", .cache = CacheForm{.page_size = 16}},
    {.name = ", pages of 7", .cache = CacheForm{.page_size = 7, .indexed = true}},
    {.name = ", pages of 256 in ranges",
     .scheduler = kStreamK,
     .split = {.ctas = 7},
     .cache = CacheForm{.page_size = 256}},
    {.name = ", left padding", .cache = CacheForm{.page_size = 64, .padded_left = true}},
    {.name = ", entries in splits",
     .scheduler = kFixedSplit,
     .split = {.num_splits = 3},
     .cache = CacheForm{.indexed = true, .padded_left = true}},
};

bool can_launch(const Kernel& config, const Form& form) {
  const bool single_rows = form.cache && (form.cache->page_size % 2 != 0 ||
                                          (form.cache->page_size > 0 && form.cache->padded_left));
  return (!form.finds_own_tiles() || config.can_split()) &&
         (!form.split.in_pairs || config.pairs_tiles()) &&
         (!single_rows || hopper::copies_single_rows(config));
}

void add_forms(const ForwardKernel& general, std::vector<Subject>* subjects) {
  for (const Form& form : kForms) {
    if (can_launch(general.config, form)) subjects->push_back(subject_of(general, form));
  }
}

// One tile in some runs, and several in each.
constexpr StreamKRanges kDecodeRanges[] = {{2, 3}, {7, 1}, {132}};
// Splits that the CTA which opens their tile combines, and such as a kernel does.
constexpr StreamKRanges kOpenedRanges[] = {
    {2, 0, 0, true}, {3, 0, 0, true}, {7, 0, 0, true}, {24, 0, 2, true}, {132}};
constexpr StreamKRanges kTileSplits[] = {{1, 3}, {4, 1}, {16}};
constexpr StreamKRanges kOverlappingSplits[] = {{2, 4}, {4, 1}, {16}};
const Form kDecodeForms[] = {{},
                             {.name = ", pages of 64", .cache = CacheForm{.page_size = 64}},
                             {.name = ", pages of 16", .cache = CacheForm{.page_size = 16}},
                             {.name = ", pages of 7", .cache = CacheForm{.page_size = 7}}};

// Tiles that a kernel for decoding leaves whole.
Subject whole_subject(const ForwardKernel& kernel, const Form& form) {
  Subject subject = decode_subject(kernel, {1}, form);
  subject.name += ", whole";
  subject.launch = [kernel](const Problem& problem, Placement& placement) {
    const hopper::ForwardCall call = hopper::call_of(problem);
    const hopper::Tiling tiling{
        hopper::most_packed(call.heads_per_kv_head, true), hopper::Scheduler::kDirect, {}};
    const hopper::ForwardPlan plan = hopper::plan_launch(kernel, call, tiling, num_sms());
    return hopper::launch_forward(
        plan, nullptr, placement.workspace(static_cast<size_t>(plan.workspace.bytes)), nullptr);
  };
  return subject;
}

void add_decoding(const ForwardKernel& kernel, std::vector<Subject>* subjects) {
  const Kernel& config = kernel.config;
  const bool opens = config.combine() == hopper::CombineKind::kOpener;
  if (opens) {
    for (const Form& form : kDecodeForms) {
      if (can_launch(config, form)) subjects->push_back(whole_subject(kernel, form));
    }
  }
  const std::span<const StreamKRanges> all =
      decode_shape(config).overlaps_next_call() ? std::span<const StreamKRanges>(kOverlappingSplits)
      : opens                                   ? std::span<const StreamKRanges>(kOpenedRanges)
      : config.is_single_sequence()             ? std::span<const StreamKRanges>(kTileSplits)
                                                : std::span<const StreamKRanges>(kDecodeRanges);
  for (const StreamKRanges& ranges : all) {
    for (const Form& form : kDecodeForms) {
      if (can_launch(config, form)) subjects->push_back(decode_subject(kernel, ranges, form));
    }
  }
}

}  // namespace

const char* name_of(Element element) {
  return element == Element::kFp16 ? "fp16" : "bf16";
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"forward",  "plain",  "e4m3",   "cache",
                                    "stream_k", "decode", "dropout"};
  return kNames[int(kind)];
}

std::string SubjectRow::source() const {
  return row ? "forward_" + std::to_string(row - hopper::kForward.data()) : "plain_launch";
}

std::vector<SubjectRow> subject_rows() {
  std::vector<SubjectRow> rows;
  for (const int head_dim : hopper::kPlainHeadDims) {
    rows.push_back({Kind::plain, head_dim, head_dim, nullptr});
  }
  for (const hopper::Row& row : hopper::kForward) {
    const Kernel& c = row.kernel;
    if (!row.built || c.block_mask() || c.continued()) continue;
    const Kind kind = c.is_decode()                        ? Kind::decode
                      : c.tiles == hopper::Tiles::kStreamK ? Kind::stream_k
                      : c.e4m3()                           ? Kind::e4m3
                      : c.dequantizes()                    ? Kind::cache
                      : c.dropout()                        ? Kind::dropout
                                                           : Kind::forward;
    rows.push_back({kind, c.shape.head_dim, c.shape.head_dim_v, &row});
  }
  std::ranges::stable_sort(rows, {}, &SubjectRow::kind);
  return rows;
}

std::vector<Subject> subjects_of(const SubjectRow& of, Element element) {
  if (of.kind == Kind::plain) return {plain_subject(of.head_dim, element)};
  std::vector<Subject> subjects;
  // Where keys lie is a question for no element type: one is enough.
  const bool all_forms = element == Element::kBf16;
  const ForwardKernel kernel = hopper::forward_kernel_at(*of.row, element);
  const Kernel& c = kernel.config;
  switch (of.kind) {
    case Kind::forward:
    case Kind::cache:
      subjects.push_back(subject_of(kernel));
      if (all_forms && c.general() && !c.capped()) add_forms(kernel, &subjects);
      break;
    case Kind::e4m3:
      if (!all_forms) break;  // cases of e4m3 have O in bf16
      subjects.push_back(e4m3_subject(kernel));
      if (!c.general()) {
        constexpr int kFewSms = 8;
        subjects.push_back(e4m3_subject(kernel, {.name = " on 8 SMs"}, kFewSms));
      }
      for (const Form& form : kForms) {
        if (c.general() && can_launch(c, form)) subjects.push_back(e4m3_subject(kernel, form));
      }
      break;
    case Kind::stream_k:
    case Kind::decode:
      add_decoding(kernel, &subjects);
      break;
    case Kind::dropout:
      subjects.push_back(dropout_subject(kernel));
      break;
    case Kind::plain:
      break;
  }
  return subjects;
}

// Whether a kernel that transposes V itself does a call.
bool transposes(const Problem& problem, const hopper::ForwardCall& call) {
  const hopper::Kernel rows_of_v{.operands = hopper::Operands::kE4m3RowsOfV,
                                 .sum = hopper::Sum::kPromoted};
  return hopper::offers_of(rows_of_v).covers(hopper::needs_of(problem, call));
}

bool does(const Subject& subject, const Case& c, const Inputs& inputs) {
  if (subject.cache && c.k.packed()) return false;
  if (subject.only_ordinary_scores && c.amount != 0) return false;
  // A dropped weight is 0, and no rule says what 0 times NaN is.
  if (subject.dropout && c.scores == Scores::nan_value) return false;
  const Tensor o(c.o_shape(), c.o_dtype(), c.out), lse(c.lse_shape(), FA3_FLOAT32, c.out);
  Problem problem;
  const Status status = api::describe(forward_params(FA3_ENGINE_HOPPER, c, inputs, o, lse),
                                      api::Purpose::query, &problem);
  if (!status.ok()) return true;
  if (subject.dtype == FA3_FLOAT8_E4M3) {
    const bool known =
        hopper::variant_of(problem) == Variant::kDense || subject.variant != Variant::kDense;
    const hopper::ForwardCall call = hopper::call_of(problem);
    return known && hopper::check_forward(problem).ok() &&
           hopper::check_e4m3_layouts(hopper::request_of(problem)).ok() &&
           (!subject.transposes_v || transposes(problem, call));
  }
  if (subject.quantized_cache) {
    const hopper::ForwardCall call = hopper::call_of(problem);
    if (!hopper::check_forward(problem).ok() || hopper::tensor_map_obstacle(call.k) ||
        hopper::tensor_map_obstacle(call.v)) {
      return false;
    }
  }
  if (subject.stream_k) {
    const Kernel& config = *subject.stream_k;
    const hopper::ForwardCall call = hopper::call_of(problem);
    const hopper::Tiling one_range{
        hopper::most_packed(call.heads_per_kv_head, true), kStreamK, {.ctas = 1}};
    const hopper::Request request = hopper::request_of(problem, num_sms());
    if (!hopper::can_decode(config, request, one_range)) return false;
    if (config.is_single_sequence() && call.sequences != 1) return false;
  }
  const Variant needed = hopper::variant_of(problem);
  return needed == subject.variant ||
         (needed == Variant::kDense && subject.variant == Variant::kGeneral);
}

}  // namespace fa3::test
