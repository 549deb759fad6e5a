# SPDX-License-Identifier: Apache-2.0
"""The switch that puts fa3 under torch's own attention: scaled_dot_product_attention, varlen_attn.

Goes through torch's registry of flash attention implementations, where fa3 is from `import
fa3.torch` on. While it is active, the aten operators of aten_kernels.py run fa3: those of flash
attention, on CUDA and on the CPU, and those of cuDNN, which torch takes first on Hopper. The
backward of a call runs where its forward ran, also after the switch was turned.
"""

import contextlib
import functools
import threading
import warnings
from dataclasses import dataclass

import torch
from torch.nn import attention as registry

from fa3.errors import Error, InvalidArgument, Unsupported
from fa3.torch import multi_head
from fa3.torch.aten_kernels import (
    BACKWARDS,
    KERNELS,
    WITH_DROPOUT,
    WITH_FP8,
    WITH_MASK,
    Refused,
)

NAME = "fa3"
shadowed: dict = {}  # names of the registry that enable_sdpa(name) took -> what they stood for
warned: set[str] = set()
switched_on: set = set()  # the Overrides that hold our kernels in the dispatcher
in_fp8: list = []  # the library that holds our kernels of enable_sdpa(fp8=True)
backwards: dict = {}  # names of BACKWARDS -> the library that holds our kernel for good
turning = threading.RLock()  # held by who turns the switch


def turns(function):
    """Threads turn the switch one after the other."""

    @functools.wraps(function)
    def run(*args, **keywords):
        with turning:
            return function(*args, **keywords)

    return run


@turns
def enable_sdpa(name=NAME, *, fp8=False):
    """Makes torch's scaled_dot_product_attention and varlen_attn run fa3, until disable_sdpa().

    So does torch.nn.attention.activate_flash_attention_impl("fa3"). Everything above the same
    operators follows: nn.MultiheadAttention (in eval, too, unless it returns weights), nested
    tensors, torch.nn.attention.varlen. fa3 runs wherever torch chose flash attention or cuDNN, in
    fp16 and bf16 on a GPU, and in fp32, fp16 and bf16 on the CPU, with dropout too; with a boolean
    attn_mask, or one that needs a gradient, on Hopper GPUs. A call that fa3 does not have (another
    mask, float64, a causal mask over different lengths) runs the kernel that torch chose, with one
    warning for each reason; so does one where flash attention is switched off, as in
    sdpa_kernel(SDPBackend.CUDNN_ATTENTION).

    Args:
        name: the name of torch's registry under which fa3 becomes active. "FA3" is for programs
            that activate FlashAttention-3 by themselves where it is not active yet, as torchtitan
            does: they find it active, and it is fa3.
        fp8: scaled_dot_product_attention of as many queries as keys, without a mask and without
            dropout, runs fa3.attention_fp8, whose gradient is that of 16-bit attention. Not in
            inference mode.

    Raises:
        fa3.InvalidArgument: a name that is no text.
        fa3.Unsupported: a torch without this registry.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(
            f"name: expected a name for torch's registry, such as 'fa3' or 'FA3', got {name!r}"
        )
    if not register():
        raise Unsupported(
            "enable_sdpa: expected a torch with torch.nn.attention.register_flash_attention_impl, "
            f"got torch {torch.__version__}; call fa3.attention instead"
        )
    is_ours = name == NAME or name in shadowed
    if not is_ours:
        shadowed[name] = registry._registry._FLASH_ATTENTION_IMPLS.get(name)
        registry.register_flash_attention_impl(name, register_fn=Overrides)
    if not is_ours or active() != name:  # other threads may be in our kernels: they stay
        activate(name)
    put_fp8(fp8)


@turns
def disable_sdpa():
    """Gives torch's attention its own kernels back, and names of its registry their meaning.

    Without effect where fa3 is not active.
    """
    put_fp8(False)
    if active() in (NAME, *shadowed):
        restore()
    release(*shadowed)


@contextlib.contextmanager
def sdpa(name=NAME, *, fp8=False):
    """enable_sdpa() for a block of code; afterwards what was active before is active again.

    The switch is the process's: other threads run fa3 meanwhile, too. Of blocks that overlap in
    threads the one entered last says what is active, and fa3 is until the last one ends. torch may
    stop a call with an internal error while another thread turns the switch. backward() may come
    behind the block: on a GPU it runs where its forward ran. torch.utils.checkpoint runs the
    forward once more in backward(), which then belongs into the block: other kernels draw another
    dropout.

    Raises what enable_sdpa() raises.
    """
    with turning:
        block = Block(active(), bool(in_fp8), set(shadowed))
        enable_sdpa(name, fp8=fp8)
        blocks.append(block)
    try:
        yield
    finally:
        leave(block)


@dataclass(eq=False)
class Block:
    """An open sdpa() block: what was active before it, and the names that were taken."""

    name: str | None
    fp8: bool
    taken: set[str]


blocks: list[Block] = []  # in the order in which they were entered


@turns
def leave(block):
    """What was before the block is active again, or will be behind the block entered after it."""
    place = blocks.index(block)
    del blocks[place]
    if place < len(blocks):
        later = blocks[place]
        later.name, later.fp8, later.taken = block.name, block.fp8, block.taken
    elif block.name is None:
        disable_sdpa()
    else:
        release(*shadowed.keys() - block.taken)
        if block.name == NAME or block.name in block.taken:
            enable_sdpa(block.name, fp8=block.fp8)
        else:
            activate(block.name)
            put_fp8(block.fp8)


def activate(name):
    if not can_restore() and active() not in (None, name):
        restore()
    registry.activate_flash_attention_impl(name)


def restore():
    """Gives torch its own kernels back. The registry of torch 2.10 has no function for that."""
    if can_restore():
        return registry.restore_flash_attention_impl()
    own = registry._registry
    handle = own._FLASH_ATTENTION_HANDLES.pop(own._FLASH_ATTENTION_ACTIVE, None)
    if handle is not None:
        handle.remove()
    own._FLASH_ATTENTION_ACTIVE = None


def can_restore():
    return hasattr(registry, "restore_flash_attention_impl")


def active():
    return registry.current_flash_attention_impl() if can_register() else None


def can_register():
    return hasattr(registry, "register_flash_attention_impl")


def register():
    """Makes "fa3" known to torch's registry, which activates nothing. Whether there is one."""
    if can_register() and NAME not in registry.list_flash_attention_impls():
        registry.register_flash_attention_impl(NAME, register_fn=Overrides)
    return can_register()


def release(*names):
    """Gives names of the registry what they stood for before enable_sdpa(name)."""
    for name in names:
        before = shadowed.pop(name)
        if before is None:
            registry._registry._FLASH_ATTENTION_IMPLS.pop(name, None)
        else:
            registry.register_flash_attention_impl(name, register_fn=before)


class Inside(threading.local):
    """Whether this thread is in a kernel of torch's, whose inner operators then are torch's too.

    torch's dense operators call its packed ones: what was refused once is not tried again.
    """

    torchs_own = False


inside = Inside()


class Overrides:
    """Our kernels in the dispatcher, for as long as this object holds its library."""

    def __init__(self):
        self.library = torch.library.Library("aten", "IMPL")
        try:
            for name, (key, kernel) in KERNELS.items():
                override(self.library, name, key, kernel)
            for key in multi_head.KEYS:
                override(self.library, multi_head.NAME, key, multi_head.self_attention)
            for name, (key, kernel) in WITH_DROPOUT.items():
                override(self.library, name, key, kernel, wanted=has_dropout)
            for name, (key, kernel) in WITH_MASK.items():
                override(self.library, name, key, kernel, wanted=has_mask)
            for name in BACKWARDS.keys() - backwards.keys():
                backwards[name] = torch.library.Library("aten", "IMPL")
                override_backward(backwards[name], name)
        except BaseException:
            self.remove()
            raise
        switched_on.add(self)

    def remove(self):
        switched_on.discard(self)
        self.library._destroy()


def put_fp8(on):
    """Puts our kernels of FP8 before all others, or takes them away."""
    if bool(in_fp8) == on:
        return
    if in_fp8:
        in_fp8.pop()._destroy()
    if not on:
        return
    name, keys, kernel = WITH_FP8
    in_fp8.append(torch.library.Library("aten", "IMPL"))
    for key in keys:
        override(in_fp8[0], name, key, kernel, wanted=takes_fp8)


def takes_fp8(arguments):
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if arguments["attn_mask"] is not None or arguments["dropout_p"] > 0:
        return False
    if not all(type(t) in PLAIN for t in (query, key, value)):
        warn_once(
            "fa3 computes plain tensors alone in FP8: compiled programs run in their own type"
        )
        return False
    if not query.ndim == key.ndim == value.ndim == 4:
        return False
    return query.dtype != torch.float64 and query.shape[2] == key.shape[2]


def has_dropout(arguments):
    return arguments["dropout_p"] > 0


def has_mask(arguments):
    """Not where tensors stand for others, as a compiler's do: it wants torch's own operators."""
    tensors = [arguments[name] for name in ("query", "key", "value", "attn_mask")]
    return tensors[-1] is not None and all(type(t) in PLAIN for t in tensors)


PLAIN = torch.Tensor, torch.nn.Parameter


def override(library, name, key, kernel, wanted=lambda arguments: True):
    """Puts kernel(**arguments) before the operator's present kernel, which runs refused calls.

    wanted(arguments): whether kernel is asked at all.
    """

    def run(op, arguments, torchs_own):
        if not wanted(arguments):
            return torchs_own(nested=False)
        try:
            return kernel(**arguments)
        except (Refused, Error) as error:
            warn_refused(op, error)
        return torchs_own()

    put_before(library, name, key, run)


def override_backward(library, name):
    """Puts the kernel of BACKWARDS before torch's own, for calls whose forward fa3 ran.

    Packed operators may get no state, of calls without dropout: any forward serves, for as long as
    the switch is on.
    """

    def run(op, arguments, torchs_own):
        _, kernel, is_ours_of = BACKWARDS[name]
        dropout, ours = arguments["dropout_p"] > 0, is_ours_of(arguments)
        is_packed = not name.startswith("_scaled")
        if ours is False and (dropout or not (is_packed and switched_on)):
            return torchs_own()
        try:
            gradients = kernel(**arguments)
        except (Refused, Error) as error:
            if ours is True and dropout:
                raise Unsupported(
                    f"{op.name()}: fa3 ran the forward, and no other kernel draws its dropout: "
                    f"{error}"
                ) from error
            if ours is not False or switched_on:
                warn_refused(op, error)
            return torchs_own()
        if isinstance(ours, bool):
            return gradients
        pairs = zip(gradients, torchs_own(), strict=True)
        return tuple(torch.where(ours, a, b) for a, b in pairs)

    put_before(library, name, BACKWARDS[name][0], run)


def put_before(library, name, key, run):
    """Registers run(op, arguments by name, torchs_own), where torchs_own() is the present kernel.

    Operators come and go with torch's versions; one that is not there needs no kernel.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return
    op = packet.default
    try:
        previous = torch.library.get_kernel(op, key)
    except RuntimeError:
        return  # a build of torch without this device
    schema = op._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}

    def dispatch(keys, *args, **keywords):
        def torchs_own(nested=True):
            inside.torchs_own, before = inside.torchs_own or nested, inside.torchs_own
            try:
                return previous.call_boxed(keys, *args, **keywords)
            finally:
                inside.torchs_own = before

        if inside.torchs_own:
            return torchs_own()
        return run(op, defaults | dict(zip(names, args, strict=False)) | keywords, torchs_own)

    with warnings.catch_warnings():  # of replacing a kernel, which is the point
        warnings.simplefilter("ignore", UserWarning)
        library.impl(op, dispatch, key, with_keyset=True, allow_override=True)


def warn_refused(op, error):
    warn_once(f"fa3 leaves {op.name()} to torch's own kernel: {error}")


def warn_once(sentence):
    if sentence not in warned:
        warned.add(sentence)
        warnings.warn(sentence, stacklevel=6)
