# SPDX-License-Identifier: Apache-2.0
"""A Llama of Hugging Face Transformers with each attn_implementation, on random weights.

    python3 benchmarks/llama.py --layers 1,8,32 --work training,prefill --context 2048 --batch 2
    python3 benchmarks/llama.py --layers 1 --work training --compile no,default --attention sdpa,fa3
    python3 benchmarks/llama.py --layers 32 --work decode --context 4096 --batch 1,16,64
    python3 benchmarks/llama.py --device cpu --size tiny --layers 2 --work training,prefill,decode

A training step is forward, loss and backward; a prefill is a forward up to the last token's logits;
decode is one more token of each sequence over a cache of `--context` tokens. --padded: the first
sequence of a batch is a quarter shorter. The model, in bf16, has the layers of Llama-3.1-8B, and as
many as --layers says. One model for all attentions, timed as harness.py says. A row has also:

    host_ms       until the host has queued the whole call
    peak_bytes    memory in use at most, weights and cache among it
    waits         how often the host waits for the device in one call (CUDA alone); where: printed
    compiled      false, or torch.compile's mode; each cell is compiled for its own shape
    first_s       seconds of the first call, what is compiled in it among them
    graph_breaks  of a compiled model's first call; and `graphs`
    differs       the last logits, from the first attention's, relative to their size
"""

import itertools
import statistics
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
import transformers
from gpt import measure
from harness import numbers, parser_of, progress, provenance, write_rows
from torch.nn.attention import SDPBackend, sdpa_kernel

import fa3.hf  # noqa: F401  (adds the names to Transformers)

SIZES = {  # width, width of the MLP, heads, heads of keys, vocabulary
    "tiny": (64, 128, 4, 2, 256),
    "8B": (4096, 14336, 32, 8, 128256),
}
BACKENDS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}
ATTENTIONS = ["sdpa", "eager", *BACKENDS, "fa3", "flash_fa3", "fa3_flex", "fa3_fp8"]


def make_model(size: str, layers: int, device: str):
    width, wide, heads, kv_heads, vocabulary = SIZES[size]
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=wide, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocabulary, num_hidden_layers=layers,
        max_position_embeddings=131072, rope_theta=500000.0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def made_batch(model, batch: int, context: int, padded: bool, left: bool) -> dict:
    """input_ids and, where padded, attention_mask."""
    ids = torch.randint(model.config.vocab_size, (batch, context), device=model.device)
    if not padded:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, -(context // 4) :] = 0
    return {"input_ids": ids, "attention_mask": mask.flip(1) if left else mask}


def training(model, call, batch, context, padded, cache):
    model.train()
    inputs = made_batch(model, batch, context, padded, left=False)
    hidden = 1 - inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    labels = inputs["input_ids"].masked_fill(hidden.bool(), -100)

    def step():
        result = call(**inputs, labels=labels, use_cache=False)
        result.loss.backward()
        model.zero_grad(set_to_none=True)
        return result.logits[-1:, -1:].detach()

    return step


def prefill(model, call, batch, context, padded, cache):
    model.eval()
    inputs = made_batch(model, batch, context, padded, left=True)

    @torch.no_grad()
    def forward():
        return call(**inputs, use_cache=False, logits_to_keep=1).logits

    return forward


def filled_cache(model, batch: int, context: int, kind: str):
    """Random keys and values of context - 1 tokens in every layer."""
    config, rows = model.config, context - 1
    if kind == "static":
        cache = transformers.StaticCache(config=config, max_cache_len=context)
    else:
        cache = transformers.DynamicCache(config=config)
    shape = (batch, config.num_key_value_heads, rows, config.head_dim)
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.randn(shape, device=model.device, dtype=model.dtype) for _ in "kv")
        cache.update(keys, values, layer)
    return cache


def take_back(cache, kind: str, rows: int):
    """The cache as it was before the last step."""
    for layer in cache.layers:
        if kind == "static":
            layer.cumulative_length.fill_(rows)
        else:
            layer.keys, layer.values = layer.keys[:, :, :rows], layer.values[:, :, :rows]


def decode(model, call, batch, context, padded, cache):
    model.eval()
    inputs = made_batch(model, batch, context, padded, left=True)
    inputs["input_ids"] = inputs["input_ids"][:, -1:]
    kept = filled_cache(model, batch, context, cache)

    @torch.no_grad()
    def step():
        logits = call(**inputs, past_key_values=kept).logits
        take_back(kept, cache, context - 1)
        return logits

    return step


WORK = {"training": training, "prefill": prefill, "decode": decode}


class Contender:
    """A contender of harness.py: the model's work with one attention, compiled or not."""

    def __init__(self, engine, mode, model, work):
        self.engine, self.model, self.work = engine, model, work
        self.compiled = mode != "no" and mode
        self.name = engine + f", {mode}" * bool(self.compiled)
        self.implementation = "sdpa" if engine in BACKENDS else engine
        self.host_ms = []

    def __call__(self):
        self.model.set_attn_implementation(self.implementation)
        chosen = sdpa_kernel(BACKENDS[self.engine]) if self.engine in BACKENDS else nullcontext()
        start = time.perf_counter()
        with chosen:
            found = self.work()
        self.host_ms.append(1e3 * (time.perf_counter() - start))
        return found

    def waits(self) -> list[str]:
        """Where the host waits for the device in one call of this."""
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self()
        torch.cuda.set_sync_debug_mode("default")
        return [
            f"{Path(one.filename).name}:{one.lineno}"
            for one in said
            if "called a synchronizing CUDA operation" in str(one.message)
        ]


def first_calls(contenders: list) -> dict:
    """By name: what a row says besides times; "left_out" is why a contender cannot run."""
    found, expected = {}, None
    for one in contenders:
        torch._dynamo.utils.counters.clear()
        try:
            start = time.perf_counter()
            logits = one().float()
            expected = logits if expected is None else expected
            columns = {"differs": float((logits - expected).norm() / expected.norm())}
            columns["first_s"] = time.perf_counter() - start
            if one.compiled:
                counted = torch._dynamo.utils.counters
                columns["graph_breaks"] = sum(counted["graph_break"].values())
                columns["graphs"] = counted["stats"]["unique_graphs"]
            print(f"{one.name}: {columns}", flush=True)
            if logits.is_cuda:
                places = one.waits()
                columns["waits"] = len(places)
                print(f"{one.name} waits at: {', '.join(places) or 'no line'}", flush=True)
            found[one.name] = columns
        except RuntimeError as error:
            found[one.name] = {"left_out": str(error).splitlines()[0]}
        one.host_ms.clear()
    return found


def parse_arguments():
    def words(text):
        return text.split(",")

    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--size", choices=SIZES, default="8B")
    parser.add_argument("--layers", type=numbers, default=[32], metavar="LIST")
    parser.add_argument("--work", type=words, default=["prefill"], metavar="LIST")
    parser.add_argument("--batch", type=numbers, default=[1], metavar="LIST")
    parser.add_argument("--context", type=numbers, default=[2048], metavar="LIST")
    parser.add_argument("--padded", type=numbers, default=[0], metavar="LIST", help="0, 1 or 0,1")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic")
    parser.add_argument(
        "--attention", type=words, default=["sdpa", "eager", "fa3"], metavar="LIST",
        help=f"of {', '.join(ATTENTIONS)}"
    )  # fmt: skip
    parser.add_argument(
        "--compile", type=words, default=["no"], metavar="LIST",
        help="no, and modes of torch.compile(model): default, reduce-overhead, max-autotune"
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    return parser.parse_args()


def cell_rows(model, work, batch, context, padded, arguments) -> list[dict]:
    contenders = []
    torch._dynamo.reset()  # else another shape than the last cell's makes sizes dynamic
    for mode in arguments.compile:
        call = model if mode == "no" else torch.compile(model, mode=mode)
        torch.manual_seed(0)
        made = WORK[work](model, call, batch, context, bool(padded), arguments.cache)
        contenders += [Contender(name, mode, model, made) for name in arguments.attention]
    found = first_calls(contenders)
    ready = [one for one in contenders if "left_out" not in found[one.name]]
    timed = measure(ready, arguments.device, arguments.rounds)
    rows = []
    for one in contenders:
        row = {
            "engine": one.engine, "pass": work, "size": arguments.size, "batch": batch,
            "layers": model.config.num_hidden_layers, "context": context, "padded": bool(padded),
            "compiled": one.compiled, **found[one.name], **timed.get(one.name, {}),
        }  # fmt: skip
        if work == "decode":
            row["cache"] = arguments.cache
        if "median_ms" in row:
            row["host_ms"] = statistics.median(one.host_ms)
            tokens = batch * (1 if work == "decode" else context)
            row["tokens_per_second"] = tokens / row["median_ms"] * 1e3
        rows.append(row)
    return rows


def main():
    arguments = parse_arguments()
    torch._dynamo.config.recompile_limit = 64  # one program for each attention
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for layers in arguments.layers:
        model = make_model(arguments.size, layers, arguments.device)
        cells = itertools.product(
            arguments.work, arguments.padded, arguments.batch, arguments.context
        )
        for work, padded, batch, context in progress(list(cells)):
            for row in cell_rows(model, work, batch, context, padded, arguments):
                if "median_ms" in row:
                    said = "{median_ms:.2f} ms, host {host_ms:.2f}, {peak_bytes} bytes".format(
                        **row
                    )
                    said += f", waits {row.get('waits')}, differs {row['differs']:.1e}"
                    said += f", breaks {row['graph_breaks']}" if row["compiled"] else ""
                else:
                    said = row["left_out"]
                where = f"{layers} layers {work} {batch} x {context} padded {padded}"
                name = row["engine"] + f", {row['compiled']}" * bool(row["compiled"])
                print(f"{where} {name}: {said}", flush=True)
                write_rows(arguments.json, [row | versions | provenance(arguments.device)])
        del model


if __name__ == "__main__":
    main()
