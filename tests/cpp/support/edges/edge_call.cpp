// SPDX-License-Identifier: Apache-2.0
#include "support/edges/edge_call.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <sstream>

#include "support/random.h"

namespace fa3::test {
namespace {

int64_t one_of(Random& random, std::initializer_list<int64_t> values) {
  return values.begin()[random.below(std::ssize(values))];
}

void choose_cache(Random& random, EdgeCall* c) {
  c->used_k = !random.one_in(4);
  c->padded_left = random.one_in(4);
  c->indexed = random.one_in(3);
  c->entries = c->indexed ? random.between(0, 4) : c->batch;
  if (random.one_in(2)) return;
  c->page_size = one_of(random, {1, 3, 16, 64, 256});
  c->max_pages = (c->seqlen_k + c->page_size - 1) / c->page_size;
  c->pages = random.one_in(8) ? 0 : random.between(1, 2 * c->max_pages + 1);
}

void choose_mask(Random& random, EdgeCall* c) {
  c->causal = random.one_in(2);
  if (random.one_in(3)) c->left = one_of(random, {0, 1, 60, 200, int64_t{1} << 40});
  if (random.one_in(4)) c->right = one_of(random, {0, 3, 90});
  if (random.one_in(3)) c->shift = int32_t(one_of(random, {-300, -70, -1, 1, 40, 1 << 20}));
  if (random.one_in(6)) c->chunk = one_of(random, {1, 5, 100});
  if (random.one_in(6)) c->softcap = 15;
}

}  // namespace

bool EdgeCall::has_no_keys() const {
  const bool no_cache = paged() && (pages == 0 || max_pages == 0);
  return batch == 0 || seqlen_k == 0 || no_cache || (indexed && entries == 0);
}

bool EdgeCall::names_nothing() const {
  if (batch == 0) return false;
  return (indexed && entries == 0) || (paged() && pages == 0 && max_pages > 0 && !used_k);
}

void EdgeCall::keep_places_apart() {
  if (indexed && entries > 0) entries = std::max(entries, batch);
  if (pages > 0) pages = std::max<int64_t>(1, (indexed ? entries : batch) * max_pages);
}

std::vector<EdgeCall> empty_calls() {
  std::vector<EdgeCall> calls;
  const auto add_kinds = [&](EdgeCall c) {
    for (EdgeKind kind : {EdgeKind::forward, EdgeKind::backward, EdgeKind::append}) {
      const bool has_cache = c.paged() || c.indexed || c.padded_left;
      if (kind == EdgeKind::backward && has_cache) continue;
      if (kind == EdgeKind::append && (c.packed_k || c.padded_left)) continue;
      c.kind = kind;
      c.rotary = c.queries = kind == EdgeKind::append && c.batch % 2 == 0;
      c.positions = c.rotary ? c.seqlen_q + c.seqlen_k : 0;
      if (kind == EdgeKind::append) c.keep_places_apart();
      calls.push_back(c);
    }
  };
  for (int64_t batch : {0, 1, 2}) {
    for (int64_t seqlen_q : {0, 1, 70}) {
      for (int64_t seqlen_k : {0, 7, 600}) {
        for (int form = 0; form < 8; ++form) {
          for (bool sink : {false, true}) {
            EdgeCall c{.batch = batch, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k};
            c.packed_q = form & 1;
            c.packed_k = form & 2;
            c.used_k = form & 4;
            c.sink = sink;
            c.num_splits = form % 3;
            c.batch_invariant = form % 4 == 3;
            add_kinds(c);
          }
        }
        for (int64_t pages : {0, 3}) {
          for (int64_t max_pages : {int64_t{0}, (seqlen_k + 15) / 16}) {
            for (int64_t entries : {0, 3}) {
              EdgeCall c{.batch = batch, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k};
              c.used_k = c.indexed = true;
              c.page_size = 16;
              c.pages = pages;
              c.max_pages = max_pages;
              c.entries = entries;
              c.packed_q = seqlen_q == 1;
              add_kinds(c);
            }
          }
        }
      }
    }
  }
  return calls;
}

std::vector<EdgeCall> fallen_calls() {
  std::vector<EdgeCall> calls;
  // Sequences that overlap: more query blocks than the rows of q fill.
  for (bool deterministic : {true, false}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      EdgeCall c{.kind = EdgeKind::backward, .batch = 70, .seqlen_q = 3, .seqlen_k = 1500};
      c.heads_k = 2;
      c.group = 1;
      c.dim = c.dim_v = 192;
      c.packed_q = c.used_q = c.used_k = c.garbage = true;
      c.causal = true;
      c.left = 200;
      c.deterministic = deterministic;
      c.batch_invariant = true;
      c.seed = seed;
      calls.push_back(c);
    }
  }
  // Calls under a block mask, whose lists lie where the blocks' entries do.
  for (bool deterministic : {true, false}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      EdgeCall c{.kind = EdgeKind::backward, .batch = 70, .seqlen_q = 30, .seqlen_k = 300};
      c.dim = c.dim_v = seed % 2 == 0 ? 64 : 128;
      c.packed_q = c.packed_k = c.garbage = c.block_mask = true;
      c.used_k = seed % 4 < 2;
      c.causal = seed > 4;
      c.deterministic = deterministic;
      c.seed = seed;
      calls.push_back(c);
      c.kind = EdgeKind::forward;
      calls.push_back(c);
    }
  }
  EdgeCall step{.batch = 0, .seqlen_q = 1, .seqlen_k = 8192, .heads_k = 8, .group = 8};
  step.dim = step.dim_v = 128;
  step.used_k = true;
  step.page_size = 16;
  step.pages = step.max_pages = 512;
  calls.push_back(step);
  // No sequences, over tensors that have rows: what lies behind the one start is no length.
  for (EdgeKind kind : {EdgeKind::forward, EdgeKind::backward}) {
    for (int form = 1; form < 4; ++form) {
      for (int64_t dim : {64, 128}) {
        EdgeCall none{.kind = kind, .batch = 0, .seqlen_q = 3, .seqlen_k = 5, .dim = dim};
        none.dim_v = dim;
        none.packed_q = form & 1;
        none.packed_k = form & 2;
        none.spare_q = 3;
        none.spare_k = 5;
        none.followed = true;
        calls.push_back(none);
        none.bounded = none.causal = none.sink = none.deterministic = true;
        calls.push_back(none);
      }
    }
  }
  EdgeCall wide{.seqlen_q = 9, .seqlen_k = 0, .dim = 8, .dim_v = 256};
  calls.push_back(wide);
  return calls;
}

EdgeCall random_edge_call(const EngineUnderTest& engine, uint64_t seed) {
  Random random(seed);
  const bool on_gpu = engine.memory == FA3_CUDA;
  EdgeCall c;
  c.seed = seed;
  c.kind = EdgeKind(random.below(3));
  c.batch = random.one_in(8) ? 0 : random.one_in(8) ? random.between(6, 70) : random.between(1, 5);
  c.seqlen_q = one_of(random, {0, 1, 1, 2, 5, 33, 64, 70, 130});
  c.seqlen_k = one_of(random, {0, 1, 7, 64, 130, 300, 700, 1500});
  if (!on_gpu) c.seqlen_k %= 301;
  c.heads_k = random.between(1, 2);
  c.group = one_of(random, {1, 2, 3, 4, 16});
  c.dim = one_of(random, {8, 16, 40, 64, 96, 128, 192, 256});
  c.dim_v = random.one_in(3) ? one_of(random, {8, 64, 128, 256}) : c.dim;
  const auto work = [&] {  // of an engine of the host, which may be a textbook
    return c.batch * c.seqlen_q * c.seqlen_k * c.heads_q() * (c.dim + c.dim_v);
  };
  constexpr int64_t kMostWork = 20'000'000;
  while (!on_gpu && work() > kMostWork) {
    c.group = (c.group + 1) / 2;
    c.seqlen_q = (c.seqlen_q + 1) / 2;
    c.batch = (c.batch + 1) / 2;
  }
  const fa3_dtype dtypes[] = {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16};
  c.dtype = dtypes[on_gpu ? random.between(1, 2) : random.below(3)];
  const fa3_dtype float8 = c.seed % 2 == 0 ? FA3_FLOAT8_E4M3 : FA3_FLOAT8_E5M2;
  c.cache_dtype = c.kind != EdgeKind::backward && random.one_in(5) ? float8 : c.dtype;
  c.packed_q = random.one_in(2);
  c.used_q = random.one_in(3) && c.kind != EdgeKind::append;
  c.bounded = random.one_in(2);
  c.heads_first = random.one_in(4);
  c.garbage = random.one_in(3);
  if (c.kind == EdgeKind::backward || (c.kind == EdgeKind::forward && random.one_in(3))) {
    c.packed_k = random.one_in(2);
    c.used_k = random.one_in(3);
  } else {
    choose_cache(random, &c);
    if (c.kind == EdgeKind::append) c.padded_left = false, c.keep_places_apart();
  }
  if (c.kind == EdgeKind::backward) c.gradient = GradientLayout(random.below(5));
  choose_mask(random, &c);
  c.sink = random.one_in(4);
  c.lse = c.kind == EdgeKind::backward || !random.one_in(3);
  c.d_lse = random.one_in(4);
  c.deterministic = random.one_in(2);
  c.batch_invariant = random.one_in(5);
  c.num_splits = int(one_of(random, {0, 0, 0, 1, 3, 200}));
  if (random.one_in(4)) c.sm_margin = int32_t(random.between(1, 100));
  c.rotary = random.one_in(2);
  c.queries = c.rotary && random.one_in(2);
  c.positions = c.garbage ? random.between(1, 9) : c.seqlen_k + c.seqlen_q;
  c.block_mask = c.kind != EdgeKind::append && random.one_in(4);
  return c;
}

std::string describe(const EdgeCall& c) {
  constexpr const char* kKinds[] = {"forward", "backward", "append"};
  constexpr const char* kTypes[] = {"float32",     "float16", "bfloat16",
                                    "float8_e4m3", "int32",   "float8_e5m2"};
  std::ostringstream out;
  out << kKinds[int(c.kind)] << ", seed " << c.seed << ": batch " << c.batch << ", " << c.seqlen_q
      << " over " << c.seqlen_k << " rows, heads " << c.heads_q() << ":" << c.heads_k << ", dims "
      << c.dim << "/" << c.dim_v << ", " << kTypes[c.dtype] << " over " << kTypes[c.cache_dtype];
  const auto flag = [&](bool is, const char* name) {
    if (is) out << ", " << name;
  };
  flag(c.block_mask, "block mask");
  flag(c.packed_q, "packed q");
  flag(c.packed_k, "packed k");
  flag(c.used_q, "seqused_q");
  flag(c.used_k, "seqused_k");
  flag(c.bounded, "max_seqlen");
  flag(c.spare_q + c.spare_k > 0, "spare rows");
  flag(c.followed, "other numbers behind the starts");
  if (c.paged()) {
    out << ", " << c.pages << " pages of " << c.page_size << ", tables of " << c.max_pages;
  }
  if (c.indexed) out << ", batch_index into " << c.entries;
  flag(c.padded_left, "left_padding");
  flag(c.garbage, "garbage in the arrays");
  flag(c.heads_first, "heads first");
  if (c.gradient != GradientLayout::plain) out << ", layout " << int(c.gradient) << " of dO";
  flag(c.causal, "causal");
  out << ", window (" << c.left << ", " << c.right << ") + " << c.shift << ", chunk " << c.chunk
      << ", softcap " << c.softcap << ", num_splits " << c.num_splits << ", sm_margin "
      << c.sm_margin;
  flag(c.sink, "sink");
  flag(c.lse, "lse");
  flag(c.d_lse, "d_lse");
  flag(c.deterministic, "deterministic");
  flag(c.batch_invariant, "batch_invariant");
  flag(c.rotary, "rotary");
  flag(c.queries, "queries");
  return out.str();
}

}  // namespace fa3::test
