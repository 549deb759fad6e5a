# SPDX-License-Identifier: Apache-2.0
"""What `make report` measures: one row a piece. Next: figures.py and tables.py,
which show what they wrote."""

from collections.abc import Callable
from dataclasses import dataclass

import figures
import tables


@dataclass(frozen=True)
class Piece:
    name: str  # of its files, results/MACHINE/name.jsonl and figures/MACHINE/name.svg in docs/lab
    title: str
    words: str  # of the page
    program: str  # in benchmarks/, with its options: what writes the rows
    seconds: float  # about, where it was written; the estimate of what is left goes by it
    draw: Callable | None  # rows -> a figure
    table: Callable | None = None  # rows -> lines of Markdown
    needs: str = "torch"  # a module without which it cannot run

    def command(self) -> list[str]:
        return self.program.split()


def pieces(device: str, quick: bool) -> list[Piece]:
    return on_cuda(quick) if device == "cuda" else on_cpu(quick)


PAPER = (
    "Tokens (batch times length) and hidden size (heads times head dim) are constant, as in the "
    "paper. Standard attention is torch with S and P stored."
)
BESIDE_FP8 = (
    "Tokens (batch times length) and hidden size (heads times head dim) are constant, as in the "
    'paper. Contenders without "e4m3" in their name run in bf16, "fa3" too: where its speed over '
    "that of e4m3 is below 1, FP8 is faster."
)
ERRORS = (
    "Root mean square of O minus float64's. q*1: normal data; v+2: V has the mean 2, as real V "
    "have means; outliers: N(0, 1) + N(0, 100) Bernoulli(0.001), the data of the paper's Table 3."
)
MEMORY = (
    "What a call adds at most to Q, K and V. Hollow points are computed: S and P alone, where "
    "standard attention does not fit."
)
GPT = "examples/gpt at the sizes of GPT-2; a training step is forward, backward and AdamW."
DROPOUT = "Dropout 0.1 of the attention, the embeddings and what a block adds."
PREFILL = "A forward up to the last token's logits, by length of the prompt."
DECODE = (
    "One query a sequence, 32 query heads to 8 key heads of 128; GB/s of K, V, Q and O, each read "
    "or written once. `copy` is what the memory does beside it."
)
WIDE = (
    "Heads of 192 columns with values of 128, as DeepSeek's models have them before absorption; 16 "
    "heads, 16k tokens."
)
STEPS = (
    "Llama-3.1-8B's layers in Hugging Face Transformers, random weights, bf16. Waits: calls of the "
    "host that wait for the GPU. The host's time ends when the whole call is queued."
)
ABLATION = (
    "fp16, 4 sequences of 8448 tokens, no mask, hidden size 2048. `tutorial` is "
    "src/engine/hopper/tutorial/plain_kernel.cuh; a variant differs from it in one idea."
)
BLOCK_MASKS = (
    "One sequence of 8,192 tokens, hidden size 2048, maps of blocks of 128 x 128 beside "
    "FlexAttention, which torch compiles, with the same mask. TFLOP/s over visible pairs. The "
    "picture has heads of 128."
)
JAX = (
    "16k tokens, hidden size 2048: fa3.jax.attention beside jax.nn.dot_product_attention, which "
    "calls cuDNN, and beside tokamax's Mosaic GPU kernel. Calls are queued one behind the other, "
    "so the L2 cache is warm and the power limit counts."
)
FP8_PACKED = (
    "fa3.attention_fp8 as called, quantization included, beside fa3.attention: 16 sequences of one "
    "length, dense and packed, and packed ones of 16 tokens and more. Hidden size 2048."
)
MASKS = "TFLOP/s over visible pairs of a query and a key; ragged batches are packed (cu_seqlens)."


def on_cuda(quick: bool) -> list[Piece]:
    lengths = "1024,4096,16384" if quick else "512,1024,2048,4096,8192,16384"
    rounds = 5 if quick else 15
    grid = f"--device cuda --seqlen {lengths} --tokens 16384 --hidden 2048 --rounds {rounds} "
    grid += "--head-dim 64,128,256 --ceilings"
    long = "1024,4096,16384" if quick else "1024,2048,4096,8192,16384,32768"
    heads = "--heads 32:4:128 --rounds 5" if quick else ""
    each = "1 --head-dim 128" if quick else "3 --head-dim 64,128,256"
    sizes = "124M" if quick else "124M,355M"
    all_sizes = "124M" if quick else "124M,355M,774M"
    four_sizes = "124M" if quick else f"{all_sizes},XL"
    bars, errors = figures.bars, figures.errors
    wide = "--device cuda --dtype bf16 --head-dim 192:128 --heads 16 --tokens 16384 --seqlen "
    wide += f"{lengths} --rounds {rounds}"
    layers, depths = ("8", "1,8") if quick else ("32", "1,8,32")
    few = "1 --work training" if quick else "1,4 --work training,prefill,decode"
    dims = "128" if quick else "64,128"
    in_jax = "jax_attention.py --device cuda --tokens 16384 --hidden 2048 --head-dim 64,128,256 "
    in_jax += "--rounds 5 --seqlen "
    everything = "sdpa,eager,fa3,flash_fa3,fa3_flex"
    # Triton compiles for long; its backward takes four minutes (rivals.py --triton).
    all_of_them = "--standard" if quick else "--standard --triton"
    return [
        Piece("forward", "Forward, bf16 (Figure 5)", PAPER,
              f"rivals.py --dtype bf16 {grid} {all_of_them}", 60, bars, tables.ratios),
        Piece("forward-fp16", "Forward, fp16 (Figure 5)", PAPER,
              f"rivals.py --dtype fp16 {grid} --standard", 20, bars, tables.ratios),
        Piece("backward", "Backward, bf16 (Figure 6)", PAPER,
              f"rivals.py --pass bwd --dtype bf16 {grid} --standard", 60, bars, tables.ratios),
        Piece("fp8", "FP8 forward (Figure 7)", BESIDE_FP8,
              f"rivals.py --dtype e4m3 {grid}", 50, bars, tables.ratios),
        Piece("sustained", "Without a break",
              "Each contender alone, call after call: the clock is what the power limit leaves.",
              f"rivals.py --device cuda --dtype bf16 --seqlen 8192 --tokens 16384 --hidden 2048 "
              f"--ceilings --sustained {each}", 120, None, tables.power),
        Piece("masks", "Windows, softcap, sinks, ragged batches", MASKS,
              f"masks.py {heads}", 30, figures.cases, tables.case_ratios),
        Piece("masks-backward", "Windows, softcap, sinks, ragged batches: backward", MASKS,
              f"masks.py --pass bwd {heads}", 40, figures.cases, tables.case_ratios),
        Piece("block-masks", "Block masks", BLOCK_MASKS,
              f"block_masks.py --seqlen 8192 --head-dim {dims} --cases "
              f"causal,documents,prefix,chunks,window,dilated --rounds {rounds}",
              90, figures.mask_kinds, tables.mask_ratios),
        Piece("fp8-packed", "FP8 of packed batches", FP8_PACKED,
              "masks.py --fp8 --rounds 7 --seqlen 4096,8192,16384,32768,65536 --heads "
              "32:32:64,16:16:128,8:8:256 --cases 16x,log-uniform",
              40, None, tables.case_ratios),
        Piece("quantizer", "The quantizer", "GB/s of a call and of a copy beside it.",
              "quantizer.py", 15, None, tables.quantizer),
        Piece("decode", "Decoding", DECODE,
              f"rivals.py --device cuda --dtype bf16 --seqlen 1 --seqlen-k {long} --batch 1,16,64 "
              f"--heads 32 --kv-heads 8 --head-dim 128 --causal 0 --rounds {rounds} --ceilings",
              30, figures.decoding),
        Piece("errors", "Errors (Table 3), and against length", ERRORS,
              f"data.py --errors --dtype fp16,bf16,e4m3 --kinds q*1,v+2,outliers --seqlen {long} "
              "--head-dim 128 --causal 0 --standard --tokens 16384", 40, errors, tables.table3),
        Piece("memory", "Memory against length", MEMORY,
              f"memory.py --pass fwd,bwd --seqlen {long}", 20, figures.memory),
        Piece("training", "Training GPT-2", GPT,
              f"gpt.py --size {sizes} --context 1024,4096,16384 --tokens 16384 --rounds {rounds}",
              60, None, tables.models),
        Piece("training-sizes", "Training GPT-2, four sizes", GPT,
              f"gpt.py --size {four_sizes} --context 1024,2048 --tokens 16384 --attention fa3,sdpa "
              "--rounds 3", 40, None, tables.models),
        Piece("training-dropout", "Training GPT-2 with dropout", f"{GPT} {DROPOUT}",
              f"gpt.py --size {all_sizes} --context 1024,4096 --tokens 16384 --dropout 0.1 "
              f"--attention fa3,fa2,cudnn,standard --rounds {rounds}", 60, None, tables.models),
        Piece("prefill", "Prefill", PREFILL,
              f"gpt.py --work prefill --size 124M --context {long} --rounds {rounds}",
              30, figures.prefill, tables.models),
        Piece("wide-forward", "Heads of 192 columns, values of 128: forward", WIDE,
              f"rivals.py {wide}", 20, None, tables.cells),
        Piece("wide-backward", "Heads of 192 columns, values of 128: backward", WIDE,
              f"rivals.py {wide} --pass bwd", 25, None, tables.cells),
        Piece("wide-deterministic", "Heads of 192 columns, values of 128: deterministic", WIDE,
              f"rivals.py {wide} --pass bwd --deterministic", 20, None, tables.cells),
        Piece("ablation", "What each idea is worth (Table 2)", ABLATION,
              f"ablation.py --rounds {rounds}", 30, None, tables.ablation),
        Piece("steps", "Transformers: training steps and prefills", STEPS,
              f"llama.py --layers {depths} --work training,prefill --batch 2 --context 2048 "
              f"--padded 0,1 --attention {everything} --rounds 3", 90, None, tables.steps),
        Piece("steps-compiled", "Transformers: compiled", f"{STEPS} torch.compile(model).",
              f"llama.py --layers {few} --batch 2 --context 2048 "
              "--cache static --compile no,default --attention sdpa,fa3 --rounds 5",
              270, None, tables.steps),
        Piece("llama-prefill", "Llama 8B: prefill", STEPS,
              f"llama.py --layers {layers} --work prefill --context 1024,4096,32768 --attention "
              "sdpa-flash,sdpa-cudnn,eager,fa3,fa3_fp8 --rounds 2", 60, None, tables.steps),
        Piece("llama-decode", "Llama 8B: decoding", STEPS,
              f"llama.py --layers {layers} --work decode --context 4096 --batch 1,16,64 "
              f"--attention sdpa,eager,fa3 --rounds {rounds}", 40, None, tables.steps),
        Piece("llama-decode-static", "Llama 8B: decoding, static cache", STEPS,
              f"llama.py --layers {layers} --work decode --cache static --context 4096 --batch "
              f"1,16,64 --attention sdpa,fa3 --rounds {rounds}", 40, None, tables.steps),
        Piece("jax-forward", "JAX: forward", JAX,
              f"{in_jax}1024,4096,16384", 65, bars, tables.ratios, needs="jax"),
        Piece("jax-backward", "JAX: backward", JAX,
              f"{in_jax}4096,16384 --pass bwd", 120, bars, tables.ratios, needs="jax"),
    ]  # fmt: skip


def on_cpu(quick: bool) -> list[Piece]:
    lengths = "512,2048" if quick else "512,1024,2048,4096"
    rounds = 3 if quick else 9
    grid = f"--device cpu --seqlen {lengths} --head-dim 64,128 --rounds {rounds} --ceilings"
    rest = f"--device cpu --rounds {rounds}"
    bars = figures.bars
    return [
        Piece("forward-fp32", "Forward, fp32", "8 heads, batch 1.",
              f"rivals.py --dtype fp32 {grid} --standard", 30, bars, tables.ratios),
        Piece("forward-bf16", "Forward, bf16", "8 heads, batch 1.",
              f"rivals.py --dtype bf16 {grid} --standard", 30, bars, tables.ratios),
        Piece("backward", "Backward, fp32", "8 heads, batch 1.",
              f"rivals.py --pass bwd --dtype fp32 {grid} --standard", 60, bars, tables.ratios),
        Piece("fp8", "FP8 forward", "Tensors of e4m3 numbers: half of bf16's memory.",
              f"rivals.py --dtype e4m3 {grid}", 30, bars, tables.ratios),
        Piece("masks", "Windows, softcap, sinks, ragged batches", MASKS,
              f"masks.py --seqlen {512 if quick else 2048} --heads 32:4:128 {rest}",
              20, figures.cases),
        Piece("decode", "Decoding", DECODE,
              f"rivals.py {rest} --dtype bf16 --seqlen 1 --seqlen-k 1024,4096,16384 --batch 1,4 "
              "--heads 32 --kv-heads 8 --head-dim 128 --causal 0 --ceilings", 20, figures.decoding),
        Piece("errors", "Errors (Table 3), and against length", ERRORS,
              "data.py --errors --device cpu --dtype fp16,bf16,e4m3 --kinds q*1,v+2,outliers "
              f"--seqlen {lengths} --head-dim 128 --causal 0 --standard --tokens 1 --hidden 128",
              20, figures.errors, tables.table3),
        Piece("memory", "Memory against length", MEMORY,
              "memory.py --device cpu --dtype fp32 --batch 1 --heads 8 --pass fwd,bwd --seqlen "
              + ("1024,4096" if quick else "1024,2048,4096,8192,16384"), 60, figures.memory),
        Piece("prefill", "Prefill", PREFILL,
              f"gpt.py --work prefill --size 124M --context {lengths} {rest}",
              30, figures.prefill, tables.models),
    ]  # fmt: skip
