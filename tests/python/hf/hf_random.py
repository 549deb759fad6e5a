# SPDX-License-Identifier: Apache-2.0
"""Random conversations with small decoders: a prompt and a few more steps over one cache.

A conversation is drawn from a seed; test_hf_random.py has it with eager attention and with fa3.
"""

import random
from typing import NamedTuple

import hf_models
import torch
from transformers import DynamicCache, QuantizedCache, StaticCache, cache_utils

# family of hf_models.CALLS -> model types, changes for a window (or chunk) of a drawn size
FAMILIES = {
    "llama": ("decoder", None),
    "qwen3": ("decoder", None),
    "gpt2": ("decoder", None),
    "deepseek_v3": ("decoder", None),
    "mistral": ("windowed", "sliding_window"),
    "gemma3_text": ("windowed", "sliding_window"),
    "gemma2": ("softcapped", "sliding_window"),
    "gpt_oss": ("sinks", "sliding_window"),
    "llama4_text": ("chunked", "attention_chunk_size"),
}
CACHES = ("none", "sliding", "full", "static", "quantized")  # quantized ones have no windows
CAN_QUANTIZE = hasattr(cache_utils, "Fp8QuantizedLayer")  # Transformers 5: needs no other package
PADDINGS = ("none", "left", "right")
REACHES = (2, 3, 5, 8)  # windows and chunks, in keys

REFUSED = "expected no padding between the tokens of a sequence"


class Conversation(NamedTuple):
    """Drawn by its seed; its repr says how to have it again."""

    name: str
    seed: int
    reach: int  # of the window or chunk, where the model has one
    cache: str
    padding: str
    real: tuple  # tokens of each row of the prompt that are no padding
    steps: tuple  # tokens of each call; the first one is the prompt

    def may_be_refused(self):
        """Padding on the right of the prompt comes to lie between tokens, and several queries of a
        later step reach over it with a window."""
        between = self.padding == "right" and min(self.real) < self.steps[0]
        steps = self.steps[1:] if self.cache != "none" else [sum(self.steps)][: len(self.steps) - 1]
        return bool(FAMILIES[self.name][1]) and between and any(n > 1 for n in steps)


def drawn(name, seed):
    draw = random.Random(f"{name} {seed}")
    prompt = draw.randint(1, 20)
    padding = draw.choice(PADDINGS)
    rows = draw.randint(1, 3)
    real = tuple(prompt if padding == "none" else draw.randint(1, prompt) for _ in range(rows))
    several = draw.choice(((1,), (1, 1, 2, 5)))  # tokens of a step
    more = tuple(draw.choice(several) for _ in range(draw.randint(1, 4)))
    cache = draw.choice(CACHES if FAMILIES[name][1] is None and CAN_QUANTIZE else CACHES[:-1])
    return Conversation(name, seed, draw.choice(REACHES), cache, padding, real, (prompt, *more))


def model(conversation):
    family, field = FAMILIES[conversation.name]
    changes = {} if field is None else {field: conversation.reach}
    if conversation.cache == "quantized":
        # Behind a first layer of attention equal numbers may round to unequal ones.
        changes["num_hidden_layers"] = 1
    return hf_models.model(family, conversation.name, **changes)


def hidden_states(model, conversation):
    """Hidden states of every step, where no padding stands."""
    generator = torch.Generator().manual_seed(conversation.seed)
    ids = torch.randint(
        3, 99, (len(conversation.real), sum(conversation.steps)), generator=generator
    )
    mask = padding_mask(conversation)
    cache = new_cache(conversation.cache, model.config, ids.shape[1])
    found, end = [], 0
    for step in conversation.steps:
        begin, end = (0 if cache is None else end), end + step
        inputs = {"input_ids": ids[:, begin:end], "use_cache": cache is not None}
        if cache is not None:
            inputs["past_key_values"] = cache
        if mask is not None:
            inputs["attention_mask"] = mask[:, :end]
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state
        found.append(hidden if mask is None else hidden[mask[:, begin:end].bool()])
    return found


def padding_mask(conversation):
    if conversation.padding == "none":
        return None
    mask = torch.ones(len(conversation.real), sum(conversation.steps), dtype=torch.long)
    prompt = conversation.steps[0]
    for row, real in zip(mask, conversation.real, strict=True):
        row[slice(real, prompt) if conversation.padding == "right" else slice(prompt - real)] = 0
    return mask


def new_cache(kind, config, length):
    if kind == "none":
        return None
    if kind == "static":
        return StaticCache(config, max_cache_len=length)
    if kind == "quantized":
        return QuantizedCache("fp8", config)
    return DynamicCache(config=config) if kind == "sliding" else DynamicCache()
