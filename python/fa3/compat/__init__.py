# SPDX-License-Identifier: Apache-2.0
"""The function names of the flash_attn packages and of serving engines, over fa3.

fa3.compat.flash_attn_interface has the order of FlashAttention-3, fa3.compat.flash_attn that of
FlashAttention-2 (dropout_p comes fourth there). Change the import and keep the calls. Nothing is
installed under the original names. fa3.compat.vllm and fa3.compat.sglang have the calls of those
engines.
"""
