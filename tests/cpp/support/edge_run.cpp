// SPDX-License-Identifier: Apache-2.0
#include "support/edge_run.h"

#include <fa3/tensor.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <thread>
#include <utility>

#include "support/guarded_memory.h"
#include "support/random.h"

namespace fa3::test {
namespace {

constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t kTmaAlignment = 16;

bool is_float8(fa3_dtype dtype) {
  return dtype == FA3_FLOAT8_E4M3 || dtype == FA3_FLOAT8_E5M2;
}

size_t size_of(fa3_dtype dtype) {
  return dtype == FA3_FLOAT32 || dtype == FA3_INT32 ? 4 : is_float8(dtype) ? 1 : 2;
}

// Four numbers of ordinary size, in every element type.
uint32_t some_number(Random& random, fa3_dtype dtype) {
  constexpr uint32_t kFloat32[] = {0x3f000000, 0xbf800000, 0x3e800000, 0x3fc00000};
  constexpr uint32_t kFloat16[] = {0x3800, 0xbc00, 0x3400, 0x3e00};
  constexpr uint32_t kE4m3[] = {0x30, 0xb8, 0x28, 0x3c};
  const int64_t i = random.below(4);
  if (dtype == FA3_FLOAT32) return kFloat32[i];
  if (dtype == FA3_FLOAT16) return kFloat16[i];
  if (dtype == FA3_FLOAT8_E5M2) return kFloat16[i] >> 8;
  return dtype == FA3_FLOAT8_E4M3 ? kE4m3[i] : kFloat32[i] >> 16;
}

bool is_nan(const std::byte* number, fa3_dtype dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, number, size_of(dtype));
  if (dtype == FA3_FLOAT32) return (bits & 0x7fffffff) > 0x7f800000;
  if (dtype == FA3_FLOAT16) return (bits & 0x7fff) > 0x7c00;
  if (dtype == FA3_BFLOAT16) return (bits & 0x7fff) > 0x7f80;
  return (bits & 0x7f) > (dtype == FA3_FLOAT8_E5M2 ? 0x7cu : 0x7eu);
}

bool is_zero(const std::byte* number, fa3_dtype dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, number, size_of(dtype));
  return bits << (33 - 8 * size_of(dtype)) == 0;
}

std::string failure(const char* what, fa3_status status) {
  return std::string(what) + ": " + fa3_status_name(status) + ": " + fa3_last_error();
}

// The functions of a kind of call. An append has no questions.
struct Functions {
  fa3_status (*supported)(const void*);
  fa3_status (*workspace_size)(const void*, size_t*);
  fa3_status (*plan_text)(const void*, char*, size_t, size_t*);
  fa3_status (*run)(const void*, void*, size_t);
};

template <class P>
const P* as(const void* params) {
  return static_cast<const P*>(params);
}

constexpr Functions kForward = {
    [](const void* p) { return fa3_forward_supported(as<fa3_forward_params>(p)); },
    [](const void* p, size_t* n) {
      return fa3_forward_workspace_size(as<fa3_forward_params>(p), n);
    },
    [](const void* p, char* text, size_t size, size_t* n) {
      return fa3_forward_plan_text(as<fa3_forward_params>(p), text, size, n);
    },
    [](const void* p, void* w, size_t n) {
      return fa3_forward(as<fa3_forward_params>(p), w, n, nullptr);
    }};
constexpr Functions kBackward = {
    [](const void* p) { return fa3_backward_supported(as<fa3_backward_params>(p)); },
    [](const void* p, size_t* n) {
      return fa3_backward_workspace_size(as<fa3_backward_params>(p), n);
    },
    [](const void* p, char* text, size_t size, size_t* n) {
      return fa3_backward_plan_text(as<fa3_backward_params>(p), text, size, n);
    },
    [](const void* p, void* w, size_t n) {
      return fa3_backward(as<fa3_backward_params>(p), w, n, nullptr);
    }};

}  // namespace

struct PlacedCall::Params {
  fa3_forward_params forward;
  fa3_backward_params backward;
  fa3_append_params append;
};

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
    return integers(values, c_.batch * each);
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

namespace {

// Every tensor of some params: they lie one after the other, between other fields.
template <class P>
P without_data(P params) {
  fa3_options& o = params.options;
  for (fa3_tensor* t : {&o.cu_seqlens_q, &o.cu_seqlens_k, &o.seqused_q, &o.seqused_k, &params.q,
                        &params.k, &params.v, &params.o, &params.lse, &params.sink}) {
    t->data = nullptr;
  }
  if constexpr (std::is_same_v<P, fa3_forward_params>) {
    for (fa3_tensor* t : {&params.page_table, &params.batch_index, &params.left_padding}) {
      t->data = nullptr;
    }
  } else {
    for (fa3_tensor* t :
         {&params.d_o, &params.d_lse, &params.dq, &params.dk, &params.dv, &params.dsink}) {
      t->data = nullptr;
    }
  }
  return params;
}

// Asks without data and with them; then calls with the workspace that the first question named.
std::string ask_and_run(const Functions& f, const void* params, const void* question,
                        bool may_be_refused, const TakeMemory& take, bool* has_run) {
  const fa3_status supported = f.supported(question);
  if (supported == FA3_UNSUPPORTED) return "";
  if (supported != FA3_OK) return failure("supported, without data", supported);
  size_t asked = 0, needed = 0;
  char text[4096];
  if (const fa3_status status = f.workspace_size(question, &asked); status != FA3_OK) {
    return failure("workspace_size, without data", status);
  }
  if (const fa3_status status = f.plan_text(question, text, sizeof text, nullptr);
      status != FA3_OK) {
    return failure("plan_text, without data", status);
  }
  const fa3_status with_data = f.workspace_size(params, &needed);
  if (may_be_refused && with_data == FA3_INVALID_ARGUMENT) return "";
  if (with_data != FA3_OK) return failure("workspace_size", with_data);
  if (needed > asked) {
    return "the call needs " + std::to_string(needed) + " bytes of workspace, the question said " +
           std::to_string(asked);
  }
  void* workspace = asked > 0 ? take(asked, kWorkspaceAlignment, nullptr) : nullptr;
  const fa3_status status = f.run(params, workspace, asked);
  *has_run = status == FA3_OK;
  if (may_be_refused && status == FA3_INVALID_ARGUMENT) return "";
  return status == FA3_OK ? "" : failure("run", status);
}

}  // namespace

std::string PlacedCall::run(bool arrays_are_checked) {
  const bool may_be_refused = arrays_are_checked && (call_.garbage || call_.names_nothing());
  if (call_.kind == EdgeKind::append) {
    const fa3_status status = fa3_append(&params_->append, nullptr);
    has_run_ = status == FA3_OK;
    if (may_be_refused && status == FA3_INVALID_ARGUMENT) return "";
    return status == FA3_OK ? "" : failure("append", status);
  }
  if (call_.kind == EdgeKind::backward) {
    const fa3_backward_params question = without_data(params_->backward);
    return ask_and_run(kBackward, &params_->backward, &question, may_be_refused, take_, &has_run_);
  }
  const fa3_forward_params question = without_data(params_->forward);
  return ask_and_run(kForward, &params_->forward, &question, may_be_refused, take_, &has_run_);
}

std::string output_problem(const EdgeCall& call, const PlacedCall::Output& output,
                           const std::vector<std::byte>& host) {
  if (call.garbage) return "";
  const bool nothing_to_see = call.has_no_keys() || call.has_no_queries();
  const bool is_zero_there = call.kind == EdgeKind::backward ||
                             (call.kind == EdgeKind::forward && std::string(output.name) == "o");
  // A sink has a gradient wherever there are queries, of the o and d_lse that the call was given.
  const bool is_of_sink = std::string(output.name) == "dsink" && !call.has_no_queries();
  for (size_t at = 0; at < host.size(); at += size_of(output.dtype)) {
    if (is_nan(&host[at], output.dtype)) {
      return std::string(output.name) + ": NaN, or not written, at byte " + std::to_string(at);
    }
    if (nothing_to_see && is_zero_there && !is_of_sink && !is_zero(&host[at], output.dtype)) {
      return std::string(output.name) + ": not zero, where there is nothing to see";
    }
  }
  return "";
}

// ---- Deadlines ----

namespace {

// Of the call at work, for whoever ends the process.
char g_at_work[2048];

extern "C" void say_what_died(int signal_number) {
  const ssize_t written = write(STDERR_FILENO, g_at_work, std::strlen(g_at_work));
  static_cast<void>(written);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void watch_signals() {
  static const bool once = [] {
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, &say_what_died);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

struct Deadline::State {
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  std::thread watch;
};

Deadline::Deadline(const std::string& what, int seconds) : state_(std::make_unique<State>()) {
  watch_signals();
  std::snprintf(g_at_work, sizeof g_at_work, "died in: %s\n", what.c_str());
  state_->watch = std::thread([state = state_.get(), what, seconds] {
    std::unique_lock lock(state->mutex);
    const auto limit = std::chrono::seconds(seconds);
    if (state->done.wait_for(lock, limit, [&] { return state->is_done; })) return;
    std::fprintf(stderr, "not done after %d s: %s\n", seconds, what.c_str());
    std::_Exit(1);
  });
}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_done = true;
  }
  state_->done.notify_one();
  state_->watch.join();
  g_at_work[0] = '\0';
}

std::string run_edge_call(const EngineUnderTest& engine, const EdgeCall& call) {
  constexpr int kSeconds = 60;  // some take one where a sanitizer watches
  const Deadline deadline(std::string(engine.name) + ": " + describe(call), kSeconds);
  std::deque<GuardedMemory> memory;
  PlacedCall placed(call, engine, [&](size_t bytes, size_t alignment, const std::byte* contents) {
    GuardedMemory& taken = memory.emplace_back(engine.memory, bytes, alignment);
    if (contents != nullptr) taken.write(contents, bytes);
    return taken.data();
  });
  std::string problem = placed.run(engine.memory == FA3_CPU);
  for (const PlacedCall::Output& output : placed.outputs()) {
    for (const GuardedMemory& taken : memory) {
      if (output.bytes == 0 || taken.data() != output.data) continue;
      std::vector<std::byte> host(output.bytes);
      taken.read(host.data());
      if (placed.has_run() && problem.empty()) problem = output_problem(call, output, host);
    }
  }
  return problem;
}

}  // namespace fa3::test
