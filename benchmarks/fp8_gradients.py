# SPDX-License-Identifier: Apache-2.0
"""How far gradients of attention are from exact ones, in bf16 and in FP8, and how long both take.

    python3 benchmarks/fp8_gradients.py                                  # errors, on the CPU
    python3 benchmarks/fp8_gradients.py --device cuda --json rows.jsonl  # errors and times

Errors are relative, of dQ, dK and dV in the 2-norm, in percent, beside float64 on the same bf16
tensors. Times are of a forward and a backward, quantization included.
"""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from harness import ROOT, parser_of, progress, provenance, time_all, write_rows
from masks import Call

import fa3

ATTENTIONS = {
    "bf16": fa3.attention,
    "FP8, inputs": partial(fa3.attention_fp8, saved="inputs"),
    "FP8, quantized": fa3.attention_fp8,
}
SHAPES = tuple(product((1024, 4096, 16384), (64, 128, 256), (False, True)))


def cases():
    """(name, q, k, v, options); of examples/data, Q, K and V of a trained transformer."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 512, 2, 128)
    k_mean = 3 * torch.randn(128)
    yield "normal", q, k, v, {}
    yield "normal, causal", q, k, v, {"causal": True}
    yield "K has a mean", q, k + k_mean, v, {}
    yield "V has a mean", q, k, 2 + v / 2, {}
    yield "sharp: Q * 4", 4 * q, k, v, {}
    for layer in (0, 2, 5):
        files = (ROOT / f"examples/data/minilm_layer{layer}_{x}.npy" for x in "qkv")
        yield f"MiniLM, layer {layer}", *(torch.from_numpy(np.load(file)) for file in files), {}


def gradients(attend, inputs, do):
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(attend(*leaves), leaves, do.to(leaves[0]))


def errors(device):
    for case, *wide, options in cases():
        inputs = [x.bfloat16() for x in wide]
        do = torch.randn_like(inputs[0])
        exact = gradients(partial(fa3.attention, **options), [x.double() for x in inputs], do)
        on_device = [x.to(device) for x in inputs]
        for name, attend in ATTENTIONS.items():
            found = gradients(partial(attend, **options), on_device, do)
            pairs = zip(found, exact, strict=True)
            percent = [float((a.cpu() - b).norm() / b.norm()) * 100 for a, b in pairs]
            yield {"case": case, "attention": name, "percent": percent}


def times(rounds):
    """b * s = 16k, h * d = 2048."""
    for rows, dim, causal in progress(list(SHAPES)):
        inputs = torch.randn(4, 16384 // rows, rows, 2048 // dim, dim, device="cuda").bfloat16()
        calls = []
        for name, attend in ATTENTIONS.items():
            step = partial(gradients, partial(attend, causal=causal), inputs[:3], inputs[3])
            calls.append(Call(step, "cuda", name))
        timings = time_all(calls, "cuda", rounds)
        for name, timing in timings.items():
            faster = timings["bf16"]["median_ms"] / timing["median_ms"]
            shape = {"seqlen": rows, "head_dim": dim, "causal": causal}
            yield {"attention": name, **shape, "over_bf16": faster, **timing}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    origin = provenance(arguments.device)
    for row in errors(arguments.device):
        told = "".join(f"{x:8.2f}" for x in row["percent"])
        print(f"{row['case']:18} {row['attention']:16}{told}", flush=True)
        write_rows(arguments.json, [row | origin])
    for row in times(arguments.rounds) if arguments.device == "cuda" else ():
        shape = f"s{row['seqlen']} d{row['head_dim']} {'causal' if row['causal'] else 'full'}"
        told = f"{row['median_ms']:8.3f} ms, {row['over_bf16']:.2f} of bf16"
        print(f"{shape:18} {row['attention']:16}{told}", flush=True)
        write_rows(arguments.json, [row | provenance("cuda")])


if __name__ == "__main__":
    main()
