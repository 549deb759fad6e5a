// SPDX-License-Identifier: Apache-2.0
#include "api/describe/rules/overlap.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/macros.h"

namespace fa3::api {
namespace {

struct Dim {
  int index = 0;
  int64_t extent = 1;
  int64_t stride = 0;  // bytes
};

// The bytes of a view: runs of `run` bytes, repeated along its moving dimensions, largest first.
struct View {
  uintptr_t first = 0;
  int64_t run = 0;
  int count = 0;
  Dim dims[FA3_MAX_RANK];

  // From the first byte to past the last one of the dimensions [from, count).
  int64_t span(int from) const {
    int64_t bytes = run;
    for (int i = from; i < count; ++i) bytes += (dims[i].extent - 1) * dims[i].stride;
    return bytes;
  }
};

View view_of(const fa3_tensor& tensor) {
  View view;
  view.first = reinterpret_cast<uintptr_t>(tensor.data);
  view.run = size_of(static_cast<DType>(tensor.dtype));
  for (int dim = 0; dim < tensor.rank; ++dim) {
    if (tensor.shape[dim] < 2) continue;
    const Dim next{dim, tensor.shape[dim], tensor.stride[dim] * view.run};
    int at = view.count++;
    for (; at > 0 && view.dims[at - 1].stride < next.stride; --at)
      view.dims[at] = view.dims[at - 1];
    view.dims[at] = next;
  }
  return view;
}

// The innermost dimensions as one run where they are dense; repeated elements count once.
View runs_of(const fa3_tensor& tensor) {
  View view = view_of(tensor);
  while (view.count > 0 && view.dims[view.count - 1].stride == 0) --view.count;
  while (view.count > 0 && view.dims[view.count - 1].stride == view.run) {
    view.run *= view.dims[--view.count].extent;
  }
  return view;
}

// Views whose strides have nothing in common: all runs lie at fixed places within a common period.
bool alternate(const View& a, int i, const View& b, int j, int64_t distance) {
  int64_t period = 0;
  for (; i < a.count; ++i) period = std::gcd(period, a.dims[i].stride);
  for (; j < b.count; ++j) period = std::gcd(period, b.dims[j].stride);
  if (period == 0) return false;
  const int64_t a_after_b = (distance % period + period) % period;
  return a_after_b >= b.run && a_after_b + a.run <= period;
}

// Whether a's dimensions from i on, `distance` bytes behind b's from j on, share a byte with them.
// Exact where both are nested: a dimension's stride is at least the span of those within.
bool meet(const View& a, int i, const View& b, int j, int64_t distance) {
  if (distance >= b.span(j) || distance + a.span(i) <= 0) return false;
  if (i == a.count && j == b.count) return true;
  const int64_t step = std::max(i < a.count ? a.dims[i].stride : 0,  //
                                j < b.count ? b.dims[j].stride : 0);
  const bool a_steps = i < a.count && a.dims[i].stride == step;
  const bool b_steps = j < b.count && b.dims[j].stride == step;
  const int within_a = i + (a_steps ? 1 : 0), within_b = j + (b_steps ? 1 : 0);
  if (a.span(within_a) > step || b.span(within_b) > step) return !alternate(a, i, b, j, distance);
  // Entry x of a and y of b are distance + (x - y) * step apart: less than a step for two x - y.
  const int64_t most = a_steps ? a.dims[i].extent - 1 : 0;
  const int64_t least = b_steps ? 1 - b.dims[j].extent : 0;
  const int64_t remainder = (distance % step + step) % step;
  const int64_t ahead = (remainder - distance) / step;
  const auto entries_meet = [&](int64_t x_minus_y, int64_t apart) {
    return x_minus_y >= least && x_minus_y <= most && meet(a, within_a, b, within_b, apart);
  };
  return entries_meet(ahead, remainder) || entries_meet(ahead - 1, remainder - step);
}

bool elements_are_distinct(const View& view, int from, const Dim** culprit) {
  for (int i = view.count - 1; i >= from; --i) {
    if (view.dims[i].stride >= view.span(i + 1)) continue;
    *culprit = &view.dims[i];
    return false;
  }
  return true;
}

bool has_memory(const fa3_tensor& tensor) {
  return tensor.data != nullptr && has_elements(tensor);
}

// The bytes from a tensor's first to its last; none if it has no memory.
struct Range {
  uintptr_t begin = 0, bytes = 0;

  bool holds(uintptr_t address) const { return address - begin < bytes; }
};

bool meet(const Range& a, const Range& b) {
  return a.bytes > 0 && b.bytes > 0 && (a.holds(b.begin) || b.holds(a.begin));
}

Range range_of(const fa3_tensor& tensor) {
  if (tensor.data == nullptr) return {};
  int64_t last = 0;
  for (int dim = 0; dim < tensor.rank; ++dim) {
    const int64_t extent = tensor.shape[dim];
    if (extent == 0) return {};
    if (extent > 1) last += (extent - 1) * tensor.stride[dim];
  }
  const int64_t bytes = (last + 1) * size_of(static_cast<DType>(tensor.dtype));
  return {reinterpret_cast<uintptr_t>(tensor.data), static_cast<uintptr_t>(bytes)};
}

}  // namespace

Status check_distinct_elements(Named output) {
  const auto& [name, tensor] = output;
  if (!has_elements(tensor)) return {};
  const View view = view_of(tensor);
  const Dim* dim = nullptr;
  if (elements_are_distinct(view, 0, &dim)) return {};
  return invalid(name, ": expected an output whose elements do not overlap, got stride ",
                 tensor.stride[dim->index], " in dimension ", dim->index, " of shape ",
                 shape_text(tensor), "; an expanded view cannot be written");
}

Status check_no_overlap(Named output, Named other) {
  if (!has_memory(output.tensor) || !has_memory(other.tensor)) return {};
  const View a = runs_of(output.tensor), b = runs_of(other.tensor);
  if (!meet(a, 0, b, 0, static_cast<int64_t>(a.first - b.first))) return {};
  return invalid(output.name, ": expected memory of its own, but it overlaps ", other.name,
                 "; give it a separate buffer");
}

// Nearly all of a call's tensors lie apart, which their ends tell.
Status check_no_overlap(Named output, std::span<const CallTensor> others, unsigned uses) {
  const Range range = range_of(output.tensor);
  for (const CallTensor& other : others) {
    if ((other.use & uses) == 0 || !meet(range, range_of(other.tensor))) continue;
    FA3_TRY(check_no_overlap(output, {other.name, other.tensor}));
  }
  return {};
}

bool is_same_view(const fa3_tensor& a, const fa3_tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int dim = 0; dim < a.rank; ++dim) {
    if (a.shape[dim] != b.shape[dim]) return false;
    if (a.shape[dim] > 1 && a.stride[dim] != b.stride[dim]) return false;
  }
  return true;
}

bool is_entry_of(const fa3_tensor& part, const fa3_tensor& whole) {
  if (part.dtype != whole.dtype || !has_memory(part) || !has_memory(whole)) return false;
  for (int dim = 0; dim < part.rank; ++dim) {
    if (part.shape[dim] > 1 && part.stride[dim] != whole.stride[dim + 1]) return false;
  }
  const auto distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(part.data) -
                                             reinterpret_cast<uintptr_t>(whole.data));
  if (whole.stride[0] == 0 || whole.shape[0] == 1) return distance == 0;  // all are this entry
  const int64_t step = whole.stride[0] * size_of(static_cast<DType>(whole.dtype));
  const Dim* unused = nullptr;
  return distance >= 0 && distance % step == 0 && distance / step < whole.shape[0] &&
         elements_are_distinct(view_of(whole), 0, &unused);
}

}  // namespace fa3::api
