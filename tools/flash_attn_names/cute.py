# SPDX-License-Identifier: Apache-2.0
"""CuTe's language for Python, in which FlashAttention-4's tests write masks and score functions.

Here its names work on the scalars that fa3.flex_attention traces, a vector of them being one: so
what runs is the tests' own functions, not the copies in torch that the tests compare with. Next:
sequences.py, what such a function is told of its sequence.
"""

import types

import torch


class Value:
    """A traced scalar of torch, or a number, under the names that CuTe has for vectors."""

    shape = (1,)

    def __init__(self, torchs):
        self.torchs = torchs

    @property
    def dtype(self):
        return next((t for t in TYPES.values() if t.dtype == self.torchs.dtype), None)

    def __getitem__(self, lane):
        return self

    def to(self, kind):
        return kind(self)


def operator_of(name):
    def applied(self, *others):
        return Value(getattr(self.torchs, name)(*(plain(x) for x in others)))

    return applied


for name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "neg", "abs"),
    *("and", "rand", "or", "ror", "xor", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
):
    setattr(Value, f"__{name}__", operator_of(f"__{name}__"))


def plain(value):
    return value.torchs if isinstance(value, Value) else value


class Kind:
    """A type of CuTe's: converts values and numbers."""

    def __init__(self, dtype, of_numbers):
        self.dtype, self.of_numbers = dtype, of_numbers

    def __call__(self, value):
        if isinstance(value, Value):
            return Value(value.torchs.to(self.dtype))
        return self.of_numbers(value)


TYPES = {
    "Float32": Kind(torch.float32, float),
    "Float16": Kind(torch.float16, float),
    "BFloat16": Kind(torch.bfloat16, float),
    "Int32": Kind(torch.int32, int),
    "Uint32": Kind(torch.int64, int),
    "Boolean": Kind(torch.bool, bool),
}


class Fragment(list):
    """Registers: of one lane each time."""

    shape = (1,)

    def store(self, value):
        self[:] = [value] * len(self)

    def load(self):
        return self[0]


class Captured:
    """A captured tensor, indexed by values."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.element_type = next((t for t in TYPES.values() if t.dtype == tensor.dtype), None)

    def __getitem__(self, indices):
        indices = indices if isinstance(indices, tuple) else (indices,)
        return Value(self.tensor[tuple(plain(i) for i in indices)])


def on_values(function):
    return lambda *values: Value(function(*(plain(x) for x in values)))


def same(function):
    return function


class Namespace(types.ModuleType):
    def __init__(self, name, **names):
        super().__init__(name)
        self.__dict__.update(names)


def in_registers(count, dtype=None):
    return Fragment([None] * (count if isinstance(count, int) else count[0]))


def least(a, b):
    return Value(torch.where(plain(a) < plain(b), plain(a), plain(b)))


def cutlass():
    cute = Namespace(
        "cutlass.cute",
        jit=same,
        where=on_values(torch.where),
        full_like=lambda like, number: number,
        size=lambda shape: 1,
        make_rmem_tensor=in_registers,
        TensorSSA=type("TensorSSA", (), {"__new__": lambda cls, value, *_: value}),
        math=Namespace("cutlass.cute.math", exp2=on_values(torch.exp2)),
    )
    of_integers = Namespace("cutlass._mlir.dialects.math", absi=on_values(torch.abs))
    dialects = Namespace("cutlass._mlir.dialects", math=of_integers)
    mlir = Namespace("cutlass._mlir", dialects=dialects)
    whole = Namespace("cutlass", cute=cute, _mlir=mlir, range_constexpr=range, min=least, **TYPES)
    parts = whole, cute, mlir, dialects, of_integers
    return {part.__name__: part for part in parts}
