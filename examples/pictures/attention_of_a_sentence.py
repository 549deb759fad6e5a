# SPDX-License-Identifier: Apache-2.0
"""Draws which words three heads of a trained transformer look at, computed by fa3.

    python3 examples/pictures/attention_of_a_sentence.py [--out FILE.svg]    # needs matplotlib

fa3 never stores the attention weights. An identity matrix as V brings them out, since then
O = P V = P: column j of the output is the weight of key j.
"""

import argparse
from pathlib import Path

import numpy as np

import fa3

DATA = Path(__file__).resolve().parent.parent / "data"
# The first tokens of examples/data/text.txt, as the model's tokenizer cuts them.
TOKENS = "[CLS] call me is ##hma ##el . some years ago - - never mind how long precisely".split()
HEADS = [  # layer, head, what the picture shows
    (0, 2, "the word before"),
    (2, 8, "the word after"),
    (0, 11, "everything"),
]


def weights(layer):
    """(heads, queries, keys): the attention weights of a layer."""
    q, k = (np.load(DATA / f"minilm_layer{layer}_{n}.npy").astype(np.float32) for n in "qk")
    _, keys, heads, _ = k.shape
    identity = np.broadcast_to(np.eye(keys, dtype=np.float32)[:, None], (keys, heads, keys))
    out = fa3.attention(q, k, np.ascontiguousarray(identity[None]))  # (1, queries, heads, keys)
    return out[0].transpose(1, 0, 2)


def facts(p):
    """Mean weight of the key before, of the key after, and the number of keys a query looks at."""
    before, after = (np.diagonal(p, offset).mean() for offset in (-1, 1))
    entropy = -(p * np.log(np.maximum(p, 1e-30))).sum(-1).mean()
    return before, after, np.exp(entropy)


def draw(chosen, path):
    from matplotlib import pyplot

    ink = "#7d8790"  # readable on white and on black pages
    names = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color")
    style = dict.fromkeys((*names, "ytick.color"), ink)
    pyplot.rcParams.update(
        style | {"savefig.transparent": True, "svg.hashsalt": "fa3", "svg.fonttype": "none"}
    )
    figure, panels = pyplot.subplots(1, len(chosen), figsize=(13, 4.6), layout="constrained")
    shown = len(TOKENS)
    for panel, (layer, head, title, p) in zip(panels, chosen, strict=True):
        panel.imshow(p[:shown, :shown], cmap="Oranges", vmin=0, vmax=1)
        panel.set_title(f"layer {layer}, head {head}: {title}")
        panel.set_xticks(range(shown), TOKENS, rotation=90)
        panel.set_yticks(range(shown), TOKENS)
        panel.set_xlabel("key")
    panels[0].set_ylabel("query")
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("attention-of-a-sentence.svg"))
    out = parser.parse_args().out
    chosen = []
    print("layer  head  weight before  weight after  keys looked at, of 282")
    for layer, head, title in HEADS:
        p = weights(layer)[head]
        before, after, keys = facts(p)
        print(f"{layer:5d} {head:5d} {before:14.2f} {after:13.2f} {keys:10.0f}")
        chosen.append((layer, head, title, p))
    draw(chosen, out)


if __name__ == "__main__":
    main()
