// SPDX-License-Identifier: Apache-2.0
//
// The numbers that a call follows to rows of its tensors, checked wherever they live. A call checks
// those in host memory itself; it never waits for a device, so there this is the only look at them.
#include <list>
#include <vector>

#include "api/attention.h"
#include "api/describe/describe.h"
#include "api/describe/rules/tensor_rules.h"
#include "core/error.h"
#include "core/macros.h"
#include "engine/engine.h"

namespace fa3::api {
namespace {

// Arrays of int32 on their way to the host, one row after the other.
class HostCopies {
 public:
  explicit HostCopies(void* stream) : stream_(stream) {}

  Status bring(fa3_tensor* array) {
    if (!present(*array) || array->device_type == FA3_CPU) return {};
    const int64_t rows = array->rank == 2 ? array->shape[0] : 1;
    const int64_t columns = array->shape[array->rank - 1];
    const int64_t row_stride = array->rank == 2 ? array->stride[0] : 0;
    std::vector<int32_t>& here = copies_.emplace_back(static_cast<size_t>(rows * columns));
    const auto* there = static_cast<const int32_t*>(array->data);
    for (int64_t row = 0; row < rows; ++row) {
      FA3_TRY(read(here.data() + row * columns, there + row * row_stride, columns, *array));
    }
    array->data = here.data();
    if (array->rank == 2) array->stride[0] = columns;
    return {};
  }

 private:
  Status read(int32_t* to, const int32_t* from, int64_t count, const fa3_tensor& array) const {
    if (count == 0) return {};
    for (const Engine* engine : engines()) {
      if (engine->memory != array.device_type || engine->read_back == nullptr) continue;
      return engine->read_back(to, from, count * int64_t{sizeof(int32_t)}, array.device_index,
                               stream_);
    }
    return unsupported("validate: no engine of this build reads this memory");
  }

  void* stream_;
  std::list<std::vector<int32_t>> copies_;
};

}  // namespace

Status validate(const fa3_forward_params& params, void* stream) {
  Problem problem;
  FA3_TRY(describe(params, Purpose::query, &problem));
  if (problem.device == FA3_CPU) return {};
  fa3_forward_params here = params;
  fa3_options& options = here.options;
  fa3_tensor* const arrays[] = {&options.cu_seqlens_q, &options.cu_seqlens_k, &options.seqused_q,
                                &options.seqused_k,    &here.page_table,      &here.batch_index,
                                &here.left_padding};
  HostCopies copies(stream);
  for (fa3_tensor* array : arrays) FA3_TRY(copies.bring(array));
  // A question as if all were here: it looks at the arrays, and at no other data.
  for (fa3_tensor* array : arrays) array->device_type = FA3_CPU;
  for (fa3_tensor* tensor :
       {&here.q, &here.k, &here.v, &here.o, &here.lse, &here.sink, &here.q_descale, &here.k_descale,
        &here.v_descale, &here.k_mean, &here.v_mean}) {
    tensor->device_type = FA3_CPU;
  }
  return describe(here, Purpose::query, &problem);
}

}  // namespace fa3::api
