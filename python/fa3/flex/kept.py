# SPDX-License-Identifier: Apache-2.0
"""What fa3.flex decided, traced or evaluated once, for calls that are alike: one table.

Kept are decisions of calls, functions that were traced, and block maps of masks. A key names all
that the value follows from. For a call or a function that is its signature
(python/native/signature.h), which has shapes, types, options, numbers and the addresses of captured
tensors. A tensor at an address may be gone, and another one there; so an entry has weak references
to its tensors, and where their elements were read also the number of writes to them.

Elsewhere are kept: what is made of torch's BlockMask, as attributes of it; lists of blocks on a GPU
(python/native/kept_lists.h), which eager and compiled calls of fa3.attention share; and compiled
kernels, by the library.
"""

import builtins
import collections
import dis
import threading
import weakref
from types import CodeType
from typing import Any, NamedTuple

from fa3 import _native
from fa3.torch.operators import HAVE_MEMORY

MOST = 512  # entries
MOST_BYTES = 1 << 30  # of all maps


class Source(NamedTuple):
    """A tensor that a value was made of."""

    tensor: Any  # weak reference
    version: int | None  # of the elements that were read; None: they were not read


class Entry(NamedTuple):
    value: Any
    sources: list[Source]  # those that find() returns come first
    num_captured: int
    bytes: int


class Table:
    """Entries by key. The one that was found or kept longest ago makes room for a new one."""

    def __init__(self) -> None:
        self.entries: collections.OrderedDict[Any, Entry] = collections.OrderedDict()
        self.bytes = 0
        self.lock = threading.RLock()  # collecting garbage may run code that makes calls

    def find(self, key):
        """(value, the captured tensors); None: nothing is kept, or a source changed."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        tensors = []
        for reference, version in entry.sources:
            tensor = reference()
            if tensor is None or (version is not None and _native.version_of(tensor) != version):
                return None
            tensors.append(tensor)
        with self.lock:
            if key in self.entries:
                self.entries.move_to_end(key)
        return entry.value, tensors[: entry.num_captured]

    def keep(self, key, value, captured=(), others=(), versions=None, bytes=0):
        """captured: tensors that find() returns. others: tensors that must be there besides.
        versions: of the captured ones, where their elements were read."""
        tensors = [*captured, *(t for t in others if not any(t is c for c in captured))]
        read = versions or [None] * len(tensors)
        sources = [Source(weakref.ref(t), n) for t, n in zip(tensors, read, strict=True)]
        new = Entry(value, sources, len(captured), bytes)
        with self.lock:
            if key in self.entries:
                self.drop(key)
            if bytes:
                for other in [k for k, e in self.entries.items() if e.bytes and is_over(e)]:
                    self.drop(other)
            if bytes > MOST_BYTES:
                return
            while len(self.entries) >= MOST:
                self.drop(next(iter(self.entries)))
            while self.bytes + bytes > MOST_BYTES:
                self.drop(next(k for k, e in self.entries.items() if e.bytes))
            self.entries[key] = new
            self.bytes += bytes

    def drop(self, key):
        self.bytes -= self.entries.pop(key).bytes

    def clear(self):
        with self.lock:
            self.entries.clear()
            self.bytes = 0


def is_over(entry):
    return any(source.tensor() is None for source in entry.sources)


table = Table()


def signature(*values, seen=None):
    """The bytes that tell these values from others; None: they cannot be told.

    seen: a list, to which tensors are appended that functions can see.
    """
    return _native.signature(names_of, HAVE_MEMORY, seen, (), *values)


# Python's own types and functions whose results follow from their arguments: not globals().
FREE = {name for name, value in vars(builtins).items() if isinstance(value, type)}
FREE |= {"abs", "all", "any", "callable", "divmod", "isinstance", "issubclass", "iter", "len"}
FREE |= {"max", "min", "next", "pow", "print", "repr", "round", "sorted", "sum"}


def names_of(code):
    """What a code, and functions that it defines, reads by name: (globals, cells), as
    python/native/signature.h has them. None: it may read anything, for it imports."""
    of_globals, of_cells = {}, {name: {} for name in code.co_freevars}
    for op, name, attributes in reads_of(code):
        if op == "IMPORT_NAME":
            return None
        if "DEREF" in op:
            of_cells.get(name, {})[attributes] = None  # others are variables of its own
        else:
            of_globals.setdefault(name, {})[attributes] = None
    uses = [(*(found or {(): None}),) for found in of_cells.values()]
    return (*((name, (*u,), name in FREE) for name, u in of_globals.items()),), (*uses,)


def reads_of(code):
    """(operation, name, (attributes that are taken at once, each of the one before))"""
    read = None
    for instruction in dis.get_instructions(code):
        op, name = instruction.opname, instruction.argval
        if op == "EXTENDED_ARG":
            continue
        if read and op in ("LOAD_ATTR", "LOAD_METHOD"):
            read = *read[:2], (*read[2], name)
            continue
        if read:
            yield read
        is_read = "GLOBAL" in op or "DEREF" in op or op.endswith("_NAME")
        read = (op, name, ()) if is_read else None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from reads_of(constant)
