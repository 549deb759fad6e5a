// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/latent_view.h"

#include <cmath>

#include "core/error.h"
#include "core/macros.h"
#include "engine/hopper/latent/plan_latent.h"
#include "engine/hopper/launch/run.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kMostHeads = 128;

bool is_view_of_keys(const Problem& p) {
  return p.v.data == p.k.data && p.v.batch_stride == p.k.batch_stride &&
         p.v.row_stride == p.k.row_stride && p.v.head_stride == p.k.head_stride;
}

// The first option in use that latent kernels lack; null: none is.
const char* option_in_use(const Problem& p) {
  const MaskRule& mask = p.mask;
  if (mask.left != MaskRule::kUnbounded) return "window";
  if (mask.right != MaskRule::kUnbounded && mask.right != 0) return "window";
  if (mask.chunk != MaskRule::kNoChunks) return "attention_chunk";
  if (p.softcap != 0) return "softcap";
  if (p.block_mask.on) return "block_mask";
  if (p.dropout.on()) return "dropout_p";
  if (p.score != nullptr) return "score";
  if (p.gate.on) return "gate";
  if (p.max_logit.on) return "max_logit";
  if (p.sm_margin > 0) return "sm_margin";
  if (p.key_places.indexed) return "batch_index";
  if (p.lengths_k.padded_left) return "left_padding";
  const bool uses_fewer_queries =
      p.lengths_q.seqused != nullptr || (p.lengths_q.varlen && !p.lengths_q.in_one_tensor);
  return uses_fewer_queries ? "seqused_q" : nullptr;
}

Status check(const Problem& p) {
  if (!is_view_of_keys(p)) {
    return unsupported("v: no kernel for head dims ", p.head_dim, " and ", p.head_dim_v,
                       " unless v is k[..., :512] (same address and strides); fa3.mla.attention ",
                       "takes a latent cache without v");
  }
  if (p.has_float8()) {
    return unsupported("k: expected float16 or bfloat16 for latent keys, got ", name_of(p.kv_dtype),
                       "; fa3.mla.attention takes FP8 rows");
  }
  if (!p.key_places.paged()) {
    return unsupported("page_table: expected with latent keys (head dim ", p.head_dim,
                       "), got none");
  }
  if (p.heads_k != 1 || p.heads_q > kMostHeads) {
    return unsupported("q, k: expected 1 to ", kMostHeads, " query heads over one latent head, ",
                       "got ", p.heads_q, " over ", p.heads_k);
  }
  if (const char* option = option_in_use(p)) {
    return unsupported(option, ": expected none with latent keys (head dim ", p.head_dim, ")");
  }
  return {};
}

}  // namespace

bool has_latent_dims(const Problem& p) {
  const bool has_rope = p.head_dim == kLatentValueDim + kRopeDim;
  return (has_rope || p.head_dim == kLatentValueDim) && p.head_dim_v == kLatentValueDim;
}

Status latent_view(const Problem& p, MlaProblem* latent) {
  FA3_TRY(check(p));
  const int64_t size = size_of(p.kv_dtype);
  LatentCache& cache = latent->keys.cache;
  cache.pages = p.key_places.pages;
  cache.page_size = p.key_places.page_size;
  cache.latent = {.data = static_cast<std::byte*>(p.k.data),
                  .dtype = p.kv_dtype,
                  .page_stride = p.k.batch_stride * size,
                  .row_stride = p.k.row_stride * size,
                  .channels = kLatentValueDim};
  if (p.head_dim > kLatentValueDim) {
    cache.rope = cache.latent;
    if (cache.rope.data != nullptr) cache.rope.data += kLatentValueDim * size;
    cache.rope.channels = kRopeDim;
  }
  latent->batch = p.batch;
  latent->heads = p.heads_q;
  latent->head_dim = p.head_dim;
  latent->dtype = p.dtype;
  latent->lengths_q = p.lengths_q;
  latent->lengths_k = p.lengths_k;
  latent->q = p.q;
  latent->places = p.key_places;
  latent->scale = p.scale;
  latent->causal = p.mask.right == 0;
  latent->sink = p.sink;
  latent->empty_lse = -INFINITY;
  latent->o = p.o;
  latent->lse = p.lse;
  latent->num_splits = p.num_splits;
  latent->batch_invariant = p.batch_invariant;
  latent->device = p.device;
  latent->device_index = p.device_index;
  latent->num_threads = p.num_threads;
  latent->engine = p.engine;
  return {};
}

Status plan_any_forward(const Problem& problem, Plan* plan) {
  if (!has_latent_dims(problem)) return plan_forward(problem, plan);
  MlaProblem latent;
  FA3_TRY(latent_view(problem, &latent));
  return plan_mla(latent, plan);
}

Status run_any_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  if (!has_latent_dims(problem)) return run_forward(problem, plan, workspace, stream);
  MlaProblem latent;
  FA3_TRY(latent_view(problem, &latent));
  return run_mla(latent, plan, workspace, stream);
}

}  // namespace fa3::hopper
