# SPDX-License-Identifier: Apache-2.0
"""A small layer of DeepSeek's sparse attention learns, as its dense equivalent if it selects all.

The task: a token's answer is the token that stands a fixed distance before it.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from torch import nn  # noqa: E402

from fa3 import mla  # noqa: E402

SYMBOLS, TOKENS, BATCH, WIDTH, HEADS, BACK = 8, 24, 4, 48, 2, 5


class Layer(nn.Module):
    """Latent attention over all rows before a query, or over those that an indexer chooses."""

    def __init__(self, selected):
        super().__init__()
        self.selected = selected
        self.tokens, self.positions = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.to_q = nn.Linear(WIDTH, HEADS * 576, bias=False)
        self.to_kv = nn.Linear(WIDTH, 576, bias=False)
        self.sink = nn.Parameter(torch.zeros(HEADS))
        self.to_logits = nn.Linear(HEADS * 512, SYMBOLS)
        self.index_q = nn.Linear(WIDTH, 16, bias=False)
        self.index_k = nn.Linear(WIDTH, 16, bias=False)

    def forward(self, tokens):
        """(logits, the indexer's loss)"""
        x = self.tokens(tokens) + self.positions.weight
        q = self.to_q(x).unflatten(-1, (HEADS, 576))
        kv = self.to_kv(x)
        if self.selected is None:
            keys = kv[:, :, None]
            out = fa3.attention(q, keys, keys[..., :512], causal=True, sink=self.sink)
            return self.to_logits(out.flatten(-2)), 0
        # The indexer learns the heads' mean weights; the layer has no gradient of it.
        x = x.detach()
        scores = self.index_q(x) @ self.index_k(x).transpose(1, 2) / 4
        hidden = torch.ones(TOKENS, TOKENS, device=x.device).triu(1).bool()
        scores = scores.masked_fill(hidden, -1e9)
        indices = scores.topk(self.selected).indices
        out = mla.sparse_attention(q, kv, indices, sink=self.sink, causal=True)
        with torch.no_grad():
            dense = torch.einsum("bihd,bjd->bhij", q, kv) * 576**-0.5
            aim = dense.masked_fill(hidden, -torch.inf).softmax(-1).mean(1)
        indexer_loss = nn.functional.kl_div(scores.log_softmax(-1), aim, reduction="batchmean")
        return self.to_logits(out.flatten(-2)), indexer_loss / TOKENS


def losses(selected, steps, device="cpu"):
    """On a GPU in bfloat16, as its gradients are."""
    torch.manual_seed(0)
    layer = Layer(selected).to(device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        tokens = torch.randint(SYMBOLS, (BATCH, TOKENS)).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            logits, of_indexer = layer(tokens)
        loss = nn.functional.cross_entropy(
            logits[:, BACK:].flatten(0, 1).float(), tokens[:, :-BACK].flatten()
        )
        optimizer.zero_grad()
        (loss + of_indexer).backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_layer_that_selects_all_rows_learns_as_a_dense_one():
    dense, sparse = losses(None, 12), losses(TOKENS, 12)
    torch.testing.assert_close(torch.tensor(sparse), torch.tensor(dense), rtol=2e-3, atol=2e-3)
    assert dense[-1] < dense[0]


def test_a_layer_that_selects_a_third_of_the_rows_learns_the_task():
    found = losses(TOKENS // 3, 70)
    assert found[0] > 2 and sum(found[-10:]) / 10 < 0.2


def test_a_layer_on_a_gpu_learns_as_on_the_cpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no H100 or H200 is here, which alone have kernels for these gradients")
    selected = TOKENS // 3
    cpu, gpu = (torch.tensor(losses(selected, 70, device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu[:10], cpu[:10], rtol=3e-2, atol=3e-2)
    assert gpu[-10:].mean() < 0.2
