# SPDX-License-Identifier: Apache-2.0
"""The function names of the flash_attn packages and of serving engines, over fa3.

fa3.compat.flash_attn_interface has the order of FlashAttention-3, fa3.compat.flash_attn that of
FlashAttention-2 (dropout_p comes fourth there), fa3.compat.bert_padding its helpers for padded
batches. Change the import and keep the calls, or have the original names mean fa3 by fa3 adopt.
fa3.compat.vllm and fa3.compat.sglang have the calls of those engines, fa3.compat.plugins makes fa3
a backend of both. Latent caches (MLA): fa3.compat.flash_mla has the calls of FlashMLA,
fa3.compat.sgl_flash_mla sglang's form of them, fa3.compat.flashinfer those of FlashInfer,
fa3.compat.vllm_cache vLLM's writer.
"""
