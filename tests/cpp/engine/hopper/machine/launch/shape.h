// SPDX-License-Identifier: Apache-2.0
//
// Problems that the kernels' sources are run on, on the model SM.
#pragma once

#include <type_traits>

#include "core/mask/mask_rule.h"
#include "core/seqlen.h"
#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {

struct CallShape {
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

  // This shape in pages, in splits and so on.
  constexpr CallShape with_packed(const int32_t* queries, const int32_t* keys) const {
    return with(&CallShape::cu_q, queries).with(&CallShape::cu_k, keys);
  }
  constexpr CallShape with_used(const int32_t* keys) const {
    return with(&CallShape::used_k, keys);
  }
  constexpr CallShape in_pages(int rows) const { return with(&CallShape::page_size, rows); }
  constexpr CallShape by_threads() const { return with(&CallShape::by_cp_async, true); }
  constexpr CallShape direct() const { return with(&CallShape::scheduler, Scheduler::kDirect); }
  constexpr CallShape stream_k(int ctas, int groups_log2 = 0) const {
    return with(&CallShape::scheduler, Scheduler::kStreamK)
        .with(&CallShape::split, {.ctas = ctas, .groups_log2 = groups_log2});
  }
  constexpr CallShape opened() const {
    CallShape other = *this;
    other.split.opener_combines = true;
    return other;
  }
  constexpr CallShape paired() const {
    CallShape other = *this;
    other.split.in_pairs = true;
    return other;
  }
  constexpr CallShape fixed_splits(int count) const {
    return with(&CallShape::scheduler, Scheduler::kFixedSplit)
        .with(&CallShape::split, {.num_splits = count});
  }
  template <class T>
  constexpr CallShape with(T CallShape::*field, std::type_identity_t<T> value) const {
    CallShape other = *this;
    other.*field = value;
    return other;
  }

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
  // To a call of either pass.
  void describe(auto& call) const {
    call.mask = mask;
    call.seqlen_q = seqlen_q;
    call.seqlen_k = seqlen_k;
    call.varlen = varlen() || page_size > 0;
    call.sequences = batches;
    call.lengths_q = lengths(cu_q, nullptr, seqlen_q, q_rows());
    call.lengths_k = lengths(cu_k, used_k, seqlen_k, k_rows());
  }
};

// A tensor whose elements lie one after the other. It may be an address alone.
inline TensorSpan dense_span(const void* data, int batches, int rows, int heads, int columns,
                             int element_bytes = 2) {
  const int64_t row = int64_t{heads} * columns;
  return {const_cast<void*>(data),
          batches,
          rows,
          heads,
          columns,
          rows * row,
          row,
          columns,
          element_bytes};
}

// Where threads that copy keys and values find them.
inline constexpr uintptr_t kAddressOfK = uintptr_t{1} << 40, kAddressOfV = uintptr_t{2} << 40;

}  // namespace fa3::hopper
