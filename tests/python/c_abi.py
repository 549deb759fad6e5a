# SPDX-License-Identifier: Apache-2.0
"""include/fa3/fa3.h in ctypes: drives the C library with numpy arrays and nothing else.

Only for tests. The package does the same through a compiled module (python/native), so that this
file is a second reading of the header; test_library_vs_oracle.py uses it without any install.

The library is the one FA3_LIBRARY names, or build/lib/libfa3.so.
"""

import ctypes
import functools
import os
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3": 3, "int32": 4}
ENGINES = {"auto": 0, "cpu": 1, "reference": 2, "standard": 3, "hopper": 4, "ampere": 5}
CPU, CUDA = 1, 2
MAX_RANK = 5
WORKSPACE_ALIGNMENT = 256


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
    ]


def tensors(names):
    return [(name, Tensor) for name in names.split()]


class Options(ctypes.Structure):
    _fields_ = [
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("causal", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("engine", ctypes.c_int32),
        *tensors("cu_seqlens_q cu_seqlens_k seqused_q seqused_k"),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
        ("attention_chunk", ctypes.c_int64),
        ("batch_invariant", ctypes.c_int32),
        ("window_shift", ctypes.c_int32),
        ("sm_margin", ctypes.c_int32),
        ("dropout_p", ctypes.c_float),
        ("dropout_seed", ctypes.c_uint64),
        ("dropout_offset", ctypes.c_uint64),
        ("dropout_seed_at", ctypes.c_void_p),
        ("dropout_offset_at", ctypes.c_void_p),
        ("dropout_sequence", ctypes.c_int64),
        ("dropout_head", ctypes.c_int64),
        ("dropout_query", ctypes.c_int64),
        ("dropout_key", ctypes.c_int64),
        *tensors("block_mask block_mask_bits"),
        ("score", ctypes.c_void_p),
        ("block_lists", ctypes.c_void_p),
    ]


class ForwardParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("options", Options),
        *tensors("q k v o lse sink page_table batch_index left_padding"),
        ("num_splits", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        *tensors("q_descale k_descale v_descale k_mean v_mean o_partial lse_partial"),
        ("v_transposed", ctypes.c_int32),
        ("reserved_2", ctypes.c_int32),
        *tensors("gate max_logit"),
    ]


class BackwardParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("options", Options),
        *tensors("q k v o lse sink d_o dq dk dv dsink d_lse"),
        ("accumulate_dq", ctypes.c_int32),
        ("accumulate_dkv", ctypes.c_int32),
        *tensors("gate d_gate"),
    ]


class MergeParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *tensors("o_partial lse_partial o lse"),
        ("num_threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class EngineInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("available", ctypes.c_int32),
        ("detail", ctypes.c_char_p),
    ]


class CallFailed(Exception):
    """A status other than FA3_OK; .status is its code, the text the library's sentence."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


@functools.cache
def library(path=None):
    """The library under test, or another one at `path`."""
    lib = ctypes.CDLL(str(path or os.environ.get("FA3_LIBRARY", ROOT / "build/lib/libfa3.so")))
    lib.fa3_last_error.restype = ctypes.c_char_p
    return lib


def engines():
    """{name: detail} of the engines that can run on this machine."""
    found, info, index = {}, EngineInfo(), 0
    while library().fa3_engine(index, ctypes.byref(info)) == 0:
        if info.available:
            found[info.name.decode()] = info.detail.decode()
        index += 1
    return found


def describe(array, dtype=None):
    """The fa3_tensor of a numpy array. bfloat16 has no numpy type: pass its bits as uint16."""
    view = Tensor()
    if array is None:
        return view
    view.data, view.rank, view.device_type = array.ctypes.data, array.ndim, CPU
    view.dtype = DTYPES[dtype or array.dtype.name]
    view.shape[: array.ndim] = array.shape
    view.stride[: array.ndim] = [step // array.itemsize for step in array.strides]
    return view


def check(status, lib=None):
    if status:
        raise CallFailed(status, (lib or library()).fa3_last_error().decode())


def new_params(kind):
    """A params struct with its defaults."""
    params = kind()
    name = {ForwardParams: "forward", BackwardParams: "backward", MergeParams: "merge"}[kind]
    init = getattr(library(), f"fa3_{name}_params_init_sized")
    init(ctypes.byref(params), ctypes.c_size_t(ctypes.sizeof(params)))
    return params


def params_for(kind, options, arrays):
    """Fills a params struct; arrays maps a field to an array or to (array, dtype name)."""
    params = new_params(kind)
    for field, value in arrays.items():
        setattr(params, field, describe(*value) if isinstance(value, tuple) else describe(value))
    for field, value in options.items():
        if isinstance(value, np.ndarray):
            value = describe(value)
        setattr(params.options, field, value)
    return params


def aligned_bytes(count):
    memory = np.empty(count + WORKSPACE_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % WORKSPACE_ALIGNMENT
    return memory[start : start + count]


def _run(name, params):
    lib, size = library(), ctypes.c_size_t()
    check(getattr(lib, f"fa3_{name}_workspace_size")(ctypes.byref(params), ctypes.byref(size)))
    workspace = aligned_bytes(size.value)
    address = ctypes.c_void_p(workspace.ctypes.data)
    check(getattr(lib, f"fa3_{name}")(ctypes.byref(params), address, size, None))


def forward(options, **arrays):
    _run("forward", params_for(ForwardParams, options, arrays))


def backward(options, **arrays):
    _run("backward", params_for(BackwardParams, options, arrays))


def dropout_mask(p, seed, offset, shape):
    """Booleans of shape (batch, heads, queries, keys): what dropout keeps."""
    keep = np.full(shape, 7, np.uint8)
    extents = [ctypes.c_int64(extent) for extent in shape]
    numbers = ctypes.c_float(p), ctypes.c_uint64(seed), ctypes.c_uint64(offset)
    check(library().fa3_dropout_mask(*numbers, *extents, ctypes.c_void_p(keep.ctypes.data)))
    return keep


def merge(num_threads=0, **arrays):
    params = params_for(MergeParams, {}, arrays)
    params.num_threads = num_threads
    check(library().fa3_merge(ctypes.byref(params), None))
