# SPDX-License-Identifier: Apache-2.0
"""A whole GPT with each attention: time and peak memory of a training step, or of a prefill.

    python3 benchmarks/gpt.py --size 124M --batch 8 --context 1024
    python3 benchmarks/gpt.py --size 124M --work prefill --context 4096,16384
    python3 benchmarks/gpt.py --size 124M,355M,774M --dropout 0.1 --attention fa3,fa2,standard

The model is examples/gpt's at the sizes of GPT-2, in bf16 autocast on CUDA. One model for all
attentions, timed as harness.py says; peak memory is that of a call of its own. A training step is
forward, backward and AdamW; a prefill is a forward up to the last token's logits.
"""

from functools import partial
from itertools import product
from pathlib import Path

import memory
import torch
from harness import numbers, parser_of, progress, provenance, time_all, write_rows
from memory import peak_bytes
from model import GPT, Size, parameters  # examples/gpt, as memory.py found it
from torch.nn.attention import SDPBackend, sdpa_kernel
from train import attend_sdpa

VOCABULARY = 50257
SIZES = {  # layers, heads, width, context
    "tiny": Size(2, 2, 128, 0, VOCABULARY),
    "124M": Size(12, 12, 768, 0, VOCABULARY),
    "355M": Size(24, 16, 1024, 0, VOCABULARY),
    "774M": Size(36, 20, 1280, 0, VOCABULARY),
    "XL": Size(48, 25, 1600, 0, VOCABULARY),
}


def attend_backend(backend, *qkv, **options):
    with sdpa_kernel(backend):
        return attend_sdpa(*qkv, **options)


BACKENDS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
ATTENTIONS = memory.ATTENTIONS | {
    name: partial(attend_backend, backend) for name, backend in BACKENDS.items()
}


class Call:
    """A contender of harness.py: the model's work with one attention."""

    def __init__(self, name, model, work):
        self.name, self.model, self.work = name, model, work

    def __call__(self):
        for block in self.model.blocks:
            block.attention.attend = ATTENTIONS[self.name]
        self.work()


def training_step(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def prefill(model, tokens):
    model.eval()

    @torch.no_grad()
    def forward():
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            model.logits(tokens, last=1)

    return forward


WORK = {"training": training_step, "prefill": prefill}


def measure(calls, device, rounds) -> dict:
    """By attention: the columns of its row; "left_out" is why it could not run."""
    found, ready = {}, []
    for call in calls:
        try:
            call()
            found[call.name] = {"peak_bytes": peak_bytes(call, device)}
            ready.append(call)
        except RuntimeError as error:
            found[call.name] = {"left_out": str(error).splitlines()[0]}
    for name, timing in time_all(ready, device, rounds).items():
        found[name] |= timing
    return found


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--work", choices=WORK, default="training")
    parser.add_argument("--size", type=lambda text: text.split(","), default=["124M"])
    parser.add_argument("--context", type=numbers, default=[1024], metavar="LIST")
    parser.add_argument("--tokens", type=int, help="batch = tokens / context; without it 1")
    parser.add_argument(
        "--attention", type=lambda text: text.split(","), default=[*memory.ATTENTIONS],
        metavar="LIST", help=f"of {', '.join(ATTENTIONS)}"
    )  # fmt: skip
    parser.add_argument("--dropout", type=float, default=0.0, help="while training")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    for size, context in progress(list(product(arguments.size, arguments.context))):
        batch = max(1, arguments.tokens // context) if arguments.tokens else 1
        with torch.device(arguments.device):
            model = GPT(SIZES[size]._replace(context=context, dropout=arguments.dropout), None)
        tokens = torch.randint(VOCABULARY, (batch, context), device=arguments.device)
        work = WORK[arguments.work](model, tokens)
        calls = [Call(name, model, work) for name in arguments.attention]
        found = measure(calls, arguments.device, arguments.rounds)
        shape = {"size": size, "parameters": parameters(model), "batch": batch, "context": context}
        shape |= {"dropout": arguments.dropout} if arguments.dropout else {}
        rows = []
        for name, columns in found.items():
            row = {"engine": name, "pass": arguments.work, **shape, **columns}
            if "median_ms" in row:
                row["tokens_per_second"] = batch * context / row["median_ms"] * 1e3
            rows.append(row | provenance(arguments.device))
            print(f"{size} {batch} x {context} {name}: {columns}", flush=True)
        write_rows(arguments.json, rows)


if __name__ == "__main__":
    main()
