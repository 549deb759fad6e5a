# SPDX-License-Identifier: Apache-2.0
"""Decodes with an attention layer of DeepSeek's shape (MLA) from a paged latent cache.

    python examples/serve/latent_layer.py                # rows of 656 bytes (fp8_ds_mla of vLLM)
    python examples/serve/latent_layer.py --rows latent  # 16-bit rows

Each step takes new tokens of all requests. fa3.mla.append writes a row for each token, 512 latent
and 64 turned rope channels, and turns the queries. fa3.mla.attention attends with queries that have
absorbed the up-projection of keys; the up-projection of values is applied to its output. At the
end every token's output is compared with attention to up-projected keys and values, which needs no
cache. Prints the largest difference.
"""

import argparse
import sys

import torch
from torch import nn

import fa3
from fa3 import mla

LATENT, ROPE = 512, 64
NOPE = VALUE = 128  # head dims before absorption
SCALE = (NOPE + ROPE) ** -0.5
# Of the output, whose numbers are near 1: bfloat16's roundings, and those of e4m3.
TOLERANCE = {"latent": 0.03, "group128": 0.2}


class LatentAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, heads * (NOPE + ROPE), bias=False)
        self.to_latent = nn.Linear(width, LATENT + ROPE, bias=False)
        self.norm = nn.RMSNorm(LATENT)
        self.up = nn.Parameter(torch.randn(heads, NOPE + VALUE, LATENT) * LATENT**-0.5)

    def project(self, x):
        """Tokens (n, width) -> q (n, heads, NOPE) and its rope part, latents and rope of keys."""
        q = self.to_q(x).unflatten(-1, (self.heads, NOPE + ROPE))
        c_kv, k_pe = self.to_latent(x).split([LATENT, ROPE], -1)
        return *q.split([NOPE, ROPE], -1), self.norm(c_kv), k_pe

    def decode(self, x, positions, slots, cache, table, used):
        """New tokens (requests, n, width) of all requests -> (requests, n, heads, VALUE)."""
        q, q_pe, c_kv, k_pe = self.project(x.flatten(0, 1))
        cos, sin = rotary_tables()
        q_pe = mla.append(
            cache,
            c_kv,
            k_pe,
            slots=slots,
            rotary_cos=cos,
            rotary_sin=sin,
            rotary_interleaved=True,
            positions=positions,
            q_pe=q_pe,
        )
        up_k, up_v = self.up.split([NOPE, VALUE], 1)
        absorbed = torch.einsum("nhd,hdc->nhc", q, up_k)
        queries = tuple(part.unflatten(0, x.shape[:2]) for part in (absorbed, q_pe))
        call = {"page_table": table, "seqused_k": used, "causal": True, "scale": SCALE}
        latent = mla.attention(queries, cache, **call)
        return torch.einsum("bnhc,hvc->bnhv", latent, up_v)

    def without_cache(self, x):
        """The same of whole sequences (requests, tokens, width), with up-projected keys."""
        requests, tokens, _ = x.shape
        q, q_pe, c_kv, k_pe = self.project(x.flatten(0, 1))
        up = torch.einsum("nc,hdc->nhd", c_kv, self.up)
        positions = torch.arange(tokens).repeat(requests)
        q = torch.cat((q, turn(q_pe, positions)), -1)
        k_pe = turn(k_pe[:, None], positions).expand(-1, self.heads, -1)
        k = torch.cat((up[..., :NOPE], k_pe), -1)
        parts = (part.unflatten(0, (requests, tokens)) for part in (q, k, up[..., NOPE:]))
        return fa3.attention(*parts, causal=True, scale=SCALE)


def rotary_tables(positions=4096):
    angles = torch.arange(positions)[:, None] * 10000 ** (-torch.arange(ROPE // 2) / (ROPE // 2))
    return angles.cos(), angles.sin()


def turn(x, positions):
    """The rotary embedding of (n, heads, ROPE); a pair is channels 2 i and 2 i + 1."""
    cos, sin = (table[positions][:, None] for table in rotary_tables())
    u, v = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((u * cos - v * sin, v * cos + u * sin), -1).flatten(-2).to(x.dtype)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", choices=TOLERANCE, default="group128")
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=150, help="of each request")
    parser.add_argument("--prompt", type=int, default=100, help="tokens of the first step")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--page-size", type=int, default=64)
    how = parser.parse_args()
    torch.manual_seed(0)
    layer = LatentAttention(256, how.heads).bfloat16()
    x = torch.randn(how.requests, how.tokens, 256).bfloat16()

    pages = -(-how.tokens // how.page_size)  # of a request
    table = torch.randperm(how.requests * pages).view(how.requests, pages).int()
    if how.rows == "latent":
        cache = torch.empty(table.numel(), how.page_size, LATENT + ROPE).bfloat16()
    else:
        cache = mla.empty_cache(table.numel(), how.page_size, rows=how.rows, device="cpu")
    outputs = []
    begin = 0
    while begin < how.tokens:
        end = begin + 1 if begin else min(how.prompt, how.tokens)
        places = torch.arange(begin, end)
        slots = table[:, places // how.page_size] * how.page_size + places % how.page_size
        positions, slots = places.repeat(how.requests).int(), slots.flatten().int()
        used = torch.full((how.requests,), end, dtype=torch.int32)
        outputs.append(layer.decode(x[:, begin:end], positions, slots, cache, table, used))
        begin = end
    difference = (torch.cat(outputs, 1) - layer.without_cache(x)).abs().max().item()
    print(f"{how.requests} requests, {how.tokens} tokens each, {len(outputs)} steps")
    print(f"largest difference from attention without a cache: {difference:.4f}")
    return 0 if difference <= TOLERANCE[how.rows] else 1


if __name__ == "__main__":
    sys.exit(main())
