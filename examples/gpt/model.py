# SPDX-License-Identifier: Apache-2.0
"""A GPT in torch, as small as it can be written: the attention is an argument.

attend(q, k, v) takes (batch, seq, heads, dim) tensors and is causal; with dropout also dropout_p.
train.py passes fa3's or torch's. Sizes follow GPT-2: pre-norm blocks, learned positions, GELU, tied
embeddings, dropout of the attention, of the embeddings and of what a block adds.
"""

from typing import NamedTuple

import torch
from torch import nn


class Size(NamedTuple):
    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int = 256  # bytes
    dropout: float = 0.0


SIZES = {
    "tiny": Size(layers=3, heads=4, width=128, context=64),
    "nano": Size(layers=6, heads=6, width=384, context=256),
    "gpt2": Size(layers=12, heads=12, width=768, context=1024),
}


class Attention(nn.Module):
    def __init__(self, size, attend):
        super().__init__()
        self.heads = size.heads
        self.attend = attend
        self.dropout = size.dropout
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        dropout = {"dropout_p": self.dropout} if self.training and self.dropout else {}
        return self.out(self.attend(q, k, v, **dropout).flatten(2))


class Block(nn.Module):
    def __init__(self, size, attend):
        super().__init__()
        self.norm_attention = nn.LayerNorm(size.width)
        self.attention = Attention(size, attend)
        self.norm_mlp = nn.LayerNorm(size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * size.width, size.width),
        )
        self.drop = nn.Dropout(size.dropout)

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm_attention(x)))
        return x + self.drop(self.mlp(self.norm_mlp(x)))


class GPT(nn.Module):
    def __init__(self, size, attend):
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(Block(size, attend) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.apply(initialise)
        for block in self.blocks:  # so that the sum over the residual stream keeps its variance
            for last in (block.attention.out, block.mlp[-1]):
                nn.init.normal_(last.weight, std=0.02 / (2 * size.layers) ** 0.5)

    def logits(self, tokens, last=0):
        """(batch, seq) -> (batch, seq, vocabulary), or of the last tokens alone."""
        x = self.drop(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.norm(x[:, -last:]) @ self.tokens.weight.T

    def forward(self, tokens, targets):
        """tokens and targets (batch, seq) -> the mean cross entropy in nats per token."""
        logits = self.logits(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def initialise(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def parameters(model):
    return sum(p.numel() for p in model.parameters() if torch.is_floating_point(p))
