# SPDX-License-Identifier: Apache-2.0
"""fa3.monitor: sums over a program's calls, as rows, as Prometheus's text and as lines."""

import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

monitor = fa3.monitor


def arrays(rows=8, keys=None, heads=2, dim=16, kv_heads=None):
    random = np.random.default_rng(7)
    shape = (2, keys or rows, kv_heads or heads, dim)
    q = random.standard_normal((2, rows, heads, dim), np.float32)
    return q, *(random.standard_normal(shape, np.float32) for _ in range(2))


@pytest.fixture(autouse=True)
def counted():
    monitor.start()
    yield
    monitor.stop()


def counted_by(call):
    """What the snapshot has more after call()."""
    before = monitor.snapshot()
    call()
    return {row.kind: row for row in monitor.since(before, monitor.snapshot())}


def both_passes(q, k, v, **options):
    out, lse = fa3.attention(q, k, v, return_lse=True, **options)
    fa3.attention_backward(out, q, k, v, out, lse, **options)


def test_work_is_the_products_of_visible_pairs_and_each_operand_once():
    q, k, v = arrays(rows=20, dim=16)
    rows = counted_by(lambda: both_passes(q, k, v, causal=True))
    pairs = 2 * 2 * 20 * 21 // 2
    assert rows["forward"].flops == 4 * 16 * pairs and rows["backward"].flops == 10 * 16 * pairs
    assert rows["forward"].bytes == q.nbytes * 4 and rows["backward"].bytes == q.nbytes * 8
    for row in rows.values():
        assert (row.engine, row.calls, row.timed) == ("cpu", 1, 1) and 0 < row.seconds < 60
        assert row.tflops == row.flops / row.seconds / 1e12
        assert row.gbytes == row.bytes / row.seconds / 1e9
        assert row.memory >= row.bytes + row.workspace > row.bytes


def test_calls_are_counted_by_kind_and_engine():
    q, k, v = arrays()
    one_query = q[:, :1]
    cache = np.zeros((2, 32, 2, 16), np.float32)

    def calls():
        fa3.attention(q, k, v)
        fa3.attention(one_query, k, v)
        fa3.attention_fp8(q, k, v)
        fa3.append(cache, cache.copy(), k, v, seqused=np.zeros(2, np.int32))
        fa3.merge(np.stack([q, q]), np.zeros((2, 2, 2, 8), np.float32))

    found = {kind: row.calls for kind, row in counted_by(calls).items()}
    once = dict.fromkeys(("forward", "decode", "fp8", "append", "merge"), 1)
    assert found == once | {"quantize": 3}
    rows = counted_by(lambda: fa3.attention(q, k, v, engine="reference"))
    assert (rows["forward"].engine, rows["forward"].calls) == ("reference", 1)


def test_a_call_that_failed_and_calls_after_stop_are_not_counted():
    q, k, v = arrays()

    def calls():
        with pytest.raises(fa3.InvalidArgument):
            fa3.attention(q, k[..., :8], v)
        monitor.stop()
        fa3.attention(q, k, v)

    assert counted_by(calls) == {}


def test_the_share_is_the_least_time_at_the_limits_over_the_time():
    rows = counted_by(lambda: fa3.attention(*arrays(rows=512, heads=8, dim=64)))
    share = rows["forward"].share
    assert share == rows["forward"].least_seconds / rows["forward"].seconds
    assert 0.001 < share < 3  # the limit is a sample of 10 ms, of cores with other work


def test_sequences_of_other_lengths_count_their_own_pairs():
    q, k, v = (x.reshape(16, 2, 16) for x in arrays())
    cu = np.array([0, 3, 16], np.int32)
    rows = counted_by(lambda: fa3.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu))
    assert rows["forward"].flops == 4 * 16 * 2 * (3 * 3 + 13 * 13)


def test_rows_by_shape_say_the_call_and_have_a_bound():
    q = arrays(rows=2)[0]
    for keys in range(2, 1100):
        fa3.attention(q, *(np.zeros((2, keys, 2, 16), np.float32) for _ in "kv"), num_threads=1)
    rows = monitor.snapshot(by_shape=True)
    assert len(rows) < 1100
    assert any("of other shapes" in row.call for row in rows)
    assert any(row.call.startswith("forward float32 b2 h2:2 s2x100 d16, cpu") for row in rows)
    whole = {(row.kind, row.engine): row.calls for row in monitor.snapshot()}
    for kind, engine in whole:
        alike = [row.calls for row in rows if (row.kind, row.engine) == (kind, engine)]
        assert sum(alike) == whole[kind, engine]


def test_threads_lose_no_call():
    q, k, v = arrays(rows=2, keys=3)

    def calls():
        for _ in range(200):
            fa3.attention(q, k, v, num_threads=1)

    def in_threads():
        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
            monitor.snapshot()
        for thread in threads:
            thread.join()

    assert counted_by(in_threads)["decode"].calls == 800


def test_the_error_of_fp8_is_that_of_the_sampled_calls():
    done = run(
        """
        import numpy as np, fa3
        from fa3.fp8 import difference
        fa3.monitor.start(fp8_every=2)
        random, errors = np.random.default_rng(5), []
        for call in range(4):
            q, k, v = (random.standard_normal((1, 50, 2, 64), np.float32) for _ in range(3))
            out = fa3.attention_fp8(q, k, v)
            if call % 2 == 0:
                errors.append(float(difference(out, fa3.attention(q, k, v))))
        (found,) = [row.fp8_error for row in fa3.monitor.snapshot() if row.kind == "fp8"]
        assert np.allclose(found, (np.mean(errors), max(errors), 2)), (found, errors)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


COMPILED = """
import os, torch, fa3
from fa3.fp8 import difference
fa3.monitor.start(fp8_every=2)
attend = torch.compile(fa3.attention_fp8, fullgraph=True, backend="aot_eager")
errors = []
for call in range(4):
    q, k, v = torch.randn(3, 1, 50, 2, 64, requires_grad=LEARNS)
    out, lse = attend(q, k, v, causal=True, return_lse=True)
    if call % 2 == 0:
        errors.append(float(difference(out, fa3.attention(q, k, v, causal=True))))
mean, largest, samples = fa3.fp8.sampled_error()
assert samples == 2 and abs(mean - sum(errors) / 2) < 1e-6 and abs(largest - max(errors)) < 1e-6
fa3.fp8.started = None
wanted = fa3.attention_fp8(q, k, v, causal=True, return_lse=True)
assert all(map(torch.equal, (out, lse), wanted))
"""


@pytest.mark.parametrize("learns", [False, True])
def test_samples_of_compiled_programs_change_no_result(learns):
    pytest.importorskip("torch", reason="torch is not installed")
    done = run(COMPILED.replace("LEARNS", str(learns)))
    assert done.returncode == 0, done.stderr


# What a GPU does at each replay is in the next test.
def test_a_capture_has_the_first_call_of_a_kind_and_every_nth_behind_it(monkeypatch):
    from fa3 import fp8

    sampler, captured, seen = fp8.Sampler(3), False, []
    monkeypatch.setattr(fp8, "is_being_captured", lambda _: captured)
    q = np.ones((1, 4, 1, 16), np.float32)

    def sees(number):
        seen.clear()
        for call in range(number):
            sampler.see(q, q, q, q, lambda call=call: seen.append(call) or q)
        return list(seen)

    captured = True
    assert sees(4) == []  # sums would lie in the graph's memory
    captured = False
    assert sees(2) == [0]
    for _ in range(2):
        captured = True
        assert sees(5) == [0, 3]
        captured = False
        sees(1)
    assert list(sampler.samples().values()) == [[6, 0, 0]]


IN_A_GRAPH = """
import torch, fa3
from fa3.fp8 import difference, sampled_error
fa3.monitor.start(fp8_every=10)
make = lambda: torch.randn(3, 1, 512, 2, 128, device="cuda", dtype=torch.bfloat16)
qkv = make().requires_grad_(LEARNS)
fa3.attention_fp8(*qkv, causal=True)
errors = [sampled_error()[0]]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = fa3.attention_fp8(*qkv, causal=True)
    others = [fa3.attention_fp8(*qkv, causal=True) for _ in range(3)]
assert sampled_error()[2] == 1
for size in (1, 3):
    with torch.no_grad():
        qkv.copy_(size * make())
    graph.replay()
    errors.append(float(difference(out, fa3.attention(*qkv.detach(), causal=True))))
mean, largest, samples = sampled_error()
assert samples == 3, samples
assert abs(mean - sum(errors) / 3) < 1e-4 and abs(largest - max(errors)) < 1e-4, (mean, errors)
attend = torch.compile(fa3.attention_fp8, fullgraph=True, mode="reduce-overhead")
with torch.no_grad():
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        attend(*qkv, causal=True)
assert sampled_error()[2] > 3 + 3, sampled_error()
"""


@pytest.mark.parametrize("learns", [False, True])
def test_replays_of_cuda_graphs_are_sampled(learns):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("torch finds no Hopper GPU on this machine")
    done = run(IN_A_GRAPH.replace("LEARNS", str(learns)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("every", [True, 1.5, -1])
def test_a_wrong_number_of_fp8_calls_is_refused(every):
    with pytest.raises(fa3.InvalidArgument, match="fp8_every: expected a number of calls"):
        monitor.start(fp8_every=every)


def test_samples_of_nothing_and_of_a_parent_do_not_count():
    done = run("""
        import os, numpy as np, fa3
        fa3.monitor.start(fp8_every=1)
        nothing, zeros = np.zeros((1, 0, 1, 16), np.float32), np.zeros((1, 4, 1, 16), np.float32)
        fa3.attention_fp8(nothing, nothing, nothing)
        assert fa3.fp8.sampled_error() is None
        fa3.attention_fp8(zeros, zeros, zeros)
        assert fa3.fp8.sampled_error() == (0, 0, 1)
        child = os.fork()
        if child == 0:
            os._exit(fa3.fp8.sampled_error() is not None)
        assert os.waitpid(child, 0)[1] == 0
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_prometheus_has_every_number_with_its_labels():
    fa3.attention(*arrays())
    rows, text = monitor.snapshot(), monitor.prometheus()
    lines = text.splitlines()
    (row,) = [row for row in rows if (row.kind, row.engine) == ("forward", "cpu")]
    for name, value in [("calls", row.calls), ("flops", row.flops), ("seconds", row.seconds)]:
        assert f'fa3_{name}_total{{kind="forward",engine="cpu"}} {value!r}' in lines
        assert f"# TYPE fa3_{name}_total counter" in lines
    assert f'fa3_workspace_bytes{{kind="forward",engine="cpu"}} {row.workspace}' in lines
    assert text.endswith("\n")


def test_prometheus_client_serves_the_same():
    client = pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    from prometheus_client.parser import text_string_to_metric_families as parse

    fa3.attention(*arrays())
    registry = client.CollectorRegistry()
    monitor.register(registry)

    def samples(text):
        return {
            (x.name, *sorted(x.labels.items())): x.value for f in parse(text) for x in f.samples
        }

    assert samples(client.generate_latest(registry).decode()) == samples(monitor.prometheus())


def run(program, **environment):
    lines = program.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return subprocess.run(
        [sys.executable, "-c", "\n".join(line[indent:] for line in lines)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_interval_has_a_line_for_each_kind_that_was_called():
    lines = []
    end = monitor.log_every(0.05, lines.append)
    fa3.attention(*arrays())
    deadline = time.monotonic() + 20
    while not lines and time.monotonic() < deadline:
        time.sleep(0.01)
    end()
    assert len(lines) == 1
    assert lines[0].startswith("fa3: last 0.05 s: forward (cpu): 1 calls, ")
    assert " ms each, " in lines[0] and "FLOP/s, " in lines[0] and " of the limit" in lines[0]


def test_the_environment_begins_lines_that_go_on_in_a_forked_child():
    done = run(
        """
        import os, time, numpy as np, fa3
        q = np.zeros((1, 4, 1, 8), np.float32)
        child = os.fork()
        for _ in range(3 if child else 5):
            fa3.attention(q, q, q, num_threads=1)
        time.sleep(0.5)
        if child: os.waitpid(child, 0)
        """,
        FA3_MONITOR_EVERY="0.2",
    )
    assert done.returncode == 0
    for calls in (3, 5):
        assert f"forward (cpu): {calls} calls, " in done.stderr, done.stderr


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan"])
def test_an_interval_that_is_no_time_is_refused(text):
    done = run("import fa3", FA3_MONITOR_EVERY=text)
    assert "FA3_MONITOR_EVERY: expected seconds, a number > 0, got" in done.stderr


def test_without_being_asked_nothing_is_counted():
    done = run(
        """
        import numpy as np, fa3
        q = np.zeros((1, 4, 1, 8), np.float32)
        fa3.attention(q, q, q)
        print(fa3.monitor.snapshot())
        """
    )
    assert done.stdout == "[]\n"


def test_torch_and_compiled_programs_are_counted_too():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in arrays())

    @torch.compile(fullgraph=True, backend="eager")
    def step(q, k, v):
        return fa3.attention(q, k, v).sum()

    rows = counted_by(lambda: step(q.requires_grad_(), k, v).backward())
    assert {kind: row.calls for kind, row in rows.items()} == {"forward": 1, "backward": 1}


def test_compiled_jax_programs_are_counted_too():
    jax = pytest.importorskip("jax")
    import fa3.jax

    q, k, v = (jax.numpy.asarray(x) for x in arrays())
    step = jax.jit(fa3.jax.attention)
    rows = counted_by(lambda: [step(q, k, v).block_until_ready() for _ in range(3)])
    assert rows["forward"].calls == 3


def test_the_text_of_the_library_is_json():
    assert isinstance(json.loads(fa3._native.monitor_text()), list)


@pytest.mark.parametrize("seconds, write", [("3", print), (None, print), (0, print), (1, 3)])
def test_an_interval_and_a_writer_that_are_none_are_refused(seconds, write):
    with pytest.raises(fa3.InvalidArgument, match="(seconds|write): expected"):
        monitor.log_every(seconds, write)
