# SPDX-License-Identifier: Apache-2.0
"""Serves many requests at once from one paged cache: continuous batching with fa3.

    python examples/serve/serve.py                 # on the CPU, under a minute
    python examples/serve/serve.py --device cuda   # on a Hopper GPU, in bfloat16
    python examples/serve/serve.py --api vllm      # attention called as vLLM calls it; or sglang

Trains the byte-level GPT of examples/gpt for a moment, then answers prompts of many lengths.
Requests join when there is room and leave when they are done. Each step is one batch: pieces of
new prompts beside one token of everybody else, packed, in two calls a layer: fa3.append and, from
attention_calls.py, the attention of one of three interfaces. At the end every answer is generated
again, alone and without a cache, and must be the same, up to the roundings of its type. Prints
tokens per second.
"""

import argparse
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import torch
from attention_calls import BY_API, Step

import fa3

sys.path.insert(0, str(Path(__file__).parents[1] / "gpt"))
from model import GPT, SIZES
from train import attend_fa3, batches, read_text


@dataclass
class Request:
    prompt: list
    wanted: int  # tokens to generate
    answer: list = field(default_factory=list)
    scores: list = field(default_factory=list)  # the logit of each token of the answer
    pages: list = field(default_factory=list)
    cached: int = 0  # tokens whose keys and values are in the cache

    def tokens(self):
        return self.prompt + self.answer

    def is_done(self):
        return len(self.answer) == self.wanted


class PagedCache:
    """Keys and values of every layer in pages of `page_size` tokens, and who owns which."""

    def __init__(self, size, num_pages, page_size, dtype):
        shape = (size.layers, num_pages, page_size, size.heads, size.width // size.heads)
        self.k, self.v = (torch.empty(shape, dtype=dtype) for _ in range(2))
        self.page_size = page_size
        self.free = list(range(num_pages))
        self.most_used = 0

    def has_room_for(self, tokens):
        return len(self.free) >= -(-tokens // self.page_size)

    def reserve(self, request, tokens):
        while len(request.pages) * self.page_size < tokens:
            request.pages.append(self.free.pop())
        self.most_used = max(self.most_used, self.k.shape[1] - len(self.free))

    def release(self, request):
        self.free += request.pages
        request.pages = []

    def table(self, requests):
        """(requests, most pages), int32; numbers behind a request's own pages are not looked at."""
        longest = max(len(request.pages) for request in requests)
        rows = [request.pages + [-1] * (longest - len(request.pages)) for request in requests]
        return int32(rows)


class Server:
    """Runs requests to their end, at most `batch` at a time and `budget` new tokens a step.

    attend: one of attention_calls.py.
    """

    def __init__(self, model, cache, attend, batch, budget):
        self.model, self.cache, self.attend = model, cache, attend
        self.batch, self.budget = batch, budget
        self.waiting, self.running = deque(), []
        self.steps = 0

    def run(self, requests):
        self.waiting.extend(requests)
        while self.waiting or self.running:
            self.admit()
            self.step()

    def admit(self):
        """First come, first served; a request gets pages for all that it will ever need."""
        while self.waiting and len(self.running) < self.batch:
            request = self.waiting[0]
            tokens = len(request.prompt) + request.wanted
            if not self.cache.has_room_for(tokens):
                if not self.running:
                    raise SystemExit(f"--pages: too few for a request of {tokens} tokens")
                return
            self.cache.reserve(request, tokens)
            self.running.append(self.waiting.popleft())

    def step(self):
        left = self.budget
        parts = []
        for request in self.running:
            part = request.tokens()[request.cached :][: max(left, 0)]
            left -= len(part)
            if part:
                parts.append((request, part))
        self.steps += 1
        predicted = forward(self.model, self.cache, self.attend, parts)
        for (request, part), (score, token) in zip(parts, predicted, strict=True):
            request.cached += len(part)
            if request.cached == len(request.tokens()):  # the whole prompt has been read
                request.answer.append(token)
                request.scores.append(score)
        for request in [r for r in self.running if r.is_done()]:
            self.cache.release(request)
            self.running.remove(request)


def forward(model, cache, attend, parts):
    """(logit, byte) of the likeliest byte after each (request, new tokens).

    The new tokens' keys and values go into the cache.
    """
    counts = [len(part) for _, part in parts]
    cached = int32([request.cached for request, _ in parts])
    step = Step(
        starts=int32([0, *accumulate(counts)]),
        used=cached + int32(counts),
        table=cache.table([request for request, _ in parts]),
        most_new=max(counts),
        most_used=max(request.cached + len(part) for request, part in parts),
    )
    positions = [request.cached + i for request, part in parts for i in range(len(part))]
    layers = iter(zip(cache.k, cache.v, strict=True))

    def append_and_attend(q, k, v):  # (1, tokens, heads, dim), the next layer
        pages = next(layers)
        places = {"cu_seqlens_new": step.starts, "page_table": step.table}
        fa3.append(*pages, k[0], v[0], seqused=cached, **places)
        return attend(q[0], *pages, step)[None]

    tokens = torch.tensor([[token for _, part in parts for token in part]])
    last = step.starts[1:].long() - 1
    return likeliest(logits(model, tokens, positions, append_and_attend)[last])


@torch.no_grad()
def logits(model, tokens, positions, attend):
    """The GPT of examples/gpt, with an attention of the caller's; (tokens, vocabulary)."""
    x = model.tokens(tokens) + model.positions.weight[positions]
    for block in model.blocks:
        block.attention.attend = attend
        x = block(x)
    return model.norm(x[0]) @ model.tokens.weight.T


def likeliest(logits):
    return [tuple(x) for x in zip(*(best.tolist() for best in logits.max(-1)), strict=True)]


# Largest difference of logits, by the type that they were computed in.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def is_as_alone(model, request):
    """Whether every token of the answer is the likeliest without a cache and without company.

    Within the tolerance of logits, another may be as likely."""
    tolerance = TOLERANCE[model.tokens.weight.dtype]
    tokens = list(request.prompt)
    for token, score in zip(request.answer, request.scores, strict=True):
        everywhere = logits(model, torch.tensor([tokens]), range(len(tokens)), attend_fa3)
        scores = everywhere[-1].float()
        if abs(score - scores[token]) > tolerance or scores.max() - scores[token] > tolerance:
            return False
        tokens.append(token)
    return True


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def train(size, text, arguments):
    """A model that has seen enough to prefer some bytes to others."""
    torch.manual_seed(arguments.seed)
    model = GPT(size, attend_fa3).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    on_gpu = arguments.device == "cuda"
    how = argparse.Namespace(batch=8, seed=arguments.seed, device=arguments.device)
    for _, (tokens, targets) in zip(
        range(arguments.train_steps), batches(text, size, how), strict=False
    ):
        with torch.autocast(arguments.device, dtype=torch.bfloat16, enabled=on_gpu):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.bfloat16() if on_gpu else model


def make_requests(text, size, arguments):
    """Prompts are pieces of the text; their lengths, and those of the answers, vary widely."""
    generator = torch.Generator("cpu").manual_seed(arguments.seed)

    def pick(most):
        return int(torch.randint(1, most + 1, (), generator=generator, device="cpu"))

    requests = []
    for _ in range(arguments.requests):
        begin, wanted = pick(len(text) - size.context), pick(size.context // 2)
        prompt = list(text[begin : begin + pick(size.context - wanted)])
        requests.append(Request(prompt, wanted))
    return requests


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--api", choices=BY_API, default="fa3", help="whose call of attention")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8, help="requests at a time")
    parser.add_argument("--budget", type=int, default=64, help="new tokens a step")
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--train-steps", type=int, default=60)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    size = SIZES["tiny"]._replace(context=128)
    text = read_text(None)
    model = train(size, text, arguments)
    torch.set_default_device(arguments.device)
    dtype = model.tokens.weight.dtype
    cache = PagedCache(size, arguments.pages, arguments.page_size, dtype)
    requests = make_requests(text, size, arguments)
    server = Server(model, cache, BY_API[arguments.api], arguments.batch, arguments.budget)
    begin = time.perf_counter()
    server.run(requests)
    seconds = time.perf_counter() - begin
    read, written = (sum(len(getattr(r, x)) for r in requests) for x in ("prompt", "answer"))
    print(f"{len(requests)} requests, {read} tokens read, {written} generated")
    print(f"{server.steps} steps, at most {cache.most_used} of {arguments.pages} pages in use")
    rate = (read + written) / seconds
    print(f"tokens per second: {rate:,.0f}, of which generated {written / seconds:,.0f}")
    different = [r for r in requests if not is_as_alone(model, r)]
    if different:
        print(f"{len(different)} answers differ from those of unpaged attention", file=sys.stderr)
        return 1
    print("every answer is that of unpaged attention")
    return 0


if __name__ == "__main__":
    sys.exit(main())
