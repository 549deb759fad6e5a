// SPDX-License-Identifier: Apache-2.0
//
// fa3 fp8: what FP8 costs in accuracy, by method, on data with outliers (FlashAttention-3,
// section 4.3 and Table 3), on a trained transformer's Q, K and V, or on the user's own.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/call/calls.h"
#include "cli/call/execution.h"
#include "cli/call/gpu.h"
#include "cli/call/random.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/files/example_data.h"
#include "cli/files/npy_file.h"
#include "cli/text.h"
#include "core/quantization.h"

namespace fa3::cli {
namespace {

// A way to make Q, K and V small, and the attention that goes with it.
struct Method {
  const char* name;
  fa3_dtype dtype;
  Scaling scaling = Scaling::per_tensor;
  bool hadamard = false;                   // of Q and K
  bool centred = false;                    // K and V
  fa3_engine_id engine = FA3_ENGINE_AUTO;  // other than the command's
};

// Standard attention stores S and P in fp16: the baseline of the paper's table.
constexpr Method kMethods[] = {
    {"fp16, standard attention", FA3_FLOAT16, {}, false, false, FA3_ENGINE_STANDARD},
    {"fp16, FlashAttention-2", FA3_FLOAT16, {}, false, false, FA3_ENGINE_AMPERE},
    {"fp16", FA3_FLOAT16},
    {"bf16", FA3_BFLOAT16},
    {"e4m3, a scale per tensor", FA3_FLOAT8_E4M3},
    {"e4m3, per head", FA3_FLOAT8_E4M3, Scaling::per_head},
    {"e4m3, per block", FA3_FLOAT8_E4M3, Scaling::per_block},
    {"e4m3, per tensor, Hadamard", FA3_FLOAT8_E4M3, Scaling::per_tensor, true},
    {"e4m3, per block, Hadamard", FA3_FLOAT8_E4M3, Scaling::per_block, true},
    {"e4m3, per block, centred", FA3_FLOAT8_E4M3, Scaling::per_block, false, true},
    {"e4m3, per block, both", FA3_FLOAT8_E4M3, Scaling::per_block, true, true},
};
constexpr size_t kPerTensor = 4;  // what the others are compared with
static_assert(kMethods[kPerTensor].dtype == FA3_FLOAT8_E4M3);

// FlashAttention-2 is an engine of GPUs, beside another one there.
bool is_shown(const Method& method, const EngineFlags& engine) {
  return method.engine != FA3_ENGINE_AMPERE || engine.engine == "hopper";
}

struct Inputs {
  HostTensor q, k, v;  // fp32, (batch, seq, heads, dim)
};

// N(0, 1) + N(0, 100) * Bernoulli(0.001), the paper's outliers.
HostTensor with_outliers(const std::vector<int64_t>& shape, uint64_t seed) {
  constexpr float kOneInAThousand = 3.290527f;  // a normal number is further from 0
  HostTensor tensor(FA3_FLOAT32, shape), outliers(FA3_FLOAT32, shape), chosen(FA3_FLOAT32, shape);
  fill_normal(&tensor, 3 * seed);
  fill_normal(&outliers, 3 * seed + 1);
  fill_normal(&chosen, 3 * seed + 2);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (std::abs(element(chosen.data(), FA3_FLOAT32, i)) < kOneInAThousand) continue;
    const float outlier = 10 * element(outliers.data(), FA3_FLOAT32, i);
    set_element(tensor.data(), FA3_FLOAT32, i, element(tensor.data(), FA3_FLOAT32, i) + outlier);
  }
  return tensor;
}

Inputs random_inputs(const Fp8Flags& flags, int64_t dim, uint64_t seed) {
  const std::vector<int64_t> shape = {1, flags.seqlen, flags.heads, dim};
  return {with_outliers(shape, 3 * seed), with_outliers(shape, 3 * seed + 1),
          with_outliers(shape, 3 * seed + 2)};
}

// An e4m3 tensor and what its numbers stand for.
struct Small {
  HostTensor numbers, descale, mean;

  Small(const HostTensor& x, const Method& method, bool hadamard, bool centred,
        const EngineFlags& engine)
      : numbers(FA3_FLOAT8_E4M3, x.shape()) {
    const int64_t batch = x.shape()[0], rows = x.shape()[1], heads = x.shape()[2];
    const std::vector<int64_t> shapes[] = {
        {1}, {batch, heads}, {batch, heads, descale_blocks(rows)}};
    descale = HostTensor(FA3_FLOAT32, shapes[static_cast<size_t>(method.scaling)]);
    if (centred) mean = HostTensor(FA3_FLOAT32, {batch, heads, x.shape()[3]});
    QuantizeArgs args;
    args.x = x.view();
    args.y = numbers.view();
    args.descale = descale.view();
    args.mean = mean.view();
    args.hadamard = hadamard ? 1 : 0;
    args.num_threads = engine.threads;
    Workspace workspace;
    require(quantize(args, workspace));
  }
};

// The call on copies of its tensors in the device's memory.
HostTensor attend_on_gpu(ForwardArgs args, const Device& device, const HostTensor& o) {
  std::vector<gpu::Buffer> copies;
  HostTensor found(o.dtype(), o.shape());
  for (fa3_tensor* tensor : {&args.q, &args.k, &args.v, &args.q_descale, &args.k_descale,
                             &args.v_descale, &args.k_mean, &args.v_mean, &args.o}) {
    if (tensor->rank == 0) continue;
    const std::vector<int64_t> shape(tensor->shape, tensor->shape + tensor->rank);
    const auto dtype = static_cast<fa3_dtype>(tensor->dtype);
    copies.emplace_back(HostTensor::shape_only(dtype, shape).bytes());
    copies.back().read_from(static_cast<const std::byte*>(tensor->data));
    tensor->data = copies.back().data();
    tensor->device_type = device.type;
    tensor->device_index = device.index;
  }
  const gpu::Buffer workspace(static_cast<int64_t>(workspace_bytes(args)));
  gpu::seconds_of(
      [&] { require(forward(args, workspace.data(), static_cast<size_t>(workspace.bytes()))); });
  copies.back().write_to(found.data());
  return found.converted(FA3_FLOAT32);
}

HostTensor attend(const ForwardArgs& args, const HostTensor& o) {
  const Device device = device_of(args.options.engine);
  if (device.type != FA3_CPU) return attend_on_gpu(args, device, o);
  Workspace workspace;
  reserve(&workspace, workspace_bytes(args));
  require(forward(args, workspace.data(), workspace.bytes()));
  return o.converted(FA3_FLOAT32);
}

HostTensor output_of(const Method& method, const Inputs& in, const fa3_options& options,
                     const EngineFlags& engine) {
  std::vector<int64_t> shape = in.q.shape();
  shape[3] = in.v.shape()[3];
  ForwardArgs args;
  args.options = options;
  if (method.engine != FA3_ENGINE_AUTO) args.options.engine = method.engine;
  if (method.dtype != FA3_FLOAT8_E4M3) {
    const HostTensor q = in.q.converted(method.dtype), k = in.k.converted(method.dtype),
                     v = in.v.converted(method.dtype), o(method.dtype, shape);
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.o = o.view();
    return attend(args, o);
  }
  const Small q(in.q, method, method.hadamard, false, engine);
  const Small k(in.k, method, method.hadamard, method.centred, engine);
  const Small v(in.v, method, false, method.centred, engine);
  const HostTensor o(FA3_FLOAT16, shape);
  args.q = q.numbers.view();
  args.k = k.numbers.view();
  args.v = v.numbers.view();
  args.o = o.view();
  args.q_descale = q.descale.view();
  args.k_descale = k.descale.view();
  args.v_descale = v.descale.view();
  args.k_mean = k.mean.view();
  args.v_mean = v.mean.view();
  return attend(args, o);
}

// Root mean square of the differences.
double rmse(const HostTensor& got, const HostTensor& truth) {
  double sum = 0;
  for (int64_t i = 0; i < truth.elements(); ++i) {
    const double want = element(truth.data(), FA3_FLOAT32, i);
    sum += std::pow(double{element(got.data(), FA3_FLOAT32, i)} - want, 2);
  }
  return std::sqrt(sum / static_cast<double>(truth.elements()));
}

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}

// errors[method][run]
using Errors = std::vector<std::vector<double>>;

void measure(const Inputs& in, const Fp8Flags& flags, Errors* errors) {
  fa3_options options = options_of(flags.engine, flags.mask);
  fa3_options exact = options;
  exact.engine = FA3_ENGINE_REFERENCE;
  std::vector<int64_t> shape = in.q.shape();
  shape[3] = in.v.shape()[3];
  const HostTensor o(FA3_FLOAT32, shape);
  ForwardArgs args;
  args.options = exact;
  args.q = in.q.view();
  args.k = in.k.view();
  args.v = in.v.view();
  args.o = o.view();
  const HostTensor truth = attend(args, o);
  for (size_t i = 0; i < std::size(kMethods); ++i) {
    if (!is_shown(kMethods[i], flags.engine)) continue;
    const HostTensor got = output_of(kMethods[i], in, options, flags.engine);
    (*errors)[i].push_back(rmse(got, truth));
  }
}

void print_errors(const Table& table, const std::string& data, const Errors& errors) {
  const double per_tensor = median(errors[kPerTensor]);
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i].empty()) continue;
    const double error = median(errors[i]);
    table.print_row({data, kMethods[i].name, fmt::format("{:.2e}", error),
                     i < kPerTensor ? "" : fmt::format("{:.2f}x", per_tensor / error)});
  }
}

}  // namespace

void run_fp8(const Fp8Flags& flags) {
  const bool own = !flags.q.empty();
  if (own != !flags.k.empty() || own != !flags.v.empty()) {
    throw CommandError(kExitBadInput, "--q, --k, --v: expected all three or none, got fewer");
  }
  require_engine(flags.engine.engine);
  const Table table({{"data", 10, false}, {"method", 27, false}, {"RMSE", 8}, {"better", 7}});
  const auto show_files = [&](const std::string& name, const std::string& q, const std::string& k,
                              const std::string& v) {
    Errors errors(std::size(kMethods));
    measure({read_npy(q, 4, FA3_FLOAT32), read_npy(k, 4, FA3_FLOAT32), read_npy(v, 4, FA3_FLOAT32)},
            flags, &errors);
    print_errors(table, name, errors);
  };
  Progress progress("fp8", own ? 1 : static_cast<int64_t>(flags.head_dim.size()) * flags.seeds);
  table.print_header();
  if (own) return show_files("files", flags.q, flags.k, flags.v);
  for (int64_t dim : flags.head_dim) {
    Errors errors(std::size(kMethods));
    for (int seed = 0; seed < flags.seeds; ++seed) {
      progress.next(fmt::format("d{} seed {}", dim, seed));
      measure(random_inputs(flags, dim, static_cast<uint64_t>(seed)), flags, &errors);
    }
    progress.erase();
    print_errors(table, fmt::format("d{}", dim), errors);
  }
  const std::string folder = data_folder();
  for (int layer : layers_in(folder)) {
    const auto file = [&](const char* tensor) { return layer_file(folder, layer, tensor); };
    show_files(fmt::format("layer {}", layer), file("q"), file("k"), file("v"));
  }
}

}  // namespace fa3::cli
