// SPDX-License-Identifier: Apache-2.0
#include "cuda/forward_subjects.h"

#include <cstdio>
#include <span>

#include "cuda/plain_launch.h"
#include "engine/hopper/instances/cache_table.h"
#include "engine/hopper/instances/decode_table.h"
#include "engine/hopper/instances/e4m3_table.h"
#include "engine/hopper/instances/stream_k_table.h"
#include "engine/hopper/plan/choose_split.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/plan_forward.h"
#include "support/run.h"

namespace fa3::test {
namespace {

using hopper::Element;
using hopper::ForwardConfig;
using hopper::ForwardKernel;
using hopper::Variant;

fa3_dtype dtype_of(Element element) {
  return element == Element::kFp16 ? FA3_FLOAT16 : FA3_BFLOAT16;
}

// How the same kernel is launched besides: tiles split along the keys, keys in caches.
struct Form {
  const char* name = "";
  hopper::SplitKv split{};
  std::optional<CacheForm> cache{};
};

Subject subject_of(const ForwardKernel& kernel, const Form& form = {}) {
  constexpr const char* kVariants[] = {"",          " general", " capped",
                                       " stream-K", " decode",  " decode single"};
  const ForwardConfig& g = kernel.config;
  char name[80];
  std::snprintf(name, sizeof name, "%s%s d%d/%d %dx%d%s%s", name_of(g.element),
                g.dequantizes() ? " over e4m3" : "", g.head_dim, g.head_dim_v, g.block_m, g.block_n,
                kVariants[int(g.variant)], form.name);
  const auto launch = [kernel, split = form.split](const Problem& problem, Placement& placement) {
    hopper::ForwardLaunch arguments = hopper::launch_of(problem);
    arguments.pack = hopper::choose_pack(kernel.config, arguments);
    arguments.split = split;
    arguments.workspace = placement.workspace(
        static_cast<size_t>(hopper::forward_workspace_bytes(kernel.config, arguments)));
    return hopper::launch_forward(kernel, arguments, nullptr);
  };
  const bool other_form = form.split.finds_own_tiles() || form.cache;
  return {name,   g.head_dim, g.head_dim_v, dtype_of(g.element), g.variant,
          launch, form.cache, other_form,   g.dequantizes()};
}

// Each for a CTA, or a cluster of so many.
struct StreamKRanges {
  int count;  // of kernels for one sequence: of each tile
  int cluster_log2 = 0;
};

// Cut into stream-K ranges, as always where such a kernel is chosen.
void split_into_ranges(hopper::ForwardLaunch* launch, const StreamKRanges& ranges) {
  launch->pack = hopper::most_packed(launch->heads_per_kv_head, true);
  launch->split = {.num_splits = hopper::SplitKv::kStreamK,
                   .ctas = ranges.count,
                   .cluster_log2 = ranges.cluster_log2};
}

Subject decode_subject(const ForwardKernel& kernel, StreamKRanges ranges, const Form& form) {
  Subject subject = subject_of(kernel, form);
  if (!kernel.config.is_decode()) ranges.cluster_log2 = 0;
  subject.name += ", " + std::to_string(ranges.count) +
                  (kernel.config.is_single_sequence() ? " splits" : " ranges") + " of " +
                  std::to_string(1 << ranges.cluster_log2);
  subject.variant = Variant::kGeneral;
  subject.only_ordinary_scores = false;
  subject.always_splits = kernel.config;
  subject.launch = [kernel, ranges](const Problem& problem, Placement& placement) {
    hopper::ForwardLaunch arguments = hopper::launch_of(problem);
    split_into_ranges(&arguments, ranges);
    if (kernel.config.is_single_sequence()) {
      arguments.split.ctas *= int(num_split_tiles(kernel.config, arguments));
    }
    arguments.workspace = placement.workspace(
        static_cast<size_t>(hopper::forward_workspace_bytes(kernel.config, arguments)));
    return hopper::launch_forward(kernel, arguments, nullptr);
  };
  return subject;
}

Subject e4m3_subject(const ForwardKernel& kernel, const Form& form = {}) {
  const ForwardConfig& g = kernel.config;
  char name[80];
  std::snprintf(name, sizeof name, "e4m3 d%d/%d %dx%d%s%s", g.head_dim, g.head_dim_v, g.block_m,
                g.block_n, g.general() ? " capped" : "", form.name);
  const auto launch = [kernel](const Problem& problem, Placement& placement) {
    hopper::E4m3Launch arguments = hopper::e4m3_launch_of(problem);
    arguments.forward.pack = hopper::choose_e4m3_pack(kernel.config, arguments);
    arguments.forward.workspace = placement.workspace(
        static_cast<size_t>(hopper::e4m3_workspace_bytes(kernel.config, arguments)));
    const cudaError_t error = hopper::prepare_e4m3_launch(kernel, &arguments, nullptr);
    return error != cudaSuccess ? error : hopper::launch_prepared_e4m3(kernel, arguments, nullptr);
  };
  return {name,      g.head_dim, g.head_dim_v, FA3_FLOAT8_E4M3,
          g.variant, launch,     form.cache,   form.cache.has_value()};
}

Subject plain_subject(int head_dim, Element element) {
  const std::string name = std::string(name_of(element)) + " d" + std::to_string(head_dim);
  const auto launch = [=](const Problem& problem, Placement&) {
    return hopper::launch_plain(head_dim, element, hopper::launch_of(problem), nullptr);
  };
  return {name + " plain", head_dim, head_dim, dtype_of(element), Variant::kDense, launch};
}

constexpr hopper::SplitKv kSevenRanges{.num_splits = hopper::SplitKv::kStreamK, .ctas = 7};
constexpr hopper::SplitKv kThreeSplits{.num_splits = 3};
// As many as two, four and eight warps combine, of a row each.
constexpr hopper::SplitKv kTenSplits{.num_splits = 10}, kSixteenSplits{.num_splits = 16},
    kFortySplits{.num_splits = 40};
constexpr hopper::SplitKv kDirect{.direct = true};
const Form kForms[] = {
    {.name = ", 7 ranges", .split = kSevenRanges},
    {.name = ", 3 splits", .split = kThreeSplits},
    {.name = ", 10 splits", .split = kTenSplits},
    {.name = ", 16 splits", .split = kSixteenSplits},
    {.name = ", 40 splits", .split = kFortySplits},
    {.name = ", direct", .split = kDirect},
    {.name = ", pages of 16", .cache = CacheForm{.page_size = 16}},
    {.name = ", pages of 7", .cache = CacheForm{.page_size = 7, .indexed = true}},
    {.name = ", pages of 256 in ranges",
     .split = kSevenRanges,
     .cache = CacheForm{.page_size = 256}},
    {.name = ", left padding", .cache = CacheForm{.page_size = 64, .padded_left = true}},
    {.name = ", entries in splits",
     .split = kThreeSplits,
     .cache = CacheForm{.indexed = true, .padded_left = true}},
};

bool can_launch(const ForwardConfig& config, const Form& form) {
  const bool single_rows = form.cache && (form.cache->page_size % 2 != 0 ||
                                          (form.cache->page_size > 0 && form.cache->padded_left));
  return (!form.split.finds_own_tiles() || config.can_split()) &&
         (!single_rows || hopper::copies_single_rows(config));
}

void add_forms(const ForwardKernel& general, std::vector<Subject>* subjects) {
  for (const Form& form : kForms) {
    if (can_launch(general.config, form)) subjects->push_back(subject_of(general, form));
  }
}

// One tile in some runs, and several in each.
constexpr StreamKRanges kDecodeRanges[] = {{2, 3}, {7, 1}, {132}};
constexpr StreamKRanges kTileSplits[] = {{1, 3}, {4, 1}, {16}};
constexpr StreamKRanges kOverlappingSplits[] = {{2, 4}, {4, 1}, {16}};
const Form kDecodeForms[] = {{},
                             {.name = ", pages of 64", .cache = CacheForm{.page_size = 64}},
                             {.name = ", pages of 16", .cache = CacheForm{.page_size = 16}},
                             {.name = ", pages of 7", .cache = CacheForm{.page_size = 7}}};

void add_decoding(const ForwardKernel& kernel, std::vector<Subject>* subjects) {
  const ForwardConfig& config = kernel.config;
  const std::span<const StreamKRanges> all =
      config.overlaps_next_call()   ? std::span<const StreamKRanges>(kOverlappingSplits)
      : config.is_single_sequence() ? std::span<const StreamKRanges>(kTileSplits)
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

std::vector<SubjectRow> subject_rows() {
  std::vector<SubjectRow> rows;
  const auto add = [&](Table table, const auto& instances) {
    for (int i = 0; i < int(instances.size()); ++i) {
      const ForwardConfig& config = instances[size_t(i)].config;
      rows.push_back({table, i, config.head_dim, config.head_dim_v});
    }
  };
  add(Table::forward, hopper::kForwardTable);
  for (const int head_dim : hopper::kPlainHeadDims) {
    rows.push_back(
        {Table::plain, int(rows.size() - hopper::kForwardTable.size()), head_dim, head_dim});
  }
  add(Table::e4m3, hopper::kE4m3Table);
  add(Table::cache, hopper::kCacheTable);
  add(Table::stream_k, hopper::kStreamKTable);
  add(Table::decode, hopper::kDecodeTable);
  return rows;
}

const char* name_of(Table table) {
  constexpr const char* kNames[] = {"forward", "plain", "e4m3", "cache", "stream_k", "decode"};
  return kNames[int(table)];
}

std::vector<Subject> subjects_of(const SubjectRow& row, Element element) {
  std::vector<Subject> subjects;
  // Where keys lie is a question for no element type: one is enough.
  const bool all_forms = element == Element::kBf16;
  switch (row.table) {
    case Table::forward:
      for (int variant = 0; variant < hopper::kNumVariants; ++variant) {
        subjects.push_back(
            subject_of(hopper::forward_kernel_at(row.index, element, Variant(variant))));
      }
      if (all_forms) {
        add_forms(hopper::forward_kernel_at(row.index, element, Variant::kGeneral), &subjects);
      }
      break;
    case Table::plain:
      subjects.push_back(plain_subject(row.head_dim, element));
      break;
    case Table::e4m3: {
      if (!all_forms) break;  // cases of e4m3 have O in bf16
      const ForwardKernel kernel = hopper::e4m3_kernel_at(row.index, element);
      subjects.push_back(e4m3_subject(kernel));
      for (const Form& form : kForms) {
        if (!kernel.config.general() || !can_launch(kernel.config, form)) continue;
        subjects.push_back(e4m3_subject(kernel, form));
      }
      break;
    }
    case Table::cache:
      for (const Variant variant : {Variant::kGeneral, Variant::kCapped}) {
        const ForwardKernel kernel = hopper::cache_kernel_at(row.index, element, variant);
        subjects.push_back(subject_of(kernel));
        if (all_forms && variant == Variant::kGeneral) add_forms(kernel, &subjects);
      }
      break;
    case Table::stream_k:
      add_decoding(hopper::stream_k_kernel_at(row.index, element), &subjects);
      break;
    case Table::decode:
      for (const Variant variant : {Variant::kDecode, Variant::kDecodeSingle}) {
        const ForwardKernel kernel = hopper::decode_kernel_at(row.index, element, variant);
        if (kernel.function != nullptr) add_decoding(kernel, &subjects);
      }
      break;
  }
  return subjects;
}

bool does(const Subject& subject, const Case& c, const Inputs& inputs) {
  if (subject.cache && c.k.packed()) return false;
  if (subject.only_ordinary_scores && c.amount != 0) return false;
  const Tensor o(c.o_shape(), c.o_dtype(), c.out), lse(c.lse_shape(), FA3_FLOAT32, c.out);
  Problem problem;
  const Status status = api::describe(forward_params(FA3_ENGINE_HOPPER, c, inputs, o, lse),
                                      api::Purpose::query, &problem);
  if (!status.ok()) return true;
  if (subject.dtype == FA3_FLOAT8_E4M3) {
    const bool known =
        hopper::variant_of(problem) == Variant::kDense || subject.variant != Variant::kDense;
    return known && hopper::check_e4m3(problem).ok() && hopper::check_e4m3_layouts(problem).ok();
  }
  if (subject.quantized_cache) {
    const hopper::ForwardLaunch launch = hopper::launch_of(problem);
    if (!hopper::check_forward(problem).ok() || hopper::tensor_map_obstacle(launch.k) ||
        hopper::tensor_map_obstacle(launch.v)) {
      return false;
    }
  }
  if (subject.always_splits) {
    hopper::ForwardLaunch launch = hopper::launch_of(problem);
    split_into_ranges(&launch, {1});
    if (!hopper::always_splits(*subject.always_splits, problem, launch)) return false;
    if (subject.always_splits->is_single_sequence() && launch.sequences != 1) return false;
  }
  const Variant needed = hopper::variant_of(problem);
  return needed == subject.variant ||
         (needed == Variant::kDense && subject.variant == Variant::kGeneral);
}

}  // namespace fa3::test
