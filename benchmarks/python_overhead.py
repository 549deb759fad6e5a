# SPDX-License-Identifier: Apache-2.0
"""What a call of fa3 costs before any arithmetic: microseconds of Python, dispatch and checks.

    python3 benchmarks/python_overhead.py
    python3 benchmarks/python_overhead.py --device cuda

On a CPU tensors without elements (batch 0) make a call do everything but attention; on CUDA 16 rows
take the GPU less time than the host. Each line is the best of several repeats of the mean over many
calls. torch's own attention stands beside it, also as examples/gpt calls both: on views of one
projection, under autocast, without gradients.
"""

import argparse
import platform
import timeit

import memory  # noqa: F401  (finds examples/gpt)
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from train import attend_fa3, attend_sdpa

import fa3
import fa3.torch
from fa3 import _native
from fa3.torch.operators import lend

REPEATS = 200
CALLS = 300  # few enough that some repeats are not interrupted


def microseconds(call, arguments):
    call()
    times = timeit.repeat(call, number=arguments.calls, repeat=arguments.repeats)
    return min(times) / arguments.calls * 1e6


def show(contenders, arguments):
    for name, call in contenders.items():
        print(f"{name:<34}{microseconds(call, arguments):>7.2f} us", flush=True)


def alone(batch, on):
    q = torch.zeros(batch, 16, 4, 64, dtype=torch.bfloat16, device=on)
    leaf = torch.zeros_like(q, requires_grad=True)
    swapped = q.transpose(1, 2)
    array = np.empty((0, 16, 4, 64), np.float32)
    out, lse = torch.empty_like(q), torch.empty(batch, 4, 16, device=on)
    native = (lend, q, q, q, out, lse, True)
    one = {"causal": True}
    return {
        "C ABI: view, check, plan, run": lambda: _native.forward(*native),
        "torch.ops.fa3.forward": lambda: torch.ops.fa3.forward.default(q, q, q, True),
        "fa3.torch.attention, inference": lambda: fa3.torch.attention(q, q, q, **one),
        "fa3.attention, torch, inference": lambda: fa3.attention(q, q, q, **one),
        "fa3.attention, torch, recording": lambda: fa3.attention(leaf, leaf, leaf, **one),
        "fa3.attention, numpy": lambda: fa3.attention(array, array, array, **one),
        "torch SDPA, inference": lambda: scaled_dot_product_attention(
            swapped, swapped, swapped, is_causal=True
        ),
        "torch.empty, for scale": lambda: torch.empty(batch, 16, 4, 64, device=on),
    }


def in_a_model(batch, on):
    projection = torch.zeros(batch, 16, 3 * 4 * 64, dtype=torch.bfloat16, device=on)
    qkv = projection.unflatten(-1, (3, 4, -1)).unbind(2)
    return {
        "fa3.attention, in a model": lambda: attend_fa3(*qkv),
        "torch SDPA, in a model": lambda: attend_sdpa(*qkv),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}")
    operands = 1 if arguments.device == "cuda" else 0, arguments.device
    show(alone(*operands), arguments)
    with torch.no_grad(), torch.autocast(arguments.device, torch.bfloat16):
        show(in_a_model(*operands), arguments)


if __name__ == "__main__":
    main()
