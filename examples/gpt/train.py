# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT on real text, once with fa3 and once with torch's attention.

    python examples/gpt/train.py                          # tiny, on the CPU, under a minute
    python examples/gpt/train.py --size gpt2 --device cuda --steps 300 --batch 16
    python examples/gpt/train.py --size gpt2 --device cuda --batch 1 --context 16384
    python examples/gpt/train.py --size nano --device cuda --steps 300 --dropout 0.1
    python examples/gpt/train.py --attention all          # fa3 with its forward in FP8, too

Same weights, same batches: the two loss curves must lie on each other; with --dropout, as near as
those of two seeds, since each attention draws masks of its own. Prints the curves, tokens
per second and peak memory; --json keeps them, --plot draws them. Each run has a process of its own,
so that its peak memory is its own. The text is what every Python ships (pydoc_data.topics, 700 kB
of the language reference), or --text FILE.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from model import GPT, SIZES, parameters
from torch.nn.functional import scaled_dot_product_attention

import fa3

WARM_UP_STEPS = 3  # not timed


def attend_fa3(q, k, v, dropout_p=0.0):
    return fa3.attention(q, k, v, causal=True, dropout_p=dropout_p)


def attend_fa3_fp8(q, k, v, dropout_p=0.0):
    return fa3.attention_fp8(q, k, v, causal=True, dropout_p=dropout_p)


def attend_sdpa(q, k, v, dropout_p=0.0):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    return out.transpose(1, 2)


ATTENTIONS = {"fa3": attend_fa3, "sdpa": attend_sdpa, "fa3_fp8": attend_fa3_fp8}
SETS = {"both": ("fa3", "sdpa"), "all": tuple(ATTENTIONS)}


def read_text(path):
    if path is not None:
        return path.read_bytes()
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()


def batches(text, size, arguments):
    """Endless (tokens, targets), the same for the same seed."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    if len(data) <= size.context:
        raise SystemExit(f"text: expected more than {size.context} bytes, got {len(data)}")
    generator = torch.Generator().manual_seed(arguments.seed)
    while True:
        starts = torch.randint(len(data) - size.context, (arguments.batch,), generator=generator)
        window = data[starts[:, None] + torch.arange(size.context + 1)]
        window = window.to(arguments.device, non_blocking=True)
        yield window[:, :-1], window[:, 1:]


def train(arguments):
    """One run: {"losses", "tokens_per_second", "peak_memory_mb", ...}."""
    torch.manual_seed(arguments.seed)
    size = SIZES[arguments.size]
    size = size._replace(context=arguments.context or size.context, dropout=arguments.dropout)
    model = GPT(size, ATTENTIONS[arguments.attention]).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, betas=(0.9, 0.95))
    on_gpu = arguments.device == "cuda"
    loss_of = torch.compile(model) if arguments.compile else model
    losses, begin = [], None
    for step, (tokens, targets) in zip(
        range(arguments.steps), batches(read_text(arguments.text), size, arguments), strict=False
    ):
        if step == WARM_UP_STEPS:
            synchronize(on_gpu)
            begin = time.perf_counter()
        with torch.autocast(arguments.device, dtype=torch.bfloat16, enabled=on_gpu):
            loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    synchronize(on_gpu)
    tokens_timed = (arguments.steps - WARM_UP_STEPS) * arguments.batch * size.context
    return {
        "attention": arguments.attention,
        "size": arguments.size,
        "parameters": parameters(model),
        "device": arguments.device,
        "batch": arguments.batch,
        "context": size.context,
        "dropout": size.dropout,
        "seed": arguments.seed,
        "losses": [round(loss.item(), 5) for loss in losses],
        "tokens_per_second": round(tokens_timed / (time.perf_counter() - begin), 1),
        "peak_memory_mb": round(peak_memory_mb(on_gpu), 1),
    }


def synchronize(on_gpu):
    if on_gpu:
        torch.cuda.synchronize()


def peak_memory_mb(on_gpu):
    """GPU: what torch's allocator held at most. CPU: the whole process, torch included."""
    if on_gpu:
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def run_each(arguments):
    """Every attention in a process of its own."""
    runs = []
    for name in SETS[arguments.attention]:
        command = [sys.executable, __file__, *sys.argv[1:], "--attention", name, "--as-json"]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if finished.returncode:
            raise SystemExit(f"the run with {name} failed")
        runs.append(json.loads(finished.stdout))
    return runs


def report(runs):
    first = runs[0]
    print(
        f"{first['size']}: {first['parameters']:,} parameters, context {first['context']}, ", end=""
    )
    print(f"batch {first['batch']}, {first['device']}")
    names = [run["attention"] for run in runs]
    print("step  " + "".join(f"{name:>10}" for name in names))
    steps = len(first["losses"])
    for step in sorted({0, *range(steps - 1, 0, -max(1, steps // 8))}):
        print(f"{step:>4}  " + "".join(f"{run['losses'][step]:>10.4f}" for run in runs))
    for key in ("tokens_per_second", "peak_memory_mb"):
        print(f"{key:<18} " + "  ".join(f"{run['attention']} {run[key]:,.1f}" for run in runs))
    for run in runs[1:]:
        pairs = zip(first["losses"], run["losses"], strict=True)
        largest = max(abs(a - b) for a, b in pairs)
        print(f"largest difference of the losses, {run['attention']}: {largest:.1e}")


def plot(runs, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    for run, style in zip(runs, ("-", "--", ":"), strict=False):
        panel.plot(run["losses"], style, label=run["attention"])
    panel.set_xlabel("step")
    panel.set_ylabel("cross entropy (nats per byte)")
    panel.legend(frameon=False)
    figure.savefig(path, dpi=150)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", choices=(*ATTENTIONS, *SETS), default="both")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, help="tokens a sequence, instead of the size's")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.0, help="GPT-2 has 0.1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--text", type=Path, help="a file to learn from")
    parser.add_argument("--json", type=Path, help="append one JSON object a run to this file")
    parser.add_argument("--plot", type=Path, help="draw the loss curves into this file")
    parser.add_argument("--as-json", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps <= WARM_UP_STEPS:
        parser.error(f"--steps: expected more than {WARM_UP_STEPS}, got {arguments.steps}")
    return arguments


def main():
    arguments = parse_arguments()
    runs = run_each(arguments) if arguments.attention in SETS else [train(arguments)]
    if arguments.as_json:
        print(json.dumps(runs[0]))
        return 0
    report(runs)
    if arguments.json:
        with arguments.json.open("a") as lines:
            lines.writelines(json.dumps(run) + "\n" for run in runs)
    if arguments.plot:
        plot(runs, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
