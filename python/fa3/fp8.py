# SPDX-License-Identifier: Apache-2.0
"""fa3.attention_fp8: attention of wider numbers in float8_e4m3fn, and its sampled error.

FA3_MONITOR_FP8=n: every n-th call of a program is computed without quantization too, and the
program ends with a line about the difference for each kind of call. The comparison stays on the
tensors' device and synchronizes only at the end.
"""

import atexit
import functools
import os
import sys
import threading
from typing import NamedTuple

import numpy as np

from fa3 import _backends, _native
from fa3._arrays import empty, is_fake, is_meta, is_torch, question_view, shape_of, type_of
from fa3._options import OF_FORWARD, instead_of, takes_options
from fa3.errors import InvalidArgument, Unsupported
from fa3.ops import attention, question, torch_backend
from fa3.quantization import quantize_together, refuse_other_scaling, signed

SET_HERE = {"q_descale", "k_descale", "v_descale", "k_mean", "v_mean", "v_transposed"}
NOT_TOGETHER = {  # and what to do instead
    **dict.fromkeys(
        ("page_table", "batch_index"),
        "fa3.quantize a cache, or fa3.append to one in float8, and call fa3.attention",
    ),
    **dict.fromkeys(("bias", "alibi_slopes"), "score functions take 16-bit tensors"),
}
KNOWN = {*OF_FORWARD, *NOT_TOGETHER, "return_lse", "return_max_logit", "generator"}
ITS_OWN = "precision", "scaling", "hadamard", "center", "seed", "saved", "out"
SAVED = "inputs", "quantized"
PRECISIONS = "fp8", "auto"


class Advice(NamedTuple):
    """The result of advise(). Times are seconds on an H200; 0 is not known."""

    precision: str  # "fp8", or the type of q
    seconds: float  # expected time of attention() in q's type
    seconds_fp8: float  # expected time of attention_fp8(), quantization included
    error: float  # relative error of the output on normal numbers, in q's type
    error_fp8: float  # the same in FP8
    bytes: int  # q, k, v, the output and the workspace; 0: no engine supports the call
    bytes_fp8: int  # the same in FP8
    reason: str  # a sentence


@takes_options()
def advise(q, k, v, *, device=None, **options):
    """Predicts whether attention_fp8() is faster than attention() for these arguments.

    The prediction interpolates measurements of one H200 (docs/fp8.md).

    Args:
        q, k, v, device: as those of plan(); tensors of torch's device "meta" are enough.
        options: those of attention().

    Returns:
        An Advice. On a CPU its precision is always q's type.

    Raises what plan() raises.
    """
    if device is not None and not is_meta(q):
        raise InvalidArgument("device: expected None with arrays that have memory, as q has")
    as_view = functools.partial(question_view, device=device)
    fp8, *found = _native.forward_advise(*question("advise", q, k, v, options, as_view))
    return Advice("fp8" if fp8 else type_of(q), *found)


def attention_fp8(
    q,
    k,
    v,
    *,
    precision="fp8",
    scaling="block",
    hadamard=True,
    center=True,
    seed=0,
    saved="quantized",
    out=None,
    **options,
):
    """Attention in float8_e4m3fn: quantizes q, k and v (float32, float16, bfloat16) itself.

    Source: FlashAttention-3 (arXiv 2407.08608), section 3.3: block quantization and incoherent
    processing. For quantized tensors that are kept, such as a cache, call fa3.quantize and
    fa3.attention instead.

    Args:
        q, k, v, out: as those of attention(); a new out has q's dtype.
        precision: "fp8", or "auto": attention() in q's type if advise() does not expect FP8 to be
            faster. Not in compiled programs, and not under torch.func.
        scaling: what shares a scale: a "block" of 64 rows of a head, a "head" of a sequence, or
            the whole "tensor".
        hadamard: spread outliers of q and k over their channels, by random signs of `seed`.
        center: quantize k and v without the means of their channels, which attention adds back.
        saved: torch only: what the backward reads. "quantized": the forward's FP8 tensors, half the
            memory. "inputs": q, k and v as given; its softmax weights differ from the forward's,
            and a GPT-2 stopped learning once its attention was sharp (docs/lab/fp8-training.md).
        options: as those of attention(), except scales, means and caches.

    Returns:
        As attention(). Torch tensors: differentiable in q, k, v, sink and gate, by the backward of
        attention(); max_logit only without gradients. Under autocast, q, k and v are converted to
        the autocast type.

    Raises what attention() raises.
    """
    given = {name: value for name, value in options.items() if value is not None}
    refuse_other_options(given)
    if saved not in SAVED:
        raise InvalidArgument(f"saved: expected one of {', '.join(SAVED)}, got {saved!r}")
    if precision not in PRECISIONS:
        expected = ", ".join(PRECISIONS)
        raise InvalidArgument(f"precision: expected one of {expected}, got {precision!r}")
    refuse_other_scaling(scaling)
    seed = signed(seed)
    inputs, learns = (q, k, v), False
    if all(map(is_torch, inputs)):
        backend = torch_backend()
        q, k, v = inputs = backend.to_autocast_type(*inputs)
        numbers = {name: given.get(name) for name in ("scale", "softcap")}
        backend.refuse_numbers_that_learn(**numbers)
        # torch.func records by levels, which one tensor's requires_grad does not tell.
        learns = backend.needs_gradient(*inputs, *given.values(), out) or is_transformed(q)
    if precision == "auto" and not pays(q, k, v, given, learns):
        return attention(*inputs, out=out, **given)
    if learns:
        refuse_without_gradient(given, out)
        for name, x in (("k", k), ("v", v)):
            if x.dtype != q.dtype:
                raise InvalidArgument(f"{name}: expected the type of q, {q.dtype}, got {x.dtype}")
        q, k, v = (x.detach() for x in inputs)
    lengths = {
        side: {
            "cu_seqlens": given.get(f"cu_seqlens_{side}"),
            "seqused": given.get(f"seqused_{side}"),
            "max_seqlen": given.get(f"max_seqlen_{side}", 0),
        }
        for side in "qk"
    }
    run = {name: given[name] for name in ("engine", "num_threads") if name in given}
    saves_quantized = learns and saved == "quantized"
    transposed = not saves_quantized and is_read_transposed(v, given)
    turned = {"hadamard": hadamard, "seed": seed}
    how = {"scaling": scaling, "center": center, "transposed": transposed, **turned, **run}
    q8, k8, v8 = quantize_together(q, k, v, lengths=lengths, **how)
    if learns or (out is None and is_sampled_by_operator(inputs, given)):
        how = turned | {"saves_quantized": saves_quantized, "v_transposed": transposed}
        return backend.attend_fp8(inputs, (q8, k8, v8), how | {"learns": learns}, given)
    result = attend(q, v, (q8, k8, v8), transposed, out, given)
    if not is_compiled(q) and not is_transformed(q) and sampler() is not None:
        plain = {"return_lse": False, "return_max_logit": False}
        given = {name: detached(x) for name, x in (given | plain).items()}
        found = result[0] if isinstance(result, tuple) else result
        sampler().see(q, k, v, found, lambda: attention(q, k, v, **given))
    return result


_backends.attention_fp8 = attention_fp8


def pays(q, k, v, options, learns):
    if is_compiled(q) or is_transformed(q) or is_fake(q):
        raise Unsupported(
            "precision: expected 'fp8' in a compiled program and under torch.func; ask fa3.advise "
            "before and call what it says"
        )
    # Attention in 16 bits has max logits beside gradients.
    if learns and options.get("return_max_logit"):
        return False
    given = {name: detached(x) for name, x in options.items() if name in OF_FORWARD}
    return advise(*map(detached, (q, k, v)), **given).precision == "fp8"


def attend(q, v, quantized, transposed, out, options):
    """Without a gradient."""
    q8, k8, v8 = quantized
    if out is None:
        out = empty((*q.shape[:-1], v.shape[-1]), like=q, dtype=type_of(q))
    scales = {"q_descale": q8.descale, "k_descale": k8.descale, "v_descale": v8.descale}
    means = {"k_mean": k8.mean if sees_scores(options) else None, "v_mean": v8.mean}
    layout = {"v_transposed": True} if transposed else {}
    return attention(q8.x, k8.x, v8.x, **scales, **means, **layout, out=out, **options)


def sees_scores(options):
    """Whether k's mean, which adds one number to all scores of a row, changes what is returned."""
    asked = options.get("return_lse") or options.get("return_max_logit")
    return bool(asked) or "softcap" in options or "sink" in options


def refuse_without_gradient(given, out):
    if out is not None:
        raise InvalidArgument(
            "out: expected None where a gradient is needed, since it is written in place; use "
            "torch.no_grad(), or detach()"
        )
    if "left_padding" in given:
        raise Unsupported(
            "left_padding: expected None where a gradient is needed; use torch.no_grad(), or "
            "packed sequences"
        )
    if given.get("return_max_logit"):
        raise Unsupported(
            "return_max_logit: expected False where a gradient is needed; call attention_fp8 once "
            "more under torch.no_grad() for it"
        )


def refuse_other_options(given):
    """Names what attention() has but this function has not, and what nobody has."""
    for name in given:
        if name in SET_HERE or name not in KNOWN:
            taken = [*ITS_OWN, *sorted(KNOWN - SET_HERE - NOT_TOGETHER.keys())]
            instead = "" if name in SET_HERE else instead_of(name, taken)
            raise TypeError(f"attention_fp8() got an unexpected keyword argument {name!r}{instead}")
        if name in NOT_TOGETHER:
            raise Unsupported(f"{name}: not with attention_fp8; {NOT_TOGETHER[name]}")


def is_read_transposed(v, options):
    """Whether the call's engine takes V transposed: tensor cores do, of sequences of one length."""
    if options.get("engine", "auto") not in ("auto", "hopper") or not is_torch(v) or not v.is_cuda:
        return False
    return all(options.get(name) is None for name in ("cu_seqlens_k", "seqused_k"))


def is_sampled_by_operator(inputs, options):
    """Whether torch.ops.fa3.forward_fp8 should see the call: it takes samples in compiled programs
    and CUDA graphs too."""
    if not all(map(is_torch, inputs)) or not torch_backend().has_fp8_sampler():
        return False
    return not options.get("return_max_logit") and "left_padding" not in options


class Sampler:
    """What every n-th call differs by from the same call without quantization.

    In a CUDA graph a call is a sample in every replay or in none: the first call of a kind that is
    captured, and every n-th one behind it.
    """

    def __init__(self, every):
        self.every = every
        self.lock = threading.Lock()
        self.begin()

    def begin(self):
        self.process = os.getpid()  # a child after fork begins again
        self.calls = {}  # by kind
        self.captured = {}  # by kind: calls of the present capture
        self.found = {}  # by kind: (samples, their sum, the largest), as difference() gives them

    def see(self, q, k, v, found, attend):
        """attend(): the output without quantization."""
        if not all(shape_of(found, "out")):
            return
        kind = f"{type_of(q)} q {tuple(q.shape)} k {tuple(k.shape)} v {tuple(v.shape)}"
        is_captured = is_being_captured(q)
        with self.lock:
            if self.process != os.getpid():
                self.begin()
            if not is_captured:
                self.captured.pop(kind, None)
            counts = self.captured if is_captured else self.calls
            number = counts.get(kind, 0)
            counts[kind] = number + 1
            sums = self.found.get(kind)
        # Sums are not allocated in a graph's memory, which the next replay may write.
        if number % self.every == 0 and not (is_captured and sums is None):
            error = difference(found, attend())
            with self.lock:
                self.found[kind] = add_sample(self.found.get(kind), error)

    def samples(self):
        """Of this process, by kind. Waits for the devices that have samples under way."""
        with self.lock:
            found = self.found if self.process == os.getpid() else {}
            if any(map(is_torch, found.values())):
                torch_backend().wait_for_samples()
            return {kind: sums.tolist() for kind, sums in found.items()}

    def report(self):
        for kind, (samples, total, most) in self.samples().items():
            print(
                f"fa3: fp8 differs by {100 * total / samples:.3g}% from attention without "
                f"quantization, at most {100 * most:.3g}% ({samples:.0f} samples, "
                f"{self.calls[kind]} calls): {kind}",
                file=sys.stderr,
            )


def add_sample(sums, error):
    """sums: (samples, their sum, the largest); None: no sample so far."""
    if is_torch(error):
        return torch_backend().add_sample(sums, error)
    samples, total, most = (0, 0, error) if sums is None else sums
    return np.array((samples + 1, total + error, max(most, error)), dtype=np.float64)


@functools.cache
def sampler_of_environment():
    """The program's, or None where FA3_MONITOR_FP8 is not set."""
    text = os.environ.get("FA3_MONITOR_FP8", "")
    if text and not text.isdecimal():
        raise InvalidArgument(f"FA3_MONITOR_FP8: expected a number of calls, got {text!r}")
    every = int(text or 0)
    if every == 0:
        return None
    found = Sampler(every)
    atexit.register(found.report)
    return found


started = None  # by fa3.monitor.start()


def sampler():
    return started or sampler_of_environment()


_backends.fp8_sampler = sampler


def watch(every):
    """Samples every n-th call from now on, for fa3.monitor."""
    global started
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InvalidArgument(f"fp8_every: expected a number of calls, 0 for none, got {every!r}")
    started = sampler() or Sampler(every)
    started.every = every


def sampled_error():
    """(mean, largest, samples) over all kinds of calls; None: no sample. Waits for their device."""
    found = sampler().samples().values() if sampler() else ()
    if not found:
        return None
    samples = int(sum(x[0] for x in found))
    return sum(x[1] for x in found) / samples, max(x[2] for x in found), samples


def detached(value):
    return value.detach() if is_torch(value) else value


def is_compiled(array):
    """Into a program, which would hold the second call for good."""
    return is_torch(array) and sys.modules["torch"].compiler.is_compiling()


def is_transformed(array):
    """By torch.func, whose levels end before a sample is read."""
    return is_torch(array) and sys.modules["torch"]._C._are_functorch_transforms_active()


def is_being_captured(array):
    """Into a CUDA graph, likewise."""
    return (
        is_torch(array)
        and array.is_cuda
        and sys.modules["torch"].cuda.is_current_stream_capturing()
    )


def difference(found, wide):
    """2-norm of the difference over that of `wide`, if it is not 0."""
    if is_torch(found):
        found, wide = found.detach().float(), wide.detach().float()
        norm = wide.norm()
        return (found - wide).norm() / norm.where(norm > 0, 1)
    found, wide = (np.asarray(x, dtype=np.float32) for x in (found, wide))
    return np.linalg.norm(found - wide) / (np.linalg.norm(wide) or 1)
