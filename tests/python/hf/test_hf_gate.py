# SPDX-License-Identifier: Apache-2.0
"""Models whose layers multiply attention by a sigmoid of a gate, and the step of QK-clip.

Transformers multiplies behind the attention interface, so that fa3 runs such a model as it is. A
layer that hands its gate to fa3.hf has the product in the kernel, and one tensor less to keep.
"""

import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", "4.57")

import fa3  # noqa: E402
import fa3.hf  # noqa: E402

MODELING = pytest.importorskip(
    "transformers.models.qwen3_next.modeling_qwen3_next",
    reason="this Transformers has no Qwen3-Next",
)
CONFIG = transformers.Qwen3NextConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    num_experts=2,
    num_experts_per_tok=1,
    num_hidden_layers=2,
    layer_types=["full_attention"] * 2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


def model_on(implementation):
    torch.manual_seed(0)
    config = type(CONFIG)(**CONFIG.to_dict())
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    ).eval()


def gated_forward(
    self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs
):
    """Qwen3NextAttention.forward, with the gate handed to fa3."""
    shape = hidden_states.shape[:-1]
    heads = (*shape, -1, self.head_dim)
    q, gate = self.q_proj(hidden_states).view(*shape, -1, 2 * self.head_dim).chunk(2, dim=-1)
    q = self.q_norm(q).transpose(1, 2)
    k = self.k_norm(self.k_proj(hidden_states).view(heads)).transpose(1, 2)
    v = self.v_proj(hidden_states).view(heads).transpose(1, 2)
    q, k = MODELING.apply_rotary_pos_emb(q, k, *position_embeddings)
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    out, _ = fa3.hf.attention_forward(
        self, q, k, v, attention_mask, scaling=self.scaling, gate=gate, **kwargs
    )
    return self.o_proj(out.flatten(-2)), None


def give_gates(model):
    for layer in model.model.layers:
        layer.self_attn.forward = types.MethodType(gated_forward, layer.self_attn)
    return model


@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_qwen3_next_with_its_gate_in_the_kernel_equals_eager(padding):
    tokens = torch.arange(14).reshape(2, 7)
    given = {"input_ids": tokens}
    seen = torch.ones(2, 7, dtype=torch.long)
    if padding is not None:
        seen[0, :3] = 0
        seen = seen if padding == "left" else seen.flip(1)
        given["attention_mask"] = seen
    results = []
    for model in (model_on("eager"), model_on("fa3"), give_gates(model_on("fa3"))):
        logits = model(**given).logits[seen.bool()]
        parameters = [layer.self_attn.q_proj.weight for layer in model.model.layers]
        results.append([logits, *torch.autograd.grad(logits.square().sum(), parameters)])
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def test_qwen3_next_generates_the_tokens_of_eager_with_its_gate_in_the_kernel():
    tokens = torch.arange(14).reshape(2, 7)
    options = {"max_new_tokens": 5, "do_sample": False}
    want, got = (
        model.generate(tokens, **options)
        for model in (model_on("eager"), give_gates(model_on("fa3")))
    )
    assert torch.equal(want, got)


@pytest.mark.parametrize("alpha", [0.5, 0.25])
def test_the_step_of_qk_clip_is_that_of_stored_scores(alpha):
    """Megatron-LM's: eta = min(threshold / max logit, 1) of a head scales its rows of the query
    projection by eta**alpha and those of the key projection by eta**(1 - alpha)."""
    torch.manual_seed(0)
    heads, dim, width, threshold = 4, 16, 64, 1.0
    x = torch.randn(2, 33, width)
    w_q, w_k, w_v = (0.3 * torch.randn(heads * dim, width) for _ in range(3))

    def project(weight):
        return (x @ weight.T).unflatten(-1, (heads, dim))

    def clipped(max_logit):
        eta = (threshold / max_logit.amax(0)).clamp(max=1.0)
        rows = eta.repeat_interleave(dim)[:, None]
        return w_q * rows**alpha, w_k * rows ** (1 - alpha)

    q, k, v = map(project, (w_q, w_k, w_v))
    _, max_logit = fa3.attention(q, k, v, causal=True, return_max_logit=True)
    scores = dim**-0.5 * torch.einsum("bihd,bjhd->bhij", q, k)
    hidden = torch.ones(33, 33, dtype=torch.bool).triu(1)
    stored = scores.masked_fill(hidden, -torch.inf).amax((2, 3))
    assert (stored.amax(0) > threshold).all()
    for a, b in zip(clipped(max_logit), clipped(stored), strict=True):
        torch.testing.assert_close(a, b)
    q, k = map(project, clipped(max_logit))
    _, after = fa3.attention(q, k, v, causal=True, return_max_logit=True)
    torch.testing.assert_close(after.amax(0), torch.full((heads,), threshold))
