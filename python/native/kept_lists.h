// SPDX-License-Identifier: Apache-2.0
//
// Lists of block masks (fa3_block_lists) that stay between calls. A mask is that of many calls: the
// first of a kind is noted, the second makes the lists, on its stream, and later ones of that
// stream are given them, until an array of the mask is written to or gone. Next: lend_workspace.h.
#pragma once

#include <fa3/fa3.h>

#include "reader.h"

namespace fa3::python {

// keep_block_lists(is_capturing): calls keep lists from now on, but while is_capturing() is true,
// for a captured graph may run when the lists are gone. keep_block_lists(None): none are kept any
// more.
PyObject* keep_block_lists(PyObject*, PyObject* is_capturing);

// What a pass of the C ABI has for lists.
struct ListMaker {
  int32_t pass;
  fa3_status (*size)(const void* params, size_t* bytes);
  fa3_status (*make)(const void* params, void* memory, size_t bytes, void* stream,
                     fa3_block_lists* lists);

  template <class Pass>
  static ListMaker of();
};

// The arrays of a call's block mask, as Python has them.
struct MaskArrays {
  PyObject* map;
  PyObject* bits;  // may be None, or null
};

struct Call;

// What a call is given.
class GivenLists {
 public:
  // Into params->options.block_lists, if lists are kept for such calls. They stay, with `this` and
  // `borrowed`, until the call has returned. False: a Python exception that ends the program is
  // set.
  template <class Pass>
  bool give(const MaskArrays& mask, const Call& call, Borrowed* borrowed,
            typename Pass::Params* params);

  // What decides of lists, without addresses.
  struct Described {
    const fa3_options& options;
    const fa3_tensor &q, &k, &v, &o, &sink;
  };

 private:
  bool find(const ListMaker& maker, const void* params, const Described& given,
            const MaskArrays& mask, const Call& call, Borrowed* borrowed);

  fa3_block_lists lists_;
  bool found_ = false;
};

template <class Pass>
ListMaker ListMaker::of() {
  using Params = typename Pass::Params;
  return {Pass::kListedPass,
          [](const void* params, size_t* bytes) {
            return Pass::block_lists_size(static_cast<const Params*>(params), bytes);
          },
          [](const void* params, void* memory, size_t bytes, void* stream, fa3_block_lists* lists) {
            return Pass::make_block_lists(static_cast<const Params*>(params), memory, bytes, stream,
                                          lists);
          }};
}

template <class Pass>
bool GivenLists::give(const MaskArrays& mask, const Call& call, Borrowed* borrowed,
                      typename Pass::Params* params) {
  if (mask.map == nullptr || mask.map == Py_None) return true;
  if constexpr (requires { params->page_table; }) {  // sequences have lengths of their own
    if (params->page_table.rank + params->batch_index.rank + params->left_padding.rank > 0) {
      return true;
    }
  }
  const Described given{params->options, params->q, params->k, params->v, params->o, params->sink};
  const bool ok = find(ListMaker::of<Pass>(), params, given, mask, call, borrowed);
  if (found_) params->options.block_lists = &lists_;
  return ok;
}

// Interns the attribute names; false with a Python exception set.
bool init_kept_lists();

}  // namespace fa3::python
