// SPDX-License-Identifier: Apache-2.0
#include "engine/choices/random_call.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "support/random.h"

namespace fa3::test {
namespace {

// Addresses that nothing reads.
template <class T>
T* address(int number, int64_t offset = 0) {
  return reinterpret_cast<T*>((int64_t{1} << 40) + (int64_t{number} << 36) + offset);
}

struct Form {
  fa3_score_kind kind;
  fa3_element_kind element;
  int rank;            // of the captured tensor; 0: there is none
  int head_index = 0;  // of the element
};

// Every form that engines tell apart. Tensors of rank 2 to 4 end in (queries, keys).
constexpr Form kForms[] = {
    {FA3_SCORE_ANY, FA3_ELEMENT_NONE, 0},          {FA3_SCORE_ANY, FA3_ELEMENT_NONE, 0},
    {FA3_SCORE_ROW_LINE, FA3_ELEMENT_NONE, 1},     {FA3_SCORE_ROW_LINES, FA3_ELEMENT_NONE, 1},
    {FA3_SCORE_KEY_TERM, FA3_ELEMENT_NONE, 1},     {FA3_SCORE_ADDED, FA3_ELEMENT_RUN, 2},
    {FA3_SCORE_ADDED, FA3_ELEMENT_CLAMPED_RUN, 2}, {FA3_SCORE_ADDED, FA3_ELEMENT_OF_SCORE, 4, 1},
    {FA3_SCORE_ADDED, FA3_ELEMENT_OF_SCORE, 3},    {FA3_SCORE_ADDED, FA3_ELEMENT_OF_SCORE, 2, -1},
    {FA3_SCORE_ANY, FA3_ELEMENT_OF_KEY, 2, -1},    {FA3_SCORE_ADDED, FA3_ELEMENT_NONE, 1},
    {FA3_SCORE_ANY, FA3_ELEMENT_NONE, 1},
};

}  // namespace

struct RandomCall::Generator {
  RandomCall& call;
  BackwardProblem& p = call.problem_;
  Random random;
  // Half of the problems have few options, so that choices by size show; a third are steps of
  // decoding.
  bool is_plain = random.one_in(2), decodes = random.one_in(3);

  template <size_t N>
  int64_t pick(const int64_t (&values)[N]) {
    return values[random.below(N)];
  }

  void make() {
    constexpr int64_t kMissingSms[] = {0, 0, 0, 0, 18, 54};  // of an H100's 132
    p.sm_margin = int(pick(kMissingSms));
    p.device = FA3_CUDA;
    p.scale = 0.1f;
    if (random.one_in(12)) p.engine = FA3_ENGINE_HOPPER;
    if (random.one_in(12)) p.sm_margin = int(random.between(1, 131));
    choose_types();
    choose_extents();
    choose_lengths();
    choose_mask();
    choose_places();
    if (!is_plain) choose_options();
    choose_score();
    choose_gradients();
    place_tensors();
  }

  void choose_types() {
    p.dtype = random.one_in(4) ? DType::float16 : DType::bfloat16;
    p.o.dtype = p.dtype;
    p.kv_dtype = p.dtype;
    switch (random.below(12)) {
      case 0:
      case 1:
        p.kv_dtype = random.one_in(3) ? DType::float8_e5m2 : DType::float8_e4m3;
        break;
      case 2:
      case 3:
        p.dtype = p.kv_dtype = DType::float8_e4m3;
        break;
      default:
        break;
    }
    if (random.one_in(30)) p.o.dtype = DType::float32;
    if (random.one_in(200)) p.dtype = p.kv_dtype = p.o.dtype = DType::float32;
  }

  void choose_scales() {
    if (random.one_in(2)) {
      Descales<const float>& q = p.q_quantization.descale;
      q = {.data = address<float>(8), .scaling = Scaling::per_head, .head_stride = 1};
      q.heads_per_scale = random.one_in(2) ? 1 : p.group();
      p.k_quantization.descale = {.data = address<float>(9), .scaling = Scaling::per_head};
      const int64_t blocks = p.dtype == DType::float8_e4m3 ? 2 : 20;
      if (random.one_in(blocks)) p.k_quantization.descale.scaling = Scaling::per_block;
    }
    if (random.one_in(24)) p.k_quantization.mean.data = address<float>(10);
  }

  void choose_extents() {
    constexpr int64_t kDims[] = {128, 128, 128, 64, 64, 256, 96, 192, 80, 72, 40, 160, 100, 8};
    constexpr int64_t kOtherDims[] = {16, 24, 32, 48, 104, 112, 136, 224, 250, 264, 304, 320, 576};
    constexpr int64_t kGroups[] = {1, 1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 32, 64, 128};
    constexpr int64_t kHeads[] = {1, 1, 2, 3, 4, 8, 8, 12, 16, 32};
    constexpr int64_t kBatches[] = {1, 1, 1, 2, 3, 4, 8, 16, 31, 32, 33, 64, 200, 1000};
    p.head_dim = p.head_dim_v = pick(kDims);
    if (random.one_in(8)) p.head_dim = p.head_dim_v = pick(kOtherDims);
    if (random.one_in(6)) p.head_dim_v = random.one_in(3) ? pick(kOtherDims) : pick(kDims);
    if (random.one_in(20)) p.head_dim = 192, p.head_dim_v = 128;
    if (p.has_float8() && !random.one_in(12)) {
      p.head_dim = (p.head_dim + 15) / 16 * 16;
      p.head_dim_v = (p.head_dim_v + 15) / 16 * 16;
    }
    p.heads_k = pick(kHeads);
    p.heads_q = p.heads_k * pick(kGroups);
    p.batch = random.one_in(200) ? 0 : pick(kBatches);
    if (p.has_float8()) choose_scales();
  }

  void choose_lengths() {
    constexpr int64_t kFew[] = {1, 1, 1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 64, 65, 100, 128, 129};
    constexpr int64_t kMany[] = {200,  256,  384,  500,  512,  513,  768,  1000, 1024,
                                 1200, 1535, 1536, 2000, 2048, 3000, 4096, 8192, 16384};
    constexpr int64_t kLong[] = {12287, 12288, 16384, 32768, 65536, 131072, 1000000};
    p.lengths_q.max = random.one_in(2) ? pick(kFew) : pick(kMany);
    p.lengths_k.max = p.lengths_q.max;
    if (random.one_in(2)) p.lengths_k.max = pick(kMany);
    if (random.one_in(4)) p.lengths_k.max = pick(kLong);
    if (decodes) {
      p.lengths_q.max = pick(kFew);
      p.lengths_k.max = random.one_in(2) ? pick(kMany) : pick(kLong);
      if (random.one_in(3)) p.lengths_q.max = 1;
    }
    if (random.one_in(12)) p.lengths_k.max = pick(kFew);
    if (random.one_in(150)) p.lengths_q.max = 0;
    if (random.one_in(150)) p.lengths_k.max = 0;
    if (random.one_in(1000)) p.lengths_k.max = int64_t{1} << 31;
    if (random.one_in(decodes ? 12 : 6)) p.lengths_q.varlen = p.lengths_q.in_one_tensor = true;
    if (random.one_in(decodes ? 30 : 12)) p.lengths_q.varlen = true;
    if (random.one_in(8)) p.lengths_k.varlen = p.lengths_k.in_one_tensor = true;
    if (random.one_in(decodes ? 2 : 4)) p.lengths_k.varlen = true;
    for (Lengths* lengths : {&p.lengths_q, &p.lengths_k}) {
      lengths->total = std::max<int64_t>(p.batch, 1) * lengths->max;
      if (lengths->in_one_tensor && random.one_in(2)) lengths->total = lengths->total / 2 + 1;
    }
  }

  void choose_mask() {
    if (random.one_in(2)) p.mask.right = 0;
    constexpr int64_t kReach[] = {0, 1, 63, 127, 128, 500, 1023, 4096, 100000};
    const int64_t rare = is_plain ? 4 : 1;
    if (random.one_in(8 * rare)) p.mask.left = pick(kReach);
    if (random.one_in(24 * rare)) p.mask.right = pick(kReach);
    if (random.one_in(40 * rare)) p.mask.right = -random.between(1, 40);
    if (random.one_in(40 * rare)) p.mask.chunk = 1 + pick(kReach);
    if (p.mask.left != MaskRule::kUnbounded && p.mask.right != MaskRule::kUnbounded) {
      p.mask.left = std::max(p.mask.left, -p.mask.right);
    }
    if (!random.one_in(decodes ? 40 : 12)) return;
    constexpr int64_t kMaps[] = {1, 1, 2};
    BlockMask& mask = p.block_mask;
    mask.on = true;
    mask.blocks = address<int32_t>(11);
    mask.bits = address<uint32_t>(12);
    mask.num_bits = random.below(9);
    mask.query_blocks = (p.lengths_q.max + kMaskBlock - 1) / kMaskBlock;
    mask.key_blocks = (p.lengths_k.max + kMaskBlock - 1) / kMaskBlock;
    mask.row_stride = mask.key_blocks;
    mask.batches = pick(kMaps) == 1 ? 1 : std::max<int64_t>(p.batch, 1);
    mask.heads = pick(kMaps) == 1 ? 1 : p.heads_q;
    mask.head_stride = mask.heads == 1 ? 0 : mask.query_blocks * mask.key_blocks;
    mask.batch_stride = mask.batches == 1 ? 0 : mask.heads * mask.query_blocks * mask.key_blocks;
    if (random.one_in(4)) p.block_lists = address<void>(13);
  }

  void choose_options() {
    constexpr int64_t kSplits[] = {1, 1, 2, 3, 8, 100};
    if (random.one_in(10)) p.softcap = 30;
    if (random.one_in(10)) {
      p.has_sink = true;
      p.sink = address<float>(14);
    }
    const bool may_drop = !p.has_float8() && !p.key_places.paged() && !p.key_places.indexed;
    if (may_drop && random.one_in(10)) p.dropout.threshold = uint32_t(random.between(1, 65536));
    if (random.one_in(8)) p.num_splits = int(pick(kSplits));
    if (random.one_in(8)) p.batch_invariant = true;
    if (random.one_in(14)) p.partial.on = true;
    if (!random.one_in(8)) p.lse.data = address<float>(15);
  }

  void choose_places() {
    constexpr int64_t kPages[] = {16, 16, 64, 64, 1, 7, 32, 48, 80, 128, 256, 1024};
    const bool are_alike = !p.lengths_k.varlen && p.dtype == DType::float8_e4m3;
    p.v_transposed.on = are_alike && random.one_in(4);
    if (p.lengths_k.in_one_tensor || p.v_transposed.on) return;
    if (!random.one_in(decodes ? 3 : 8)) return;
    KeyPlaces& places = p.key_places;
    places.entries = p.batch;
    places.elsewhere = true;
    switch (random.below(5)) {
      case 0:
        p.lengths_k.padded_left = true;
        if (random.one_in(2)) break;
        [[fallthrough]];
      case 1:
        places.indexed = true;
        places.entries = p.batch + random.below(3);
        if (random.one_in(2)) break;
        [[fallthrough]];
      default:
        places.page_size = pick(kPages);
        places.pages = random.one_in(100) ? 0 : 1 + random.below(100000);
        places.table_stride = (p.lengths_k.max + places.page_size - 1) / places.page_size;
        break;
    }
  }

  void choose_score() {
    if (p.softcap != 0 || !random.one_in(p.has_float8() ? 30 : 6)) return;
    if (p.key_places.elsewhere && !decodes && !random.one_in(6)) return;
    const Form& form = kForms[random.below(std::size(kForms))];
    fa3_score_function& score = call.score_;
    score.kind = form.kind;
    score.text = "";
    score.element = {
        .kind = form.element, .head_index = form.head_index, .type = "Half", .indices = ""};
    score.may_hide = random.one_in(4);
    p.score = &score;
    const bool has_slope = random.one_in(4);
    if (has_slope && form.kind == FA3_SCORE_ANY) score.slope = "return 2.0f;";
    if (form.rank == 0) return;
    fa3_captured_tensor tensor{};
    tensor.data = address<void>(16, random.one_in(8) ? 2 : 0);
    tensor.rank = form.rank;
    const int64_t extents[] = {p.batch, p.heads_q, p.lengths_q.max, p.lengths_k.max};
    int64_t stride = 1;
    for (int dim = form.rank - 1; dim >= 0; --dim) {
      tensor.shape[dim] = std::max<int64_t>(extents[4 - form.rank + dim], 1);
      tensor.stride[dim] = stride;
      const bool is_last = dim == form.rank - 1;
      // TMA takes rows of multiples of 16 bytes.
      stride *= is_last && !random.one_in(4) ? (tensor.shape[dim] + 7) / 8 * 8 : tensor.shape[dim];
      if (dim < form.rank - 2 && random.one_in(4)) tensor.stride[dim] = 0;
    }
    if (random.one_in(3)) {
      tensor.gradient = address<float>(17);
      score.element.stores_gradient = random.one_in(2) && form.element == FA3_ELEMENT_OF_SCORE;
      score.gradients = "";
      score.gradients_use_score = random.one_in(2) ? 0 : 1;
    }
    call.captured_.push_back(tensor);
    score.tensors = call.captured_.data();
    score.num_tensors = 1;
  }

  void choose_gradients() {
    p.deterministic = random.one_in(4);
    p.has_dsink = p.has_sink && random.one_in(2);
    for (Operand* x : {&p.d_o, &p.dq, &p.dk, &p.dv}) x->dtype = p.dtype;
    if (random.one_in(8)) p.dq.dtype = DType::float32;
    if (random.one_in(8)) p.dk.dtype = p.dv.dtype = DType::float32;
    if (random.one_in(40)) p.dv.dtype = DType::float32;
    p.accumulate_dq = p.dq.dtype == DType::float32 && random.one_in(2);
    p.accumulate_dkv = p.dk.dtype == DType::float32 && random.one_in(2);
  }

  // (batch, row, head, column) or (batch, head, row, column), perhaps a part of a wider tensor.
  void place(Operand& x, int number, int64_t rows, int64_t heads, int64_t columns) {
    int64_t pitch = (columns + 15) / 16 * 16;  // 16 bytes, of any type
    if (random.one_in(12)) pitch += 16 * random.between(1, 5);
    if (random.one_in(100)) pitch = columns + random.below(8);
    x.data = address<void>(number, random.one_in(300) ? 2 : 0);
    const bool heads_first = random.one_in(6);
    x.head_stride = heads_first ? rows * pitch : pitch;
    x.row_stride = heads_first ? pitch : heads * pitch;
    x.batch_stride = rows * heads * pitch;
  }

  void place_tensors() {
    p.q.dtype = p.dtype;
    p.k.dtype = p.v.dtype = p.kv_dtype;
    const auto rows_of = [](const Lengths& l) { return l.in_one_tensor ? l.total : l.max; };
    const int64_t rows_q = rows_of(p.lengths_q);
    const int64_t rows_k = p.key_places.paged() ? p.key_places.page_size : rows_of(p.lengths_k);
    place(p.q, 1, rows_q, p.heads_q, p.head_dim);
    place(p.k, 2, rows_k, p.heads_k, p.head_dim);
    place(p.v, 3, rows_k, p.heads_k, p.head_dim_v);
    place(p.o, 4, rows_q, p.heads_q, p.head_dim_v);
    place(p.d_o, 5, rows_q, p.heads_q, p.head_dim_v);
    place(p.dq, 6, rows_q, p.heads_q, p.head_dim);
    place(p.dk, 7, rows_k, p.heads_k, p.head_dim);
    place(p.dv, 18, rows_k, p.heads_k, p.head_dim_v);
    if (p.v_transposed.on) p.v_transposed.channel_stride = (p.lengths_k.max + 15) / 16 * 16;
    if (p.partial.on) {
      place(p.partial.o, 19, rows_q, p.heads_q, p.head_dim_v);
      p.partial.o.dtype = DType::float32;
      p.partial.lse.data = address<float>(20);
    }
  }
};

RandomCall::RandomCall(uint64_t number) {
  Generator{.call = *this, .random = Random(number)}.make();
}

std::string describe(const RandomCall& call) {
  const BackwardProblem& p = call.problem();
  const auto reach = [](const char* name, int64_t value) {
    return value == MaskRule::kUnbounded ? std::string() : concat(" ", name, value);
  };
  const auto lengths = [](const Lengths& l) {
    return concat(l.max, l.in_one_tensor ? "p" : l.varlen ? "u" : "", l.padded_left ? "l" : "");
  };
  return concat(name_of(p.dtype), "/", name_of(p.kv_dtype), "/", name_of(p.o.dtype), " ", p.batch,
                "x", lengths(p.lengths_q), "x", lengths(p.lengths_k), " ", p.heads_q, "/",
                p.heads_k, "h d", p.head_dim, "/", p.head_dim_v, reach("right", p.mask.right),
                reach("left", p.mask.left), p.mask.chunk != 0 ? concat(" chunk", p.mask.chunk) : "",
                p.block_mask.on ? " map" : "", p.softcap != 0 ? " softcap" : "",
                p.has_sink ? " sink" : "", p.dropout.on() ? " dropout" : "",
                p.num_splits != 0 ? concat(" splits", p.num_splits) : "",
                p.batch_invariant ? " invariant" : "", p.partial.on ? " partial" : "",
                p.key_places.elsewhere ? concat(" pages of ", p.key_places.page_size) : "",
                p.score != nullptr ? " score" : "", " margin", p.sm_margin);
}

}  // namespace fa3::test
