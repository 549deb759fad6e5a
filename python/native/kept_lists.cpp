// SPDX-License-Identifier: Apache-2.0
#include "kept_lists.h"

#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "error.h"
#include "lend_workspace.h"

namespace fa3::python {
namespace {

constexpr size_t kMostKinds = 16;               // of calls under one mask
constexpr size_t kMostBytes = size_t{1} << 30;  // of all lists
PyObject* s_is_capturing = nullptr;             // null: nothing is kept
PyObject *s_version = nullptr, *s_forget = nullptr;

// All that decides of a call's lists, and which engine takes it. Compared byte by byte: every byte
// is set.
struct Kind {
  fa3_tensor map, bits;
  int64_t writes[2];  // to map and bits
  int64_t shapes[3][FA3_MAX_RANK];
  int64_t window_left, window_right, attention_chunk;
  const void* stream;
  int32_t pass, device, deterministic, causal, window_shift, engine, batch_invariant;
  int32_t dtypes[3];
  int32_t has_score, has_sink, has_dropout;
  float softcap;

  bool operator==(const Kind& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
  // Whether the mask's arrays have another state now.
  bool is_over(const Kind& now) const {
    return std::memcmp(writes, now.writes, sizeof writes) != 0 ||
           std::memcmp(&map, &now.map, sizeof map) != 0 ||
           std::memcmp(&bits, &now.bits, sizeof bits) != 0;
  }
};

struct Entry {
  enum class State { noted, kept, without };
  Kind kind;
  State state = State::noted;
  fa3_block_lists lists{};
  PyObject* memory = nullptr;  // what owns it
  size_t bytes = 0;
};

// Watched, so that an address stays that of the object.
struct Mask {
  PyObject* watches[2] = {};  // weak references to map and bits
  std::vector<Entry> entries;
  size_t oldest = 0;
  bool counts_writes = true;
};

struct Arrays {
  PyObject *map, *bits;
  bool operator==(const Arrays&) const = default;
};
struct Hash {
  size_t operator()(const Arrays& a) const {
    return std::hash<void*>()(a.map) * 31 + std::hash<void*>()(a.bits);
  }
};

// The GIL guards both. Nothing is let go while they change: that may run code which makes calls.
std::unordered_map<Arrays, Mask, Hash> g_masks;
size_t g_bytes = 0;

void let_go(std::vector<Entry>* entries) {
  for (Entry& entry : *entries) {
    g_bytes -= entry.bytes;
    entry.bytes = 0;
  }
  for (Entry& entry : *entries) Py_XDECREF(std::exchange(entry.memory, nullptr));
}

void let_go(Mask* mask) {
  let_go(&mask->entries);
  for (PyObject*& watch : mask->watches) Py_XDECREF(std::exchange(watch, nullptr));
}

// The callback of weak references.
PyObject* forget(PyObject*, PyObject* watch) {
  for (auto at = g_masks.begin(); at != g_masks.end(); ++at) {
    if (at->second.watches[0] != watch && at->second.watches[1] != watch) continue;
    Mask gone = std::move(at->second);
    g_masks.erase(at);
    let_go(&gone);
    break;
  }
  return Py_NewRef(Py_None);
}

PyMethodDef g_forget = {"forget_block_lists", forget, METH_O, nullptr};

// False: writes to the array are not counted.
bool read_writes(PyObject* array, int64_t* writes) {
  PyObject* const number = PyObject_GetAttr(array, s_version);
  if (number == nullptr) return false;
  *writes = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return *writes != -1 || PyErr_Occurred() == nullptr;
}

bool has(PyObject* array) {
  return array != nullptr && array != Py_None;
}

// Null with a Python exception set.
Mask* mask_of(const Arrays& arrays) {
  if (const auto found = g_masks.find(arrays); found != g_masks.end()) return &found->second;
  Mask mask;
  mask.watches[0] = PyWeakref_NewRef(arrays.map, s_forget);
  if (mask.watches[0] != nullptr && has(arrays.bits)) {
    mask.watches[1] = PyWeakref_NewRef(arrays.bits, s_forget);
  }
  if (mask.watches[0] == nullptr || (has(arrays.bits) && mask.watches[1] == nullptr)) {
    let_go(&mask);
    return nullptr;
  }
  return &g_masks.try_emplace(arrays, std::move(mask)).first->second;
}

// What lists of another state of the arrays are of no use for.
std::vector<Entry> take_old(const Kind& now, Mask* mask) {
  std::vector<Entry> old, rest;
  for (Entry& entry : mask->entries) {
    (entry.kind.is_over(now) ? old : rest).push_back(std::move(entry));
  }
  if (!old.empty()) mask->oldest = 0;
  mask->entries = std::move(rest);
  return old;
}

// The entry takes its place: the one of its kind, a free one or that of the oldest, which is
// returned.
std::vector<Entry> put(Entry entry, Mask* mask) {
  std::vector<Entry> old;
  for (Entry& there : mask->entries) {
    if (!(there.kind == entry.kind)) continue;
    old.push_back(std::exchange(there, std::move(entry)));
    return old;
  }
  if (mask->entries.size() < kMostKinds) {
    mask->entries.push_back(std::move(entry));
    return old;
  }
  old.push_back(std::exchange(mask->entries[mask->oldest], std::move(entry)));
  mask->oldest = (mask->oldest + 1) % kMostKinds;
  return old;
}

// Lists of the kind, or the knowledge that there are none. Without the GIL in between.
Entry make(const ListMaker& maker, const void* params, const Call& call, const Kind& kind) {
  Entry entry{.kind = kind, .state = Entry::State::without};
  size_t bytes = 0;
  if (maker.size(params, &bytes) != FA3_OK || bytes == 0 || g_bytes + bytes > kMostBytes) {
    return entry;
  }
  PyObject* const lent = PyObject_CallFunction(call.allocate, "ni", static_cast<Py_ssize_t>(bytes),
                                               call.first.device_index);
  PyObject* const number = lent != nullptr ? PyTuple_GetItem(lent, 1) : nullptr;
  void* const memory = number != nullptr ? PyLong_AsVoidPtr(number) : nullptr;
  fa3_status status = FA3_OUT_OF_MEMORY;
  if (memory != nullptr) {
    Py_BEGIN_ALLOW_THREADS;
    status = maker.make(params, memory, bytes, call.stream, &entry.lists);
    Py_END_ALLOW_THREADS;
  }
  if (status != FA3_OK) {
    Py_XDECREF(lent);
    return entry;
  }
  entry.state = Entry::State::kept;
  entry.memory = lent;
  entry.bytes = bytes;
  g_bytes += bytes;
  return entry;
}

Kind kind_of(const ListMaker& maker, const GivenLists::Described& given, const int64_t (&writes)[2],
             const void* stream) {
  const fa3_options& options = given.options;
  Kind kind;
  std::memset(&kind, 0, sizeof kind);
  kind.map = options.block_mask;
  kind.bits = options.block_mask_bits;
  std::memcpy(kind.writes, writes, sizeof kind.writes);
  std::memcpy(kind.shapes[0], given.q.shape, sizeof kind.shapes[0]);
  std::memcpy(kind.shapes[1], given.k.shape, sizeof kind.shapes[1]);
  std::memcpy(kind.shapes[2], given.v.shape, sizeof kind.shapes[2]);
  kind.window_left = options.window_left;
  kind.window_right = options.window_right;
  kind.attention_chunk = options.attention_chunk;
  kind.stream = stream;
  kind.pass = maker.pass;
  kind.device = given.q.device_index;
  kind.deterministic = options.deterministic;
  kind.causal = options.causal;
  kind.window_shift = options.window_shift;
  kind.engine = options.engine;
  kind.batch_invariant = options.batch_invariant;
  kind.dtypes[0] = given.q.dtype;
  kind.dtypes[1] = given.k.dtype;
  kind.dtypes[2] = given.o.dtype;
  kind.has_score = options.score != nullptr;
  kind.has_sink = given.sink.rank > 0;
  kind.has_dropout = options.dropout_p != 0;
  kind.softcap = options.softcap;
  return kind;
}

// 1 or 0, or -1 with a Python exception set.
int is_capturing() {
  PyObject* const ask = Py_NewRef(s_is_capturing);
  PyObject* const answer = PyObject_CallNoArgs(ask);
  const int captures = answer != nullptr ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  Py_DECREF(ask);
  return captures;
}

}  // namespace

PyObject* keep_block_lists(PyObject*, PyObject* is_capturing) {
  PyObject* const old = s_is_capturing;
  s_is_capturing = is_capturing == Py_None ? nullptr : Py_NewRef(is_capturing);
  if (s_is_capturing == nullptr) {
    auto gone = std::exchange(g_masks, {});
    for (auto& [arrays, mask] : gone) let_go(&mask);
  }
  Py_XDECREF(old);
  return Py_NewRef(Py_None);
}

bool GivenLists::find(const ListMaker& maker, const void* params, const Described& given,
                      const MaskArrays& arrays, const Call& call, Borrowed* borrowed) {
  if (s_is_capturing == nullptr || call.allocate == Py_None) return true;
  const fa3_options& options = given.options;
  for (const fa3_tensor* lengths :
       {&options.cu_seqlens_q, &options.cu_seqlens_k, &options.seqused_q, &options.seqused_k}) {
    if (lengths->rank > 0) return true;
  }
  const Arrays key{arrays.map, has(arrays.bits) ? arrays.bits : nullptr};
  Mask* mask = mask_of(key);
  if (mask == nullptr) return forget_error();
  if (!mask->counts_writes) return true;
  int64_t writes[2] = {};
  if (!read_writes(key.map, &writes[0]) ||
      (key.bits != nullptr && !read_writes(key.bits, &writes[1]))) {
    const bool goes_on = forget_error();
    if (goes_on && (mask = mask_of(key)) != nullptr) mask->counts_writes = false;
    return goes_on;
  }
  const int captures = is_capturing();
  if (captures != 0) return captures > 0 || forget_error();
  const Kind kind = kind_of(maker, given, writes, call.stream);
  mask = mask_of(key);  // Python has run
  if (mask == nullptr) return forget_error();
  const auto use = [&](const Entry& entry) {
    if (entry.state != Entry::State::kept) return;
    lists_ = entry.lists;
    found_ = true;
    borrowed->keep(Py_NewRef(entry.memory));
  };
  bool was_noted = false;
  for (const Entry& entry : mask->entries) {
    if (!(entry.kind == kind)) continue;
    was_noted = entry.state == Entry::State::noted;
    if (was_noted) break;
    use(entry);
    return true;
  }
  std::vector<Entry> old = take_old(kind, mask);
  Entry entry{.kind = kind};
  if (was_noted) {
    entry = make(maker, params, call, kind);
    if (entry.state != Entry::State::kept && PyErr_Occurred() != nullptr && !forget_error()) {
      let_go(&old);
      return false;
    }
    use(entry);
    mask = mask_of(key);  // the table may be another by now
  }
  if (mask == nullptr || s_is_capturing == nullptr) {
    old.push_back(std::move(entry));
    PyErr_Clear();
  } else {
    for (Entry& replaced : put(std::move(entry), mask)) old.push_back(std::move(replaced));
  }
  let_go(&old);
  return true;
}

bool init_kept_lists() {
  s_version = PyUnicode_InternFromString("_version");
  s_forget = PyCFunction_NewEx(&g_forget, nullptr, nullptr);
  return s_version != nullptr && s_forget != nullptr;
}

}  // namespace fa3::python
