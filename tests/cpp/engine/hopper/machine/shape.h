// SPDX-License-Identifier: Apache-2.0
//
// Problems that the kernels' sources are run on, on the model SM.
#pragma once

#include "core/mask/mask_rule.h"
#include "core/seqlen.h"
#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {

struct Shape {
  int seqlen_q, seqlen_k, heads, kv_heads, batches;
  MaskRuleOf<int> mask;
  // Packed sequences have batches + 1 of each; dense ones the used keys, batches of them.
  const int32_t* cu_q = nullptr;
  const int32_t* cu_k = nullptr;
  const int32_t* used_k = nullptr;
  Scheduler scheduler = Scheduler::kStaticPersistent;  // or another of whole tiles
  SplitKv split{};
  int page_size = 0;  // 0: no pages
  // Copied so without pages too, if the kernel does; of whole blocks, since zeros that threads
  // write have no place.
  bool by_cp_async = false;

  bool is_split() const {
    return scheduler == Scheduler::kStreamK || scheduler == Scheduler::kFixedSplit;
  }
  bool finds_own_tiles() const { return is_split() || scheduler == Scheduler::kDirect; }
  bool varlen() const { return cu_q != nullptr || used_k != nullptr; }
  bool packed() const { return cu_q != nullptr; }
  // The tensors have two rows more than the sequences own.
  int entries() const { return packed() ? 1 : batches; }
  int q_rows() const { return packed() ? cu_q[batches] + 2 : seqlen_q; }
  int k_rows() const { return packed() ? cu_k[batches] + 2 : seqlen_k; }
  int num_pages() const { return page_size ? (seqlen_k + page_size - 1) / page_size : 0; }
  Lengths lengths(const int32_t* cu, const int32_t* used, int longest, int rows) const {
    return {.cu_seqlens = cu,
            .seqused = used,
            .max = longest,
            .total = int64_t{entries()} * rows,
            .varlen = varlen(),
            .in_one_tensor = packed()};
  }
  Lengths lengths_q() const { return lengths(cu_q, nullptr, seqlen_q, q_rows()); }
  Lengths lengths_k() const { return lengths(cu_k, used_k, seqlen_k, k_rows()); }
};

}  // namespace fa3::hopper
