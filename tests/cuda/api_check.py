# SPDX-License-Identifier: Apache-2.0
"""The Hopper engine through the C ABI, on a machine with a GPU and torch: empty tensors, layouts,
CUDA graphs, streams, host threads, memory beyond 2^31 elements, repeatability, outliers.

    FA3_LIBRARY=libfa3.so python3 tests/cuda/api_check.py
"""

import ctypes
import math
import sys
import threading
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import c_abi  # noqa: E402  (the C header in ctypes)

DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.int32: "int32",
}


def view(t):
    v = c_abi.Tensor()
    v.data, v.rank, v.dtype = t.data_ptr(), t.dim(), c_abi.DTYPES[DTYPES[t.dtype]]
    v.device_type, v.device_index = c_abi.CUDA, t.device.index or 0
    v.shape[: t.dim()] = t.shape
    v.stride[: t.dim()] = t.stride()
    return v


class Call:
    """One prepared forward call over (b, s, h, d) tensors; call it to queue it.

    used: the sequences' keys, on the device.
    """

    def __init__(self, q, k, v, causal=False, o=None, used=None):
        b, sq, h, _ = q.shape
        self.inputs = (q, k, v, used)
        self.o = (
            torch.full((b, sq, h, v.shape[3]), math.nan, dtype=q.dtype, device="cuda")
            if o is None
            else o
        )
        self.lse = torch.full((b, h, sq), math.nan, device="cuda")
        self.params = c_abi.new_params(c_abi.ForwardParams)
        self.params.options.causal = int(causal)
        self.params.options.engine = c_abi.ENGINES["hopper"]
        for name, t in zip("q k v o lse".split(), (q, k, v, self.o, self.lse), strict=True):
            setattr(self.params, name, view(t))
        if used is not None:
            self.params.options.seqused_k = view(used)
        size = ctypes.c_size_t()
        c_abi.check(
            c_abi.library().fa3_forward_workspace_size(
                ctypes.byref(self.params), ctypes.byref(size)
            )
        )
        # Poisoned: the engine must not rely on what the workspace holds.
        self.workspace = torch.full((size.value + 256,), 0xCD, dtype=torch.uint8, device="cuda")
        self.size = size.value

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        base = self.workspace.data_ptr()
        c_abi.check(
            c_abi.library().fa3_forward(
                ctypes.byref(self.params),
                ctypes.c_void_p(base + -base % 256),
                ctypes.c_size_t(self.size),
                ctypes.c_void_p(stream),
            )
        )
        return self.o

    def plan(self):
        text = ctypes.create_string_buffer(2048)
        c_abi.check(
            c_abi.library().fa3_forward_plan_text(
                ctypes.byref(self.params), text, ctypes.c_size_t(len(text)), None
            )
        )
        return text.value.decode()


def normal(*shape, dtype=torch.bfloat16, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=g).to(dtype)


def exact(q, k, v, causal=False):
    """Attention in float64, one query head at a time."""
    group = q.shape[2] // k.shape[2]
    heads = []
    for h in range(q.shape[2]):
        qh, kh, vh = (t[:, :, i].double() for t, i in ((q, h), (k, h // group), (v, h // group)))
        s = qh @ kh.transpose(1, 2) * q.shape[3] ** -0.5
        if causal:
            sq, sk = s.shape[-2:]
            hidden = torch.ones(sq, sk, device="cuda", dtype=torch.bool).triu(sk - sq + 1)
            s = s.masked_fill(hidden, -math.inf)
        heads.append(torch.softmax(s, -1).nan_to_num(0) @ vh)
    return torch.stack(heads, 2)


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def no_keys_give_zeros_and_minus_infinity():
    q = normal(2, 70, 3, 128)
    empty = normal(2, 1, 3, 128)[:, :0]
    call = Call(q, empty, empty)
    call()
    assert (call.o == 0).all() and (call.lse == -math.inf).all()


def no_queries_are_done_at_once():
    k = normal(2, 70, 3, 128)
    Call(normal(2, 1, 3, 128)[:, :0], k, k)()


def layouts_agree_bit_for_bit():
    q, k, v = (normal(2, 300, 4, 64, seed=i) for i in range(3))
    want = Call(q, k, v, True)()
    by_head = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(Call(*by_head, True)(), want)
    fused = torch.stack((q, k, v), 2)  # (b, s, 3, h, d)
    assert torch.equal(Call(*fused.unbind(2), True)(), want)
    out = torch.full((2, 4, 300, 64), math.nan, dtype=q.dtype, device="cuda").transpose(1, 2)
    assert torch.equal(Call(q, k, v, True, out)(), want)


def gqa_equals_repeated_heads():
    q, k, v = normal(2, 257, 8, 128), normal(2, 400, 2, 128, seed=1), normal(2, 400, 2, 128, seed=2)
    want = Call(
        q, k.repeat_interleave(4, 2).contiguous(), v.repeat_interleave(4, 2).contiguous(), True
    )()
    assert torch.equal(Call(q, k, v, True)(), want)


def a_graph_replays_with_new_inputs():
    q, k, v = (normal(2, 500, 4, 128, seed=i) for i in range(3))
    call = Call(q, k, v, True)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in (7, 8):
        q.copy_(normal(2, 500, 4, 128, seed=seed))
        call.o.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(call.o, Call(q, k, v, True)())


class UnevenSteps(Call):
    """16 tokens of 32 sequences over 2k keys at most, whose tiles' splits the CTA that opens a tile
    combines. Lengths are new for every seed: other CTAs open other tiles then."""

    def __init__(self, kv, seed):
        self.used = torch.empty(32, dtype=torch.int32, device="cuda")
        super().__init__(normal(32, 16, 64, 128, seed=seed), *kv, True, used=self.used)
        self.draw(seed)
        assert "combined by the CTA that opens a tile" in self.plan(), self.plan()

    def draw(self, seed):
        g = torch.Generator(device="cuda").manual_seed(seed)
        draws = torch.rand(32, device="cuda", generator=g)
        self.used.copy_((2048 * 8 ** (draws - 1)).int())
        self.used[seed % 32] = 0

    def error(self):
        """Of the last head of four sequences."""
        worst = 0
        for b, keys in enumerate(self.used[:4].tolist()):
            if keys >= 16:
                q, k, v = (t[b : b + 1, :, -1:] for t in self.inputs[:3])
                want = exact(q, k[:, :keys], v[:, :keys], True)
                worst = max(worst, error(self.o[b : b + 1, :, -1:], want))
        return worst


def uneven_steps_replay_on_the_workspace_as_they_left_it():
    kv = [normal(32, 2048, 8, 128, seed=i) for i in (1, 2)]
    step = UnevenSteps(kv, 0)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):  # one starts under the end of the other
            step()
    for seed in range(20):
        step.draw(seed)
        step.o.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert step.error() < 1e-2, seed
        again = UnevenSteps(kv, 0)
        again.draw(seed)
        assert torch.equal(again(), step.o) and torch.equal(again.lse, step.lse), seed


def uneven_steps_of_several_streams_end():
    """Where CTAs of other calls have the SMs, those that are waited for still come."""
    kv = [normal(32, 2048, 8, 128, seed=i) for i in (1, 2)]
    steps = [UnevenSteps(kv, seed) for seed in range(6)]
    want = [step().clone() for step in steps]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in steps]
    for _ in range(50):
        for stream, step in zip(streams, steps, strict=True):
            with torch.cuda.stream(stream):
                step()
    torch.cuda.synchronize()
    for step, first in zip(steps, want, strict=True):
        assert torch.equal(step.o, first)


def streams_and_host_threads_do_not_disturb_each_other():
    inputs = [[normal(1, 900, 4, 128, seed=10 * i + j) for j in range(3)] for i in range(4)]
    want = [Call(*x, True)().clone() for x in inputs]
    torch.cuda.synchronize()
    failures = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            call = Call(*inputs[i], True)
            for _ in range(50):
                call()
            torch.cuda.current_stream().synchronize()
            if not torch.equal(call.o, want[i]):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures


def a_thousand_repeats_are_bit_equal():
    for causal, d in ((True, 64), (False, 128), (True, 256)):
        call = Call(*(normal(4, 777, 4, d, seed=i) for i in range(3)), causal)
        want = call().clone()
        differing = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(1000):
            differing += (call() != want).any()
        assert differing.item() == 0, (causal, d)


def memory_beyond_2_31_elements():
    keys, heads = 270000, 64  # 2.2e9 elements
    q = normal(1, 130, heads, 128)
    k, v = (torch.empty(1, keys, heads, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for t in (k, v):
        for h in range(heads):
            t[:, :, h].normal_()
    got = Call(q, k, v)()[:, :, -1:]
    assert error(got, exact(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:])) < 1e-2
    got = Call(k, q, q)()[:, -500:, -1:]
    assert error(got, exact(k[:, -500:, -1:], q[:, :, -1:], q[:, :, -1:])) < 1e-2


def merge(o_partial, lse_partial, o, lse):
    params = c_abi.new_params(c_abi.MergeParams)
    for name, t in (("o_partial", o_partial), ("lse_partial", lse_partial), ("o", o), ("lse", lse)):
        setattr(params, name, view(t))
    stream = torch.cuda.current_stream().cuda_stream
    c_abi.check(c_abi.library().fa3_merge(ctypes.byref(params), ctypes.c_void_p(stream)))


def merged_parts_are_the_whole():
    q, k, v = normal(2, 77, 4, 64), normal(2, 400, 2, 64, seed=1), normal(2, 400, 2, 64, seed=2)
    calls = [Call(q, k[:, a:b], v[:, a:b]) for a, b in ((0, 100), (100, 100), (100, 400))]
    for call in calls:
        call()
    o_partial = torch.stack([c.o.float() for c in calls])
    lse_partial = torch.stack([c.lse for c in calls])
    whole = Call(q, k, v)
    whole()
    o_partial[1] = math.nan  # no keys: weight 0, whatever it holds
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        # Heads first in memory, so strides are not those of a row-major tensor.
        o = torch.full((2, 4, 77, 64), math.nan, dtype=dtype, device="cuda").transpose(1, 2)
        lse = torch.full((2, 4, 77), math.nan, device="cuda")
        merge(o_partial, lse_partial, o, lse)
        assert error(o, exact(q, k, v)) < 5e-3, dtype
        assert (lse - whole.lse).abs().max() < 1e-4
    merge(o_partial, lse_partial, o_partial[0], lse_partial[0])  # in place
    assert error(o_partial[0], exact(q, k, v)) < 5e-3
    nothing = torch.full_like(lse_partial, -math.inf)
    merge(o_partial, nothing, o, lse)
    assert (o == 0).all() and (lse == -math.inf).all()


def outliers_of_the_paper():
    """N(0,1) + N(0,100) * Bernoulli(0.001), fp16: RMSE against float64 at most 1.9e-4."""
    g = torch.Generator(device="cuda").manual_seed(3)

    def draw():
        shape = (1, 4096, 8, 128)
        x = torch.randn(shape, device="cuda", generator=g)
        spikes = torch.randn(shape, device="cuda", generator=g) * 10
        return (x + spikes * (torch.rand(shape, device="cuda", generator=g) < 0.001)).half()

    q, k, v = draw(), draw(), draw()
    rmse = (Call(q, k, v)().double() - exact(q, k, v)).square().mean().sqrt().item()
    print(f"  outliers: RMSE {rmse:.2e}")
    assert rmse <= 1.9e-4


CHECKS = [
    no_keys_give_zeros_and_minus_infinity,
    no_queries_are_done_at_once,
    layouts_agree_bit_for_bit,
    gqa_equals_repeated_heads,
    a_graph_replays_with_new_inputs,
    uneven_steps_replay_on_the_workspace_as_they_left_it,
    uneven_steps_of_several_streams_end,
    streams_and_host_threads_do_not_disturb_each_other,
    a_thousand_repeats_are_bit_equal,
    memory_beyond_2_31_elements,
    merged_parts_are_the_whole,
    outliers_of_the_paper,
]


def main():
    failed = 0
    for check in CHECKS:
        try:
            check()
            torch.cuda.synchronize()
            print("ok  ", check.__name__, flush=True)
        except Exception as problem:  # every check runs, whatever the others do
            failed += 1
            print("FAIL", check.__name__, type(problem).__name__, str(problem)[:200], flush=True)
    print(f"{len(CHECKS)} checks, {failed} failures")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
