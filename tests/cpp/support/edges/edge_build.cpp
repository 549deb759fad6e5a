// SPDX-License-Identifier: Apache-2.0
//
// The params and tensors of an edge call, from its description.
#include <fa3/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "support/edges/edge_number.h"
#include "support/edges/placed_params.h"
#include "support/random.h"

namespace fa3::test {
namespace {

constexpr size_t kTmaAlignment = 16;

}  // namespace

class PlacedCall::Builder {
 public:
  Builder(const EdgeCall& call, const EngineUnderTest& engine, PlacedCall& to)
      : c_(call), engine_(engine), to_(to), random_(call.seed) {}

  void build() {
    Params& p = *to_.params_;
    fa3_forward_params_init(&p.forward);
    fa3_backward_params_init(&p.backward);
    fa3_append_params_init(&p.append);
    if (c_.kind == EdgeKind::append) return build_append(p.append);
    if (c_.kind == EdgeKind::backward) return build_backward(p.backward);
    build_forward(p.forward);
  }

 private:
  // The bytes from a view's first element to its last.
  static size_t bytes_of(const fa3_tensor& view) {
    int64_t elements = 1;
    for (int i = 0; i < view.rank; ++i) {
      if (view.shape[i] == 0) return 0;
      elements += (view.shape[i] - 1) * view.stride[i];
    }
    return static_cast<size_t>(elements) * size_of(static_cast<fa3_dtype>(view.dtype));
  }

  // Rows for TMA begin at multiples of 16 bytes; all other tensors at their elements.
  fa3_tensor placed(fa3_tensor view, const std::byte* contents) {
    view.device_type = engine_.memory;
    const size_t bytes = bytes_of(view);
    const auto dtype = static_cast<fa3_dtype>(view.dtype);
    const bool has_rows = dtype != FA3_INT32 && view.rank > 2 && engine_.memory == FA3_CUDA;
    if (bytes > 0)
      view.data = to_.take_(bytes, has_rows ? kTmaAlignment : size_of(dtype), contents);
    return view;
  }
  fa3_tensor input(const fa3_tensor& view) {
    std::vector<std::byte> contents(bytes_of(view));
    const auto dtype = static_cast<fa3_dtype>(view.dtype);
    constexpr size_t kFresh = 1021 * sizeof(float);  // then they come again, in other columns
    for (size_t at = 0; at < std::min(contents.size(), kFresh); at += size_of(dtype)) {
      const uint32_t number = some_number(random_, dtype);
      std::memcpy(&contents[at], &number, size_of(dtype));
    }
    for (size_t at = kFresh; at < contents.size(); at += kFresh) {
      std::memcpy(&contents[at], contents.data(), std::min(kFresh, contents.size() - at));
    }
    return placed(view, contents.data());
  }
  fa3_tensor output(const char* name, const fa3_tensor& view, bool keeps_rows = false) {
    const fa3_tensor result = keeps_rows ? input(view) : placed(view, nullptr);
    to_.outputs_.push_back({name, static_cast<std::byte*>(result.data), bytes_of(view),
                            static_cast<fa3_dtype>(view.dtype)});
    return result;
  }

  // Entries, rows and heads of any of the tensors; packed ones have no entries.
  fa3_tensor rows_view(bool packed, int64_t entries, int64_t rows, int64_t heads, int64_t dim,
                       fa3_dtype dtype) const {
    if (packed) return contiguous(nullptr, dtype, {rows, heads, dim});
    return c_.heads_first ? bhsd(nullptr, dtype, entries, heads, rows, dim)
                          : contiguous(nullptr, dtype, {entries, rows, heads, dim});
  }
  fa3_tensor q_view(int64_t dim) const {
    return rows_view(c_.packed_q, c_.batch, c_.rows_q(), c_.heads_q(), dim, c_.dtype);
  }
  fa3_tensor k_view(int64_t dim) const {
    if (c_.paged()) {
      return rows_view(false, c_.pages, c_.page_size, c_.heads_k, dim, c_.cache_dtype);
    }
    const int64_t entries = c_.indexed ? c_.entries : c_.batch;
    return rows_view(c_.packed_k, entries, c_.rows_k(), c_.heads_k, dim, c_.cache_dtype);
  }
  fa3_tensor lse_view() const {
    return c_.packed_q ? contiguous(nullptr, FA3_FLOAT32, {c_.heads_q(), c_.rows_q()})
                       : contiguous(nullptr, FA3_FLOAT32, {c_.batch, c_.heads_q(), c_.seqlen_q});
  }
  // As autograd makes it of a sum or a slice.
  fa3_tensor d_o_view() const {
    fa3_tensor view = q_view(c_.dim_v);
    const int rows = view.rank - 3;
    if (c_.gradient == GradientLayout::one_row) view.stride[rows] = 0;
    if (c_.gradient == GradientLayout::one_head) view.stride[rows + 1] = 0;
    if (c_.gradient == GradientLayout::one_entry && view.rank == 4) view.stride[0] = 0;
    if (c_.gradient == GradientLayout::odd_rows) {
      const int64_t row = c_.heads_q() * c_.dim_v + 1;
      view.stride[rows] = row;
      view.stride[rows + 1] = c_.dim_v;
      if (view.rank == 4) view.stride[0] = row * c_.seqlen_q;
    }
    return view;
  }

  // What lengths and places in device arrays may be.
  int32_t garbage(int64_t most) {
    switch (random_.below(7)) {
      case 0:
        return INT32_MIN;
      case 1:
        return INT32_MAX;
      case 2:
        return -1;
      case 3:
        return static_cast<int32_t>(most + 1);
      case 4:
        return static_cast<int32_t>(most);
      default:
        return static_cast<int32_t>(random_.between(0, most));
    }
  }
  fa3_tensor integers(std::vector<int32_t> values, int64_t most, int64_t rows = 0) {
    if (c_.garbage) {
      for (int32_t& value : values) value = garbage(most);
    }
    const auto count = static_cast<int64_t>(values.size());
    const fa3_tensor view = rows == 0 ? contiguous(nullptr, FA3_INT32, {count})
                                      : contiguous(nullptr, FA3_INT32, {rows, count / rows});
    return placed(view, reinterpret_cast<const std::byte*>(values.data()));
  }
  // Rows up to `each` for every sequence; the last rows of the tensor may be nobody's.
  fa3_tensor starts(int64_t each) {
    std::vector<int32_t> values{0};
    for (int64_t b = 0; b < c_.batch; ++b) {
      values.push_back(values.back() + static_cast<int32_t>(random_.between(0, each)));
    }
    starts_ = values;
    if (!c_.followed) return integers(values, c_.batch * each);
    constexpr int kOthers = 64;
    values.insert(values.end(), kOthers, 1 << 20);
    fa3_tensor view = integers(values, c_.batch * each);
    view.shape[0] = c_.batch + 1;
    return view;
  }
  // Lengths within what sequences own, minus `less`.
  fa3_tensor used(bool packed, int64_t each) {
    std::vector<int32_t> values;
    for (int64_t b = 0; b < c_.batch; ++b) {
      const auto i = static_cast<size_t>(b);
      const int64_t owned = packed ? starts_[i + 1] - starts_[i] : each;
      values.push_back(static_cast<int32_t>(random_.between(0, owned)));
    }
    used_ = values;
    return integers(values, each);
  }

  void set_options(fa3_options& options) {
    options.engine = engine_.id;
    options.causal = c_.causal;
    options.window_left = c_.left;
    options.window_right = c_.right;
    options.window_shift = c_.shift;
    options.sm_margin = c_.sm_margin;
    options.attention_chunk = c_.chunk;
    options.softcap = c_.softcap;
    options.deterministic = c_.deterministic;
    options.batch_invariant = c_.batch_invariant;
    options.num_threads = 2;
    if (c_.packed_q) options.cu_seqlens_q = starts(c_.seqlen_q);
    if (c_.used_q) options.seqused_q = used(c_.packed_q, c_.seqlen_q);
    if (c_.packed_q && c_.bounded) options.max_seqlen_q = c_.seqlen_q;
    if (c_.packed_k) options.cu_seqlens_k = starts(c_.seqlen_k);
    used_.assign(static_cast<size_t>(c_.batch), static_cast<int32_t>(keys_of_entry()));
    if (c_.used_k) options.seqused_k = used(c_.packed_k, keys_of_entry());
    if (c_.packed_k && c_.bounded) options.max_seqlen_k = c_.seqlen_k;
    if (c_.block_mask) set_block_mask(options);
  }
  // A map of few bits that many blocks share; garbage names some that are not there.
  void set_block_mask(fa3_options& options) {
    constexpr int64_t kBits = 3;
    const auto blocks_of = [](int64_t rows) {
      return (rows + FA3_MASK_BLOCK - 1) / FA3_MASK_BLOCK;
    };
    const int64_t nq = blocks_of(c_.rows_q()),
                  nk = blocks_of(std::max(c_.rows_k(), c_.max_pages * c_.page_size));
    const int64_t maps = random_.one_in(2) ? std::max<int64_t>(c_.batch, 1) : 1;
    const int64_t heads = random_.one_in(2) ? c_.heads_q() : 1;
    std::vector<int32_t> entries(static_cast<size_t>(maps * heads * nq * nk));
    for (int32_t& entry : entries) {
      entry = c_.garbage ? garbage(kBits) : static_cast<int32_t>(random_.between(-1, kBits));
    }
    options.block_mask = placed(contiguous(nullptr, FA3_INT32, {maps, heads, nq, nk}),
                                reinterpret_cast<const std::byte*>(entries.data()));
    fa3_tensor& bits = options.block_mask_bits;
    bits = contiguous(nullptr, FA3_INT32, {kBits, FA3_MASK_BLOCK, FA3_MASK_BLOCK / 32});
    bits.device_type = engine_.memory;
    std::vector<uint32_t> words(bytes_of(bits) / sizeof(uint32_t));
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_.below(int64_t{1} << 32));
    bits.data =
        to_.take_(bytes_of(bits), kTmaAlignment, reinterpret_cast<const std::byte*>(words.data()));
  }
  // Keys that a sequence may have: none where there is no page, or no entry.
  int64_t keys_of_entry() const {
    if (c_.has_no_keys()) return 0;
    return c_.paged() ? c_.max_pages * c_.page_size : c_.seqlen_k;
  }
  void set_places(fa3_tensor* page_table, fa3_tensor* batch_index) {
    const int64_t entries = c_.indexed ? c_.entries : c_.batch;
    if (c_.paged()) {
      std::vector<int32_t> pages;
      for (int64_t i = 0; i < entries * c_.max_pages; ++i) {
        const int64_t any = random_.below(std::max<int64_t>(c_.pages, 1));
        pages.push_back(static_cast<int32_t>(c_.kind == EdgeKind::append ? i : any));
      }
      *page_table = integers(pages, c_.pages, std::max<int64_t>(entries, 1));
      page_table->shape[0] = entries;
      page_table->shape[1] = page_table->stride[0] = c_.max_pages;
    }
    if (!c_.indexed) return;
    std::vector<int32_t> places;
    for (int64_t b = 0; b < c_.batch; ++b) {
      const int64_t any = random_.below(std::max<int64_t>(c_.entries, 1));
      places.push_back(static_cast<int32_t>(c_.kind == EdgeKind::append ? b : any));
    }
    *batch_index = integers(places, c_.entries);
  }

  void build_forward(fa3_forward_params& p) {
    set_options(p.options);
    set_places(&p.page_table, &p.batch_index);
    if (c_.padded_left) {
      std::vector<int32_t> padding = used_;
      for (int32_t& skipped : padding) skipped = static_cast<int32_t>(random_.between(0, skipped));
      p.left_padding = integers(padding, c_.seqlen_k);
    }
    p.q = input(q_view(c_.dim));
    p.k = input(k_view(c_.dim));
    p.v = input(k_view(c_.dim_v));
    if (c_.sink) p.sink = input(contiguous(nullptr, FA3_FLOAT32, {c_.heads_q()}));
    p.num_splits = c_.num_splits;
    p.o = output("o", q_view(c_.dim_v));
    if (c_.lse) p.lse = output("lse", lse_view());
  }

  void build_backward(fa3_backward_params& p) {
    set_options(p.options);
    p.q = input(q_view(c_.dim));
    p.k = input(k_view(c_.dim));
    p.v = input(k_view(c_.dim_v));
    p.o = input(q_view(c_.dim_v));
    p.d_o = input(d_o_view());
    // Above all scores: probabilities are small, and their sums finite in every element type.
    const std::vector<float> large(bytes_of(lse_view()) / sizeof(float), 60.0f);
    p.lse = placed(lse_view(), reinterpret_cast<const std::byte*>(large.data()));
    if (c_.d_lse) p.d_lse = input(lse_view());
    if (c_.sink) p.sink = input(contiguous(nullptr, FA3_FLOAT32, {c_.heads_q()}));
    p.dq = output("dq", q_view(c_.dim));
    p.dk = output("dk", k_view(c_.dim));
    p.dv = output("dv", k_view(c_.dim_v));
    if (c_.sink) p.dsink = output("dsink", contiguous(nullptr, FA3_FLOAT32, {c_.heads_q()}));
  }

  // seqlen_q new rows behind those in use; queries have as many.
  void build_append(fa3_append_params& p) {
    const bool has_room = !c_.has_no_keys() && keys_of_entry() >= c_.seqlen_q;
    const int64_t added = has_room ? c_.seqlen_q : 0;
    const auto rows_of = [&](int64_t heads, int64_t dim) {
      return rows_view(c_.packed_q, c_.batch, c_.packed_q ? c_.batch * added : added, heads, dim,
                       c_.dtype);
    };
    if (c_.packed_q) p.cu_seqlens_new = starts(added);
    set_places(&p.page_table, &p.batch_index);
    p.seqused = used(false, keys_of_entry() - added);
    p.k = input(rows_of(c_.heads_k, c_.dim));
    p.v = input(rows_of(c_.heads_k, c_.dim_v));
    p.num_threads = 2;
    if (c_.rotary) {
      const fa3_tensor table = contiguous(nullptr, FA3_FLOAT32, {c_.positions, c_.dim / 2});
      p.rotary_cos = input(table);
      p.rotary_sin = input(table);
      p.first_position =
          integers(std::vector<int32_t>(static_cast<size_t>(c_.batch)), c_.positions);
    }
    if (c_.queries) {
      p.q = input(rows_of(c_.heads_q(), c_.dim));
      // Rows that no sequence owns stay as they are.
      p.q_rotated = output("q_rotated", rows_of(c_.heads_q(), c_.dim), true);
      if (c_.packed_q) p.cu_seqlens_q = p.cu_seqlens_new;
    }
    p.k_cache = output("k_cache", k_view(c_.dim), true);
    p.v_cache = output("v_cache", k_view(c_.dim_v), true);
  }

  const EdgeCall& c_;
  const EngineUnderTest& engine_;
  PlacedCall& to_;
  Random random_;
  std::vector<int32_t> starts_, used_;
};

PlacedCall::PlacedCall(const EdgeCall& call, const EngineUnderTest& engine, TakeMemory take)
    : call_(call), take_(std::move(take)), params_(std::make_unique<Params>()) {
  Builder(call_, engine, *this).build();
}

PlacedCall::~PlacedCall() = default;

}  // namespace fa3::test
