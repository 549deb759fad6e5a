# SPDX-License-Identifier: Apache-2.0
"""Trains one GPT with several attentions on the same batches: losses, gradients and perplexity.

    python3 benchmarks/convergence.py                                # tiny, on the CPU
    python3 benchmarks/convergence.py --device cuda --size gpt2 --seconds 140 --state run.pt \\
        --text FILE --json docs/lab/results/x.jsonl

A run is an attention and a seed. Runs of one seed begin with the same weights and see the same
batches. All runs are in memory and take a step each in turn, so that all have come equally far
whenever the time ends. With --state a later call goes on where the last one ended.

    bf16       fa3.attention, in bf16 under autocast (on a CPU in float32)
    sdpa       torch's attention: how far rounding elsewhere moves a run
    fp8        fa3.attention_fp8(saved="inputs"): forward in FP8, backward from q, k and v as given
    quantized  fa3.attention_fp8: the same, backward from what the forward read
    recomputed the same, backward of bf16 attention, whose forward it computes
    no-mean    broken on purpose: the backward gets the log-sum-exp of K without its mean
    half-dk    broken on purpose: fp8 with half of dK

Rows by `what`:
    loss      of a run: mean training loss (nats a byte) of the last steps, and `held_out` of text
              that no run trains on, each run by its own attention
    gradient  of the weights that make q, k and v in each layer, on one batch at the weights of the
              first run: cosine and relative error beside float32
    swapped   held-out loss of a trained run by each attention, and its perplexity
"""

import itertools
import math
import time
from functools import partial
from pathlib import Path

import memory  # noqa: F401  (finds examples/gpt)
import torch
from harness import numbers, parser_of, provenance, write_rows
from model import GPT, SIZES, parameters
from torch.nn.functional import cross_entropy
from train import attend_fa3, attend_fa3_fp8, attend_sdpa, read_text

import fa3

WARM_UP = 50  # steps of a rising learning rate
HELD_OUT = 0.05  # share of the text, its end
BATCHES_HELD_OUT = 4


class WithoutMean(torch.autograd.Function):
    """FP8 attention whose backward takes K with its mean and the LSE without it: wrong."""

    @staticmethod
    def forward(ctx, q, k, v):
        q8, k8 = fa3.quantize(q, hadamard=True), fa3.quantize(k, hadamard=True, center=True)
        v8 = fa3.quantize(v, center=True)
        scales = {"q_descale": q8.descale, "k_descale": k8.descale, "v_descale": v8.descale}
        options = {"causal": True, "return_lse": True, "v_mean": v8.mean}
        out, lse = fa3.attention(q8.x, k8.x, v8.x, **options, **scales)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, out, lse = ctx.saved_tensors
        return fa3.attention_backward(do.contiguous(), q, k, v, out, lse, causal=True)[:3]


class Recomputed(torch.autograd.Function):
    """The forward in FP8 beside a backward without its rounding."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return fa3.attention_fp8(q, k, v, causal=True)

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        out, lse = fa3.attention(q, k, v, causal=True, return_lse=True)
        return fa3.attention_backward(do.contiguous(), q, k, v, out, lse, causal=True)[:3]


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


attend_from_inputs = partial(fa3.attention_fp8, causal=True, saved="inputs")
ATTENTIONS = {
    "bf16": attend_fa3,
    "sdpa": attend_sdpa,
    "fp8": attend_from_inputs,
    "quantized": attend_fa3_fp8,
    "recomputed": Recomputed.apply,
    "no-mean": WithoutMean.apply,
    "half-dk": lambda q, k, v: attend_from_inputs(q, HalfGradient.apply(k), v),
}


class Text:
    """Bytes on the device; the last ones are held out."""

    def __init__(self, path, context: int, batch: int, device: str):
        data = torch.frombuffer(bytearray(read_text(path)), dtype=torch.uint8).to(device)
        kept = int(len(data) * (1 - HELD_OUT))
        self.train, self.held_out = data[:kept], data[kept:]
        self.context, self.batch = context, batch
        if min(len(self.train), len(self.held_out)) <= context:
            raise SystemExit(f"text: expected held-out text of more than {context} bytes")

    def batch_of(self, seed: int, step: int, data=None):
        """tokens and targets, the same for the same seed and step."""
        data = self.train if data is None else data
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)
        starts = torch.randint(len(data) - self.context, (self.batch,), generator=draw)
        at = starts[:, None] + torch.arange(self.context + 1)
        window = data[at.to(data.device)].long()
        return window[:, :-1], window[:, 1:]


def use(model, attention: str):
    for block in model.blocks:
        block.attention.attend = ATTENTIONS[attention]


class Run:
    def __init__(self, attention: str, seed: int, size, arguments):
        self.attention, self.seed, self.lr = attention, seed, arguments.lr
        self.on_gpu = arguments.device == "cuda"
        torch.manual_seed(seed)
        with torch.device(arguments.device):
            self.model = GPT(size, ATTENTIONS[attention])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.lr, betas=(0.9, 0.95), fused=self.on_gpu
        )
        self.losses = []

    def autocast(self):
        return torch.autocast("cuda", torch.bfloat16, enabled=self.on_gpu)

    def step(self, tokens, targets, number: int):
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, (number + 1) / WARM_UP)
        with self.autocast():
            loss = self.model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def recent_loss(self) -> float:
        """Of the steps since the last call of this."""
        mean = float(torch.stack(self.losses).mean())
        self.losses.clear()
        return mean

    @torch.no_grad()
    def held_out(self, text: Text, attention: str | None = None) -> float:
        use(self.model, attention or self.attention)
        found = []
        for index in range(BATCHES_HELD_OUT):
            tokens, targets = text.batch_of(0, index, text.held_out)
            with self.autocast():
                logits = self.model.logits(tokens)
            found.append(cross_entropy(logits.flatten(0, 1).float(), targets.flatten()))
        use(self.model, self.attention)
        return float(torch.stack(found).mean())

    def gradients(self, text: Text, attention: str | None):
        """(layers, 3, elements) of what makes q, k and v; without an attention in float32."""
        use(self.model, attention or "sdpa")
        tokens, targets = text.batch_of(1, 0, text.held_out)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.on_gpu and attention is not None):
            loss = self.model(tokens, targets)
        weights = [block.attention.qkv.weight for block in self.model.blocks]
        found = torch.autograd.grad(loss, weights)
        use(self.model, self.attention)
        return torch.stack([x.reshape(3, -1) for x in found])


def gradient_rows(run: Run, text: Text, attentions: list[str]) -> list[dict]:
    exact, rows = run.gradients(text, None), []
    for attention in attentions:
        found = run.gradients(text, attention)
        cosine = torch.cosine_similarity(found, exact, dim=-1)
        error = (found - exact).norm(dim=-1) / exact.norm(dim=-1)
        row = {"what": "gradient", "attention": attention}
        for name, values in (("cosine", cosine), ("error", error)):
            row[name] = {x: values[:, at].tolist() for at, x in enumerate("qkv")}
        rows.append(row)
    return rows


def loss_rows(runs: list[Run], text: Text) -> list[dict]:
    return [
        {"what": "loss", "attention": run.attention, "seed": run.seed, "loss": run.recent_loss(),
         "held_out": run.held_out(text)}
        for run in runs
    ]  # fmt: skip


def swapped_rows(runs: list[Run], text: Text) -> list[dict]:
    """What a trained model says when its attention is another's."""
    rows = []
    for run, attention in itertools.product(runs, ("bf16", "sdpa", "fp8")):
        loss = run.held_out(text, attention)
        row = {"what": "swapped", "trained": run.attention, "seed": run.seed}
        rows.append(row | {"attention": attention, "held_out": loss, "perplexity": math.exp(loss)})
    return rows


def told(row: dict) -> str:
    words = [row["what"], f"step {row['step']}", row.get("trained", ""), row["attention"]]
    words += [f"seed {row['seed']}"] if "seed" in row else []
    words += [f"{name} {row[name]:.5f}" for name in ("loss", "held_out") if name in row]
    if row["what"] == "gradient":
        for x in "qkv":
            least, most = min(row["cosine"][x]), max(row["error"][x])
            words.append(f"{x}: cosine from {least:.5f}, error up to {most:.3f};")
    return " ".join(filter(None, words))


def load(path: Path | None, runs: list[Run]) -> int:
    """The step to go on from."""
    if path is None or not path.exists():
        return 0
    kept = torch.load(path, map_location=next(runs[0].model.parameters()).device)
    for run in runs:
        model, optimizer = kept[run.attention, run.seed]
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(optimizer)
    return kept["step"]


def save(path: Path | None, runs: list[Run], step: int):
    if path is not None:
        kept = {"step": step}
        for run in runs:
            states = run.model.state_dict(), run.optimizer.state_dict()
            kept[run.attention, run.seed] = states
        torch.save(kept, path)


def parse_arguments():
    def words(text):
        return text.split(",") if text else []

    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument(
        "--attentions", type=words, default=["bf16", "fp8"], metavar="LIST", help="with every seed"
    )
    parser.add_argument(
        "--once", type=words, default=["sdpa", "no-mean", "half-dk"], metavar="LIST",
        help="with the first seed alone"
    )  # fmt: skip
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2], metavar="LIST")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--steps", type=int, default=10**9, help="at most, of all calls together")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, at most")
    parser.add_argument("--every", type=int, default=20, help="steps between rows of losses")
    parser.add_argument("--compare-every", type=int, default=100, help="and of gradients")
    parser.add_argument("--text", type=Path, help="a file to learn from")
    parser.add_argument("--state", type=Path, help="a file that runs go on from, and are kept in")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    size = SIZES[arguments.size]
    text = Text(arguments.text, size.context, arguments.batch, arguments.device)
    pairs = list(itertools.product(arguments.seeds, arguments.attentions))
    pairs += [(arguments.seeds[0], attention) for attention in arguments.once]
    runs = [Run(attention, seed, size, arguments) for seed, attention in pairs]
    shape = {"size": arguments.size, "parameters": parameters(runs[0].model)}
    shape |= {"text_bytes": len(text.train), "batch": arguments.batch, "context": size.context}
    start, first = time.perf_counter(), load(arguments.state, runs)

    def write(rows: list[dict], step: int):
        gone = time.perf_counter() - start
        tokens = step * arguments.batch * size.context
        for row in rows:
            row |= {"step": step, "tokens": tokens, "seconds": gone} | shape
            print(told(row), flush=True)
            write_rows(arguments.json, [row | provenance(arguments.device)])

    def compare(step: int):
        used = list(dict.fromkeys([*arguments.attentions, *arguments.once]))
        write(gradient_rows(runs[0], text, used), step)

    step = first
    if step == 0:
        compare(step)
    while step < arguments.steps and time.perf_counter() - start < arguments.seconds:
        for seed in arguments.seeds:
            batch = text.batch_of(seed, step)
            for run in runs:
                if run.seed == seed:
                    run.step(*batch, step)
        step += 1
        if step % arguments.every == 0:
            write(loss_rows(runs, text), step)
        if step % arguments.compare_every == 0:
            compare(step)
    if step > first and step % arguments.every:
        write(loss_rows(runs, text), step)
    if step > first and step % arguments.compare_every:
        compare(step)
    write(swapped_rows(runs, text), step)
    save(arguments.state, runs, step)


if __name__ == "__main__":
    main()
