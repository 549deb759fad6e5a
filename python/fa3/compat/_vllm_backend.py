# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend FA3_EXACT: its classes, over fa3.compat.vllm. Imported by vLLM alone.

vLLM's cache is (blocks, kv heads, block size, 2 * head size), keys before values in each row; the
caches of fa3 are views of it. vLLM's own kernel writes new rows.
"""

from dataclasses import dataclass, replace

import torch
from vllm import _custom_ops
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from fa3.compat._arguments import unsupported
from fa3.compat.plugins import NAME
from fa3.compat.vllm import flash_attn_varlen_func
from fa3.errors import Unsupported

ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
FLOAT8 = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


class Backend(AttentionBackend):
    supported_kv_cache_dtypes = ("auto", "float16", "bfloat16", *FLOAT8)
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return NAME.upper()  # vLLM looks it up in its registry

    @staticmethod
    def get_impl_cls():
        return Implementation

    @staticmethod
    def get_builder_cls():
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size):
        return head_size <= 256

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.major >= 8

    @classmethod
    def supports_sliding_window(cls):
        return True

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type in tuple(AttentionType)


@dataclass
class Metadata:
    """What all layers share of a batch, under the names of vLLM's own backends."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    max_seq_len: int
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool | torch.Tensor = True


class MetadataBuilder(AttentionMetadataBuilder):
    # fa3 reads lengths on the device. Graphs of other batches than of decoding have not been tried.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table = True

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        batch = common_attn_metadata
        return Metadata(
            num_actual_tokens=batch.num_actual_tokens,
            max_query_len=batch.max_query_len,
            query_start_loc=batch.query_start_loc,
            max_seq_len=batch.max_seq_len,
            seq_lens=batch.seq_lens,
            block_table=batch.block_table_tensor,
            slot_mapping=batch.slot_mapping,
            causal=batch.causal,
        )

    def update_block_table(self, metadata, blk_table, slot_mapping):
        return replace(metadata, block_table=blk_table, slot_mapping=slot_mapping)


class Implementation(AttentionImpl):
    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads=None,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type=AttentionType.DECODER,
        kv_sharing_target_layer_name=None,
        sinks=None,
    ):
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes)
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.softcap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def caches(self, kv_cache):
        """k and v of all blocks: (blocks, block size, kv heads, head size)."""
        if kv_cache.ndim != 4 or kv_cache.shape[-1] != 2 * self.head_size:
            raise Unsupported(
                "kv_cache: expected (blocks, kv heads, block size, 2 * head size), as vLLM 0.33 "
                f"has it, got {tuple(kv_cache.shape)} for a head size of {self.head_size}"
            )
        return kv_cache.transpose(1, 2).split(self.head_size, dim=-1)

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        """Writes new keys and values into their slots; slots below 0 are padding."""
        if self.attn_type in ENCODERS:
            return
        k, v = self.caches(kv_cache)
        scales = layer._k_scale, layer._v_scale
        _custom_ops.reshape_and_cache_flash(
            key, value, k, v, slot_mapping, self.kv_cache_dtype, *scales
        )

    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ):
        """Attention of the batch, written into output (tokens, heads, head size)."""
        unsupported(
            output_scale=(output_scale, None, "fa3 writes no float8 outputs"),
            output_block_scale=(output_block_scale, None, "fa3 writes no float8 outputs"),
        )
        if attn_metadata is None:  # vLLM measures its memory
            return output.fill_(0)
        batch = attn_metadata
        rows = slice(batch.num_actual_tokens)  # padding follows
        is_decided_on_device = isinstance(batch.causal, torch.Tensor)
        causal = not is_decided_on_device and batch.causal and self.attn_type not in ENCODERS
        if self.attn_type in ENCODERS:
            k, v = key[rows], value[rows]
            lengths = {
                "cu_seqlens_k": batch.query_start_loc,
                "max_seqlen_k": batch.max_query_len,
            }
        else:
            k, v = self.caches(kv_cache)
            if self.kv_cache_dtype in FLOAT8:
                k, v = (x.view(FLOAT8[self.kv_cache_dtype]) for x in (k, v))
            lengths = {
                "seqused_k": batch.seq_lens,
                "max_seqlen_k": batch.max_seq_len,
                "block_table": batch.block_table,
            }
        if self.alibi_slopes is not None:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        scale_shape = batch.query_start_loc.shape[0] - 1, self.num_kv_heads
        flash_attn_varlen_func(
            query[rows],
            k,
            v,
            batch.max_query_len,
            batch.query_start_loc,
            out=output[rows],
            softmax_scale=self.scale,
            causal=causal,
            window_size=self.window(causal),
            softcap=self.softcap,
            alibi_slopes=self.alibi_slopes,
            k_descale=layer._k_scale.expand(scale_shape),
            v_descale=layer._v_scale.expand(scale_shape),
            s_aux=self.sinks,
            dynamic_causal=batch.causal if is_decided_on_device else None,
            **lengths,
        )
        return output

    def window(self, causal):
        """vLLM's window counts the query's own key; without causal it has two equal sides."""
        if self.sliding_window is None:
            return None
        reach = self.sliding_window - 1
        return reach, 0 if causal else reach
