# SPDX-License-Identifier: Apache-2.0
"""Block masks beside the dense kernels, torch's FlexAttention, and FlashInfer if it is installed.

    python3 benchmarks/block_masks.py --json docs/lab/results/x.jsonl
    python3 benchmarks/block_masks.py --seqlen 8192 --head-dim 128 --cases \
        documents,prefix,chunks,window,dilated --json docs/lab/results/y.jsonl

Maps of 128 queries x 128 keys, drawn at random, the same for all heads: all blocks, a half, a
quarter, a tenth; and rules as maps, a causal mask first (RULES). Lists are those that stay with the
mask; `fa3, own lists` (--own-lists) makes its own in each call, under a mask of its own arrays. A
row's `map` has a line for each row of blocks: hidden ".", full "#", seen in part "+".
FlexAttention has the same mask as a BlockMask, FlashInfer as a block-sparse matrix with the bits of
its blocks (forward alone); who differs from fa3 gets no time.
TFLOP/s count visible pairs; of_dense is the rate over that of the dense kernel with the same
shape, or of the causal one. Timed as harness.py says.
"""

import itertools
from importlib.util import find_spec
from pathlib import Path

import torch
from harness import numbers, parser_of, progress, provenance, time_all, write_rows
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import fa3
from fa3 import masks

PRODUCTS = {"fwd": 2, "bwd": 5}
KEPT = {"full": 1.0, "half": 0.5, "quarter": 0.25, "tenth": 0.1}
MOST_APART = 0.02
BLOCK = masks.BLOCK


def causal(b, h, q, k):
    return q >= k


def documents(b, h, q, k):
    """Causal, in documents of 1500 tokens."""
    return (q // 1500 == k // 1500) & (q >= k)


def prefix(b, h, q, k):
    """All see the first 2500 keys, and those before."""
    return (k < 2500) | (q >= k)


def chunks(b, h, q, k):
    """Block-causal: chunks of 700 see themselves and those before."""
    return q // 700 >= k // 700


def window(b, h, q, k):
    """Causal, the last 1000 keys and the first 100."""
    return ((q - k < 1000) | (k < 100)) & (q >= k)


def dilated(b, h, q, k):
    """Causal, each fourth stretch of 256 keys, and the last 512."""
    return ((k // 256 % 4 == 0) | (q - k < 512)) & (q >= k)


RULES = {rule.__name__: rule for rule in (causal, documents, prefix, chunks, window, dilated)}
DRAWN = {0: ".", -1: "#"}  # of an entry of a map


class Call:
    """A contender, and what it returns."""

    def __init__(self, name, call):
        self.name, self.call = name, call
        self.first = torch.cat([x.float().flatten() for x in call()])
        torch.cuda.synchronize()

    def __call__(self):
        self.call()


def map_of(case, seqlen):
    """(a mask of fa3, torch's, how much of all pairs is seen)"""
    blocks = seqlen // BLOCK
    if case in RULES:
        rule, at = RULES[case], torch.arange(seqlen, device="cuda")
        mine = masks.from_rule(rule, 1, 1, seqlen, seqlen, device="cuda", compact=True)
        theirs = create_block_mask(rule, None, None, seqlen, seqlen, device="cuda")
        return mine, theirs, float(rule(0, 0, at[:, None], at).float().mean())
    draw = torch.Generator("cuda").manual_seed(1)
    kept = torch.rand(1, 1, blocks, blocks, device="cuda", generator=draw) < KEPT[case]
    kept.diagonal(dim1=-2, dim2=-1).fill_(True)
    counts, order = (
        kept.sum(-1).int(),
        kept.int().argsort(dim=-1, descending=True, stable=True).int(),
    )
    theirs = BlockMask.from_kv_blocks(
        torch.zeros_like(counts), order, counts, order, BLOCK_SIZE=BLOCK
    )
    return masks.from_block_map(kept, block=BLOCK), theirs, float(kept.float().mean())


def operands(seqlen, heads, dim):
    shape = (1, seqlen, heads, dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def flex_contender(tensors, theirs, which):
    q, k, v, d_o = tensors
    compiled = torch.compile(flex_attention, dynamic=False)
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    if which == "fwd":
        return Call(
            "FlexAttention", lambda: (compiled(*heads_first, block_mask=theirs).transpose(1, 2),)
        )
    leaves = [x.requires_grad_() for x in heads_first]
    out, upstream = compiled(*leaves, block_mask=theirs), d_o.transpose(1, 2).contiguous()

    def backward():
        gradients = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        return [x.transpose(1, 2) for x in gradients]

    return Call("FlexAttention", backward)


def flashinfer_contender(tensors, mask):
    """The same blocks as the rows of a block-sparse matrix, planned before the clock runs."""
    import flashinfer

    q, k, v = (x[0] for x in tensors[:3])
    (rows, heads, dim), blocks = q.shape, mask.blocks[0, 0]
    seen = blocks != 0
    starts = torch.nn.functional.pad(seen.sum(-1).cumsum(0), (1, 0)).int()
    entries = blocks[seen]
    of_pairs = None
    if (entries > 0).any():
        words = mask.bits[(entries - 1).clamp(min=0)]
        of_pairs = (words[..., None] >> torch.arange(32, device=q.device) & 1).bool().flatten(-2)
        of_pairs |= (entries < 0)[:, None, None]
    wrapper = flashinfer.BlockSparseAttentionWrapper(q.new_empty(128 << 20, dtype=torch.uint8))
    wrapper.plan(
        starts, seen.nonzero()[:, 1].int(), rows, rows, BLOCK, BLOCK, heads, heads, dim,
        mask=of_pairs, q_data_type=q.dtype, o_data_type=q.dtype,
    )  # fmt: skip
    return Call("FlashInfer", lambda: (wrapper.run(q, k, v)[None],))


def own_lists(mask, call_of):
    """A call that makes its lists, by call_of(options): none are kept of a mask of one's own."""
    copy = masks.BlockMask(*(x if x is None else x.clone() for x in mask))
    return Call("fa3, own lists", call_of({"block_mask": copy}))


def sort_out(rivals, ours):
    """Those with our results, and why the others get no time: sentences by name."""
    found, why = [], {}
    for rival in rivals:
        error = float((rival.first - ours.first).norm() / ours.first.norm())
        if error < MOST_APART:
            found.append(rival)
        else:
            why[rival.name] = f"differs from fa3 by {error:.1e}"
    return found, why


def contenders(case, seqlen, heads, dim, which, with_own=False):
    q, k, v, d_o = tensors = operands(seqlen, heads, dim)
    mine, theirs, seen = map_of(case, seqlen)
    dense = {"causal": True} if case == "causal" else {}

    def call_of(options):
        out, lse = fa3.attention(q, k, v, return_lse=True, **options)
        if which == "fwd":
            return lambda: (fa3.attention(q, k, v, **options),)
        return lambda: fa3.attention_backward(d_o, q, k, v, out, lse, **options)[:3]

    found = [Call("dense", call_of(dense)), Call("fa3", call_of({"block_mask": mine}))]
    if with_own:
        found.append(own_lists(mine, call_of))
    rivals, refused = [flex_contender(tensors, theirs, which)], {}
    if which == "fwd" and find_spec("flashinfer"):
        try:
            rivals.append(flashinfer_contender(tensors, mine))
        except Exception as error:  # whatever it raises where it has no kernel
            refused["FlashInfer"] = str(error).splitlines()[0]
    agreeing, why = sort_out(rivals, found[1])
    found, why = found + agreeing, why | refused
    drawn = ["".join(DRAWN.get(x, "+") for x in line) for line in mine.blocks[0, 0].tolist()]
    return found, seen, why, drawn


def write_cell(arguments, row, label, timed, flops, of_dense, left_out, of_fa3=None):
    """Times the contenders of a cell, prints them and writes their rows.

    row: what all rows of the cell have; flops: of the mask's visible pairs; of_dense: of the dense
    contender's; left_out: why rivals are; of_fa3: what fa3's own row has besides.
    """
    times = time_all(timed, "cuda", arguments.rounds)
    best = of_dense / times["dense"]["median_ms"]
    for engine, once in times.items():
        rate = (of_dense if engine == "dense" else flops) / once["median_ms"]
        found = once | {"tflops": rate / 1e9, "of_dense": rate / best}
        print(
            f"{label} {engine:14s} {found['median_ms']:8.3f} ms "
            f"{found['tflops']:6.1f} TFLOP/s, {found['of_dense']:.2f} of dense",
            flush=True,
        )
        more = of_fa3 or {} if engine == "fa3" else {}
        line = {"engine": engine} | row | found | more | provenance("cuda")
        write_rows(arguments.json, [line])
    for engine, sentence in left_out.items():
        print(f"{label} {engine} left out: {sentence}", flush=True)
        left = {"engine": engine} | row | {"left_out": sentence}
        write_rows(arguments.json, [left | provenance("cuda")])


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--seqlen", type=numbers, default=[8192, 16384], metavar="LIST")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128], metavar="LIST")
    parser.add_argument("--pass", dest="passes", default="fwd,bwd", metavar="LIST")
    parser.add_argument("--cases", default=",".join((*KEPT, "causal")), metavar="LIST")
    parser.add_argument("--own-lists", action="store_true", help="also calls that make their lists")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = 1000  # a kernel for each shape
    passes, cases = arguments.passes.split(","), arguments.cases.split(",")
    cells = itertools.product(arguments.head_dim, passes, arguments.seqlen, cases)
    for dim, which, seqlen, case in progress(list(cells)):
        heads = 2048 // dim
        row = {"pass": which, "case": case, "seqlen": seqlen, "heads": heads, "head_dim": dim}
        timed, seen, why, drawn = contenders(case, seqlen, heads, dim, which, arguments.own_lists)
        flops = 2 * PRODUCTS[which] * seqlen * seqlen * seen * heads * dim
        write_cell(
            arguments,
            row,
            f"d{dim} {which} {seqlen} {case:8s}",
            timed,
            flops,
            flops if case == "causal" else flops / seen,
            why,
            {"map": drawn} if case in RULES else None,
        )


if __name__ == "__main__":
    main()
