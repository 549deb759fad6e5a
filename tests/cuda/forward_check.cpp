// SPDX-License-Identifier: Apache-2.0
// What the contract of tests/cpp/engine cannot ask: every kernel of the table, also where another one
// would be chosen, and after them the plain kernel of the reading guide; repeats of each launch, and
// the same bits from another build of the kernels. Needs a GPU and nothing else.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/describe.h"
#include "cuda/plain_launch.h"
#include "engine/hopper/compiled_cache.h"
#include "engine/hopper/compiled_decode.h"
#include "engine/hopper/compiled_e4m3.h"
#include "engine/hopper/plan_e4m3.h"
#include "support/cache.h"
#include "support/compare.h"
#include "support/fp8.h"
#include "support/kernel_cases.h"
#include "support/run.h"

namespace fa3::test {
namespace {

using hopper::Element;
using hopper::ForwardConfig;
using hopper::ForwardKernel;
using hopper::Variant;

// A kernel to be checked: its tile's head dims, and how it is launched.
struct Subject {
  std::string name;
  int head_dim, head_dim_v;
  fa3_dtype dtype;  // of q; of k and v too, unless the cache is quantized
  Variant variant;
  std::function<cudaError_t(const Problem&, Placement&)> launch;
  std::optional<CacheForm> cache{};  // where the keys lie instead
  bool only_ordinary_scores = false;
  bool quantized_cache = false;
  std::optional<ForwardConfig> decodes{};  // calls for kernels that do nothing else
};

fa3_dtype dtype_of(Element element) {
  return element == Element::kFp16 ? FA3_FLOAT16 : FA3_BFLOAT16;
}

const char* name_of(Element element) {
  return element == Element::kFp16 ? "fp16" : "bf16";
}

// How the same kernel is launched besides: tiles cut along the keys, keys in caches.
struct Form {
  const char* name = "";
  hopper::KeyCut cut{};
  std::optional<CacheForm> cache{};
};

Subject subject_of(const ForwardKernel& kernel, const Form& form = {}) {
  constexpr const char* kVariants[] = {"", " general", " capped", " decoding"};
  const ForwardConfig& g = kernel.config;
  char name[80];
  std::snprintf(name, sizeof name, "%s%s d%d/%d %dx%d%s%s", name_of(g.element),
                g.widens() ? " over e4m3" : "", g.head_dim, g.head_dim_v, g.block_m, g.block_n,
                kVariants[int(g.variant)], form.name);
  const auto launch = [kernel, cut = form.cut](const Problem& problem, Placement& placement) {
    hopper::ForwardLaunch arguments = hopper::launch_of(problem);
    arguments.pack = hopper::choose_pack(kernel.config, arguments);
    arguments.cut = cut;
    arguments.workspace = placement.workspace(
        static_cast<size_t>(hopper::forward_workspace_bytes(kernel.config, arguments)));
    return hopper::launch_forward(kernel, arguments, nullptr);
  };
  const bool other_form = form.cut.active() || form.cache;
  return {name,   g.head_dim, g.head_dim_v, dtype_of(g.element), g.variant,
          launch, form.cache, other_form,   g.widens()};
}

// Cut into runs, as always where such a kernel is chosen.
void cut_into_runs(hopper::ForwardLaunch* launch, int runs) {
  launch->pack = hopper::most_packed(launch->heads_per_kv_head, true);
  launch->cut = {.parts = hopper::KeyCut::kRuns, .blocks = runs};
}

Subject decode_subject(const ForwardKernel& kernel, int runs, const Form& form) {
  Subject subject = subject_of(kernel, form);
  subject.name += ", " + std::to_string(runs) + " runs";
  subject.variant = Variant::kGeneral;
  subject.only_ordinary_scores = false;
  subject.decodes = kernel.config;
  subject.launch = [kernel, runs](const Problem& problem, Placement& placement) {
    hopper::ForwardLaunch arguments = hopper::launch_of(problem);
    cut_into_runs(&arguments, runs);
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

// A launch in device memory, between guards.
ForwardRun run_kernel(const Subject& subject, const Case& c, const Inputs& inputs) {
  ForwardRun run{.o = Tensor(c.o_shape(), c.o_dtype(), c.out),
                 .lse = Tensor(c.lse_shape(), FA3_FLOAT32, c.out),
                 .problem = ""};
  fa3_forward_params params = forward_params(FA3_ENGINE_HOPPER, c, inputs, run.o, run.lse);
  Placement placement(FA3_CUDA);
  place(c, inputs, &run.o, &run.lse, &placement, &params);
  Problem problem;
  if (const Status status = api::describe(params, api::Purpose::call, &problem); !status.ok()) {
    run.problem = status.message();
    return run;
  }
  const cudaError_t error = subject.launch(problem, placement);
  run.problem = error == cudaSuccess ? placement.fetch() : cudaGetErrorString(error);
  for (const Tensor* output : {&run.o, &run.lse}) {
    if (run.problem.empty()) run.problem = output->find_unwritten() + output->find_damaged_guard();
  }
  return run;
}

// A case's inputs, and what they must give: made once, for all kernels of one shape.
const Inputs& inputs_of(const Case& c) {
  static std::map<std::string, Inputs> known;
  auto [found, first] = known.try_emplace(describe(c));
  if (first) found->second = make_inputs(c);
  return found->second;
}

struct Truth {
  Textbook book;
  ForwardRun baseline;
};

const Truth& truth_of(const Case& c) {
  static std::map<std::string, Truth> known;
  auto [found, first] = known.try_emplace(describe(c));
  if (first) {
    Case plain = dequantized(c);
    plain.num_threads = 0;
    const Inputs inputs = dequantized(c, inputs_of(c));
    found->second = {textbook_forward(plain, inputs), run_forward(baseline(), plain, inputs)};
  }
  return found->second;
}

// One number for the bits of a result (FNV-1a).
uint64_t digest(const ForwardRun& run) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const Tensor* output : {&run.o, &run.lse}) {
    for (uint32_t bits : output->element_bits()) value = (value ^ bits) * 0x100000001b3u;
  }
  return value;
}

// Digests of right results by kernel and case, kept in a file between builds.
class Digests {
 public:
  explicit Digests(const char* path) : path_(path) {
    std::ifstream file(path);
    uint64_t value = 0;
    for (std::string name; file >> value && std::getline(file, name);) known_[name] = value;
  }
  ~Digests() {
    if (path_.empty()) return;
    std::ofstream file(path_);
    for (const auto& [name, value] : known_) file << value << name << '\n';
  }
  const uint64_t* find(const std::string& name) {
    const auto at = known_.find(name);
    if (at == known_.end()) return nullptr;
    ++met_;
    return &at->second;
  }
  void add(const std::string& name, uint64_t value) { known_[name] = value; }
  int met() const { return met_; }

 private:
  std::string path_;
  int met_ = 0;
  std::map<std::string, uint64_t> known_;
};

// "" or what is wrong.
std::string check(const Subject& subject, const Case& c, int repeats, Digests* digests) {
  const Inputs& inputs = inputs_of(c);
  const Cached at =
      subject.cache ? in_cache(c, inputs, *subject.cache) : Cached{.c = c, .inputs = inputs};
  const ForwardRun run = run_kernel(subject, at.c, at.inputs);
  if (!run.problem.empty()) return run.problem;
  for (int i = 0; i < repeats; ++i) {
    const ForwardRun again = run_kernel(subject, at.c, at.inputs);
    if (!again.problem.empty()) return again.problem;
    for (const auto& result :
         {bits_equal("o", again.o, run.o), bits_equal("lse", again.lse, run.lse)}) {
      if (!result) return std::string("repeated, ") + result.message();
    }
  }
  const std::string name = " " + subject.name + " " + describe(c);
  if (const uint64_t* known = digests->find(name)) {
    return *known == digest(run) ? "" : "other bits than the other build's";
  }
  const Truth& truth = truth_of(c);
  const EngineUnderTest engine{
      .name = "hopper", .id = FA3_ENGINE_HOPPER, .memory = FA3_CUDA, .multiplies_e4m3 = true};
  const auto result = forward_agrees({engine, c}, truth.book, run, truth.baseline);
  if (!result) return result.message();
  digests->add(name, digest(run));
  return "";
}

struct Tally {
  int done = 0;
  int failed = 0;
  void add(const Tally& other) {
    done += other.done;
    failed += other.failed;
  }
};

// A general kernel does all that a dense one does.
bool does(const Subject& subject, const Case& c) {
  if (subject.cache && c.k.packed()) return false;
  if (subject.only_ordinary_scores && c.amount != 0) return false;
  const Inputs& inputs = inputs_of(c);
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
  if (subject.decodes) {
    hopper::ForwardLaunch launch = hopper::launch_of(problem);
    cut_into_runs(&launch, 1);
    if (!hopper::decodes(*subject.decodes, problem, launch)) return false;
  }
  const Variant needed = hopper::variant_of(problem);
  return needed == subject.variant ||
         (needed == Variant::kDense && subject.variant == Variant::kGeneral);
}

// Every kind of scale of each operand, with and without means.
void add_scales(Case* c) {
  const auto kind = [&](uint64_t period) { return static_cast<Scales>(c->seed / period % 4); };
  c->fp8 = {.kv = true,
            .q = kind(1),
            .k = kind(2),
            .v = kind(3),
            .q_by_kv_head = c->seed % 3 == 0,
            .k_mean = c->seed % 2 == 0,
            .v_mean = c->seed % 3 != 0};
}

// Those that a quantized cache has beside 16-bit queries.
void add_cache_scales(Case* c) {
  constexpr Scales kKinds[] = {Scales::none, Scales::tensor, Scales::head};
  c->fp8 = {.kv = true, .k = kKinds[c->seed % 3], .v = kKinds[c->seed / 3 % 3]};
}

Tally check_subject(const Subject& subject, const char* pattern, int repeats, Digests* digests) {
  Tally tally;
  for (auto& [name, c] : kernel_cases(subject.head_dim, subject.head_dim_v, subject.dtype)) {
    if (subject.dtype == FA3_FLOAT8_E4M3) add_scales(&c);
    if (subject.quantized_cache) add_cache_scales(&c);
    if (!std::strstr(name, pattern) || !does(subject, c)) continue;
    const std::string problem = check(subject, c, repeats, digests);
    ++tally.done;
    if (problem.empty()) continue;
    ++tally.failed;
    std::printf("  %-24s FAIL %s\n", name, problem.c_str());
    std::fflush(stdout);
  }
  std::printf("%s: %d of %d failed\n", subject.name.c_str(), tally.failed, tally.done);
  return tally;
}

#ifdef FA3_DISTURB
constexpr Element kElements[] = {Element::kBf16};
#else
constexpr Element kElements[] = {Element::kFp16, Element::kBf16};
#endif

constexpr int kTableRows = int(hopper::kForwardTable.size());
constexpr int kPlainRows = int(std::size(hopper::kPlainHeadDims));
constexpr int kE4m3End = kTableRows + kPlainRows + int(hopper::kE4m3Table.size());
constexpr int kCacheEnd = kE4m3End + int(hopper::kCacheTable.size());
constexpr int kRows = kCacheEnd + int(hopper::kDecodeTable.size());

constexpr hopper::KeyCut kSevenRuns{.parts = hopper::KeyCut::kRuns, .blocks = 7};
constexpr hopper::KeyCut kThreeParts{.parts = 3};
const Form kForms[] = {
    {.name = ", 7 runs", .cut = kSevenRuns},
    {.name = ", 3 parts", .cut = kThreeParts},
    {.name = ", pages of 16", .cache = CacheForm{.page_size = 16}},
    {.name = ", pages of 7", .cache = CacheForm{.page_size = 7, .indexed = true}},
    {.name = ", pages of 256 in runs", .cut = kSevenRuns, .cache = CacheForm{.page_size = 256}},
    {.name = ", left padding", .cache = CacheForm{.page_size = 64, .padded_left = true}},
    {.name = ", entries in parts",
     .cut = kThreeParts,
     .cache = CacheForm{.indexed = true, .padded_left = true}},
};

bool can_launch(const ForwardConfig& config, const Form& form) {
  const bool single_rows = form.cache && (form.cache->page_size % 2 != 0 ||
                                          (form.cache->page_size > 0 && form.cache->padded_left));
  return (!form.cut.active() || config.cuts()) &&
         (!single_rows || hopper::copies_single_rows(config));
}

void add_forms(const ForwardKernel& general, std::vector<Subject>* subjects) {
  for (const Form& form : kForms) {
    if (can_launch(general.config, form)) subjects->push_back(subject_of(general, form));
  }
}

// One tile in some runs, and several in each.
constexpr int kDecodeRuns[] = {2, 7, 132};
const Form kDecodeForms[] = {{},
                             {.name = ", pages of 16", .cache = CacheForm{.page_size = 16}},
                             {.name = ", pages of 7", .cache = CacheForm{.page_size = 7}}};

// By row of the table, then the plain ones, then the e4m3 table, then that of quantized caches, then
// that for decoding.
std::vector<Subject> subjects_of(int row) {
  std::vector<Subject> subjects;
  for (const Element element : kElements) {
    if (row >= kCacheEnd) {
      const ForwardKernel kernel = hopper::decode_kernel_at(row - kCacheEnd, element);
      for (const int runs : kDecodeRuns) {
        for (const Form& form : kDecodeForms) {
          subjects.push_back(decode_subject(kernel, runs, form));
        }
      }
      continue;
    }
    if (row >= kE4m3End) {
      for (const Variant variant : {Variant::kGeneral, Variant::kCapped}) {
        const ForwardKernel kernel = hopper::cache_kernel_at(row - kE4m3End, element, variant);
        subjects.push_back(subject_of(kernel));
        if (element == Element::kBf16 && variant == Variant::kGeneral) {
          add_forms(kernel, &subjects);
        }
      }
      continue;
    }
    if (row >= kTableRows + kPlainRows) {
      // Cases of e4m3 have O in bf16.
      const auto kernel = hopper::e4m3_kernel_at(row - kTableRows - kPlainRows, Element::kBf16);
      subjects.push_back(e4m3_subject(kernel));
      for (const Form& form : kForms) {
        if (!kernel.config.general() || !can_launch(kernel.config, form)) continue;
        subjects.push_back(e4m3_subject(kernel, form));
      }
      break;
    }
    if (row >= kTableRows) {
      const int head_dim = hopper::kPlainHeadDims[size_t(row - kTableRows)];
      subjects.push_back(plain_subject(head_dim, element));
      continue;
    }
    for (int variant = 0; variant < hopper::kNumVariants; ++variant) {
      subjects.push_back(subject_of(hopper::forward_kernel_at(row, element, Variant(variant))));
    }
    if (element != Element::kBf16) continue;  // where keys lie is a question for no element type
    add_forms(hopper::forward_kernel_at(row, element, Variant::kGeneral), &subjects);
  }
  return subjects;
}

void print_usage() {
  std::printf(
      "fa3_gpu_check [FIRST [END [NAME [REPEATS [DIGESTS]]]]]\n"
      "  FIRST, END  rows of the kernel table, half-open; those from %d on are the reading "
      "guide's\n"
      "              plain kernel, one for each of its head dims, those from %d on the e4m3\n"
      "              table, those from %d on that of quantized caches, and those from %d on that\n"
      "              for decoding. Default: 0 %d\n"
      "  NAME        only cases whose name contains it (tests/cpp/support/kernel_cases.cpp)\n"
      "  REPEATS     how often to launch each case again and compare bits; default 1\n"
      "  DIGESTS     a file of digests of right results: what it holds must be met bit for bit, "
      "what\n"
      "              it lacks is held to float64 and added\n",
      kTableRows, kTableRows + kPlainRows, kE4m3End, kCacheEnd, kRows);
}

Tally check_all(int argc, char** argv) {
  const int first = argc > 1 ? std::atoi(argv[1]) : 0;
  const int end = argc > 2 ? std::atoi(argv[2]) : kRows;
  const char* pattern = argc > 3 ? argv[3] : "";
  const int repeats = argc > 4 ? std::atoi(argv[4]) : 1;
  Digests digests(argc > 5 ? argv[5] : "");
  Tally tally;
  for (int row = first; row < std::min(end, kRows); ++row) {
    for (const Subject& subject : subjects_of(row)) {
      tally.add(check_subject(subject, pattern, repeats, &digests));
    }
  }
  if (digests.met() > 0) std::printf("%d met bit for bit\n", digests.met());
  return tally;
}

}  // namespace
}  // namespace fa3::test

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    fa3::test::print_usage();
    return 0;
  }
  try {
    const fa3::test::Tally tally = fa3::test::check_all(argc, argv);
    std::printf("%d checks, %d failures\n", tally.done, tally.failed);
    return tally.failed != 0;
  } catch (const std::exception& error) {  // the GPU is gone or was never there
    std::printf("FAILED %s\n", error.what());
    return 2;
  }
}
