# SPDX-License-Identifier: Apache-2.0
"""Model families of Transformers as data: tiny configurations with random weights, and what each is
given. REFUSED says which calls fa3 raises Unsupported for, and in which words.
"""

import functools

import torch
import transformers
from transformers import CONFIG_MAPPING, StaticCache

ROWS = 7  # of queries and of keys: an encoder and its decoder have the same length

# model type -> changes to the tiny configuration
DECODERS = {
    "cohere2": {},
    "deepseek_v3": {"num_key_value_heads": 4},  # the head dim of V differs
    "exaone4": {},
    "gemma": {},
    "glm4": {},
    "gpt2": {},
    "gpt_neox": {},
    "granite": {},
    "lfm2": {},  # convolutions between
    "llama": {},
    "mixtral": {},
    "olmo2": {},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
    "smollm3": {},
    "stablelm": {},
}
WINDOWED = {
    "gemma3_text": {},
    "mistral": {},
    "starcoder2": {},
}
SOFTCAPPED = {"gemma2": {"attn_logit_softcapping": 2.0}, "vaultgemma": {}}
SINKS = {"deepseek_v4": {}, "gpt_oss": {}, "granite_swa": {}, "mimo_v2_flash": {}}
CHUNKED = {"llama4_text": {"attention_chunk_size": 4}}
ONE_CHUNK = {"llama4_text": {"attention_chunk_size": 16}}  # holds all
IMAGES_BESIDE_TEXT = {"idefics3": {}, "llava": {}, "mllama": {}, "molmo2": {}, "paligemma": {}}
ENCODERS = {
    "albert": {},
    "bert": {},
    "distilbert": {},
    "electra": {},
    "modernbert": {},  # windows to both sides
    "roberta": {},
    "splinter": {},
    "xlm-roberta": {},
}
ENCODER_DECODERS = {
    "bart": {},
    "blenderbot": {},
    "m2m_100": {},
    "marian": {},
    "mbart": {},
    "nllb-moe": {},
    "pegasus": {},
    "pegasus_x": {},
}
VISION = {
    "clip_vision_model": {},
    "deit": {},
    "dinov2": {},
    "dpt": {},
    "siglip_vision_model": {},
    "vit": {},
}
SPEECH = {
    "wav2vec2": {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 8},
    "whisper": {"max_source_positions": 16, "num_mel_bins": 8},
}
SPARSE = {
    "layer_types": ["minimax_m3_sparse"] * 2,
    "index_head_dim": 8,
    "index_block_size": 2,
    "index_topk_blocks": 1,
}
OWN_MASK = {
    "bigbird_pegasus": {},
    "bloom": {},
    "codegen": {"rotary_dim": 8},
    "doge": {},
    "git": {},
    "layoutlm": {},
    "led": {"attention_window": 4},
    "minimax_m3_vl_text": SPARSE,
    "mpnet": {},
    "mpt": {},
    "pixtral": {},
    "t5": {},
    "umt5": {},
    "xglm": {},
}

PADDED = ("right", "left")
PACKED = ("packed", "packed batch")
CACHED = ("static cache", "growing cache")  # the second one of a batch with padding on the left
CALLS = {  # family: what its models are called with
    "decoder": (DECODERS, ("plain", *PADDED, *PACKED, *CACHED)),
    "windowed": (WINDOWED, ("plain", *PADDED, *PACKED, *CACHED)),
    "softcapped": (SOFTCAPPED, ("plain", *PADDED, *PACKED, *CACHED)),
    "sinks": (SINKS, ("plain", *PADDED, *PACKED, "growing cache")),
    "chunked": (CHUNKED, ("plain", *PADDED, *PACKED, *CACHED)),
    "one chunk": (ONE_CHUNK, ("plain", *CACHED)),
    "images": (IMAGES_BESIDE_TEXT, ("plain", *PADDED, *PACKED, *CACHED)),
    "encoder": (ENCODERS, ("plain", *PADDED)),
    "encoder-decoder": (ENCODER_DECODERS, ("plain", *PADDED, "growing cache")),
    "vision": (VISION, ("plain",)),
    "speech": (SPEECH, ("plain",)),
    "own mask": (OWN_MASK, ("plain",)),
}

COMPUTES = "attention_mask: the model computes with its mask"
STARTS_ANEW = "position_ids: they start anew"
# (family, model type, call or None for each) -> words of the sentence
REFUSED = {
    **{("own mask", name, None): COMPUTES for name in ("bigbird_pegasus", "bloom", "codegen")},
    **{("own mask", name, None): COMPUTES for name in ("doge", "led", "mpnet", "mpt", "xglm")},
    ("own mask", "git", None): "attention_mask: .* got or_masks",
    ("own mask", "layoutlm", None): r"attention_mask: .* the model's own of shape \(2, 1, 1, 7\)",
    ("own mask", "minimax_m3_vl_text", None): "block_indices: expected None, got a tensor",
    ("own mask", "pixtral", None): "attention_mask: .* one of the model's own",
    ("own mask", "t5", None): "position_bias: expected None, got a tensor",
    ("own mask", "umt5", None): "position_bias: expected None, got a tensor",
    # Their eager attention lets packed sequences see each other: no mask of theirs knows of them.
    ("sinks", "gpt_oss", "packed"): STARTS_ANEW,
}
# By "fa3_flex": what is not added to scores and hides no key by itself.
REFUSED_BY_FLEX = {
    ("own mask", "minimax_m3_vl_text", None): "block_indices: expected None, got a tensor",
    ("sinks", "gpt_oss", "packed"): STARTS_ANEW,
}

TINY = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "image_size", "moe_intermediate_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "eos_token_id"), 2),
    **dict.fromkeys(("n_group", "topk_group", "bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("sliding_window", "patch_size"), 4),
    "vocab_size": 99,
    "pad_token_id": 0,
}


def every_call():
    """(family, model type, call), for each of which eager and fa3 are compared."""
    return [
        (family, name, call)
        for family, (models, calls) in CALLS.items()
        for name in models
        for call in calls
    ]


def refusal(family, name, call, refused=REFUSED):
    return refused.get((family, name, call)) or refused.get((family, name, None))


@functools.cache
def model(family, name, classes="MODEL_MAPPING", **changes):
    """The model with random weights, in eval mode and without dropout; classes: with which head."""
    config = tiny(CONFIG_MAPPING[name]())
    for field, value in {**CALLS[family][0][name], **changes}.items():
        setattr(config, field, value)
    torch.manual_seed(0)
    made = getattr(transformers, classes)[type(config)]._from_config(
        config, attn_implementation="eager"
    )
    for parameter_name, parameter in made.named_parameters():
        if "sink" in parameter_name:
            torch.nn.init.normal_(parameter)
    return made.float().eval()


def use(model, implementation):
    model.set_attn_implementation(implementation)
    # Transformers only warns where a model computes its attention itself.
    model.config._attn_implementation = implementation


def tiny(config):
    for field, value in TINY.items():
        if isinstance(getattr(config, field, None), int):
            setattr(config, field, value)
    for field, value in list(vars(config).items()):
        if isinstance(value, float) and "drop" in field:
            setattr(config, field, 0.0)
        elif hasattr(value, "to_dict"):
            tiny(value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    return config


def outputs(model, call):
    """Hidden states of one call, where something real stands; the second call for a cache."""
    torch.manual_seed(0)  # pixels, and models that draw
    inputs = inputs_for(model, call)
    with torch.no_grad():
        if call in CACHED:
            inputs = after_a_first_call(model, inputs, call)
        hidden = model(**inputs).last_hidden_state
    if call in PADDED and not model.config.is_encoder_decoder:
        return hidden[inputs["attention_mask"].bool()]
    return hidden


def after_a_first_call(model, inputs, call):
    """Inputs of a second call, two tokens more."""
    cache = None
    if call == "static cache":
        cache = StaticCache(model.config.get_text_config(), max_cache_len=16)
    cache = model(**inputs, past_key_values=cache, use_cache=True).past_key_values
    if model.config.is_encoder_decoder:
        return inputs | {"decoder_input_ids": inputs["input_ids"][:, :2], "past_key_values": cache}
    more = {"input_ids": inputs["input_ids"][:, :2], "past_key_values": cache}
    if "attention_mask" in inputs:
        more["attention_mask"] = torch.nn.functional.pad(inputs["attention_mask"], (0, 2), value=1)
    return more


def inputs_for(model, call):
    config, name = model.config, model.main_input_name
    if name == "pixel_values":
        return {name: torch.randn(2, 3, config.image_size, config.image_size)}
    if name == "input_values":
        return {name: torch.randn(2, 8000)}
    if name == "input_features":
        features = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
        return {name: features, "decoder_input_ids": torch.randint(3, 99, (2, ROWS))}
    batch = 1 if call == "packed" else 2
    ids = torch.randint(3, 99, (batch, ROWS))
    inputs = {"input_ids": ids}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.flip(1)
    if call in (*PADDED, "growing cache"):
        mask = torch.ones_like(ids)
        mask[0, 4:] = 0
        inputs["attention_mask"] = mask if call == "right" else mask.flip(1)
    if call in PACKED:
        positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
        inputs |= {"position_ids": positions.expand(batch, -1), "use_cache": False}
    return inputs
