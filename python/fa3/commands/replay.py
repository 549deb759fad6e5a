# SPDX-License-Identifier: Apache-2.0
"""Runs a call again whose inputs FA3_DUMP kept, beside double precision.

Prints the call, why its inputs were kept, and how far the engine's results are from those of the
engine reference. Exit codes: 0, results are finite wherever the reference's are; 1, they are not,
or the call fails; 2, the file holds no call; 3, the engine is not there.
"""

import argparse
import json
import sys

import numpy as np

from fa3 import _native
from fa3._arrays import lender, numpy_type, optional_view, view
from fa3._dropout import seed_view
from fa3._options import BOTH_PASSES, DEFAULTS, ENGINES, NAMES, TYPES
from fa3.errors import Error, Unsupported

ON_GPU = "hopper", "ampere"
TYPE_NAMES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I32": "int32",
}


class Kept:
    """A kept call: arrays by their names in the C ABI, and notes."""

    def __init__(self, path):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            data = file.read()
        self.notes = header.pop("__metadata__")
        for name in ("line", "reason", "engine"):
            self.notes[name] = "".join(c if c.isprintable() else "?" for c in self.notes[name])
        if self.notes["engine"] not in ENGINES:
            raise ValueError(self.notes["engine"])
        self.arrays = {name: self.array(name, entry, data) for name, entry in header.items()}
        if self.notes["call"] not in RUN:
            raise ValueError(self.notes["call"])

    def array(self, name, entry, data):
        begin, end = entry["data_offsets"]
        refuse_negative(entry["shape"])
        dtype = type_of_name(TYPE_NAMES[entry["dtype"]])
        dense = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
        laid_out = self.memory(name, dense.shape, dtype)
        laid_out[...] = dense
        return laid_out

    def memory(self, name, shape, dtype):
        """An array in the strides that it had."""
        if f"{name}.strides" not in self.notes:
            return np.empty(shape, dtype)
        strides = json.loads(self.notes[f"{name}.strides"])
        refuse_negative(strides)
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        base = np.empty(last + 1 if all(shape) else 0, dtype)
        in_bytes = [step * base.itemsize for step in strides]
        return np.lib.stride_tricks.as_strided(base, shape, in_bytes)

    def result(self, name, dtype=None):
        """Memory for a result; None: the call had none."""
        if f"{name}.shape" not in self.notes:
            return None
        shape = json.loads(self.notes[f"{name}.shape"])
        refuse_negative(shape)
        if dtype is not None:
            return np.zeros(shape, dtype)
        return self.memory(name, shape, type_of_name(self.notes[f"{name}.dtype"]))

    def options(self, engine):
        """In the order of the table."""
        values = dict(DEFAULTS)
        for name, default in DEFAULTS.items():
            text = self.notes.get(f"option.{name}")
            if name in self.arrays:
                values[name] = self.arrays[name]
            elif text is not None and name != "dropout_seed":
                values[name] = float(text) if "float" in TYPES[name] else type(default)(int(text))
        if values["dropout_p"]:
            note = {**{k.removeprefix("option."): v for k, v in self.notes.items()}, **self.notes}
            values["dropout_seed"] = [
                int(note.get(name, 0)) for name in ("dropout_seed", "dropout_offset")
            ]
        values["engine"] = ENGINES[engine]
        return values


def refuse_negative(numbers):
    if any(not isinstance(x, int) or x < 0 for x in numbers):
        raise ValueError(numbers)


def type_of_name(name):
    if name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, {"float8_e4m3": "float8_e4m3fn"}.get(name, name)))
    return numpy_type(name)


def on_gpu(array):
    """A tensor of torch on a GPU, in the same strides."""
    import torch

    base = array if array.base is None else array.base
    if not isinstance(base, np.ndarray):  # NumPy's holder of a strided array's memory
        base = base.base
    whole = torch.from_numpy(np.ascontiguousarray(base).reshape(-1).view(np.uint8)).cuda()
    strides = [step // array.itemsize for step in array.strides]
    return whole.view(getattr(torch, array.dtype.name)).as_strided(array.shape, strides)


def run(kept, engine):
    """Results by name, as float64."""
    is_reference = engine == "reference"
    results = {
        name: kept.result(name, "float32" if is_reference and name == "o" else None)
        for name in RESULTS[kept.notes["call"]]
    }
    arrays, options = dict(kept.arrays), kept.options(engine)
    if engine in ON_GPU:
        arrays = {name: on_gpu(array) for name, array in arrays.items()}
        results = {name: x if x is None else on_gpu(x) for name, x in results.items()}
        options |= {name: arrays[name] for name in options if name in arrays}
    RUN[kept.notes["call"]](arrays, results, options)
    return {name: in_float64(x) for name, x in results.items() if x is not None}


def in_float64(array):
    return (array if isinstance(array, np.ndarray) else array.cpu().double().numpy()).astype(float)


def viewed(arrays, name):
    return optional_view(arrays.get(name), name)


def in_order(q, options, names):
    seed = options["dropout_seed"]
    if seed is not None:
        seed = seed_view(seed)
        if not isinstance(q, np.ndarray):
            seed = on_gpu(seed)
        options = options | {"dropout_seed": seed}
    tensors = {name for name in names if "Tensor" in TYPES[name]}
    return [viewed(options, name) if name in tensors else options[name] for name in names]


def run_forward(arrays, results, options):
    q = arrays["q"]
    _native.forward(
        lender(q),
        *(view(arrays[name], name) for name in "qkv"),
        *(viewed(results, name) for name in ("o", "lse")),
        *in_order(q, options, NAMES),
        viewed(results, "max_logit"),
        *(viewed(arrays, name) for name in ("o_partial", "lse_partial")),
    )


def run_backward(arrays, results, options):
    q = arrays["q"]
    _native.backward(
        lender(q),
        *(viewed(arrays, name) for name in ("d_o", "q", "k", "v", "o", "lse", "d_lse")),
        *(viewed(results, name) for name in ("dq", "dk", "dv", "dsink")),
        *in_order(q, options, NAMES[: len(BOTH_PASSES)]),
        viewed(results, "d_gate"),
    )


RUN = {"forward": run_forward, "backward": run_backward}
RESULTS = {"forward": ("o", "lse", "max_logit"), "backward": ("dq", "dk", "dv", "dsink", "d_gate")}


def compared(found, exact):
    """(numbers that are not finite, of the exact ones, largest difference, 2-norm of the difference
    over that of the exact) where both are finite."""
    both = np.isfinite(found) & np.isfinite(exact)
    difference, exact_norm = found[both] - exact[both], np.linalg.norm(exact[both])
    largest = np.abs(difference).max(initial=0.0)
    relative = np.linalg.norm(difference) / exact_norm if exact_norm else largest
    return np.sum(~np.isfinite(found)), np.sum(~np.isfinite(exact)), largest, relative


# What reading any other file raises; RecursionError is a RuntimeError.
NO_KEPT_CALL = (
    *(AttributeError, KeyError, TypeError, ValueError, OverflowError, MemoryError),
    RecursionError,
)


def refuse(file):
    print(f"fa3 replay: {file}: expected a file that FA3_DUMP wrote", file=sys.stderr)
    return 2


def main(arguments):
    parser = argparse.ArgumentParser(prog="fa3 replay", description=__doc__)
    parser.add_argument("file", help="a file that FA3_DUMP wrote")
    parser.add_argument("--engine", choices=[name for name in ENGINES if name != "auto"])
    given = parser.parse_args(arguments)
    try:
        kept = Kept(given.file)
    except OSError as error:
        print(f"fa3 replay: {given.file}: {error.strerror}", file=sys.stderr)
        return 2
    except NO_KEPT_CALL:
        return refuse(given.file)
    engine = given.engine or kept.notes["engine"]
    print(f"call    {kept.notes['line']}\nreason  {kept.notes['reason']}")
    print(f"engine  {engine}; the call ran on {kept.notes['engine']}")
    try:
        exact = run(kept, "reference")
        found = run(kept, engine)
    except (Error, ImportError) as error:
        print(f"failed  {error}")
        return 3 if isinstance(error, Unsupported) else 1
    except NO_KEPT_CALL:
        return refuse(given.file)
    except RuntimeError as error:
        print(f"failed  {error}")
        return 1
    print("result    not finite  in double  largest error  relative error")
    is_well = True
    for name, values in found.items():
        bad, bad_exact, largest, relative = compared(values, exact[name])
        is_well &= bool(np.all(np.isfinite(values) | ~np.isfinite(exact[name])))
        print(f"{name:9} {bad:10}  {bad_exact:9}  {largest:13.3g}  {relative:14.3g}")
    return 0 if is_well else 1
