// SPDX-License-Identifier: Apache-2.0
// What the contract (tests/cpp/contract) cannot ask: every kernel of the tables
// (forward_subjects.h), repeats of each launch, and the same bits from another build of the
// kernels. Needs a GPU and nothing else.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/forward_oracle.h"
#include "cuda/forward_subjects.h"
#include "support/cases/fp8.h"
#include "support/cases/kernel_cases.h"
#include "support/oracle/compare.h"
#include "support/runs/run.h"

namespace fa3::test {
namespace {

using hopper::Element;

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
  if (first) found->second = make_forward_inputs(c);
  return found->second;
}

// The first case of the oracle on the GPU is held to the oracle on the host.
const Truth& truth_of(const Case& c, bool on_gpu) {
  static std::map<std::string, Truth> known;
  auto [found, first] = known.try_emplace(describe(c));
  if (!first) return found->second;
  Case plain = dequantized(c);
  plain.num_threads = 0;
  const Inputs inputs = dequantized(c, inputs_of(c));
  const auto of_host = [&] {
    return Truth{textbook_forward(plain, inputs), run_forward(baseline(), plain, inputs)};
  };
  if (!on_gpu || !oracle_does(plain)) return found->second = of_host();
  found->second = forward_truth_on_gpu(plain, inputs);
  if (known.size() == 1) {
    if (const auto same = same_truth(found->second, of_host()); !same) {
      throw std::runtime_error(std::string("the oracle on the GPU: ") + same.message());
    }
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
  explicit Digests(const char* path) {
    std::ifstream file(path);
    uint64_t value = 0;
    for (std::string name; file >> value && std::getline(file, name);) known_[name] = value;
  }
  void save(const char* path) const {
    std::ofstream file(path);
    for (const auto& [name, value] : known_) file << value << name << '\n';
  }
  const uint64_t* find(const std::string& name) const {
    const auto at = known_.find(name);
    return at == known_.end() ? nullptr : &at->second;
  }
  void add(const std::string& name, uint64_t value) { known_[name] = value; }

 private:
  std::map<std::string, uint64_t> known_;
};

// What is known of right results, and how often that was enough.
struct Results {
  Digests digests;  // must be met
  Digests earlier;  // need no oracle where they are met
  int met = 0, as_earlier = 0;
  bool oracle_on_gpu = false;
};

// "" or what is wrong.
std::string check(const Subject& subject, const Case& c, int repeats, Results* results) {
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
  const uint64_t bits = digest(run);
  if (const uint64_t* known = results->digests.find(name)) {
    ++results->met;
    return *known == bits ? "" : "other bits than the other build's";
  }
  if (const uint64_t* known = results->earlier.find(name); known && *known == bits) {
    ++results->as_earlier;
  } else {
    const Truth& truth = truth_of(c, results->oracle_on_gpu);
    const EngineUnderTest engine{
        .name = "hopper", .id = FA3_ENGINE_HOPPER, .memory = FA3_CUDA, .multiplies_e4m3 = true};
    const auto result = forward_agrees({engine, c}, truth.book, run, truth.baseline);
    if (!result) return result.message();
  }
  results->digests.add(name, bits);
  return "";
}

std::vector<Element> known_elements() {
#ifdef FA3_BF16_ALONE
  return {Element::kBf16};
#else
  return {Element::kFp16, Element::kBf16};
#endif
}

struct Options {
  int first = 0, end = int(subject_rows().size());
  bool list = false;
  std::vector<Element> elements = known_elements();
  const char* only = "";
  int repeats = 1;
  const char* digests = "";
  const char* earlier = "";
  bool oracle_on_gpu = false;
};

struct Tally {
  int done = 0;
  int failed = 0;
  void add(const Tally& other) {
    done += other.done;
    failed += other.failed;
  }
};

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

// Adds the scales that a quantized cache has beside 16-bit queries.
void add_cache_scales(Case* c) {
  constexpr Scales kKinds[] = {Scales::none, Scales::tensor, Scales::head};
  c->fp8 = {
      .kv = true, .e5m2 = c->seed % 2 == 0, .k = kKinds[c->seed % 3], .v = kKinds[c->seed / 3 % 3]};
}

Tally check_subject(const Subject& subject, const Options& options, Results* results) {
  Tally tally;
  for (auto& [name, c] : kernel_cases(subject.head_dim, subject.head_dim_v, subject.dtype)) {
    if (subject.dtype == FA3_FLOAT8_E4M3) add_scales(&c);
    if (subject.quantized_cache) add_cache_scales(&c);
    if (subject.dropout) c.dropout_p = 0.3f, c.dropout_seed = c.seed, c.dropout_offset = 3;
    if (!std::strstr(name, options.only) || !does(subject, c, inputs_of(c))) continue;
    const std::string problem = check(subject, c, options.repeats, results);
    ++tally.done;
    if (problem.empty()) continue;
    ++tally.failed;
    std::printf("  %-24s FAIL %s\n", name, problem.c_str());
    std::fflush(stdout);
  }
  std::printf("%s: %d of %d failed\n", subject.name.c_str(), tally.failed, tally.done);
  return tally;
}

void print_usage() {
  std::printf(
      "fa3_gpu_check [--list] [--rows FIRST END] [--element fp16|bf16] [--only NAME]\n"
      "              [--repeats N] [--digests FILE] [--earlier FILE] [--gpu-oracle]\n"
      "  --list     number, kind, head dims of Q and of V, and source of each kernel; no GPU\n"
      "  --rows     of these, half-open; default: all\n"
      "  --element  only kernels of this type of Q (e4m3: of O)\n"
      "  --only     only cases whose name contains it (tests/cpp/support/cases/kernel_cases.cpp)\n"
      "  --repeats  how often to launch each case again and compare bits; default 1\n"
      "  --digests  a file of digests of right results: what it holds must be met bit for bit, "
      "what\n"
      "             it lacks is held to float64 and added\n"
      "  --earlier  such a file of an earlier build: who meets it is right, others are held to "
      "float64\n"
      "  --gpu-oracle  float64 on the GPU, the first case also on the host\n");
}

void list_rows() {
  int number = 0;
  for (const SubjectRow& row : subject_rows()) {
    std::printf("%d %s %d %d %s\n", number++, name_of(row.kind), row.head_dim, row.head_dim_v,
                row.source().c_str());
  }
}

// False if there is an argument that it does not know, or a type that it has no kernels of.
bool read_options(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list" || flag == "--gpu-oracle") {
      (flag == "--list" ? options->list : options->oracle_on_gpu) = true;
      continue;
    }
    const int values = flag == "--rows" ? 2 : 1;
    if (i + values >= argc) return false;
    const char* value = argv[i + 1];
    if (flag == "--rows") {
      options->first = std::atoi(value);
      options->end = std::min(std::atoi(argv[i + 2]), options->end);
    } else if (flag == "--element") {
      std::erase_if(options->elements,
                    [&](Element e) { return std::strcmp(name_of(e), value) != 0; });
      if (options->elements.empty()) return false;
    } else if (flag == "--only") {
      options->only = value;
    } else if (flag == "--repeats") {
      options->repeats = std::atoi(value);
    } else if (flag == "--digests") {
      options->digests = value;
    } else if (flag == "--earlier") {
      options->earlier = value;
    } else {
      return false;
    }
    i += values;
  }
  return true;
}

Tally check_all(const Options& options) {
  Results results{.digests = Digests(options.digests),
                  .earlier = Digests(options.earlier),
                  .oracle_on_gpu = options.oracle_on_gpu};
  Tally tally;
  const std::vector<SubjectRow> rows = subject_rows();
  for (int row = options.first; row < options.end; ++row) {
    for (const Element element : options.elements) {
      for (const Subject& subject : subjects_of(rows[size_t(row)], element)) {
        tally.add(check_subject(subject, options, &results));
      }
    }
  }
  if (options.digests[0] != 0) results.digests.save(options.digests);
  if (results.met > 0) std::printf("%d met bit for bit\n", results.met);
  if (results.as_earlier > 0) std::printf("%d have an earlier build's bits\n", results.as_earlier);
  return tally;
}

}  // namespace
}  // namespace fa3::test

int main(int argc, char** argv) {
  fa3::test::Options options;
  if (!fa3::test::read_options(argc, argv, &options)) {
    fa3::test::print_usage();
    return 2;
  }
  if (options.list) {
    fa3::test::list_rows();
    return 0;
  }
  try {
    const fa3::test::Tally tally = fa3::test::check_all(options);
    std::printf("%d checks, %d failures\n", tally.done, tally.failed);
    return tally.failed != 0;
  } catch (const std::exception& error) {  // the GPU is gone or was never there
    std::printf("FAILED %s\n", error.what());
    return 2;
  }
}
